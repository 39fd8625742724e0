"""Is anything unpickled? No module of an agent, a coordinator, the supervisor or `holdfast.elastic` does so."""

from __future__ import annotations

import ast
import functools
import pickle
import resource
from pathlib import Path
from typing import Any

import pytest
from kit import ROOT
from kit.imports import tree_of

from holdfast.diagnosis.hangs import plain_pickle

SOURCE = ROOT / "src/holdfast"

UNPICKLES = {
    *("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "shutil.unpack_archive"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.Loader", "yaml.UnsafeLoader", "yaml.FullLoader"),
    *("torch.load", "numpy.load", "np.load", "multiprocessing.connection.Client", "multiprocessing.connection.Listener"),
}
"""Modules, functions and classes that make what bytes say, with whatever that calls."""

IN_A_RANK = {
    "client/collectives.py": "torch's own record, in the rank whose torch has made it",
    "checkpointing": "the rank's own checkpoints, as NVRx writes them",
}
"""Where they may stand, and why: what they read is of the rank itself, which runs the user's code anyway."""


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def dotted(node: ast.AST) -> str:
    """`a.b.c`, as it is written; empty: it is none."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr) if before := dotted(value):
            return f"{before}.{attr}"
    return ""


@functools.cache
def uses(path: Path) -> set[str]:
    """Which of these a module imports or calls."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.Import(names=names):
                found |= {one.name for one in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module, *(f"{module}.{one.name}" for one in names)}
            case ast.Name() | ast.Attribute():
                found.add(dotted(node))
    return found & UNPICKLES


def is_of_a_rank(path: Path) -> bool:
    name = str(path.relative_to(SOURCE))
    return any(name == place or name.startswith(f"{place}/") for place in IN_A_RANK)


def test_no_module_outside_a_rank_has_what_unpickles() -> None:
    found = {str(path.relative_to(SOURCE)): uses(path) for path in sources() if not is_of_a_rank(path)}
    assert {name: used for name, used in found.items() if used} == {}


def test_the_exceptions_are_needed() -> None:
    those = [str(path.relative_to(SOURCE)) for path in sources() if uses(path)]
    used = {place for place in IN_A_RANK for name in those if name.startswith(place)}
    assert used == {*IN_A_RANK}


HOOK = """
import os, sys
if sys.argv and "--nnodes" in sys.orig_argv:
    def heard(event, args, at=os.environ["NOTES"], is_agent=os.getpid()):
        is_one = event.startswith("pickle.") or (event == "import" and args[0] in ("pickle", "_pickle"))
        if is_one and os.getpid() == is_agent:
            with open(at, "a") as file:
                print(event, args[0], file=file)
    sys.addaudithook(heard)
    with open(os.environ["NOTES"], "a") as file:
        print("began", file=file)
"""


def test_agents_that_train_restart_and_end_never_load_it(holdfast: Any, free_port: int, script: Any, tmp_path: Path) -> None:
    """Two nodes with a token, a failure, a stash and its replicas."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(HOOK)
    program = script("import os, sys; sys.exit(os.environ['RANK'] == '1' and os.environ['HOLDFAST_ROUND'] == '1')")
    env = {"HOLDFAST_TOKEN": "a secret of enough characters", "PYTHONPATH": str(hooks), "NOTES": str(tmp_path / "notes")}
    options = ("--nnodes", 2, "--max-restarts", 1, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}")
    agents = [
        holdfast.start("run", *options, "--rdzv-id", "plain", "--node-name", name, "--stash-replicate", program, env=env)
        for name in "ab"
    ]
    assert [agent.wait().returncode for agent in agents] == [0, 0], agents[0].stderr
    assert (tmp_path / "notes").read_text().splitlines() == ["began", "began"]


# --- what reads torch's record ----------------------------------------------------------------------------------------------

ENTRY = {"a": 1, "b": [1.5, (1, 2), None, True], "c": "é" * 300, "d": 1 << 80, "e": -5}
PLAIN = {"entries": [ENTRY] * 3, "f": {}, "g": ((4,),)}


@pytest.mark.parametrize("protocol", range(1, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_are_read_in_each_protocol(protocol: int) -> None:
    assert plain_pickle.read(pickle.dumps(PLAIN, protocol)) == PLAIN


BOMBS = {
    "calls": b"cos\nsystem\n(S'true'\ntR.",
    "a table of gigabytes": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "text of gigabytes": b"\x80\x04\x8d\xff\xff\xff\xff\x00\x00\x00\x00a.",
    "a number of gigabytes": b"\x80\x02\x8b\xff\xff\xff\x7f\x01.",
    "no end": b"\x80\x02N",
    "nothing": b"",
    "no list": b"\x80\x02NNa.",
    "no dict": b"\x80\x02NNNs.",
}


@pytest.mark.parametrize("what", BOMBS)
def test_anything_else_is_refused_and_costs_nothing(what: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if what == "a table of gigabytes":  # it is none here: a number of a place is only a number
        assert plain_pickle.read(BOMBS[what]) is None
    else:
        with pytest.raises(ValueError):
            plain_pickle.read(BOMBS[what])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_lists_of_the_same_lists_do_not_grow() -> None:
    nested: list[Any] = ["x"]
    for _ in range(40):
        nested = [nested, nested]
    with pytest.raises(ValueError, match="values twice"):
        plain_pickle.read(pickle.dumps(nested))

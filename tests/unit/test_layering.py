"""Who may import whom? The house's rules, held over the syntax tree of every module, each with its reason.

The layers stand in `tests/kit/layers.py`, and docs/layers.svg shows them.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from kit.imports import Import, imports, modules, tree_of
from kit.layers import FLOORS

FLOOR = {package: number for number, floor in enumerate(FLOORS) for package in floor}
TORCH_MODULES = ("holdfast.integrations.torch", "holdfast.integrations.lightning_straggler", "holdfast.inprocess")
FOR_TORCH = ("straggler", "checkpointing")
"""Packages of no use to a script without torch."""
IN_A_RANK = ("fault_tolerance", "inprocess", "ptl_resiliency", "google", *FOR_TORCH)
"""Packages that a training script imports: loading them must load nothing of the agent."""
LOADED_BY_NO_RANK = ("holdfast.fault_tolerance._watched",)
"""Modules of those packages that only a monitor's own process loads, within a function."""
MAY_KNOW_CLIENT = ("elastic", "fault_tolerance", "inprocess", "google", *FOR_TORCH, "integrations", "cli", "sim")
PURE_MODULES = (
    "holdfast.rendezvous.coordinator.machine",
    "holdfast.rendezvous.coordinator.member_messages",
    "holdfast.rendezvous.coordinator.failure_handling",
    "holdfast.rendezvous.coordinator.hang_blame",
    "holdfast.rendezvous.coordinator.gathering",
    "holdfast.rendezvous.coordinator.membership",
    "holdfast.rendezvous.election.peer_dialer",
    "holdfast.rendezvous.election.ballot",
    "holdfast.rendezvous.election.witness_claims",
    "holdfast.rendezvous.election.roster",
    "holdfast.rendezvous.coordinator.exclusion",
    "holdfast.rendezvous.coordinator.admission",
    "holdfast.rendezvous.coordinator.job",
    "holdfast.rendezvous.coordinator.pace",
    "holdfast.rendezvous.coordinator.pending_requests",
    "holdfast.rendezvous.coordinator.requests",
    "holdfast.rendezvous.coordinator.rounds",
    "holdfast.rendezvous.placement.placement",
    "holdfast.agent.group.machine",
    "holdfast.agent.group.stopping",
    "holdfast.agent.group.shutdown",
    "holdfast.agent.group.hang_response",
    "holdfast.agent.group.gpu_memory_wait",
    "holdfast.agent.group.signal_forwarding",
    "holdfast.agent.group.state",
    "holdfast.agent.group.round_start",
    "holdfast.agent.group.job_end",
    "holdfast.agent.group.worker_events",
    "holdfast.agent.group.node_health",
    "holdfast.agent.spares.machine",
    "holdfast.agent.spares.import_list",
    "holdfast.agent.spares.state",
    "holdfast.agent.faults.machine",
    "holdfast.elastic.rendezvous.next_step",
    "holdfast.elastic.rendezvous.shared_state",
    "holdfast.supervisor.change_log",
    "holdfast.supervisor.connections",
    "holdfast.supervisor.fleet.reporting.forgetting",
    "holdfast.supervisor.fleet.reporting.claims",
    "holdfast.supervisor.web.view",
    "holdfast.supervisor.web.openapi",
    "holdfast.supervisor.fleet.machine",
    "holdfast.supervisor.fleet.state",
    "holdfast.supervisor.fleet.reporting.reporters",
    "holdfast.supervisor.fleet.reporting.silence",
    "holdfast.supervisor.fleet.deeds",
    "holdfast.supervisor.fleet.operator_actions",
    "holdfast.supervisor.fleet.node",
    "holdfast.supervisor.fleet.job",
    "holdfast.supervisor.fleet.queues",
    "holdfast.supervisor.fleet.swap_steps",
    "holdfast.supervisor.fleet.action_log",
    "holdfast.supervisor.notify.delivery_queue",
    "holdfast.supervisor.notify.round_events",
    "holdfast.supervisor.fleet.policies",
    "holdfast.supervisor.fleet.policies.case",
    "holdfast.supervisor.fleet.policies.default",
    "holdfast.supervisor.fleet.policies.google",
)
PURE_PACKAGES = ("core", "recovery")
IMPURE = frozenset(
    ("time", "os", "socket", "random", "subprocess", "logging", "threading", "datetime", "uuid", "secrets", "select", "asyncio")
)
PATHS_AS_TEXT = frozenset(
    ("sep", "pathsep", "fspath", "path.join", "path.dirname", "path.basename", "path.abspath", "path.normpath", "path.splitext")
)
"""What of `os` a pure module may use: it looks at names, not at the disk."""
THIRD_PARTY_FREE = ("core", "client")
STANDARD = sys.stdlib_module_names | {"sitecustomize", "usercustomize"}  # and Python's hooks: the user's own


def package_of(name: str) -> str | None:
    """`holdfast.agent.logs.tail` → `agent`; None for what is not ours. The entry point `holdfast.__main__` counts as cli."""
    parts = name.split(".")
    if parts[0] != "holdfast":
        return None
    if len(parts) == 1 or parts[1] in ("__version__", "__init__"):
        return "core"
    return "cli" if parts[1] == "__main__" else parts[1]


def is_machine(tree: ast.Module) -> bool:
    """Does it define a class with `observe(self, …, now)`?"""
    methods = (item for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for item in node.body)
    return any(
        isinstance(method, ast.FunctionDef) and method.name == "observe" and any(arg.arg == "now" for arg in _arguments(method))
        for method in methods
    )


def _only_paths(tree: ast.Module) -> bool:
    """Is all that is used of `os` about paths as text?"""
    names = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {name.removeprefix("os.") for name in names if name.startswith("os.") and name != "os.path"} <= PATHS_AS_TEXT


def _arguments(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def faults(tree: ast.Module, module: str, is_package: bool = False) -> list[str]:
    """What is wrong with `module`, in words: `line: import: reason`."""
    here = package_of(module) or "core"
    pure = here in PURE_PACKAGES or module in PURE_MODULES or is_machine(tree)
    found = []
    for used in imports(tree, module, is_package):
        there = package_of(used.name)
        reasons = [_wrong_floor(here, module, there, used) if there else None, _wrong_stranger(here, module, used)]
        if pure and used.name.split(".")[0] in IMPURE and not (used.name == "os" and _only_paths(tree)):
            reasons.append("a machine or decision takes time as an argument and touches nothing: the simulator replays it")
        found += [f"{module}:{used.line}: {used.name}: {reason}" for reason in reasons if reason]
    return found


def _wrong_floor(here: str, module: str, there: str, used: Import) -> str | None:
    if used.on_load and used.name.startswith(LOADED_BY_NO_RANK):
        return f"{used.name} loads the agent's packages: import it in the function that a monitor's own process runs"
    if here == there:
        return None
    if there == "integrations":
        return "integrations are loaded by name, so that a missing library costs only the one who asked for it"
    if there in ("cli", "sim"):
        return f"{there} is a driver: nothing imports it"
    if here == "client":
        return None if there == "core" else "client runs inside every rank: it may import core only, and stays light"
    if there == "client":
        return None if here in MAY_KNOW_CLIENT else "client runs inside the rank, beyond the page: share words in core"
    if here == "integrations":
        return None
    if unknown := {here, there} - FLOOR.keys():
        return f"{unknown.pop()} has no floor in the house: add it to tests/kit/layers.py, and to ARCHITECTURE.md's tree"
    if here in IN_A_RANK and module not in LOADED_BY_NO_RANK and used.on_load and there != "core":
        return f"{here} is imported inside a rank: on load it may import client and core only"
    if FLOOR[there] < FLOOR[here]:
        return None
    if FLOOR[there] == FLOOR[here]:
        return f"{here} and {there} are neighbours: what they share belongs in core"
    return f"{there} stands above {here}: hand in what is needed, or move the word down to core"


def _wrong_stranger(here: str, module: str, used: Import) -> str | None:
    top = used.name.split(".")[0]
    if top == "torch" and here == "elastic":
        return "elastic imports torch only inside the function that needs it: torch takes seconds" if used.on_load else None
    if top == "torch" and not module.startswith(TORCH_MODULES) and here not in FOR_TORCH:
        return "only elastic and integrations.torch know torch: torchrun spends its first seconds importing it"
    if here in THIRD_PARTY_FREE and top != "holdfast" and top not in STANDARD:
        return f"{here} uses the standard library only: it is loaded in every rank, beside the user's own pins"
    return None


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda given: given if isinstance(given, str) else "")
def test_a_module_imports_only_what_its_floor_allows(module: str, path: Path) -> None:
    found = faults(tree_of(path), module, path.name == "__init__.py")
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source", "said"),
    [
        ("holdfast.core.page.layout", "from holdfast.runtime.shm import pages as shm", "stands above"),
        ("holdfast.runtime.process.process", "from ...agent import launch", "stands above"),
        ("holdfast.runtime.process.process", "def f():\n    import holdfast.telemetry.record.recorder", "stands above"),
        ("holdfast.rendezvous.coordinator.machine", "from holdfast.monitor import limits", "neighbours"),
        ("holdfast.elastic.agent", "import holdfast.google", "neighbours"),
        ("holdfast.agent.agent", "from holdfast.cli.main import main", "driver"),
        ("holdfast.cli.main", "from holdfast.sim import world", "driver"),
        ("holdfast.client.bootstrap", "from holdfast.runtime import world", "core only"),
        ("holdfast.agent.workers.launch", "from holdfast.client import bootstrap", "share words in core"),
        ("holdfast.cli.main", "from holdfast.integrations.etcd import election as etcd", "loaded by name"),
        ("holdfast.fault_tolerance.client", "from holdfast.runtime import world", "inside a rank"),
        ("holdfast.fault_tolerance.client", "from holdfast.fault_tolerance import _watched", "a monitor's own process"),
        ("holdfast.attic.box", "import holdfast.core.value", "no floor"),
        ("holdfast.agent.agent", "import torch.distributed", "only elastic"),
        ("holdfast.agent.agent", "def f():\n    from torch import distributed", "only elastic"),
        ("holdfast.elastic.store", "import torch", "inside the function"),
        ("holdfast.elastic.store", "try:\n    import torch\nexcept ImportError:\n    pass", "inside the function"),
        ("holdfast.client.beat", "import numpy", "standard library only"),
        ("holdfast.core.ids", "import uuid", "takes time as an argument"),
        ("holdfast.core.config.grammar", "import os\nhere = os.path.exists('x')", "takes time as an argument"),
        ("holdfast.recovery.policy", "from time import monotonic", "takes time as an argument"),
        ("holdfast.telemetry.m", "import time\nclass M:\n    def observe(self, seen, now): ...", "takes time as an argument"),
        ("holdfast.agent.group.machine", "def f():\n    import socket", "takes time as an argument"),
    ],
)
def test_a_broken_rule_is_seen_and_explained(module: str, source: str, said: str) -> None:
    found = faults(ast.parse(source), module)
    assert len(found) == 1 and said in found[0], found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("holdfast.agent.agent", "import os, time\nfrom holdfast.rendezvous import round\nfrom . import group"),
        ("holdfast.elastic.store", "def f():\n    import torch\nif TYPE_CHECKING:\n    import torch"),
        ("holdfast.client.beat", "import mmap\nfrom holdfast.core import page"),
        ("holdfast.google.host", "from holdfast import client\ndef serve():\n    from holdfast.agent import agent"),
        ("holdfast.integrations.torch.hook", "import torch\nfrom holdfast.agent import agent"),
        ("holdfast.core.config.grammar", "import os\nhere = os.path.join(os.path.dirname('x'), 'y') + os.pathsep"),
        ("holdfast.__main__", "from holdfast.cli.main import main\nfrom holdfast.runtime import guardian"),
        ("holdfast.cli.main", "from holdfast import __version__\nfrom holdfast.elastic import run"),
        ("holdfast.agent.logs.attempt_logs", "import os\nclass Log:\n    def observe(self, line): ..."),
    ],
)
def test_what_the_rules_allow_passes(module: str, source: str) -> None:
    assert faults(ast.parse(source), module) == []


def test_relative_imports_are_resolved_from_a_package_too() -> None:
    tree = ast.parse("from . import logs\nfrom ..core import page")
    assert [used.name for used in imports(tree, "holdfast.agent", True)] == ["holdfast.agent.logs", "holdfast.core.page"]

"""Command lines for tests, read on a host that is made up."""

from __future__ import annotations

import pytest

from holdfast.cli.run import parser
from holdfast.core.config.binding import Topology
from holdfast.core.config.config import RunConfig
from holdfast.core.config.draft import HostFacts, Resolved, gather
from holdfast.core.config.flags import flags_of
from holdfast.core.errors import UsageError
from holdfast.core.resolve.resolve import resolve

ENTRY_POINTS = {"torchrun.handlers": ("raft", "zoo"), "torchrun.logs_specs": ("default", "mylogs")}


def host(
    gpus: int = 0,
    xpus: int = 0,
    cpus: int = 6,
    full_name: str = "me",
    slurm: dict[str, str] | None = None,
    yaml: dict[str, object] | None = None,
    topology: Topology | None = None,
    programs: tuple[str, ...] = (),
) -> HostFacts:
    def read_yaml(path: str) -> object:
        if path not in (yaml or {}):
            raise FileNotFoundError(2, "No such file or directory", path)
        return (yaml or {})[path]

    return HostFacts(
        python="/usr/bin/python3",
        cwd="/home/me",
        state_home="/home/ann/.local/state/holdfast",
        cpus=lambda: cpus,
        accelerators=lambda kind: {"gpu": gpus, "xpu": xpus}[kind],
        fresh_id=lambda: "fresh1",
        entry_points=lambda group: ENTRY_POINTS.get(group, ()),
        full_name=lambda: full_name,
        read_yaml=read_yaml,
        slurm_address=lambda node: slurm.get(node, node) if slurm else node,
        topology=lambda mode: topology or Topology(nodes={0: frozenset(range(cpus))}, allowed=frozenset(range(cpus))),
        has_program=lambda name: name in programs,
    )


def told(*argv: str, env: dict[str, str] | None = None, on: HostFacts | None = None, command: str = "run") -> Resolved:
    words = [*argv, "train.py", "--lr", "3"]
    environ = {"OMP_NUM_THREADS": "4"} | (env or {})
    flags = flags_of(command)
    typed = parser.read(words, flags)
    return resolve(gather(typed.given, environ, flags), typed.script, typed.script_args, environ, on or host())


def config(*argv: str, env: dict[str, str] | None = None, on: HostFacts | None = None) -> RunConfig:
    return told(*argv, env=env, on=on).config


def error(*argv: str, env: dict[str, str] | None = None, on: HostFacts | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        told(*argv, env=env, on=on)
    assert caught.value.exit_code == 2
    return str(caught.value)


def warnings(*argv: str, env: dict[str, str] | None = None) -> str:
    return "\n".join(notice.text for notice in told(*argv, env=env).notices if notice.level == "WARNING")


TWO = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "a:1")
STATIC = ("--nnodes", "2", "--master-addr", "a")

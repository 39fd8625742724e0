"""What is true of this host? The facts that `core.resolve.resolve` asks for; those that cost something only when it asks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from holdfast.core.config.binding import Topology
from holdfast.core.config.draft import HostFacts
from holdfast.core.errors import UsageError
from holdfast.runtime.hardware import gpus
from holdfast.telemetry.record.state_dir import state_home

LETTERS = "abcdefghjkmnpqrstuvwxyz023456789"
"""Of a fresh id: eight are short enough to type, and 40 bits are enough for all jobs of one host."""


def this_host(environ: Mapping[str, str]) -> HostFacts:
    """The facts of the host we are on."""
    return HostFacts(
        python=sys.executable,
        cwd=_cwd(),
        state_home=state_home(environ),
        cpus=lambda: len(os.sched_getaffinity(0)) or os.cpu_count() or 1,
        accelerators=lambda kind: gpus.count(kind, environ),
        fresh_id=lambda: "".join(LETTERS[byte & 31] for byte in os.urandom(8)),
        entry_points=_entry_points,
        full_name=_full_name,
        read_yaml=_read_yaml,
        slurm_address=_slurm_address,
        topology=lambda mode: _topology(mode, environ),
        has_program=_has_program,
    )


def _cwd() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted under us; a relative path would fail anyway
        return "/"


def _entry_points(group: str) -> tuple[str, ...]:
    from importlib import metadata  # 20 ms: only for a name that is not built in

    return tuple(dict.fromkeys(point.name for point in metadata.entry_points(group=group)))


def _full_name() -> str:
    import socket  # 2 ms: only in a pod of Kubernetes

    return socket.getfqdn()


def _slurm_address(node: str) -> str:
    from holdfast.runtime.net.addresses import slurm_address  # it loads socket: only in a job of Slurm

    return slurm_address(node)


def _topology(mode: str, environ: Mapping[str, str]) -> Topology:
    from holdfast.runtime.hardware import topology  # 1 ms: only for --numa-binding

    return topology.read(mode, environ)


def _has_program(name: str) -> bool:
    import shutil  # 10 ms: only where workers are bound by numactl

    return shutil.which(name) is not None


def _read_yaml(path: str) -> object:
    import yaml  # type: ignore[import-untyped]  # 20 ms: only where a file is named

    with open(path, encoding="utf-8") as file:
        try:
            return yaml.safe_load(file)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            what = " ".join(str(error).replace(f'in "{path}", ', "at ").split())
            raise UsageError(f"{path} is not valid YAML: {what}", hint="correct it there, or name another file") from error

"""What do kinds of fault need of this machine, and has it got it? Each row is a name, and a function that says why not."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from kit.hosts import fuse as fuse_mounts
from kit.network import netns as namespaces

CGROUP2 = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
"""Where cgroup version 2 is mounted: alone, or beside version 1."""


def root() -> str:
    return "" if os.geteuid() == 0 else "it needs root"


def netns() -> str:
    return root() or namespaces.why_not()


def fuse() -> str:
    return fuse_mounts.why_not()


def cgroup2_root() -> Path | None:
    """Where version 2 is mounted."""
    return next((Path(path) for path in CGROUP2 if os.path.exists(f"{path}/cgroup.procs") and _is_v2(path)), None)


def _is_v2(path: str) -> bool:
    return any(line.split()[1:3] == [path, "cgroup2"] for line in Path("/proc/mounts").read_text().splitlines())


def cgroup2() -> str:
    return root() or ("" if cgroup2_root() else "cgroup version 2 is not mounted")


def v1(controller: str) -> str:
    there = os.access(f"/sys/fs/cgroup/{controller}/cgroup.procs", os.W_OK)
    return root() or ("" if there else f"there is no {controller} controller of cgroup version 1")


def freeze() -> str:
    """A disk of one's own that can be frozen."""
    missing = [command for command in ("fsfreeze", "mkfs.ext4", "losetup") if not shutil.which(command)]
    return root() or (f"{', '.join(missing)}: not installed" if missing else "")


def torch() -> str:
    return "" if importlib.util.find_spec("torch") else "PyTorch is not installed"


def command(name: str) -> Callable[[], str]:
    return lambda: "" if shutil.which(name) else f"{name} is not installed"


NEEDS: dict[str, Callable[[], str]] = {
    "root": root,
    "netns": netns,
    "fuse": fuse,
    "cgroup2": cgroup2,
    "memory": functools.partial(v1, "memory"),
    "pids": functools.partial(v1, "pids"),
    "cpu": functools.partial(v1, "cpu"),
    "freezer": functools.partial(v1, "freezer"),
    "freeze": freeze,
    "cc": command("cc"),
    "torch": torch,
    "strace": command("strace"),
    "gdb": command("gdb"),
    "ss": command("ss"),
}


@functools.cache
def why_not(need: str) -> str:
    """Empty: it is there."""
    return NEEDS[need]()


def missing(needs: tuple[str, ...]) -> str:
    """Why a kind of fault with these needs cannot be played here. Empty: it can."""
    return next(filter(None, map(why_not, needs)), "")

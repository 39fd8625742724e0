"""The table of all health checks, ours and users' own by entry point, and what each gets.

A check is a function that takes a `Look` and returns a `Verdict`. It may block, crash or print: it runs in a process of its own
(`health.child`), with a deadline (`health.runner`). Other packages' checks are entry points of the group `holdfast.checks`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from typing import Any

from holdfast.core.config.grammar import did_you_mean, seconds, split_paths, whole
from holdfast.core.errors import UsageError
from holdfast.core.job.events import HealthState
from holdfast.core.value import Value, replace
from holdfast.health.verdict import DEGRADED, UNFIT
from holdfast.runtime.hardware.gpus import names, text

GROUP = "holdfast.checks"
AUTO = "auto"
USUAL = ("memory", "files", "clock", "kernel-log", AUTO)
"""What is checked where nothing is named: all that needs no argument, as far as this node has it."""
OF_THE_LOG = ("xid", "kernel-log")  # Checks that read the kernel's log, which remembers.
ROOT = "HOLDFAST_CHECK_ROOT"
"""Variable: where the file system of the checked host begins. Tests have made-up hosts there; containers, the real one."""

DEADLINE_S = 15.0  # Default of a check. nvidia-smi without the persistence daemon takes some seconds to wake the driver.
PER_CENT = "per cent"  # An argument whose description says so is at most 100.

OPTIONS = {"deadline": "deadline_s", "bad": "bad_in_a_row", "good": "good_in_a_row"}
"""What may stand in brackets behind any check's name → its field of `Check`."""

_WORD = re.compile(r"([^\[=]+)(?:\[([^\]]*)\])?(?:=(.*))?", re.S)  # `NAME[deadline=30 bad=2]=ARGUMENT`


class Look(Value):
    """What a check is given. `root` may be a real host or a made-up one."""

    argument: str = ""  # What stood behind `NAME=`.
    root: str = "/"  # Where /proc, /sys, /dev and the mounts of the host in question are.
    before: dict[str, Any] = {}  # noqa: RUF012
    """What the same check kept when it looked here last (`Verdict.keep`). Empty: it is the first look."""
    clock: dict[str, Any] = {}  # noqa: RUF012
    """How the clock here compares with other nodes': `ahead_s`, `error_s`, `of`. Empty: no agent asks, or it has no others."""
    deadline_s: float = DEADLINE_S  # It is killed after so many seconds.
    until: float = float("inf")
    """That moment (monotonic seconds): a busy host takes a while to start the check's process."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def path(self, name: str) -> str:
        """Where that file of the host is: `proc/meminfo`, with or without a slash before it."""
        return os.path.join(self.root, name.lstrip("/"))

    def text(self, name: str) -> str:
        """What a small file says; empty where it cannot be read."""
        return text(self.root, name.lstrip("/"))

    def names(self, folder: str) -> list[str]:
        """What is in a folder, sorted; nothing where it cannot be read."""
        return names(self.root, folder.lstrip("/"))


class Check(Value):
    """One question."""

    name: str
    target: str  # `module:function`.
    help: str
    argument: str = ""  # What may stand behind `NAME=`; empty: nothing.
    needs_argument: bool = False
    is_number: bool = False  # It is a number, not below 0; where `argument` says so, per cent.
    deadline_s: float = DEADLINE_S
    silence: HealthState = UNFIT  # What it means if no answer comes in time.
    bad_in_a_row: int = 1  # So many bad answers, one after the other, make the node unfit.
    good_in_a_row: int = 1  # So many others make it fit again.


class Wanted(Value):
    """A check, and what it is asked about."""

    check: Check
    argument: str = ""

    @property
    def label(self) -> str:
        """`paths=/data`, as it was asked for."""
        return f"{self.check.name}={self.argument}" if self.argument else self.check.name


def _ours(name: str, help: str, argument: str = "", *, module: str = "", needs: str = "", **rest: Any) -> Check:
    """The check that is the function of its name in `health.checks.MODULE`, or in the module of its name. `needs`: an argument
    that it cannot do without."""
    function = name.replace("-", "_")
    target = f"holdfast.health.checks.{module or function}:{function}"
    return Check(name=name, target=target, help=help, argument=needs or argument, needs_argument=bool(needs), **rest)


CHECKS: tuple[Check, ...] = (
    _ours(
        "gpu",
        "NVIDIA GPUs, by NVML: recovery action, memory errors, remapped rows, throttling, clocks, NVLink",
        deadline_s=30.0,
    ),
    _ours("amd", "AMD GPUs, by sysfs: uncorrectable errors, bad pages, PCI links"),
    _ours("xid", "NVIDIA's Xid errors in the kernel's log", module="kernel_log"),
    _ours(
        "nic",
        "InfiniBand and RoCE ports: state, physical state, rate, lost links since the last check",
        "STATE[:DOWNED]: paths of other files to read, where {nic} stands for the NIC's name",
        good_in_a_row=2,
    ),
    _ours(
        "memory",
        "free memory of the host and of the agent's cgroup",
        "least free memory, in per cent (2)",
        is_number=True,
        module="host",
    ),
    _ours("files", "free file descriptors and processes", "least free share, in per cent (5)", is_number=True, module="host"),
    _ours(
        "clock",
        "how far the clock is off, from chrony, and in a job also from the other nodes' clocks",
        "largest offset, in seconds (1)",
        is_number=True,
        module="host",
    ),
    _ours(
        "kernel-log",
        "the kernel's log: machine checks, memory errors, failing file systems and disks, hung tasks, OOM kills",
    ),
    _ours("mounts", "Lustre's own health check, and every Lustre and NFS mount", deadline_s=60.0, module="storage"),
    _ours(
        "paths",
        "whether files can be read (4 KiB) and folders can be listed",
        needs="absolute paths, separated by :",
        module="storage",
    ),
    _ours(
        "segment",
        "whether a file in a shared folder marks the Slurm allocation as unhealthy",
        needs="path of that folder",
        silence=DEGRADED,
    ),
    _ours(
        "command",
        "your own command: exit code 0 means fit, 1 unfit, any other degraded; its last line is the reason",
        needs="command line for the shell",
        deadline_s=60.0,
    ),
    _ours(
        "node-service",
        "a node health service, by gRPC; without a service, an answer or a report that can be read the node is degraded",
        needs="socket of the service, /path or unix:///path",
        deadline_s=65.0,
        silence=DEGRADED,
    ),
    _ours(
        "pairs",
        "pairs of nodes: matrix products and an all-gather; with --check-before, or `check --pairs`",
    ),
    _ours(
        "kubernetes",
        "conditions and taints of this node, set by Kubernetes and by what runs on it",
        "file with the node's JSON (default: `kubectl get node` with $NODE_NAME or the host name)",
        silence=DEGRADED,
        module="outside",
    ),
    _ours(
        "gpud",
        "health states from gpud",
        "file, or URL (https://localhost:15132/v1/states)",
        silence=DEGRADED,
        module="outside",
    ),
    _ours(
        "dcgm",
        "DCGM's health watches, or the results of its diagnostics",
        "file with dcgmi's JSON (default: runs `dcgmi health --check --json`)",
        deadline_s=30.0,
        silence=DEGRADED,
        module="outside",
    ),
)


def wanted(asked: Iterable[str], root: str = "/") -> tuple[Wanted, ...]:
    """The checks of a list as of --check-before, each once. UsageError: there is no such check, or its argument is missing."""
    found = [one for word in asked for one in (_those_for(root) if word.strip() == AUTO else [_one(word.strip())])]
    return tuple({one.label: one for one in found}.values())


def _one(word: str) -> Wanted:
    parts = _WORD.fullmatch(word)
    name, options, argument = parts.groups("") if parts is not None else (word, "", "")
    check = _tuned(find(name), options)
    if argument and not check.argument:
        raise UsageError(f"check {name} takes no argument; {argument!r} was given", hint=f"write {name} alone")
    hint = f"write {name}=ARGUMENT: {check.argument}"
    if check.needs_argument and not argument:
        raise UsageError(f"check {name} needs an argument", hint=hint)
    if argument and check.is_number:
        _refuse_number(check, argument, hint)
    if name == "paths" and (relative := [path for path in split_paths(argument) if not path.startswith("/")]):
        raise UsageError(f"check {name}: {relative[0]} is not absolute", hint="start each with /, with : between them")
    return Wanted(check=check, argument=argument)


def _refuse_number(check: Check, text: str, hint: str) -> None:
    """UsageError: `text` is not the number that the check takes."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number < float("inf"):
        raise UsageError(f"check {check.name}: {text!r} is not a number, 0 or more", hint=hint)
    if PER_CENT in check.argument and number > 100.0:
        raise UsageError(f"check {check.name}: {text} is more than 100 per cent", hint=hint)


def _tuned(check: Check, options: str) -> Check:
    """The same check with what stands in the brackets: `deadline=30 bad=2 good=3`, each once at most, in any order."""
    told: dict[str, float | int] = {}
    for option in options.split():
        key, _, value = option.partition("=")
        if key not in OPTIONS:
            raise UsageError(f"check {check.name} has no option {key!r}", hint=did_you_mean(key, OPTIONS))
        name = f"check {check.name}: {key}"
        told[OPTIONS[key]] = seconds(value, name, zero=False) if key == "deadline" else whole(value, name, at_least=1)
    return replace(check, **told)


def find(name: str) -> Check:
    """A check by its name: ours, else another package's. UsageError: nobody has it."""
    ours = next((check for check in CHECKS if check.name == name), None)
    if ours is not None:
        return ours
    others = entry_points()
    if name in others:
        return Check(name=name, target=others[name], help="of another package", argument="as it says itself")
    raise UsageError(f"there is no check {name!r}", hint=did_you_mean(name, (AUTO, *(one.name for one in CHECKS), *others)))


def entry_points() -> dict[str, str]:
    """Name → `module:function` of users' own checks."""
    from importlib import metadata  # 20 ms, and only a check that is not ours asks for it

    return {point.name: point.value for point in metadata.entry_points(group=GROUP)}


def _those_for(root: str) -> list[Wanted]:
    """`auto`: the checks whose hardware is here. Looking costs three system calls."""
    here = {
        "gpu": os.path.exists(os.path.join(root, "dev/nvidiactl")),
        "xid": os.path.exists(os.path.join(root, "dev/nvidiactl")),
        "amd": bool(names(root, "sys/class/kfd/kfd/topology/nodes")),
        "nic": bool(names(root, "sys/class/infiniband")),
    }
    return [_one(name) for name, is_here in here.items() if is_here]


def with_deadline(one: Wanted, deadline_s: float | None) -> Wanted:
    """The same with another deadline; None: its own. UsageError: that is none."""
    if deadline_s is not None and not 0.0 < deadline_s < float("inf"):
        raise UsageError(f"--deadline: {deadline_s:g} is not above zero", hint="give seconds, such as 2.5")
    return one if deadline_s is None else replace(one, check=replace(one.check, deadline_s=deadline_s))

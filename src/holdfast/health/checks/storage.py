"""Does the storage answer? Lustre's own health check, every Lustre and NFS mount, and paths that the user names.

A mount that hangs stops whoever touches it, so each is touched by a process of its own: the others' answers come, and the one
that hangs is named.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import time

from holdfast.health.verdict import Findings, unfit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.health.check import Look
    from holdfast.health.verdict import Verdict

    Probe = Callable[[str], str]

LUSTRE_HEALTH = "sys/fs/lustre/health_check"
DISTRIBUTED = ("lustre", "nfs", "nfs4")
"""Types of file systems, as ft_launcher looks for them."""

BLOCK = 4096
"""Bytes that are read of a file."""

MOUNT_S, PATH_S = 15.0, 5.0
"""For one mount, and for one path: ft_launcher's. All are touched side by side."""

MARGIN_S = 0.5
"""So much before our own deadline we answer, whoever is still silent."""


def mounts(look: Look) -> Verdict:
    """Lustre's health file where there is one, then every mount."""
    told = look.text(LUSTRE_HEALTH)
    if os.path.exists(look.path(LUSTRE_HEALTH)) and told != "healthy":
        return unfit(f"Lustre says of itself: {told or 'nothing'} (/{LUSTRE_HEALTH})", "see `lctl get_param health_check` here")
    found, targets = Findings(), _targets(look)
    for target, trouble in _touch(targets, _list, min(MOUNT_S, look.deadline_s - MARGIN_S)).items():
        if trouble:
            found.unfit(f"mount {target}: {trouble}", "is its server reachable from this node?")
    lustre = "Lustre is healthy, " if told else ""
    return found.verdict(f"{lustre}{len(targets)} distributed mounts answer" if targets else f"{lustre}no Lustre or NFS mount")


def paths(look: Look) -> Verdict:
    """Each of the paths behind `paths=`."""
    asked = [path for path in look.argument.split(":") if path]
    found = Findings()
    for path, trouble in _touch(asked, _read, min(PATH_S, look.deadline_s - MARGIN_S)).items():
        if trouble:
            found.unfit(f"{path}: {trouble}")
    return found.verdict(f"{len(asked)} of {len(asked)} can be read")


def _targets(look: Look) -> list[str]:
    """Mount points of distributed file systems. As the kernel writes them, a space is `\\040`."""
    lines = (line.split() for line in look.text("proc/self/mounts").splitlines())
    found = [words[1] for words in lines if len(words) > 2 and words[2] in DISTRIBUTED]
    return [look.path(os.fsdecode(os.fsencode(target).decode("unicode_escape").encode("latin-1"))) for target in found]


def _list(path: str) -> str:
    """Is it a folder that can be listed? Empty: it is."""
    with os.scandir(path) as entries:
        next(entries, None)
    return ""


def _read(path: str) -> str:
    """A file's first block, a folder's list, anything else's state. Empty: it can be had."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        os.listdir(path)
    elif stat.S_ISREG(mode):
        with open(path, "rb", buffering=0) as file:
            file.read(BLOCK)
    return ""


def _touch(targets: list[str], probe: Probe, within_s: float) -> dict[str, str]:
    """What is wrong with each, by a process for each; empty: nothing."""
    until = time.monotonic() + within_s
    started = {target: _start(target, probe) for target in dict.fromkeys(targets)}
    return {target: _answer(pid, fd, until, within_s) for target, (pid, fd) in started.items()}


def _start(target: str, probe: Probe) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        trouble = probe(target)
    except OSError as error:
        trouble = error.strerror or str(error)
    os.write(writer, (trouble or "-").encode())
    os._exit(0)


def _answer(pid: int, fd: int, until: float, within_s: float) -> str:
    ready, _, _ = select.select([fd], [], [], max(0.0, until - time.monotonic()))
    said = os.read(fd, BLOCK).decode(errors="replace") if ready else ""
    os.close(fd)
    if not ready:
        # Not waited for: it may sleep where no signal reaches it.
        os.kill(pid, signal.SIGKILL)
        return f"no answer within {within_s:g} s"
    os.waitpid(pid, 0)
    return {"-": "", "": "the attempt was killed"}.get(said, said)

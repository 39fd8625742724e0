"""Does the storage answer? Lustre's own health check, every Lustre and NFS mount, and paths that the user names.

A mount that hangs stops every process that touches it, so each mount is touched by a process of its own, and the one that hangs
is named. If not even SIGKILL ends that process, it is remembered and no other is started: a mount that hangs costs one process,
however often it is looked at.
"""

from __future__ import annotations

import os
import select
import signal
import stat
from collections.abc import Callable

from holdfast.core.config.grammar import split_paths
from holdfast.health.check import Look
from holdfast.health.verdict import Findings, Verdict, unfit
from holdfast.runtime.process import process

Probe = Callable[[str], str]
Stuck = dict[str, tuple[int, str]]
"""What is touched → the process that waits for it, and when that began (`process.begun`)."""

LUSTRE_HEALTH = "sys/fs/lustre/health_check"
DISTRIBUTED = ("lustre", "nfs", "nfs4")  # Types of file systems, as ft_launcher looks for them.
BLOCK = 4096  # Bytes that are read of a file.
MOUNT_S, PATH_S = 15.0, 5.0  # For one mount, and for one path: ft_launcher's. All are touched side by side.
MARGIN_S = 0.5  # How long before our own deadline we answer. If less than twice that is left, we answer after half of it.


def mounts(look: Look) -> Verdict:
    """Lustre's health file, if there is one, then every mount."""
    told = look.text(LUSTRE_HEALTH)
    if os.path.exists(look.path(LUSTRE_HEALTH)) and told != "healthy":
        return unfit(f"Lustre says of itself: {told or 'nothing'} (/{LUSTRE_HEALTH})", "see `lctl get_param health_check` here")
    found, targets = Findings(), _targets(look)
    troubles, stuck = _touch(look, targets, _list, MOUNT_S)
    for target, trouble in troubles.items():
        found.unfit(f"mount {target}: {trouble}", "is its server reachable from this node?")
    lustre = "Lustre is healthy, " if told else ""
    well = f"{len(targets)} distributed mounts answer" if targets else "no Lustre or NFS mount"
    return found.verdict(f"{lustre}{well}", stuck=stuck)


def paths(look: Look) -> Verdict:
    """Each path given as `paths=`."""
    asked = split_paths(look.argument)
    found = Findings()
    troubles, stuck = _touch(look, asked, _read, PATH_S)
    for path, trouble in troubles.items():
        found.unfit(f"{path}: {trouble}", "is its file system mounted here, and may we read it? `findmnt -T PATH`")
    return found.verdict(f"{len(asked)} of {len(asked)} can be read", stuck=stuck)


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


def _touch(look: Look, targets: list[str], probe: Probe, most_s: float) -> tuple[dict[str, str], Stuck]:
    """What is wrong with which of them, by a process for each; and the processes, of this look and earlier ones, that do not
    end."""
    within_s = min(most_s, look.deadline_s - MARGIN_S)
    now = look.now()
    left_s = look.until - now
    until = now + min(within_s, max(left_s - MARGIN_S, left_s / 2))
    stuck: Stuck = {target: one for target, one in look.before.get("stuck", {}).items() if process.begun(one[0]) == one[1]}
    started = {target: _start(target, probe) for target in dict.fromkeys(targets) if target not in stuck}
    troubles = {
        target: f"no answer yet to process {pid}, which cannot be killed ({process.asleep(pid)})"
        for target, (pid, _) in stuck.items()
        if target in targets
    }
    for target, (pid, fd) in started.items():
        trouble, left = _answer(pid, fd, until - look.now(), within_s)
        if trouble:
            troubles[target] = trouble
        if left:
            stuck[target] = (pid, left)
    return troubles, stuck


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


def _answer(pid: int, fd: int, left_s: float, within_s: float) -> tuple[str, str]:
    """What is wrong, empty: nothing; and when the process began, if it has not ended."""
    ready, _, _ = select.select([fd], [], [], max(0.0, left_s))
    said = os.read(fd, BLOCK).decode(errors="replace") if ready else ""
    os.close(fd)
    if not ready:
        # Not waited for: it may sleep where no signal reaches it.
        os.kill(pid, signal.SIGKILL)
        return f"no answer within {within_s:g} s", process.begun(pid)
    os.waitpid(pid, 0)
    return {"-": "", "": "the attempt was killed"}.get(said, said), ""

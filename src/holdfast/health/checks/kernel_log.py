"""What does the kernel's log say against this node? NVIDIA's Xid errors, and what concerns memory, disks, buses and tasks.

A line counts for a while: `LATELY_S` if a person should look, `LONG_S` if the node must not work, and until the host restarts
if only that helps. Then it is forgotten, so a repair need not be reported.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from holdfast.core.job.xid import NONE, REBOOT, RESET, RESTART, SERVICE
from holdfast.core.job.xid import xid as catalogued
from holdfast.health.check import Look
from holdfast.health.recent_kernel_log import Line, lines
from holdfast.health.verdict import DEGRADED, UNFIT, Findings, Verdict, degraded

LATELY_S, LONG_S = 600.0, 3600.0
SHOWN = 3  # So many different findings are named.

UNREADABLE = "run as root, or allow it: sysctl kernel.dmesg_restrict=0; a container needs /dev/kmsg"

XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(.*)")
"""`NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus.`"""

NEEDS = "154"  # What a GPU needs to recover has changed: only the last word about each GPU counts.

SXID = re.compile(r"SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+), (Non-fatal|Fatal)(.*)", re.I)
"""NVSwitch: `nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 …`"""

ADVICE = {
    RESET: "reset the GPU: nvidia-smi --gpu-reset -i INDEX, with nothing running on it",
    REBOOT: "restart the host; if it comes again, have the GPU looked at",
    SERVICE: "have the hardware looked at (NVIDIA's field diagnostics)",
}

PATTERNS: tuple[tuple[str, str, str], ...] = (
    (UNFIT, "uncorrected machine check", r"\[Hardware Error\].*(?:Uncorrected|Fatal)|mce:.*(?:Uncorr|Exception)"),
    (UNFIT, "fatal hardware error", r"\[Hardware Error\]: event severity: fatal"),
    (UNFIT, "uncorrected memory error", r"EDAC .*\bUE\b|Memory failure: .*(?:unrecoverable|Failed|Ignored)"),
    (UNFIT, "fatal error on the PCI bus", r"AER:.*Uncorrect\w+ \(Fatal\)"),
    (UNFIT, "a file system is read-only after an error", r"Remounting filesystem read-only|Filesystem has been shut down"),
    (UNFIT, "a file system is corrupt", r"XFS \(.*\): .*[Cc]orruption|EXT4-fs error|BTRFS.*corrupt"),
    (UNFIT, "the kernel crashed", r"BUG: unable to handle|Oops: |general protection fault, "),
    (UNFIT, "a NIC's firmware failed", r"mlx5_core .*(?:health compromised|Fatal error \d+ detected|firmware is not)"),
    (UNFIT, "an NVMe disk is gone", r"nvme nvme\d+: (?:Removing after probe|Disabling device after|controller is down)"),
    (DEGRADED, "machine check", r"mce: \[Hardware Error\]|Machine check events logged"),
    (DEGRADED, "recovered hardware error", r"\[Hardware Error\]: event severity: (?:recoverable|corrected)"),
    (DEGRADED, "corrected memory error", r"EDAC .*\bCE\b"),
    (DEGRADED, "a disk fails to read or write", r"(?:I/O|critical \w+) error,? (?:on )?dev|metadata I/O error"),
    (DEGRADED, "a disk fails to read or write", r"nvme.*timeout, aborting"),
    (DEGRADED, "a task hangs in the kernel", r"INFO: task .* blocked for more than \d+ seconds"),
    (DEGRADED, "a CPU was stuck", r"BUG: soft lockup|hard LOCKUP|rcu: INFO: .*detected stall"),
    (DEGRADED, "a process was killed for lack of memory", r"(?:Out of memory|out of memory): Killed process|oom-kill:"),
    (DEGRADED, "a storage server does not answer", r"nfs: server .* not responding|LustreError: .*(?:evicted|timed out)"),
    (DEGRADED, "error on the PCI bus", r"AER:.*Uncorrect\w+ \(Non-Fatal\)"),
    (DEGRADED, "a CPU is throttled because of its temperature", r"cpu clock throttled|Package temperature above threshold"),
)
"""State, what it is, and how the kernel says it (Linux 5.4 to 6.12). The first that fits a line counts."""


def xid(look: Look) -> Verdict:
    """Xid errors. NVIDIA's recommended action decides the verdict."""
    try:
        said = lines(look)
    except OSError as error:
        return degraded(f"not known: /dev/kmsg: {error.strerror}", UNREADABLE)
    found, seen = Findings(), 0
    last_need = {match[1]: line.seq for line in said if (match := XID.search(line.text)) and match[2] == NEEDS}
    for line in said:
        if match := XID.search(line.text):
            seen += 1
            if match[2] != NEEDS or last_need[match[1]] == line.seq:
                _judge_xid(found, match, line)
        elif (match := SXID.search(line.text)) and line.age_s < LONG_S:
            switch = f"NVSwitch {match[1]}"
            told = f"{switch}: SXid {match[2]}{match[4].rstrip('.')}, {_when(line)}"
            fatal = match[3].lower() == "fatal"
            found.unfit(told, ADVICE[RESET], device=switch) if fatal else found.degraded(told, device=switch)
    return found.verdict(f"{seen} Xid errors in the kernel's log, none that matters now" if seen else "no Xid error")


def _judge_xid(found: Findings, match: re.Match[str], line: Line) -> None:
    row = catalogued(int(match[2]), match[3])
    told = f"GPU {match[1]}: Xid {row.number}, {row.what}, {_when(line)}" + (" (injected)" if line.is_injected else "")
    if row.action in (NONE, RESTART):
        return  # the GPU is well: what ran on it is to be started again, and somebody else does that
    if row.action == REBOOT or (row.action in (RESET, SERVICE) and line.age_s < LONG_S):
        found.unfit(told, ADVICE[row.action], device=match[1], xid=row.number)
    elif line.age_s < LATELY_S:
        found.degraded(told, device=match[1], xid=row.number)


def kernel_log(look: Look) -> Verdict:
    """Errors in the kernel's log other than Xid errors."""
    try:
        said = lines(look)
    except OSError as error:
        return degraded(f"not known: /dev/kmsg: {error.strerror}", UNREADABLE)
    counts: dict[tuple[str, str], int] = {}
    last: dict[tuple[str, str], Line] = {}
    for line in said:
        state, what = _meaning(line)
        if state and line.age_s < (LONG_S if state == UNFIT else LATELY_S):
            counts[state, what] = counts.get((state, what), 0) + 1
            last[state, what] = line
    found = Findings()
    for (state, what), count in list(counts.items())[:SHOWN]:
        line = last[state, what]
        times = f" ({count} times)" if count > 1 else ""
        told = f"{what}{times}, {_when(line)}: {line.text[:120]}"
        found.unfit(told) if state == UNFIT else found.degraded(told)
    return found.verdict("nothing in the kernel's log against it")


def _meaning(line: Line) -> tuple[str, str]:
    return next(((state, what) for state, what, pattern in PATTERNS if re.search(pattern, line.text)), ("", ""))


def _when(line: Line) -> str:
    """To the minute, and not how long ago: what is found again must be known to be the same."""
    return datetime.fromtimestamp(time.time() - line.age_s, UTC).strftime("at %H:%M UTC")

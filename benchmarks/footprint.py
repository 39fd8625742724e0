"""What does the launcher itself cost while 8 ranks run: memory, and processor time when nothing happens?

Counted is every process below the one that the user started, that one included, except the workers: so the guardian counts.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from harness import HOLDFAST, Bench, Row, command, launch, worker

RANKS = 8
REACH_MB, REACH_PERCENT = 35, 0.1


def children_of(pid: int) -> list[int]:
    """Direct children, of all threads."""
    with contextlib.suppress(OSError):
        return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return []


def launcher_processes(root: int, workers: set[int]) -> list[int]:
    """`root` and everything below it, but for the workers and what is below them."""
    return [root, *(pid for child in children_of(root) if child not in workers for pid in launcher_processes(child, workers))]


def memory_kb(pid: int, kind: str) -> int:
    """`Rss` or `Pss` of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:"))


def cpu_ns(pid: int) -> int:
    """Processor time of all threads, in nanoseconds (the usual counters have a grain of 10 ms)."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())


def measure(contender: str, idle_s: float) -> dict[str, float]:
    """MB and percent of one core."""
    with launch() as job:
        pid = job.start([*command(contender), "--nproc-per-node", str(RANKS), worker("stay")])
        workers = {note.pid for note in job.wait_for("first", RANKS)}
        time.sleep(min(idle_s, 2.0))  # what starting up leaves behind
        ours = launcher_processes(pid, workers)
        before, begun = sum(map(cpu_ns, ours)), time.monotonic()
        time.sleep(idle_s)
        spent, passed = sum(map(cpu_ns, ours)) - before, time.monotonic() - begun
        return {
            "rss": sum(memory_kb(pid, "Rss") for pid in ours) / 1024,
            "pss": sum(memory_kb(pid, "Pss") for pid in ours) / 1024,
            "cpu": 100 * spent / 1e9 / passed,
        }


def run(bench: Bench) -> list[Row]:
    """Resident and proportional memory, and idle processor time."""
    seen = bench.interleave(2, lambda contender: measure(contender, 0.5 if bench.quick else 10.0))
    rows = []
    for what, unit, kind, limit in (
        ("agent's memory, RSS with the guardian's", "MB", "rss", REACH_MB),
        ("agent's memory, PSS with the guardian's", "MB", "pss", None),
        ("agent's processor time when idle", "% of a core", "cpu", REACH_PERCENT),
    ):
        row = Row(f"{what}, {RANKS} ranks", unit, seen[kind], f"≤ {limit:g} {unit}" if limit else "")
        rows.append(Row(row.what, row.unit, row.samples, row.reach, row.mid(HOLDFAST) <= limit if limit else None))
    return rows

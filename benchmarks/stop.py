"""How soon does the agent end: after its last worker, and after SIGTERM when the workers obey at once?"""

from __future__ import annotations

import os
import signal
import time

from harness import Bench, Row, command, launch, worker

PART = 4


def after_last_exit(contender: str) -> float:
    """Milliseconds from the last worker's last instruction to the agent's exit; 2 ranks."""
    with launch() as job:
        job.start([*command(contender), "--nproc-per-node", "2", worker("last_exit")])
        ended_at = job.wait_for_end()
        return 1000 * (ended_at - max(note.at for note in job.notes("exit")))


def after_sigterm(contender: str) -> float:
    """Milliseconds from SIGTERM to the agent's exit; 2 ranks, which SIGTERM ends."""
    with launch() as job:
        pid = job.start([*command(contender), "--nproc-per-node", "2", worker("stay")])
        job.wait_for("first", 2)
        time.sleep(0.3)
        signalled_at = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        return 1000 * (job.wait_for_end() - signalled_at)


def run(bench: Bench) -> list[Row]:
    """Both."""
    rows = []
    for what, measure in (("last worker's exit → agent's exit", after_last_exit), ("SIGTERM → agent's exit", after_sigterm)):
        row = Row(f"{what}, 2 ranks", "ms", bench.interleave(7, measure)[""], f"≤ 1/{PART} of torchrun")
        rows.append(Row(row.what, row.unit, row.samples, row.reach, row.ratio and row.ratio <= 1 / PART))
    return rows

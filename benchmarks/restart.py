"""A worker is killed: how long until the last restarted worker runs its first line again?"""

from __future__ import annotations

import os
import signal
import time

from harness import Bench, Launch, Row, command, free_port, launch, node_name, two_nodes, worker


def one_node(contender: str) -> float:
    """Milliseconds; 2 ranks on one node."""
    with launch() as job:
        job.start([*command(contender), "--nproc-per-node", "2", "--max-restarts", "1", worker("stay")])
        return kill_and_wait(job, ranks=2)


def two_agents(contender: str) -> float:
    """Milliseconds; two agents with 2 ranks each. The one killed is on the node that does not host the store."""
    with launch() as job:
        port = free_port()
        for number in range(2):
            flags = [*two_nodes(port, 2), *node_name(contender, number), "--max-restarts", "3"]
            job.start([*command(contender), *flags, worker("stay")])
        return kill_and_wait(job, ranks=4)


def kill_and_wait(job: Launch, ranks: int) -> float:
    """SIGKILL the last rank; the time until all ranks are back."""
    first = job.wait_for("first", ranks)
    time.sleep(0.3)  # let the launcher settle into watching
    victim = max(first, key=lambda note: note.rank)
    job.announce("over")
    killed_at = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    back = job.wait_for("first", ranks, after=killed_at)
    return 1000 * (max(note.at for note in back) - killed_at)


def run(bench: Bench) -> list[Row]:
    """One node, and two agents."""
    rows = []
    for name, part, measure, times in (("one node, 2 ranks", 3, one_node, 7), ("two agents × 2 ranks", 15, two_agents, 5)):
        samples = bench.interleave(times, measure)[""]
        row = Row(f"worker SIGKILL → first line of the last restarted worker, {name}", "ms", samples, f"≤ 1/{part} of torchrun")
        rows.append(Row(row.what, row.unit, samples, row.reach, row.ratio and row.ratio <= 1 / part))
    return rows

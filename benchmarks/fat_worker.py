"""A worker with much memory is killed: when is that decided upon, and when does a peer hear SIGTERM?

The kernel frees a process's memory before it reports its death, and 4 GB take it some 0.4 s.
"""

from __future__ import annotations

import os
import signal
import time

from harness import HOLDFAST, Bench, Launch, Row, command, free_port, launch, node_name, two_nodes, worker

SIZES = (("10 MB", 10 << 20), ("4 GB", 4 << 30))
REACH_MS = 5.0


def one_node(contender: str, size: int) -> dict[str, float]:
    """Milliseconds; the peer is a rank of the same node."""
    with launch() as job:
        flags = ["--nproc-per-node", "2", "--max-restarts", "1"]
        job.start([*command(contender), *flags, worker("fat")], {"BENCH_BYTES": str(size)})
        return kill_and_listen(job, contender)


def two_agents(contender: str, size: int) -> dict[str, float]:
    """Milliseconds; the peer is a rank of the other node."""
    with launch() as job:
        port = free_port()
        for number in range(2):
            flags = [*two_nodes(port, 1), *node_name(contender, number), "--max-restarts", "3"]
            job.start([*command(contender), *flags, worker("fat")], {"BENCH_BYTES": str(size)})
        return kill_and_listen(job, contender)


def kill_and_listen(job: Launch, contender: str) -> dict[str, float]:
    """SIGKILL rank 1; what was decided and heard, and when."""
    job.wait_for("waiting", 1)
    victim = job.wait_for("ready", 1)[0]
    time.sleep(0.3)
    job.announce("over")
    killed_unix, killed_at = time.time(), time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    told = job.wait_for("term", 1)[0].at
    job.wait_for("again", 2)  # the end of the attempt: by now the decision is on record
    job.finish()
    seen = {"peer": 1000 * (told - killed_at)}
    if contender == HOLDFAST:
        at = [event["at_unix"] for event in job.events() if event["event"] == "Decided" and event["at_unix"] > killed_unix]
        seen["decision"] = 1000 * (min(at) - killed_unix)
    return seen


def run(bench: Bench) -> list[Row]:
    """Small and fat; within a node and across nodes."""
    rows = []
    for name, size in SIZES[: 1 if bench.quick else 2]:
        samples = 7 if size < 1 << 30 else 5
        near = bench.interleave(samples, lambda contender, size=size: one_node(contender, size))
        far = bench.interleave(samples, lambda contender, size=size: two_agents(contender, size))
        for what, seen in (
            ("the decision in the agent", near["decision"]),
            ("SIGTERM in a peer on the same node", near["peer"]),
            ("SIGTERM in a peer on another node", far["peer"]),
        ):
            row = Row(f"worker with {name} SIGKILLed → {what}", "ms", seen, f"≤ {REACH_MS:.0f} ms at any size")
            rows.append(Row(row.what, row.unit, seen, row.reach, row.mid(HOLDFAST) <= REACH_MS))
    return rows

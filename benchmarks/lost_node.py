"""A node loses its power: how long until the job trains again, on the spare that waits?

All processes of the node are stopped (SIGSTOP) at once: no link is closed, nobody says anything, as when the power goes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import time

from footprint import children_of
from harness import HOLDFAST, TORCHRUN, Bench, Launch, Row, command, free_port, launch, node_name, worker

REACH_MS, HOST_REACH_MS = 5000, 8000
PATIENCE_S = 20.0
"""How long torchrun is given. It has been watched for 90 s, and had not noticed."""


def everything(pid: int) -> list[int]:
    """`pid` and all below it."""
    return [pid, *(below for child in children_of(pid) for below in everything(child))]


def measure(contender: str, nodes: int, lost: int) -> float:
    """Milliseconds from node `lost` of `nodes` being cut off to the first line of every worker of the next round. Node 0 hosts
    the coordinator (torchrun: the store); one node more than needed waits as a spare."""
    with launch() as job:
        port = free_port()
        for number in range(nodes + 1):
            flags = ["--nnodes", str(nodes), "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "bench"]
            flags += ["--rdzv-endpoint", f"localhost:{port}", *node_name(contender, number), "--max-restarts", "3"]
            job.start([*command(contender), *flags, worker("stay")])
            if number in (0, nodes - 1):  # who serves is up before others ask, and who is the spare is not left to chance
                job.wait_for("first", nodes) if number else wait_until_served(port)
        time.sleep(1.0)
        node = everything(job.processes[lost].pid)
        cut_at = time.monotonic()
        for pid in node:
            os.kill(pid, signal.SIGSTOP)
        try:
            back = wait_for_others(job, nodes, cut_at, patience_s=PATIENCE_S if contender == TORCHRUN else 60.0)
            return 1000 * (back - cut_at)
        finally:
            for pid in node:
                with contextlib.suppress(ProcessLookupError):  # woken by its own timer, an agent has ended its ranks
                    os.kill(pid, signal.SIGKILL)


def wait_until_served(port: int) -> None:
    """Until somebody listens there."""
    import socket

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    raise RuntimeError(f"nobody listens at {port}")


def wait_for_others(job: Launch, count: int, after: float, patience_s: float, event: str = "first") -> float:
    """When the last of `count` workers noted `event` after that moment; when we gave up, if they do not."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if len(back := job.notes(event, after)) >= count:
            return max(note.at for note in back)
        time.sleep(0.01)
    return time.monotonic()


def run(bench: Bench) -> list[Row]:
    """A member's node; the coordinator's too where somebody succeeds it."""
    samples = {HOLDFAST: [measure(HOLDFAST, 2, 1) for _ in range(bench.times(3))]}
    if TORCHRUN in bench.contenders and not bench.quick:
        samples[TORCHRUN] = [measure(TORCHRUN, 2, 1)]
    row = Row("a node's power is cut → all train again, with a spare", "ms", samples, f"≤ {REACH_MS / 1000:g} s")
    missed = (row.mid(TORCHRUN) or 0.0) >= 1000 * PATIENCE_S
    note = "torchrun has not noticed by then, nor in 90 s; ft_launcher takes 16 s" if missed else ""
    rows = [Row(row.what, row.unit, samples, row.reach, (row.mid(HOLDFAST) or 0.0) <= REACH_MS, note)]
    if importlib.util.find_spec("holdfast.rendezvous.election.succession"):
        taken = [measure(HOLDFAST, 3, 0) for _ in range(bench.times(3))]
        what = "the power of the coordinator's node is cut → all train again, with a spare"
        row = Row(what, "ms", {HOLDFAST: taken}, f"≤ {HOST_REACH_MS / 1000:g} s", note="nobody else can")
        rows.append(Row(row.what, row.unit, row.samples, row.reach, (row.mid(HOLDFAST) or 0.0) <= HOST_REACH_MS, row.note))
    return rows

"""A worker is killed: how long until the ranks of the new group have done their first collective, torch and gloo and all?

Holdfast has warm spares by then, as it has some seconds after the start of any job; torchrun and ft_launcher have none.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import lost_node
from footprint import memory_kb
from harness import (
    FT_LAUNCHER,
    HOLDFAST,
    PATIENCE_S,
    TORCHRUN,
    Bench,
    Launch,
    Row,
    command,
    free_port,
    launch,
    node_name,
    two_nodes,
    worker,
)
from table import say

REACH, REACH_HEAVY, SWAP_MS = 20, 50, 3300
BACK_S = 30.0
"""How long others' ranks are given to meet again. torchrun's take 3 s, 10 s where transformers is imported; those that have
missed each other are not there after a minute either."""
MOST_VAIN = 4
"""So often others are waited for in vain, for each row; they are not measured any further then."""
OTHERS_S = 20.0
"""How long others are given to swap a node: torchrun has been watched for 90 s, and had not noticed."""
HEAVY = {"IMPORT": "transformers", "USE": "Trainer AutoModelForCausalLM LlamaForCausalLM"}
MEMORY = ("a worker after its imports", "a parked spare, spawn", "a parked spare, fork (for all ranks)")


def wait_for_spares(job: Launch, count: int) -> list[int]:
    """Pids of the spares that wait, once there have been so many."""
    deadline = time.monotonic() + 4 * PATIENCE_S
    while len(ready := [event for event in job.events() if event["event"] == "SpareReady"]) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(ready)} of {count} spares are ready:\n{job.output()}")
        time.sleep(0.05)
    return [int(str(event["pid"])) for event in ready]


def kill_and_wait(job: Launch, contender: str, ranks: int) -> float:
    """SIGKILL the last rank; milliseconds until all ranks have reduced again."""
    first = job.wait_for("trained", ranks)
    if contender == HOLDFAST:
        wait_for_spares(job, ranks)
    time.sleep(0.5)
    victim = max(first, key=lambda note: note.rank)
    killed_at = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    back = job.wait_for("reduced", ranks, after=killed_at, patience_s=PATIENCE_S if contender == HOLDFAST else BACK_S)
    job.announce("over")
    return 1000 * (max(note.at for note in back) - killed_at)


def one_node(contender: str, extra_env: Mapping[str, str] | None = None) -> float:
    """Milliseconds; 2 ranks on one node."""
    with launch() as job:
        job.start([*command(contender), "--nproc-per-node", "2", "--max-restarts", "3", worker("collective")], extra_env)
        return kill_and_wait(job, contender, ranks=2)


def two_agents(contender: str) -> float:
    """Milliseconds; two agents with one rank each. The one killed is on the node that does not host the store."""
    with launch() as job:
        port = free_port()
        for number in range(2):
            flags = [*two_nodes(port, 1), *node_name(contender, number), "--max-restarts", "3"]
            job.start([*command(contender), *flags, worker("collective")])
        return kill_and_wait(job, contender, ranks=2)


def node_swap(contender: str) -> float:
    """Milliseconds from a node's power being cut to the first collective of the next round, on a spare node that waits."""
    with launch() as job:
        port = free_port()
        for number in range(3):
            flags = [*two_nodes(port, 1), *node_name(contender, number), "--max-restarts", "3"]
            job.start([*command(contender), *flags, worker("collective")])
            if number in (0, 1):  # who waits is not left to chance
                job.wait_for("trained", 2) if number else lost_node.wait_until_served(port)
        if contender == HOLDFAST:
            wait_for_spares(job, 3)
        time.sleep(0.5)
        node = lost_node.everything(job.processes[1].pid)
        cut_at = time.monotonic()
        for pid in node:
            os.kill(pid, signal.SIGSTOP)
        try:
            patience_s = PATIENCE_S if contender == HOLDFAST else OTHERS_S
            return 1000 * (lost_node.wait_for_others(job, 2, cut_at, patience_s, event="reduced") - cut_at)
        finally:
            for pid in node:
                with contextlib.suppress(ProcessLookupError):  # woken by its own timer, an agent has ended its ranks
                    os.kill(pid, signal.SIGKILL)


def memory() -> dict[str, float]:
    """MiB (PSS) of a worker after its imports, of the spares made for it, and of the one that others are forked from."""
    found = {}
    for mode, count in (("spawn", 2), ("fork", 1)):
        with launch() as job:
            flags = ["--nproc-per-node", "2", "--max-restarts", "3", "--warm-mode", mode]
            job.start([*command(HOLDFAST), *flags, worker("collective")])
            workers = [note.pid for note in job.wait_for("trained", 2)]
            waiting = wait_for_spares(job, count)
            found[f"worker, {mode}"] = memory_kb(workers[0], "Pss") / 1024
            found[mode] = max(memory_kb(pid, "Pss") for pid in waiting) / 1024
    return {MEMORY[0]: found["worker, spawn"], MEMORY[1]: found["spawn"], MEMORY[2]: found["fork"]}


class Tries:
    """What `measure` says, and how often a peer's ranks did not meet again, which costs the row a sample and not all others.

    torchrun's do not always: one store serves all lives, so who asks it before its peer has come finds the address that the
    peer had in the life before, is refused there, and starts a life that finds as much.
    """

    def __init__(self, measure: Callable[[str], float]) -> None:
        self.measure = measure
        self.made: dict[str, int] = {}
        self.vain: dict[str, int] = {}

    def __call__(self, contender: str) -> dict[str, float]:
        """A time at which they did, under no name. Empty: a peer has been waited for in vain `MOST_VAIN` times."""
        while self.vain.get(contender, 0) < MOST_VAIN:
            self.made[contender] = self.made.get(contender, 0) + 1
            try:
                return {"": self.measure(contender)}
            except RuntimeError as error:
                if contender == HOLDFAST:
                    raise
                self.vain[contender] = self.vain.get(contender, 0) + 1
                say(f"{contender}, try {self.made[contender]}: {str(error).partition(chr(10))[0]}")
        return {}

    def words(self) -> str:
        """Who did not come back, and how often. Empty: all did."""
        counts = ((name, vain, self.made[name]) for name, vain in self.vain.items())
        return "; ".join(f"{name}'s ranks did not meet again in {vain} of {made} tries" for name, vain, made in counts)


def compared(bench: Bench, what: str, times: int, reach: int, measure: Callable[[str], float]) -> Row:
    """One row, against torchrun, and beside ft_launcher where that is installed."""
    tries = Tries(measure)
    samples = bench.interleave(times, tries, also=nvrx())[""]
    row = Row(f"worker SIGKILL → first all_reduce of the new group, {what}", "ms", samples, f"≤ 1/{reach} of torchrun")
    met = row.ratio <= 1 / reach if row.ratio is not None else None
    return Row(row.what, row.unit, samples, row.reach, met, "; ".join(filter(None, [theirs(row), tries.words()])))


def nvrx() -> tuple[str, ...]:
    """ft_launcher, if it is here."""
    return (FT_LAUNCHER,) if importlib.util.find_spec("nvidia_resiliency_ext") else ()


def theirs(row: Row, never_ms: float = float("inf")) -> str:
    """What ft_launcher took. Empty: it is here, and has no time to show."""
    took = row.mid(FT_LAUNCHER)
    if took is None:
        return "" if nvrx() else "ft_launcher is not installed"
    return f"ft_launcher: {took:.0f} ms" if took < never_ms else f"ft_launcher: not within {never_ms / 1000:g} s"


def run(bench: Bench) -> Iterator[Row]:
    """One node, two agents, heavy imports, and memory."""
    if TORCHRUN not in bench.contenders and not importlib.util.find_spec("torch"):
        return
    yield compared(bench, "one node, 2 ranks", 5, REACH, one_node)
    if not bench.quick:
        yield compared(bench, "two agents × 1 rank", 3, REACH, two_agents)
        yield from heavy_imports(bench)
    yield swapped(bench)
    found = [memory() for _ in range(bench.times(2))]
    yield from (Row(f"memory (PSS) of {kind}", "MiB", {HOLDFAST: [one[kind] for one in found]}) for kind in MEMORY)


def swapped(bench: Bench) -> Row:
    """A node is lost, and a spare one takes its place."""
    tries = Tries(node_swap)
    taken = {HOLDFAST: [node_swap(HOLDFAST) for _ in range(bench.times(3))]}
    if not bench.quick:
        for name in (*bench.contenders, *nvrx()):
            if name != HOLDFAST:
                taken[name] = list(tries(name).values())
    what = "a node's power is cut → first all_reduce of the next round, on a spare node"
    row = Row(what, "ms", taken, f"≤ lease + 0.3 s ({SWAP_MS} ms)")
    met = (row.mid(HOLDFAST) or 0.0) <= SWAP_MS
    note = "; ".join(filter(None, [theirs(row, 1000 * OTHERS_S), tries.words()]))
    return Row(row.what, row.unit, row.samples, row.reach, met, note)


def heavy_imports(bench: Bench) -> list[Row]:
    """The same with transformers, where it is installed; BENCH_PYTHONPATH may say where else."""
    where = os.environ.get("BENCH_PYTHONPATH", "")
    if not (importlib.util.find_spec("transformers") or Path(where, "transformers").is_dir()):
        say("transformers is not installed: what it costs to import is not measured")
        return []
    heavy = {**HEAVY, **({"PYTHONPATH": where} if where else {})}
    return [compared(bench, "transformers imported", 3, REACH_HEAVY, partial(one_node, extra_env=heavy))]

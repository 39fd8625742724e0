"""What does one coordinator manage: a round, a restart, and the leases of thousands of nodes? See `crowd` for the members."""

from __future__ import annotations

import time
from statistics import median

from crowd import crowd
from footprint import cpu_ns, launcher_processes, memory_kb
from harness import HOLDFAST, Bench, Row

ROUND_S = {1024: None, 4096: 0.5, 10_000: 2.0}
"""Members, and the seconds in which their round is to be agreed on. Published for torchrun: 10 s at 4,000 hosts."""
MANY, ORDER_MS = 4096, 300
REACH_PERCENT, REACH_MB = 20, 100
RENEW_S = 8


def rounds(count: int, times: int) -> dict[str, list[float]]:
    """Milliseconds of `times` rounds and restart orders, and bytes of the rounds, of one crowd. In the first round the members
    join and renew; before each of the others one has failed, and all say that they have stopped, and join."""
    seen: dict[str, list[float]] = {"round": [], "bytes": [], "order": []}
    with crowd(count) as members:
        for number in range(times):
            if number:
                seen["order"].append(members.timed(f"order {number}")["ms"])
            agreed = members.timed("rejoin" if number else "join")
            seen["round"].append(agreed["ms"])
            seen["bytes"].append(agreed["bytes"] / count)
    return seen


def leases(count: int, seconds: int) -> dict[str, float]:
    """Percent of a core, and MB, of the agent (its guardian included, its worker not) while `count` leases are renewed."""
    with crowd(count, lease=()) as members:
        members.timed("join 1")
        workers = {note.pid for note in members.job.wait_for("first", 1)}
        agent = launcher_processes(members.agent, workers)
        members.ask(f"renew {seconds}")
        members.answers()  # all are ready
        time.sleep(0.5)
        before, begun = sum(map(cpu_ns, agent)), time.monotonic()
        time.sleep(seconds - 1.0)
        spent, passed = sum(map(cpu_ns, agent)) - before, time.monotonic() - begun
        for answer in members.answers():
            if answer["took_s"] > 1.1 * seconds:
                raise RuntimeError(f"the members took {answer['took_s']:.1f} s for {seconds} renewals each")
        return {"cpu": 100 * spent / 1e9 / passed, "rss": sum(memory_kb(pid, "Rss") for pid in agent) / 1024}


def run(bench: Bench) -> list[Row]:
    """Rounds of three sizes, the order to restart, and the leases."""
    sizes = [64] if bench.quick else list(ROUND_S)
    seen = {count: rounds(count, 2 if bench.quick else 6) for count in sizes}
    rows = []
    for count in sizes:
        reach_s, took = ROUND_S.get(count), median(seen[count]["round"])
        met = None if reach_s is None else took <= 1000 * reach_s
        note = f"{took / count:.2f} ms and {median(seen[count]['bytes']):.0f} bytes for each"
        what = f"{count:,} members join → the last has its rank"
        rows.append(Row(what, "ms", {HOLDFAST: seen[count]["round"]}, f"≤ {reach_s:g} s" if reach_s else "", met, note))
    many = MANY if MANY in seen else sizes[-1]
    orders = seen[many]["order"]
    what = f"a worker fails → the last of {many:,} nodes is told to restart"
    rows.append(Row(what, "ms", {HOLDFAST: orders}, f"≤ {ORDER_MS} ms", median(orders) <= ORDER_MS))
    held = [leases(many, 3 if bench.quick else RENEW_S) for _ in range(bench.times(3))]
    for what, unit, kind, limit in (
        ("processor time", "% of a core", "cpu", REACH_PERCENT),
        ("memory", "MB", "rss", REACH_MB),
    ):
        what = f"coordinator's {what} while {many:,} leases are renewed once a second"
        taken = [each[kind] for each in held]
        rows.append(Row(what, unit, {HOLDFAST: taken}, f"≤ {limit} {unit}", median(taken) <= limit))
    return rows

"""How much of its time does a job of thousands of nodes spend on steps that count? Ahead of time, by a policy's costs; pure.

A month of one job, failure by failure, from a seed: each is a rank that dies, one that hangs, or a node that is lost; costs its
detection and a restart, and takes back the work since the newest state that its kind leaves. A failure within a restart begins
that anew. Where the costs come from stands beside them; `sim.scenario` runs the real machines instead, on few nodes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

from holdfast.core.errors import UsageError
from holdfast.core.value import Value, replace, to_plain

DAY_S = 86400.0

LLAMA_3 = 419 / 54 / 2048
"""Failures per node and day: 419 interruptions in 54 days of 16,384 GPUs, 8 to a node (Llama 3, arXiv 2407.21783)."""

HANGS, NODES = 0.12, 0.25
"""Shares of failures. Hangs: 5,948 implicit failures beside 43,264 explicit ones (ByteRobust, arXiv 2509.16293). Nodes: three
of four faults need only new processes (DLRover, on jobs of a thousand GPUs)."""


class Costs(Value):
    """What a failure costs under one policy, in seconds. What is the same for all is an assumption about the script."""

    name: str
    death_s: float
    """From a rank's death to the start of its successor, without what grows with the number of nodes."""
    hang_s: float = 600.0  # Until a rank that hangs is ended.
    node_s: float
    """From a node's loss to the start of all ranks, with a spare node, without what grows with the number of nodes."""
    per_node_s: float  # What each node adds to a restart.
    import_s: float = 20.0  # Python's imports.
    connect_s: float = 30.0
    """CUDA, process groups, the first collective. MegaScale: under 30 s at more than 10,000 GPUs."""
    load_s: float = 60.0  # To load a checkpoint from storage.
    save_s: float = 5.0  # For so long a step waits for a checkpoint to storage.
    stash_s: float | None = None  # For so long it waits for a copy in memory. None: there is none.
    restore_s: float = 5.0  # To restore that.
    step_s: float | None = None  # A step, of which ranks that begin again in place lose what was done. None: they start anew.
    give_s: float = 1.0  # In place: until who takes a lost rank's place has its state, from one that has the same.
    in_vain: float = 0.02  # In place: share of failures after which nobody has the state, and all start anew from storage.


_TORCHRUN = Costs(name="torchrun", death_s=1.95, node_s=600.0, per_node_s=10 / 4000)
"""docs/benchmarks.md: 1.95 s between two agents; a lost node is noticed by NCCL's time-out of ten minutes alone. What nodes
add: 10 s at 4,000 hosts (pytorch PR 124982), which is better than what we measure at 128 and at 256 agents."""

_FT_LAUNCHER = replace(_TORCHRUN, name="ft_launcher", death_s=2.95, node_s=16.0)
"""The same rendezvous, and a fixed second between SIGTERM and SIGKILL; 16 s for a lost node, as measured. A hang: its limits
are off unless they are given, which leaves it to NCCL."""

_HOLDFAST = Costs(name="holdfast", death_s=0.04, node_s=4.5, per_node_s=0.567 / 4096)
"""docs/benchmarks.md: 39 ms between two agents; 4.5 s for a lost node; 121 ms to tell 4,096 nodes, 446 ms to place them. A
hang: no limit that is learned is shorter than --least-limit."""

_STASH = replace(_HOLDFAST, name="holdfast+stash", stash_s=0.3)
"""0.3 s: some 8 to 16 GB of each rank over PCIe into pinned memory; an assumption."""

_IN_PLACE = replace(_HOLDFAST, name="holdfast+in-place", death_s=1.1, node_s=5.5, import_s=0.0, step_s=6.0)
"""1.1 s: docs/benchmarks.md, 60 ms, and 1.0 s to end groups of NCCL, measured on one GPU. 6 s: Llama 3 with 16,384 GPUs, 16 M
tokens at 400 TFLOP/s each. 1 s: 16 GB at half of 400 Gbit/s. One failure in 50 in vain is an assumption."""

POLICIES = {
    costs.name: costs
    for costs in (
        _TORCHRUN,
        _FT_LAUNCHER,
        replace(_FT_LAUNCHER, name="ft_launcher+limit", hang_s=65.0),
        _HOLDFAST,
        _STASH,
        replace(_STASH, name="holdfast+stash+warm", import_s=0.0),
        replace(_STASH, name="holdfast+stash+warm+limit", import_s=0.0, hang_s=60.0),
        _IN_PLACE,
        replace(_IN_PLACE, name="holdfast+in-place+limit", hang_s=60.0),
    )
}
"""`limit`: the user has set a limit of 60 s for hangs. `warm`: interpreters wait with the script's imports done."""


class Outlook(Value):
    """What became of one job."""

    policy: str
    nodes: int
    goodput: float  # Share of its time that was spent on steps that count.
    lost: float  # Share spent on steps that were made again.
    down: float  # Share in which it was not training.
    saving: float  # Share in which steps waited for a checkpoint or a copy.
    failures: int
    save_each_s: float  # Work between two checkpoints to storage: as long as suits this policy best.
    stash_each_s: float | None  # Likewise, of copies in memory.


def policies(text: str, read: Callable[[str], str]) -> list[Costs]:
    """`all`, names with commas between them, or a JSON file with a list of `Costs`."""
    if text == "all":
        return list(POLICIES.values())
    if text.endswith(".json"):
        try:
            return [Costs(**fields) for fields in json.loads(read(text))]
        except (OSError, TypeError, ValueError) as error:
            raise UsageError(f"--policy: {text}: {error}", hint=f"a list of objects such as {_example()}") from None
    if unknown := [name for name in text.split(",") if name not in POLICIES]:
        raise UsageError(f"--policy: no {', '.join(unknown)}", hint=f"there are {', '.join(POLICIES)}, all, or a JSON file")
    return [POLICIES[name] for name in text.split(",")]


def _example() -> str:
    return json.dumps(to_plain(POLICIES["holdfast"]))


def outlook(costs: Costs, nodes: int, rate: float, days: float, seed: int) -> Outlook:
    """A job of so many nodes, each of which fails `rate` times a day, over so many days."""
    rng = random.Random(seed)
    mean_s = DAY_S / (rate * nodes)
    # Young's interval. Where a copy in memory serves for ranks, storage only has to serve for nodes; in place, for the rest.
    from_storage = costs.in_vain if costs.step_s is not None else NODES if costs.stash_s is not None else 1.0
    save_each = sqrt(2 * costs.save_s * mean_s / from_storage)
    stash_each = sqrt(2 * costs.stash_s * mean_s / (1 - NODES)) if costs.stash_s is not None else None
    slowed = 1 + costs.save_s / save_each + ((costs.stash_s or 0.0) / stash_each if stash_each is not None else 0.0)
    end, now, work, lost, down, failures = days * DAY_S, 0.0, 0.0, 0.0, 0.0, 0
    while now < end:
        trains = min(rng.expovariate(1 / mean_s), end - now)
        now += trains
        work += trains / slowed
        if now >= end:
            break
        while True:
            failures += 1
            restart_s, kept_each = _restart(costs, nodes, stash_each, save_each, rng)
            back = work % kept_each
            work, lost = work - back, lost + back
            next_s = rng.expovariate(1 / mean_s)
            now, down = now + min(restart_s, next_s), down + min(restart_s, next_s)
            if next_s >= restart_s:
                break
    shares = [work / now, lost / now, down / now]
    goodput, again, idle = shares
    return Outlook(
        policy=costs.name,
        nodes=nodes,
        goodput=goodput,
        lost=again,
        down=idle,
        saving=max(0.0, 1 - sum(shares)),
        failures=failures,
        save_each_s=save_each,
        stash_each_s=stash_each,
    )


def _restart(
    costs: Costs, nodes: int, stash_each: float | None, save_each: float, rng: random.Random
) -> tuple[float, float]:
    """How long the job does not train, and how far apart the states are to one of which it goes back."""
    kind = rng.random()
    begin_s = costs.per_node_s * nodes + costs.import_s + costs.connect_s
    if costs.step_s is not None and rng.random() >= costs.in_vain:
        found_s = costs.node_s if kind < NODES else costs.death_s + (costs.hang_s if kind < NODES + HANGS else 0.0)
        return found_s + begin_s + costs.give_s, costs.step_s
    if kind < NODES:
        return costs.node_s + begin_s + costs.load_s, save_each
    found_s = costs.death_s + (costs.hang_s if kind < NODES + HANGS else 0.0)
    if stash_each is None:
        return found_s + begin_s + costs.load_s, save_each
    return found_s + begin_s + costs.restore_s, stash_each


def table(found: Sequence[Outlook]) -> list[tuple[str, ...]]:
    """Rows for people, the headings first."""
    headings = ("NODES", "POLICY", "GOODPUT", "DOWN", "LOST", "SAVING", "FAILURES", "SAVED EACH", "STASHED EACH")
    rows: list[tuple[str, ...]] = [headings]
    for one in found:
        shares = (f"{100 * share:.1f} %" for share in (one.goodput, one.down, one.lost, one.saving))
        each = "-" if one.stash_each_s is None else f"{one.stash_each_s:.0f} s"
        rows.append((str(one.nodes), one.policy, *shares, str(one.failures), f"{one.save_each_s:.0f} s", each))
    return rows


COLOURS = ("#9aa5b1", "#c9a227", "#e0c56e", "#4c78a8", "#2f9e8f", "#1b6e53", "#0b3d2e", "#b56ba8", "#6a2d70")
WIDE, HIGH, LEFT, FLOOR = 700, 260, 48, 300


def plot(found: Sequence[Outlook], title: str) -> str:
    """The same as an SVG picture: for each number of nodes a bar for each policy."""
    names, groups = (list(dict.fromkeys(getattr(one, field) for one in found)) for field in ("policy", "nodes"))
    step = (WIDE - LEFT) / len(groups)
    bar = step * 0.9 / len(names)
    parts = [_text(LEFT, 20, title, "start", 13)]
    for percent in (0, 25, 50, 75, 100):
        y = FLOOR - HIGH * percent / 100
        parts.append(f'<line x1="{LEFT}" x2="{WIDE}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{percent} %", "end"))
    for one in found:
        which, tall = names.index(one.policy), HIGH * one.goodput
        x = LEFT + (groups.index(one.nodes) + 0.05) * step + which * bar
        parts.append(_box(x, FLOOR - tall, bar - 2, tall, which))
        parts.append(_text(x + bar / 2 - 1, FLOOR - tall - 4, f"{100 * one.goodput:.0f}"))
    parts += [_text(LEFT + (place + 0.5) * step, FLOOR + 18, f"{nodes:,} nodes") for place, nodes in enumerate(groups)]
    for which, name in enumerate(names):
        x, y = LEFT + which % 3 * (WIDE - LEFT) / 3, 336 + which // 3 * 18
        parts += [_box(x, y, 10, 10, which), _text(x + 14, y + 9, str(name), "start")]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE + 10} 388" font-family="sans-serif" font-size="11">'
    return "\n".join((head, *parts, "</svg>\n"))


def _text(x: float, y: float, text: str, anchor: str = "middle", size: int = 11) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escaped}</text>'


def _box(x: float, y: float, wide: float, high: float, which: int) -> str:
    colour = COLOURS[which % len(COLOURS)]
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="{colour}"/>'


def options_of(given: Any) -> tuple[list[int], float, float]:
    """`--nodes`, `--rate` and `--days` as numbers. UsageError: they are none."""
    try:
        nodes, rate = [int(part) for part in given.nodes.split(",")], float(given.rate)
    except ValueError:
        nodes, rate = [], 0.0
    if not nodes or min(nodes) < 1 or not rate > 0:
        raise UsageError(f"--nodes {given.nodes} --rate {given.rate}: not numbers above 0", hint="such as --nodes 1024,4096")
    try:
        days = float(given.days)
    except ValueError:
        days = 0.0
    if not 0 < days < float("inf"):
        raise UsageError(f"--days {given.days}: not a number above 0", hint="such as --days 30")
    return nodes, rate, days

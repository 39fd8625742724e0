"""Has the job come through? Its result, its ranks, its budget, the cause that is named, and what it has left behind."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from chaos.fault import Outcome
from chaos.job import HOLDFAST, Job
from chaos.node import Node
from chaos.ranks.ledger import undisturbed

OURS = re.compile(
    r'Traceback \(most recent call last\):\n(?:[ >].*\n)*?  File "[^"\n]*/src/holdfast/(?!client/)[^\n]*\n', re.MULTILINE
)
USED = re.compile(r"(\d+) of \d+ restarts? used")
SLACK_S = 0.001


@dataclass
class Verdict:
    """`problems`: each a sentence; none: it has come through."""

    problems: list[str] = field(default_factory=list)
    pause_s: float | None = None
    """The longest time without a step from the fault on."""
    back_s: float | None = None
    """From the last start of a launcher to the first step after it. None: none was started after the fault."""
    restarts: int | None = None


def judge(job: Job) -> Verdict:
    """Once all agents have ended."""
    found = Verdict()
    if job.fault.outcome == Outcome.TRAINS:
        found.problems += result(job)
        found.pause_s = pause(job)
        if (within := job.fault.within_s) and found.pause_s and found.pause_s > within:
            found.problems.append(f"it trained again after {found.pause_s:.1f} s only, and not within {within:g} s")
        found.back_s = back(job)
        if (within := job.fault.back_within_s) and not (found.back_s is not None and found.back_s <= within):
            found.problems.append(f"it trained {found.back_s} s after the last start, and not within {within:g} s")
    found.problems += two_of_one_number(job) + order_of_saves(job)
    found.problems += ends(job)
    if job.launcher == HOLDFAST:
        found.restarts = restarts(job)
        low, high = job.fault.restarts
        if found.restarts is not None and not low <= found.restarts <= high:
            found.problems.append(f"{found.restarts} restarts were spent, and not {low}{f' to {high}' if high != low else ''}")
        found.problems += causes(job) + tracebacks(job)
    for node in job.nodes.values():
        if node.is_lost and node.runs:  # It is cut off, and waits.
            found.problems += [f"rank {life.rank} still runs on {node.name}" for life in job.alive() if life.node == node.name]
        elif node.launched:
            found.problems += [f"left behind: {one}" for one in node.remains()]
    return found


def result(job: Job) -> list[str]:
    """The newest checkpoint is that of a job to which nothing happens."""
    path = Path(job.setup.env.get("CHAOS_CHECKPOINTS", job.folder)) / "checkpoint"
    kept = json.loads(path.read_text())
    weight, loss = undisturbed(kept["step"])
    if math.isclose(kept["weight"], weight, rel_tol=1e-9) and math.isclose(kept["loss"], loss, rel_tol=1e-9):
        return []
    return [f"step {kept['step']} has weight {kept['weight']!r} and loss {kept['loss']!r}, not {weight!r} and {loss!r}"]


def two_of_one_number(job: Job) -> list[str]:
    """No process runs as a rank once another of its number has begun."""
    problems = []
    lives = sorted(job.lives(), key=lambda life: life.first)
    for rank in {life.rank for life in lives}:
        for one, other in pairwise(life for life in lives if life.rank == rank):
            if one.last > other.first + SLACK_S:
                late = one.last - other.first
                problems.append(f"rank {rank} of round {one.round} ran for {late:.3f} s beside that of round {other.round}")
    return problems


def order_of_saves(job: Job) -> list[str]:
    """No step is left out, and no round's checkpoint comes after a later round's."""
    problems = []
    began = {life.pid: life.first for life in job.lives()}
    for one, other in pairwise(job.saves()):
        if other.step > one.step + 1 + (one.pid != other.pid):  # A rank may be killed between its checkpoint and its line.
            problems.append(f"step {other.step} came after {one.step}")
        if began.get(other.pid, 0.0) < began.get(one.pid, 0.0):
            problems.append(f"a rank of round {other.round} kept step {other.step} after round {one.round} had kept {one.step}")
    return problems[:3]


def ends(job: Job) -> list[str]:
    """With which code did each launcher end that had no reason to be lost?"""
    good = job.fault.outcome == Outcome.TRAINS
    problems = []
    for node in job.nodes.values():
        if not node.launched or node.is_lost:
            continue
        code = node.launcher.poll()
        if (code == 0) != good:
            problems.append(f"{node.name} ended with {code}")
    return problems


def pause(job: Job) -> float | None:
    """From the fault on, or from the last step before, as far as it is later."""
    times = [save.at for save in job.saves()]
    marks = [job.struck_at, *(at for at in times if at > job.struck_at)]
    return max((later - one for one, later in pairwise(marks)), default=None)


def back(job: Job) -> float | None:
    """Of ranks that have begun since the fault."""
    if (since := job.returned_at) is None:
        return None
    return min((round(save.at - since, 2) for save in job.fresh() if save.at > since), default=None)


def restarts(job: Job) -> int | None:
    """As the last line says. None: no node says it."""
    said = [int(count) for node in job.nodes.values() for count in USED.findall(node.said())]
    return max(said, default=None)


def causes(job: Job) -> list[str]:
    """Each pattern is in what the console says, and in what `why` and `report` say, of at least one node."""
    nodes = [node for node in job.nodes.values() if node.launched]
    places: dict[str, Callable[[Node], str]] = {
        "the console": lambda node: node.said_by_launchers(),
        "`why`": lambda node: node.ask("why"),
        "`report`": lambda node: node.ask("report"),
    }
    problems = []
    for place, said in places.items():
        wanted = {pattern.format(**job.notes) for pattern in job.fault.cause}
        for node in nodes:
            if wanted:
                text = " ".join(said(node).split())
                wanted = {pattern for pattern in wanted if not re.search(pattern, text)}
        problems += [f"{pattern!r} is not in {place}" for pattern in sorted(wanted)]
    return problems


def tracebacks(job: Job) -> list[str]:
    """Ours, in what the launchers say."""
    return [
        f"{node.name} shows a traceback of ours: {' '.join(found.group().split())[-160:]}"
        for node in job.nodes.values()
        for found in [OURS.search(node.said_by_launchers())]
        if found
    ]

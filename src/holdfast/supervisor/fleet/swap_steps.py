"""Carries out the steps of a swap, exactly once, whichever process dies meanwhile. `policies` decides on it.

    exclude ──▶ drain ──▶ replace ──▶ watch ──▶ over
    its job     the scheduler         a round without it runs
                gives it no more work; another is asked for, if no spare waits

Each step is stored before it begins, and is idempotent: the ids of its order and its call are made of the swap's. So a
supervisor that comes back repeats the step that had begun, and goes on from there. The order to exclude goes to one agent of
the job after the other, the sick node's own last, until one answers; each has a deadline.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action
from holdfast.core.value import replace
from holdfast.core.wire.fleet import NodeState, Swap, SwapStep, Verb
from holdfast.supervisor.fleet.job import FleetJob
from holdfast.supervisor.fleet.messages import CallVerb, InVain, Keep
from holdfast.supervisor.fleet.state import FleetState, OpenSwap

RETRY_S, TRIES = 5.0, 12
"""When every agent of the job was asked in vain, they are asked again after RETRY_S, TRIES times in all."""

REPORTS_S = 5.0
"""The nodes of a round report that their ranks run within so much of each other."""


def begin(fleet: FleetState, swap: Swap, by: str, now: float) -> list[Action]:
    """Take a node out. The plan is stored before anything is done."""
    node = fleet.nodes[swap.node]
    node.hold(NodeState.DRAINING, swap.reason, by)
    return [fleet.plan(swap, now), *fleet.keep(node, now, swap.reason), *advance(fleet, swap.id, now)]


def advance(fleet: FleetState, id: str, now: float) -> list[Action]:
    """Begin the current step, or go on with it. Called again, it begins nothing twice."""
    under_way = fleet.open_swaps[id]
    swap = under_way.swap
    if f"{id}.{swap.step}" in fleet.queues:
        return []
    match swap.step:
        case SwapStep.EXCLUDE:
            return _exclude(fleet, under_way, now)
        case SwapStep.DRAIN | SwapStep.REPLACE:
            return fleet.call(id, CallVerb(swap.step), swap.node, swap.reason, now)
        case SwapStep.WATCH:
            return _watch(fleet, under_way, now)


# --- what happens to one ----------------------------------------------------------------------------------------------


def answered(fleet: FleetState, id: str, verb: str, ok: bool, text: str, now: float) -> list[Action]:
    """The current step's order or call was answered."""
    swap = fleet.open_swaps[id].swap
    match swap.step, ok:
        case step, _ if step != verb:
            return []  # an answer to an earlier step
        case SwapStep.EXCLUDE, False:
            return _refused(fleet, swap, text, now)
        case _:  # an orchestrator that fails does not keep the job waiting: the record says what it answered
            return fleet.action_log.note(id, f"{verb}: {text}") + _go_on(fleet, swap, now)


def unanswered(fleet: FleetState, id: str, verb: str, now: float) -> list[Action]:
    """The current step's order or call was not answered in time."""
    under_way = fleet.open_swaps[id]
    match under_way.swap.step:
        case step if step != verb:
            return []
        case SwapStep.EXCLUDE:
            last = fleet.reporters.get(under_way.tried[-1], under_way.tried[-1])
            return fleet.action_log.note(id, f"exclude: {last} has not answered") + advance(fleet, id, now)
        case _:
            noted = fleet.action_log.note(id, f"{verb}: the orchestrator has not answered")
            return noted + _go_on(fleet, under_way.swap, now)


def job_reported(fleet: FleetState, job: str, now: float) -> list[Action]:
    """A reporter of a job has said something new: it may end a swap's exclusion or its watch."""
    waits = [
        id
        for id, one in fleet.open_swaps.items()
        if one.swap.job == job and one.swap.step in (SwapStep.EXCLUDE, SwapStep.WATCH)
    ]
    return [action for id in waits for action in advance(fleet, id, now)]


def due(fleet: FleetState, now: float) -> list[Action]:
    """Time has passed."""
    actions: list[Action] = []
    for id, under_way in list(fleet.open_swaps.items()):
        is_watched = under_way.swap.step == SwapStep.WATCH
        if is_watched and now >= under_way.until:
            actions += _over(fleet, under_way.swap, "the job has not gone on without it in time", now)
        elif now >= min(under_way.look_at, under_way.until):
            is_settled, until = is_watched and now >= under_way.look_at, max(under_way.until, now + RETRY_S)
            fleet.open_swaps[id] = replace(under_way, is_settled=is_settled, look_at=NEVER, until=until)
            actions += advance(fleet, id, now)
    return actions


# --- its steps --------------------------------------------------------------------------------------------------------


def _exclude(fleet: FleetState, under_way: OpenSwap, now: float) -> list[Action]:
    swap = under_way.swap
    job = fleet.jobs.get(swap.job)
    if not swap.job or (fleet.is_settled(now) and (job is None or not job.reports)):
        return _go_on(fleet, swap, now)
    if job is not None and job.is_watched:
        why = "exclude: its launcher takes no orders from us; the orchestrator is told"
        return fleet.action_log.note(swap.id, why) + _go_on(fleet, swap, now)
    left = (one for one in (job.speakers(but=swap.node) if job else ()) if one not in under_way.tried)
    if speaker := next(filter(fleet.is_linked, left), ""):
        fleet.open_swaps[swap.id] = replace(under_way, tried=(*under_way.tried, speaker))
        order = fleet.order(f"{swap.id}.exclude", Verb.EXCLUDE, swap.reason, target=swap.node)
        return fleet.send(speaker, order, now)
    tries = under_way.tries + any(map(fleet.is_linked, under_way.tried))
    if tries >= TRIES:
        return _refused(fleet, swap, "no agent of its job has answered", now)
    fleet.open_swaps[swap.id] = replace(under_way, tried=(), tries=tries, look_at=now + RETRY_S)
    return []


def _watch(fleet: FleetState, under_way: OpenSwap, now: float) -> list[Action]:
    swap = under_way.swap
    job = fleet.jobs.get(swap.job)
    if not swap.job:
        return _over(fleet, swap, "no job ran there", now)
    if job is None or not job.reports:
        return _over(fleet, swap, "its job has ended", now) if fleet.is_settled(now) else []
    if job.round <= swap.round or not job.is_running or swap.node in job.ranked:
        return []
    if swap.spare and swap.spare not in job.ranked:
        fleet.open_swaps[swap.id] = replace(under_way, look_at=min(under_way.look_at, now + REPORTS_S))
        if not under_way.is_settled:
            return []
    return _over(fleet, swap, _takeover(swap, job), now)


def _takeover(swap: Swap, job: FleetJob) -> str:
    size = "1 node" if len(job.ranked) == 1 else f"{len(job.ranked)} nodes"
    took = f"{swap.spare} has taken over" if swap.spare in job.ranked else f"the job goes on with {size}"
    return f"{took} in round {job.round}"


def _go_on(fleet: FleetState, swap: Swap, now: float) -> list[Action]:
    steps = list(SwapStep)
    then = steps[steps.index(swap.step) + 1]
    if then == SwapStep.REPLACE and not swap.replaces:
        then = SwapStep.WATCH
    return [fleet.plan(replace(swap, step=then), now), *advance(fleet, swap.id, now)]


def _refused(fleet: FleetState, swap: Swap, text: str, now: float) -> list[Action]:
    """The job cannot go on without the node, says its coordinator; or no agent answers."""
    node = fleet.nodes[swap.node]
    node.hold(NodeState.SUSPECT, f"{swap.reason}; it still has its place in {swap.job}: {text}", node.by)
    return [_struck(fleet, swap), *fleet.keep(node, now), InVain(deed=swap.id, text=text)]


def _over(fleet: FleetState, swap: Swap, outcome: str, now: float) -> list[Action]:
    node = fleet.nodes[swap.node]
    if node.standing == NodeState.DRAINING:  # otherwise an operator has let it back meanwhile
        node.hold(NodeState.UNFIT, swap.reason, node.by)
    return [_struck(fleet, swap), *fleet.keep(node, now, outcome), *fleet.close(swap.id, outcome, now)]


def _struck(fleet: FleetState, swap: Swap) -> Action:
    del fleet.open_swaps[swap.id]
    return Keep(table="swaps", key=swap.id, value=None)

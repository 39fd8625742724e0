"""Carries out the steps of a swap, exactly once, whichever process dies meanwhile. `policies` decides on it.

    exclude ──▶ drain ──▶ replace ──▶ watch ──▶ over
    its job     the scheduler         a round without it runs
                gives it no more work; another is asked for, if no spare waits

    drain ──▶ replace ──▶ await ──▶ exclude ──▶ watch ──▶ over          of an act `replace`: its job needs it (`awaiting`)

Each step is stored before it begins, and is idempotent: the ids of its order and its call are made of the swap's. So a
supervisor that comes back repeats the step that had begun, and goes on from there. The order to exclude goes to one agent of
the job after the other, the sick node's own last, until one answers; each has a deadline.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action
from holdfast.core.value import replace
from holdfast.core.wire.fleet import NodeState, Swap, SwapStep, Verb
from holdfast.supervisor.fleet import awaiting, repairs
from holdfast.supervisor.fleet.action_log import AWAIT_OVER, GOES_ON, TAKEN_OVER
from holdfast.supervisor.fleet.job import FleetJob
from holdfast.supervisor.fleet.messages import CallVerb, InVain
from holdfast.supervisor.fleet.state import TAKEOVER_S, FleetState, OpenSwap

RETRY_S, TRIES = 5.0, 12
"""When every agent of the job was asked in vain, they are asked again after RETRY_S, TRIES times in all."""

LONGER = 6
"""Where a node's place is needed, its job is asked again after twice the time, so often: every five minutes from then on."""

REPORTS_S = 5.0
"""The nodes of a round report that their ranks run within so much of each other."""

STEPS = (SwapStep.EXCLUDE, SwapStep.DRAIN, SwapStep.REPLACE, SwapStep.WATCH)
STEPS_AWAITING = (SwapStep.DRAIN, SwapStep.REPLACE, SwapStep.AWAIT, SwapStep.EXCLUDE, SwapStep.WATCH)
"""Of a swap whose job needs the node until another is there."""


def begin(fleet: FleetState, swap: Swap, by: str, now: float) -> list[Action]:
    """Take a node out. The plan is stored before anything is done."""
    node = fleet.nodes[swap.node]
    node.hold(NodeState.DRAINING, swap.reason, by)
    return [fleet.plan(swap, now), *fleet.keep(node, now, swap.reason), *advance(fleet, swap.id, now)]


def advance(fleet: FleetState, id: str, now: float) -> list[Action]:
    """Begin the current step, or go on with it. Called again, it begins nothing twice."""
    under_way = fleet.open_swaps[id]
    swap = under_way.swap
    if _task(swap) in fleet.queues:
        return []
    match swap.step:
        case SwapStep.EXCLUDE:
            return _exclude(fleet, under_way, now)
        case SwapStep.DRAIN | SwapStep.REPLACE:
            return fleet.call(id, CallVerb(swap.step), swap.node, awaiting.need(fleet, swap), now)
        case SwapStep.AWAIT:
            return _await(fleet, under_way, now)
        case SwapStep.WATCH:
            return _watch(fleet, under_way, now)


# --- what happens to one ----------------------------------------------------------------------------------------------


def answered(fleet: FleetState, id: str, verb: str, ok: bool, text: str, now: float) -> list[Action]:
    """The current step's order or call was answered."""
    swap = fleet.open_swaps[id].swap
    match swap.step, ok:
        case SwapStep.AWAIT, _ if verb == CallVerb.REPLACE:
            return awaiting.answered(fleet, swap, ok, text, now)
        case step, _ if step != verb:
            return []  # an answer to an earlier step
        case SwapStep.REPLACE, _ if swap.awaits:
            return awaiting.answered(fleet, swap, ok, text, now) + _go_on(fleet, fleet.open_swaps[id].swap, now)
        case SwapStep.EXCLUDE, False:
            return _refused(fleet, swap, text, now)
        case _:  # an orchestrator that fails does not keep the job waiting: the record says what it answered
            return fleet.action_log.note(id, f"{verb}: {text}") + _go_on(fleet, swap, now)


def unanswered(fleet: FleetState, id: str, verb: str, now: float) -> list[Action]:
    """The current step's order or call was not answered in time."""
    under_way = fleet.open_swaps[id]
    match under_way.swap.step:
        case SwapStep.AWAIT | SwapStep.REPLACE if under_way.swap.awaits and verb == CallVerb.REPLACE:
            return answered(fleet, id, verb, False, "the orchestrator has not answered", now)
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
        if one.swap.job == job and one.swap.step in (SwapStep.EXCLUDE, SwapStep.AWAIT, SwapStep.WATCH)
    ]
    return [action for id in waits for action in advance(fleet, id, now)]


def due(fleet: FleetState, now: float) -> list[Action]:
    """Time has passed."""
    actions: list[Action] = []
    for id, under_way in list(fleet.open_swaps.items()):
        is_watched = under_way.swap.step == SwapStep.WATCH
        if is_watched and now >= under_way.until:
            actions += _stands(fleet, under_way.swap, "the job has not gone on without it in time", now)
        elif now >= min(under_way.look_at, under_way.until):
            is_settled, until = is_watched and now >= under_way.look_at, max(under_way.until, now + RETRY_S)
            fleet.open_swaps[id] = replace(under_way, is_settled=is_settled, look_at=NEVER, until=until)
            actions += advance(fleet, id, now)
    return actions


# --- its steps --------------------------------------------------------------------------------------------------------


def _exclude(fleet: FleetState, under_way: OpenSwap, now: float) -> list[Action]:
    swap = under_way.swap
    job = fleet.jobs.get(swap.job)
    if not swap.job or (fleet.is_settled(now) and (job is None or not job.is_here)):
        return _go_on(fleet, swap, now)
    if job is not None and job.is_watched:
        why = "exclude: its launcher takes no orders from us; the orchestrator is told"
        return fleet.action_log.note(swap.id, why) + _go_on(fleet, swap, now)
    left = (one for one in (job.speakers(but=swap.node) if job else ()) if one not in under_way.tried)
    if speaker := next(filter(fleet.is_linked, left), ""):
        fleet.open_swaps[swap.id] = replace(under_way, tried=(*under_way.tried, speaker))
        order = fleet.order(_task(swap), Verb.EXCLUDE, swap.reason, target=swap.node)
        return fleet.send(speaker, order, now)
    tries = under_way.tries + any(map(fleet.is_linked, under_way.tried))
    if tries >= TRIES:
        return _refused(fleet, swap, "no agent of its job has answered", now)
    fleet.open_swaps[swap.id] = replace(under_way, tried=(), tries=tries, look_at=now + RETRY_S)
    return []


def _await(fleet: FleetState, under_way: OpenSwap, now: float) -> list[Action]:
    """Go on once its job can do without the node, whoever has seen to that. A lost one may also be back."""
    swap = under_way.swap
    job = fleet.jobs.get(swap.job)
    if job is None or not job.is_here:
        return _over(fleet, swap, "its job has ended", now) if fleet.is_settled(now) else []
    has_place, spares = swap.node in job.ranked, fleet.spares(job, swap.node)
    if awaiting.is_back(fleet, swap, job):
        return awaiting.came_back(fleet, swap, job, now)
    may_go = spares or awaiting.goes_without(fleet, swap, job, now)
    if may_go and now >= under_way.exclude_at:
        in_vain = swap.expected_by_unix and not spares and has_place and len(job.ranked) <= swap.size
        noted = fleet.action_log.note(swap.id, f"{AWAIT_OVER}no other node has come in time") if in_vain else []
        return noted + _go_on(fleet, replace(swap, spare=spares[0] if spares and has_place else ""), now)
    return awaiting.ask_again(fleet, under_way, now)


def _watch(fleet: FleetState, under_way: OpenSwap, now: float) -> list[Action]:
    swap = under_way.swap
    job = fleet.jobs.get(swap.job)
    if not swap.job:
        return _over(fleet, swap, "no job ran there", now)
    if job is None or not job.is_here:
        return _over(fleet, swap, "its job has ended", now) if fleet.is_settled(now) else []
    if job.round <= swap.round or not job.is_running or swap.node in job.ranked:
        return []
    is_short = swap.awaits and len(job.ranked) < job.least
    if is_short or (swap.spare and swap.spare not in job.ranked):
        fleet.open_swaps[swap.id] = replace(under_way, look_at=min(under_way.look_at, now + REPORTS_S))
        if not under_way.is_settled:
            return []
    return _over(fleet, swap, _takeover(swap, job), now)


def _takeover(swap: Swap, job: FleetJob) -> str:
    size = "1 node" if len(job.ranked) == 1 else f"{len(job.ranked)} nodes"
    took = f"{swap.spare} {TAKEN_OVER}" if swap.spare in job.ranked else f"{GOES_ON} {size}"
    return f"{took} in round {job.round}"


def _go_on(fleet: FleetState, swap: Swap, now: float) -> list[Action]:
    steps = STEPS_AWAITING if swap.awaits else STEPS
    then = steps[steps.index(swap.step) + 1]
    if then == SwapStep.REPLACE and not swap.replaces:
        then = SwapStep.WATCH
    until = NEVER if then == SwapStep.AWAIT else now + TAKEOVER_S
    fleet.open_swaps[swap.id] = replace(fleet.open_swaps[swap.id], until=until)
    return [fleet.plan(replace(swap, step=then), now), *advance(fleet, swap.id, now)]


def _refused(fleet: FleetState, swap: Swap, text: str, now: float) -> list[Action]:
    """The job cannot go on without the node, says its coordinator; or no agent answers."""
    if swap.awaits:
        return _again(fleet, swap, text, now)
    node = fleet.nodes[swap.node]
    node.hold(NodeState.SUSPECT, f"{swap.reason}; it still has its place in {swap.job}: {text}", node.by)
    return [fleet.strike(swap), *fleet.keep(node, now), InVain(deed=swap.id, text=text)]


def _again(fleet: FleetState, swap: Swap, text: str, now: float) -> list[Action]:
    """Wait on: the other node is gone again, or its job does without it no more than before."""
    again_at = now + RETRY_S * 2 ** min(swap.tries, LONGER)
    fleet.open_swaps[swap.id] = OpenSwap(swap=swap, until=NEVER, exclude_at=again_at, look_at=again_at, ask_at=again_at)
    swap = replace(swap, step=SwapStep.AWAIT, spare="", tries=swap.tries + 1, asked="", is_granted=False)
    return [*fleet.action_log.note(swap.id, f"exclude: {text}"), fleet.plan(swap, now)]


def _stands(fleet: FleetState, swap: Swap, text: str, now: float) -> list[Action]:
    """Time is up. A job that stands is waited for, with another node asked for: who should have taken over may be gone too."""
    job = fleet.jobs.get(swap.job)
    if swap.awaits or (job is not None and job.is_here and not job.is_running):
        return _again(fleet, replace(swap, awaits=True), text, now)
    return _over(fleet, swap, text, now)


def _over(fleet: FleetState, swap: Swap, outcome: str, now: float) -> list[Action]:
    node, trouble, then = fleet.nodes[swap.node], fleet.action_log.trouble(swap.id), list[Action]()
    closed = [fleet.strike(swap), *fleet.close(swap.id, outcome, now)]
    if node.standing == NodeState.DRAINING:  # otherwise an operator has let it back meanwhile
        node.hold(NodeState.UNFIT, swap.reason, node.by)
        then = repairs.taken_out(fleet, node, trouble, now)
    return [*closed, *fleet.keep(node, now, outcome), *then]


def _task(swap: Swap) -> str:
    """Id of the current step's order or call: an agent remembers what it has answered to one."""
    return f"{swap.id}.{swap.step}{swap.tries or ''}"

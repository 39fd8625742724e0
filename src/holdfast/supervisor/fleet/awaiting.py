"""A job needs a node that should go, and no spare waits: what is waited for, and what ends the wait?

The scheduler has been asked for another node, or has none to give. Either way the job, and the node, wait for one of these:
another node joins the job; the job can be smaller; the node itself, where it was lost, is back; the job ends; an operator lets
the node stay. Where the scheduler refused or failed, it is asked again now and then. A job that can be smaller waits only where
it is known when the other node comes, and for so long.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action
from holdfast.core.value import replace
from holdfast.core.wire.fleet import NodeState, Swap, SwapStep, TroubleKind
from holdfast.supervisor.fleet.job import FleetJob
from holdfast.supervisor.fleet.messages import CallVerb, Need
from holdfast.supervisor.fleet.state import FleetState, OpenSwap

ASK_AGAIN_S = 60.0
"""Between two requests to a scheduler that could not give another node: its queue and its quota change within minutes."""


def need(fleet: FleetState, swap: Swap) -> Need:
    """What the scheduler is told."""
    trouble = fleet.action_log.trouble(swap.id)
    is_urgent = swap.awaits and trouble != TroubleKind.OPERATOR and not swap.expected_by_unix
    return Need(reason=swap.reason, job=swap.job, trouble=trouble, is_urgent=is_urgent)


def answered(fleet: FleetState, swap: Swap, ok: bool, text: str, now: float) -> list[Action]:
    """The scheduler was asked for another node. The same answer again is not noted again."""
    if (text, ok) == (swap.asked, swap.is_granted):
        return []
    fleet.open_swaps[swap.id] = replace(fleet.open_swaps[swap.id], ask_at=now + ASK_AGAIN_S)
    return [*fleet.action_log.note(swap.id, f"replace: {text}"), fleet.plan(replace(swap, asked=text, is_granted=ok), now)]


def ask_again(fleet: FleetState, under_way: OpenSwap, now: float) -> list[Action]:
    """Ask once more, if the last answer was no, and that is a while ago."""
    swap, look_at = under_way.swap, under_way.exclude_at if under_way.exclude_at > now else NEVER
    if hopes(fleet, swap, now):
        look_at = min(look_at, now + swap.expected_by_unix - fleet.unix(now))
    if swap.is_granted or now < under_way.ask_at:
        look_at = look_at if swap.is_granted else min(look_at, under_way.ask_at)
        fleet.open_swaps[swap.id] = replace(under_way, look_at=look_at)
        return []
    fleet.open_swaps[swap.id] = replace(under_way, ask_at=now + ASK_AGAIN_S, look_at=min(look_at, now + ASK_AGAIN_S))
    return fleet.call(swap.id, CallVerb.REPLACE, swap.node, need(fleet, swap), now, tries=swap.tries)


def is_back(fleet: FleetState, swap: Swap, job: FleetJob) -> bool:
    """Whether a node that was lost has ranks in a newer round, and nothing else is held against it."""
    is_lost_one = fleet.action_log.trouble(swap.id) == TroubleKind.LOST
    runs_on = job.is_running and job.round > swap.round and swap.node in job.ranked
    devices = fleet.nodes[swap.node].devices.values()
    return is_lost_one and runs_on and all(device.state != NodeState.UNFIT for device in devices)


def goes_without(fleet: FleetState, swap: Swap, job: FleetJob, now: float) -> bool:
    """Whether its job runs without the node already, or has become larger, or is to be smaller, and can be told to."""
    if not job.is_running:
        return False
    has_place = swap.node in job.ranked
    could_shrink = not job.is_watched and len(job.ranked) - has_place >= job.least
    has_grown = len(job.ranked) > swap.size
    return (could_shrink and (has_grown or not hopes(fleet, swap, now))) or (job.round > swap.round and not has_place)


def hopes(fleet: FleetState, swap: Swap, now: float) -> bool:
    """Whether it is still time for the node that the scheduler gives, and the scheduler has not refused it."""
    return fleet.unix(now) < swap.expected_by_unix and (swap.is_granted or not swap.asked)


def came_back(fleet: FleetState, swap: Swap, job: FleetJob, now: float) -> list[Action]:
    """The node that was lost has ranks again: nothing else was held against it."""
    text = f"{swap.node} is back: the job runs on it again in round {job.round}"
    node = fleet.nodes[swap.node]
    node.pardon(text, fleet.unix(now))
    closed = given_up(fleet, swap, text, now)
    return [*closed, *fleet.keep(node, now, text), *fleet.call(swap.id, CallVerb.UNCORDON, swap.node, Need(reason=text), now)]


def given_up(fleet: FleetState, swap: Swap, outcome: str, now: float) -> list[Action]:
    """Nothing is waited for any more, and the node has kept its place."""
    return [fleet.strike(swap), *fleet.close(swap.id, outcome, now)]


def wanted_by(fleet: FleetState, *, node: str = "", job: str = "") -> str:
    """What a node that should go, or its job, waits for, in words. Empty: for nothing."""
    for one in fleet.open_swaps.values():
        if one.swap.awaits and (one.swap.node == node or (job and one.swap.job == job)):
            return _words(one.swap)
    return ""


def _words(swap: Swap) -> str:
    if swap.step in (SwapStep.EXCLUDE, SwapStep.WATCH):
        return f"{swap.job} to go on without {swap.node}"
    asked = swap.asked or "one is asked for"
    if swap.expected_by_unix:
        smaller = f"{swap.job} has no spare, and goes on with one node less if none comes in time"
        return f"another node: {smaller} ({asked}); `holdfast uncordon {swap.node}` ends it"
    ends = f"it ends when a node joins {swap.job}, or with `holdfast uncordon {swap.node}`"
    return f"another node: {swap.job} has no spare and needs all its nodes ({asked}); {ends}"

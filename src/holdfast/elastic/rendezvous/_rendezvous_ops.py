"""What should a node do next, given the shared state? One function per wish: leave, join, close, keep alive.

Pure: the time is an argument, twice. `clock` is the node's monotonic clock, against which its own deadline runs; `now` is the
wall clock, which heartbeats and the last call are written in.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from ._rendezvous_state import RendezvousSettings, _NodeDesc, _RendezvousState
from .api import RendezvousGracefulExitError

ROLLBACK_S = 5.0
"""How long after its deadline a node still tries to take itself out. After that its lease runs out anyway."""


class _Action(Enum):
    """What a node may do."""

    KEEP_ALIVE = 1
    ADD_TO_PARTICIPANTS = 2
    ADD_TO_WAIT_LIST = 3
    ADD_TO_REDUNDANCY_LIST = 4
    REMOVE_FROM_PARTICIPANTS = 5
    REMOVE_FROM_WAIT_LIST = 6
    REMOVE_FROM_REDUNDANCY_LIST = 7
    MARK_RENDEZVOUS_COMPLETE = 8
    MARK_RENDEZVOUS_CLOSED = 9
    SYNC = 10  # look again in a moment
    ERROR_CLOSED = 11
    ERROR_TIMEOUT = 12
    FINISH = 13


class _RendezvousContext:
    """Who asks, what it sees, and by which settings."""

    def __init__(self, node: _NodeDesc, state: _RendezvousState, settings: RendezvousSettings) -> None:
        self.node = node
        self.state = state
        self.settings = settings


def heartbeat_is_due(ctx: _RendezvousContext, now: datetime) -> bool:
    """Whether the node's last heartbeat is an interval old. A node that has none needs none."""
    last = ctx.state.last_heartbeats.get(ctx.node)
    return last is not None and last <= now - ctx.settings.keep_alive_interval


def to_leave(ctx: _RendezvousContext, deadline: float, clock: float) -> _Action:
    """Give the seat of the last round back."""
    if ctx.node not in ctx.state.participants:
        return _Action.FINISH
    return _Action.ERROR_TIMEOUT if clock > deadline else _Action.REMOVE_FROM_PARTICIPANTS


def to_close(ctx: _RendezvousContext, deadline: float, clock: float) -> _Action:
    """End the job."""
    if ctx.state.closed:
        return _Action.FINISH
    return _Action.ERROR_TIMEOUT if clock > deadline else _Action.MARK_RENDEZVOUS_CLOSED


def to_keep_alive(ctx: _RendezvousContext, deadline: float, clock: float, now: datetime) -> _Action:
    """Write a heartbeat if one is due."""
    if not heartbeat_is_due(ctx, now):
        return _Action.FINISH
    return _Action.ERROR_TIMEOUT if clock > deadline else _Action.KEEP_ALIVE


def to_join(ctx: _RendezvousContext, deadline: float, clock: float, now: datetime) -> _Action:
    """Get a seat in a round, and wait until that round is formed."""
    state, node = ctx.state, ctx.node
    if state.closed:
        if node in state.redundancy_list:
            raise RendezvousGracefulExitError(
                f"The job '{ctx.settings.run_id}' ended while this node waited for a seat in its rendezvous."
            )
        return _Action.ERROR_CLOSED
    if node in state.redundancy_list:
        return _while_redundant(ctx, now)
    if state.complete and node in state.participants:
        return _Action.FINISH
    if clock > deadline:
        return _give_up(ctx, clock - deadline)
    return _next_step(ctx, now) or (_Action.KEEP_ALIVE if heartbeat_is_due(ctx, now) else _Action.SYNC)


def _while_redundant(ctx: _RendezvousContext, now: datetime) -> _Action:
    """No deadline here: a spare node waits as long as the job runs."""
    if len(ctx.state.participants) != ctx.settings.max_nodes:
        return _Action.REMOVE_FROM_REDUNDANCY_LIST
    return _Action.KEEP_ALIVE if heartbeat_is_due(ctx, now) else _Action.SYNC


def _give_up(ctx: _RendezvousContext, late_s: float) -> _Action:
    if late_s <= ROLLBACK_S:
        if ctx.node in ctx.state.participants:
            return _Action.REMOVE_FROM_PARTICIPANTS
        if ctx.node in ctx.state.wait_list:
            return _Action.REMOVE_FROM_WAIT_LIST
    return _Action.ERROR_TIMEOUT


def _next_step(ctx: _RendezvousContext, now: datetime) -> _Action | None:
    state, seats = ctx.state, ctx.settings.max_nodes
    if state.complete:
        if ctx.node in state.wait_list:
            return None
        return _Action.ADD_TO_WAIT_LIST if len(state.participants) < seats else _Action.ADD_TO_REDUNDANCY_LIST
    if ctx.node not in state.participants:
        return _Action.ADD_TO_PARTICIPANTS
    enough = ctx.settings.min_nodes <= len(state.participants) <= seats
    if enough and state.deadline is not None and state.deadline < now:
        return _Action.MARK_RENDEZVOUS_COMPLETE
    return None

"""From asking for a round to its workers' start. It waits for the log files, perhaps also for GPU memory and warm spares."""

from __future__ import annotations

from holdfast.agent.group.messages import MemorySeen, OpenLogs, Send, StartWorkers
from holdfast.agent.group.node_health import check
from holdfast.agent.group.state import Phase, State, Step, first, joined_with, workers_of
from holdfast.core.job.events import JoinRequested, RoundFormed, StateAgreed
from holdfast.core.machine import Action, Record, Say
from holdfast.core.value import replace
from holdfast.core.wire.messages import Assigned, Waiting


def begin(state: State, now: float) -> Step:
    """Ask for a round: the first, or another."""
    rank = state.assigned.group_rank if state.assigned else None
    state = replace(state, phase=Phase.JOINING, joined_at=now, rejoin=None, anew=False, waits_for="")
    state = joined_with(state, round=state.round, group_rank=rank)
    asked = JoinRequested(round=state.round + 1, backend=state.backend, endpoint=state.endpoint)
    actions: list[Action] = [Send(message=state.join)]
    if state.checks or state.join.unhealthy:
        state, actions = check(state)
    if state.round and not state.workers.let_go:  # theirs is in use, and stays so
        memory, looks = state.memory.begin(now)
        state, actions = replace(state, memory=memory), actions + looks
    return state, [Record(event=asked), *actions]


def waits(state: State, waiting: Waiting) -> Step:
    """There is no round yet, or no place in one."""
    said = list[Action]()
    known, is_of_another_run = state.join.known_round, waiting.life != state.join.life
    if waiting.round >= known or is_of_another_run:
        if waiting.reason != state.spare_because:
            said.append(Say(text=f"this node waits as a spare: {waiting.reason}", level="warning"))
        state = replace(state, spare_because=waiting.reason)
    if waiting.round <= known and not is_of_another_run:
        return state, said
    state = joined_with(state, known_round=max(known, waiting.round), life=waiting.life)
    # Said at once: a coordinator's successor learns it from the Join. While the node is being checked, with that.
    return state, said if state.checking else [*said, Send(message=state.join)]


def start(state: State, assigned: Assigned, now: float) -> Step:
    """There is a round, with a place for this node."""
    state = joined_with(state, life=assigned.life, calculated_s=assigned.calculated_s)
    formed = RoundFormed(
        round=assigned.round,
        nodes=assigned.nodes,
        group_rank=assigned.group_rank,
        world_size=assigned.world_size,
        master_addr=assigned.master_addr,
        master_port=assigned.master_port,
        waited_s=now - state.joined_at,
        reason=assigned.reason,
    )
    state = replace(
        state,
        phase=Phase.RUNNING,
        assigned=assigned,
        spare_because="",
        workers=workers_of(state.join, assigned, state.workers),
        look=None,
        shown={},
        regrouped=False,
        held=True,
        opening_logs=True,
    )
    actions: list[Action] = [Record(event=formed)]
    if assigned.state_from:
        agreed = StateAgreed(round=assigned.round, step=assigned.state_step, state_from=assigned.state_from)
        actions.append(Record(event=agreed))
    return state, [*actions, OpenLogs(assigned=assigned)]


def let_go(state: State, now: float) -> Step:
    """Start the round's workers, unless they still wait."""
    if not state.may_start or now < state.spares_until:
        return state, []
    assert state.assigned is not None
    return replace(state, held=False), [StartWorkers(assigned=state.assigned, kept=state.workers.kept)]


def logs_opened(state: State, number: int, now: float) -> Step:
    """The log files of that round's workers are there, or will not be."""
    return let_go(replace(state, opening_logs=False), now) if number == state.round else (state, [])


def spares_awaited(state: State, until: float, now: float) -> Step:
    """Warm spares are worth waiting for until then."""
    return let_go(replace(state, spares_until=until), now)


def memory_seen(state: State, seen: MemorySeen, now: float) -> Step:
    """The GPUs have been looked at."""
    memory, actions = state.memory.seen(seen, now)
    return first(actions, let_go(replace(state, memory=memory), now))


def memory_late(state: State, now: float) -> Step:
    """It is time for another look at the GPUs, or there was no answer."""
    memory, actions = state.memory.late(now)
    return first(actions, let_go(replace(state, memory=memory), now))

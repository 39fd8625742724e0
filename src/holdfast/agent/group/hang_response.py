"""A rank hangs: what happens before it ends? One node's part of it.

In this order: it is recorded; the coordinator is told, and has every other node look too
(`rendezvous.coordinator.hang_blame`); the ranks here dump their stacks (`LookAtWorkers`); when that is done or its time is
over, the coordinator hears which ranks hang, then where all ranks were; only then does the rank get its signal, of which ranks
elsewhere die; and what they have shown is kept. Then it is a failure like any other.
"""

from __future__ import annotations

from holdfast.agent.group.messages import Hung, KeepStacks, LookAtWorkers, Send
from holdfast.agent.group.state import Look, Phase, State, Step, Worker, WorkerState, first, with_worker
from holdfast.agent.group.stopping import all_gone, stop, strike
from holdfast.agent.group.worker_events import fail
from holdfast.core.job.events import RankHung
from holdfast.core.job.failure import Cause, Evidence, Position
from holdfast.core.job.failure import hung as hung_words
from holdfast.core.machine import Action, Record, Say
from holdfast.core.signals import name_of, signal
from holdfast.core.value import replace
from holdfast.core.wire.messages import HangFound, Positions

LOOK_S = 2.0
"""Time limit for collecting the stacks. It takes some milliseconds if all ranks dump their stacks, 30 ms if one does not
(`agent.workers.stacks`), and 1.5 s if the agent waits for torch's flight recorder."""


def hung(state: State, seen: Hung, now: float) -> Step:
    """A rank here has exceeded its limit."""
    worker = state.workers[seen.local_rank]
    if worker.state is not WorkerState.RUNNING or worker.charge:
        return state, []
    charge = (Cause.HUNG, hung_words(seen.reason))
    state = with_worker(state, worker.local_rank, overdue=seen.reason, overdue_at_unix=seen.at_unix, charge=charge)
    noted: list[Action] = [Record(event=RankHung(**worker.ids, reason=seen.reason, quiet_s=seen.quiet_s))]
    if state.look is not None:
        return state, noted
    node, name = state.join.node, state.join.name
    told = HangFound(node=node, round=state.round, rank=worker.rank, reason=seen.reason, within_s=LOOK_S)
    return first([*noted, Send(message=told)], look(state, f"rank {worker.rank} on {name} hung: {seen.reason}", now))


def look(state: State, reason: str, now: float) -> Step:
    """Have the ranks looked at, unless they are already."""
    if state.look is not None:
        return state, []
    assert state.assigned is not None
    looks = LookAtWorkers(round=state.round, base_rank=state.assigned.base_rank, within_s=LOOK_S)
    return replace(state, look=Look(until=now + LOOK_S, reason=reason)), [looks]


def looked(state: State, positions: tuple[Position, ...], now: float) -> Step:
    """The ranks have shown where they are, or had their time: those that hang end."""
    if (over := state.look) is None:
        return state, []
    state = replace(state, look=None, shown={position.local_rank: position for position in positions})
    state, struck, hanging = _strike_hanging(state)
    seen, failures = Positions(node=state.join.node, round=state.round, positions=tuple(state.shown.values())), list[Action]()
    for local_rank in hanging:
        worker = state.workers[local_rank]
        state, failed = fail(state, worker, worker.overdue_at_unix, Cause.HUNG, Evidence(), now)
        failures += failed
    told = [action for action in failures if isinstance(action, Send)]
    others = [action for action in failures if not isinstance(action, Send)]
    actions = [*told, Send(message=seen), *struck, KeepStacks(reason=over.reason), *others]
    if over.stop_because and state.phase is Phase.RUNNING:
        return first(actions, stop(state, signal.SIGTERM, over.stop_because, now))
    if over.stop_because and state.phase is Phase.SUCCEEDED:
        return first(actions, all_gone(state, now))
    return state, actions


def _strike_hanging(state: State) -> tuple[State, list[Action], list[int]]:
    actions, signum = list[Action](), name_of(state.hang_signal)
    state, hanging = _without_waiting(state, [worker for worker in state.workers.values() if worker.hangs])
    for worker in hanging:
        i = worker.local_rank
        state, struck = strike(state, worker, worker.overdue)
        if i in state.shown:
            state = replace(state, shown={**state.shown, i: replace(state.shown[i], overdue=worker.overdue)})
        text = f"rank {worker.rank} (pid {worker.pid}) {state.workers[i].charged_with}; sent {signum}"
        actions += [*struck, Say(text=text, level="error")]
    return state, actions, [worker.local_rank for worker in hanging]


def _without_waiting(state: State, hanging: list[Worker]) -> tuple[State, list[Worker]]:
    """Those that hang, without those that can begin again in place and only wait for another of them: to lose its process would
    cost it what it has in memory. Where the round may go on without them, nobody asks them to begin another."""
    if state.assigned is not None and state.assigned.carries_on:
        return state, hanging
    waiting = [worker for worker in hanging if worker.in_place and _waits(state, worker)]
    if len(waiting) == len(hanging):
        return state, hanging
    for worker in waiting:
        state = with_worker(state, worker.local_rank, overdue="", charge=None)
    return state, [worker for worker in hanging if worker not in waiting]


def _waits(state: State, worker: Worker) -> bool:
    shown = state.shown.get(worker.local_rank)
    return shown is not None and shown.waits is True

"""What happens to one worker, or what does it ask for? The first failure stops its siblings at once, without asking.

Every policy that restarts or ends the group needs that, and it saves a round trip. Where the coordinator lets the round
carry on without some, they are left alone until it says otherwise; when the last has ended, the node waits.
"""

from __future__ import annotations

from holdfast.agent.group import messages
from holdfast.agent.group.state import Phase, State, Step, Worker, WorkerState, first, joined_with, with_worker
from holdfast.agent.group.stopping import settle, stop_once_seen
from holdfast.core.job import events
from holdfast.core.job.failure import Cause, Evidence
from holdfast.core.machine import NEVER, Action, Record, Say
from holdfast.core.signals import name_of
from holdfast.core.value import fields_of, replace
from holdfast.core.wire.messages import Failed, Request, RequestKind


def started(state: State, seen: messages.Started, now: float) -> Step:
    """A worker runs, so that what this node's ranks had in memory is no news any more. One that goes on in place has so long to
    begin as it has to let go."""
    shown = fields_of(seen)
    del shown["at"], shown["at_unix"]  # the record has it
    event = events.WorkerStarted(rank=state.workers[seen.local_rank].rank, **shown)
    until, at_unix = (now + state.regroup_s, seen.at_unix or 0.0) if seen.in_place else (NEVER, 0.0)
    state = with_worker(joined_with(state, in_memory=()), seen.local_rank, in_place=seen.in_place, kept=False)
    state = with_worker(state, seen.local_rank, begin_until=until, began_at_unix=at_unix)
    state = with_worker(state, seen.local_rank, pid=seen.pid, state=WorkerState.RUNNING)
    return state, [Record(event=event, at_unix=seen.at_unix)]


def start_failed(state: State, seen: messages.StartFailed, now: float) -> Step:
    """A worker could not be started. Its siblings that are still to start are not even tried."""
    state = with_worker(state, seen.local_rank, state=WorkerState.GONE)
    state = replace(state, workers=state.workers.not_started())
    return fail(state, state.workers[seen.local_rank], seen.at_unix, Cause.START, Evidence(message=seen.message), now)


def ending(state: State, seen: messages.Ending, now: float) -> Step:
    """A worker's script is over. If others fail of that, it may end by itself: its code says why it went."""
    worker = state.workers[seen.local_rank]
    if state.phase is not Phase.RUNNING or worker.state is not WorkerState.RUNNING:
        return state, []
    return with_worker(state, worker.local_rank, ending_at=now, left_at_unix=seen.at_unix), []


def ended(state: State, seen: messages.Ended, now: float) -> Step:
    """A worker is dying, or gone."""
    worker, actions = state.workers[seen.local_rank], list[Action]()
    exitcode = seen.exitcode if seen.exitcode is not None else worker.exitcode
    where = worker.state
    if seen.gone and seen.exitcode is not None:
        where = WorkerState.GONE
        actions.append(Record(event=events.WorkerExited(exitcode=seen.exitcode, **worker.ids)))
    elif worker.state is WorkerState.RUNNING:
        where = WorkerState.DYING
        actions.append(Record(event=events.WorkerDying(exitcode=seen.exitcode, **worker.ids)))
    state = with_worker(state, seen.local_rank, exitcode=exitcode, state=where)
    if exitcode == 0:
        if state.phase is Phase.RUNNING and worker.left_at_unix is None:
            state = with_worker(state, seen.local_rank, left_at_unix=seen.at_unix)
        return first(actions, settle(state, now))
    worker = state.workers[seen.local_rank]
    cause = state.workers.cause(worker, seen.evidence)
    return first(actions, fail(state, worker, seen.at_unix, cause, seen.evidence, now))


def fail(state: State, worker: Worker, at_unix: float, cause: Cause, evidence: Evidence, now: float) -> Step:
    """A worker has failed, or more is known of a failure."""
    is_news = worker.local_rank not in state.workers.failures
    state = replace(state, workers=state.workers.failed(worker, at_unix, cause, evidence))
    failure = state.workers.failures[worker.local_rank]
    actions: list[Action] = [Record(event=events.FailureSeen(failure=failure))] if is_news else []
    if state.phase is Phase.RUNNING:
        exited = state.workers.exited
        actions.append(messages.Send(message=Failed(node=state.join.node, round=state.round, failure=failure, exited=exited)))
    if state.phase is Phase.RUNNING and not (state.assigned and state.assigned.carries_on):
        return first(actions, stop_once_seen(state, f"rank {worker.rank} failed", now))
    return first(actions, settle(state, now))


def stuck(state: State, seen: messages.Stuck, now: float) -> Step:
    """A worker sleeps in the kernel."""
    worker = state.workers[seen.local_rank]
    if worker.state is not WorkerState.RUNNING:
        return state, []  # it is ending; that it does not die will show
    charge = f"is stuck in the kernel (uninterruptible sleep for {seen.asleep_s:.1f} s: a driver, a dead mount?)"
    state = with_worker(state, worker.local_rank, charge=(Cause.STUCK, charge))
    said = Say(text=f"rank {worker.rank} (pid {worker.pid}) {charge}", level="error")
    worker = state.workers[worker.local_rank]
    return first([said], fail(state, worker, seen.at_unix, Cause.STUCK, Evidence(), now))


def timer_expired(state: State, seen: messages.TimerExpired) -> Step:
    """A worker, or a child of one, did not leave a scope in time that it had set itself."""
    late = f"did not leave scope {seen.scope} in time"
    noted = Record(event=events.WatchdogExpired(pid=seen.pid, scope=seen.scope, expired_s=seen.late_s))
    if seen.signum <= 0:
        text = f"process {seen.pid} {late}; its timer asks for no signal"
        return state, [noted, Say(text=text, level="warning")]
    for worker in state.workers.values():
        if worker.pid == seen.pid and worker.state is WorkerState.RUNNING:
            state = with_worker(state, worker.local_rank, charge=(Cause.WATCHDOG, late))
            said = Say(text=f"rank {worker.rank} {late}; sent {name_of(seen.signum)}", level="warning")
            return state, [noted, said, messages.SignalWorkers(local_ranks=(worker.local_rank,), signum=seen.signum)]
    text = f"process {seen.pid}, which is no rank's main process, {late}; left alone"
    return state, [noted, Say(text=text, level="warning")]


def asked(state: State, seen: messages.ControlAsked, now: float) -> Step:
    """A worker asks for something. The coordinator decides, also if the worker is gone by then."""
    local_rank, kind, reason = seen.local_rank, seen.kind, seen.reason
    rank, state = state.workers[local_rank].rank, with_worker(state, local_rank, asked_at=now)
    noted = Record(event=events.ControlRequested(rank=rank, local_rank=local_rank, kind=kind, reason=reason))
    if kind == events.ControlKind.CONTINUE or state.phase is Phase.ENDED:
        return state, [noted]
    wanted = Request(node=state.join.node, round=state.round, kind=RequestKind(kind), rank=rank, reason=reason)
    return state, [noted, messages.Send(message=wanted)]

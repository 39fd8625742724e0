"""How do the workers of a round end, and how long may each step of it take?

    asked (SIGTERM) ──the grace──▶ killed (SIGKILL) ──as long again──▶ given up (stuck in the kernel: nothing can end it)

One that waits for its log's disk, which hangs, hears nothing, and is given up at once. A worker that has just asked for
something is asked to stop a little later than the others. One that hangs gets a signal of its own, at once. When the last is
gone, another round follows, or the node waits for the coordinator's word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.agent.group import round_start
from holdfast.agent.group.job_end import exit
from holdfast.agent.group.messages import KillWorkers, LeaseOver, RegroupWorkers, Send, SignalWorkers, Stuck, Sweep
from holdfast.agent.group.state import Phase, State, Step, Stopping, Worker, WorkerState, first, with_worker
from holdfast.core.job.events import StopSent, WorkersStopped
from holdfast.core.job.failure import Cause, hung
from holdfast.core.machine import NEVER, Action, Record, Say
from holdfast.core.signals import name_of, signal
from holdfast.core.value import replace
from holdfast.core.wire.messages import Stop, Stopped, Succeeded

LAST_WORDS_S = 1.0
"""A worker that has just asked for something, or whose interpreter ends, is asked to stop so much later than the others: most
end by themselves, with a traceback or a code that says more, and SIGTERM would cut it short."""


def told_to_stop(state: State, word: Stop, now: float) -> Step:
    """The coordinator ends the round, or the job."""
    state = replace(state, rejoin=word.rejoin, regrouped=word.regrouped, on_request=word.on_request, anew=word.anew)
    # The last word is the report's, which says the same.
    said: list[Action] = [Say(text=word.reason, level="warning")] if word.rejoin else []
    struck, more = list[Action](), list[Action]()
    hangs = None if word.hung is None else state.workers.seats.get(word.hung)
    if hangs is not None and hangs.state is WorkerState.RUNNING and not hangs.struck:
        state, struck = strike(state, hangs, "others waited for it")  # it would be deaf to SIGTERM, too
    match state.phase:
        case Phase.RUNNING:  # signals wait for no terminal
            state, stopped = stop_once_seen(state, word.reason, now)
            return state, struck + stopped + said
        case Phase.STOPPING if state.stopping is not None and not _goes_on(state):
            state, more = no_regroup(state, state.stopping, state.stopping.regrouping, word.reason)
        case Phase.SUCCEEDED:
            state, more = all_gone(state, now)
        case Phase.STOPPED if state.rejoin:
            state, more = round_start.begin(state, now)
    return state, struck + said + more


def strike(state: State, worker: Worker, why: str) -> Step:
    """Send one that hangs its deadly signal, which no other worker gets."""
    position, i = state.shown.get(worker.local_rank), worker.local_rank
    path, injected = (worker.stacks_path, "") if position is None else (position.stacks_path, position.injected)
    charge = Cause.HUNG, hung(why, position)
    state = with_worker(state, i, struck=True, charge=charge, stacks_path=path, injected=injected)
    return state, [SignalWorkers(local_ranks=(i,), signum=state.hang_signal)]


def stop(state: State, signum: int, reason: str, now: float) -> Step:
    """Bring the running workers to their end, by `signum` first."""
    on_request = (state.on_request or state.leaving is not None) and not state.workers.failures
    workers = replace(state.workers, stop_signal=signum, stop_on_request=on_request)
    if state.held:
        workers = workers.not_started()
    # Not those that are dying already: a signal would only cut their exit handlers short.
    alive = tuple(i for i in workers.alive if workers[i].state is not WorkerState.DYING and not workers[i].struck)
    regrouping = tuple(i for i in alive if workers[i].in_place) if _goes_on(state) else ()
    asked = [i for i in alive if i not in regrouping]
    speaking = tuple(i for i in asked if signum == signal.SIGTERM and now < workers[i].spoke_at + LAST_WORDS_S)
    stopping = Stopping(
        since=now,
        kill_at=now + state.grace_s,
        speaking=speaking,
        last_words_until=now + LAST_WORDS_S if speaking else NEVER,
        regrouping=regrouping,
        regroup_until=now + state.regroup_s if regrouping else NEVER,
    )
    look = replace(state.look, stop_because="") if state.look else None
    state = replace(state, phase=Phase.STOPPING, held=False, workers=workers, stopping=stopping, look=look)
    actions = _regroup(state, regrouping, reason) + _ask(state, tuple(i for i in asked if i not in speaking), reason)
    return first(actions, settle(state, now))


def _goes_on(state: State) -> bool:
    """Whether another round may follow, so that a worker that can is to wait for it."""
    return state.regroup_s > 0 and state.leaving is None and state.rejoin is not False and not state.anew


def _regroup(state: State, local_ranks: tuple[int, ...], reason: str) -> list[Action]:
    if not local_ranks:
        return []
    sent = StopSent(signal="regroup", grace_s=state.regroup_s, reason=reason, ranks=state.workers.ranks(local_ranks))
    return [RegroupWorkers(local_ranks=local_ranks), Record(event=sent)]


def no_regroup(state: State, stopping: Stopping, local_ranks: Iterable[int], reason: str) -> Step:
    """These were asked to let go of their round, and are to end all the same."""
    ending = tuple(i for i in local_ranks if i in stopping.regrouping and i in state.workers.alive)
    left = tuple(i for i in stopping.regrouping if i not in ending)
    stopping = replace(stopping, regrouping=left, regroup_until=stopping.regroup_until if left else NEVER)
    return replace(state, stopping=stopping), _ask(state, ending, reason)


def stop_once_seen(state: State, reason: str, now: float) -> Step:
    """The same, by SIGTERM. Ranks that are being looked at show where they are first."""
    if state.look is None:
        return stop(state, signal.SIGTERM, reason, now)
    return settle(replace(state, look=replace(state.look, stop_because=state.look.stop_because or reason)), now)


def late(state: State, stopping: Stopping, now: float) -> Step:
    """A deadline may have come. A worker that is given up counts as gone."""
    actions: list[Action] = []
    if now >= stopping.kill_at:
        state, actions = kill(state, stopping, now)
    elif now >= stopping.regroup_until:
        state, actions = _late_to_regroup(state, stopping)
    elif now >= stopping.last_words_until:
        left = tuple(i for i in stopping.speaking if state.workers[i].state is WorkerState.RUNNING)
        state = replace(state, stopping=replace(stopping, last_words_until=NEVER))
        actions = _ask(state, left, f"it had {LAST_WORDS_S:g} s to exit by itself")
    elif now >= stopping.abandon_at:
        state, actions = _give_up(state)
    return first(actions, settle(state, now))


def _late_to_regroup(state: State, stopping: Stopping) -> Step:
    """In place was an attempt: who has not let go of the round by now starts again like any other."""
    late = tuple(i for i in stopping.regrouping if i in state.workers.alive)
    state = replace(state, stopping=replace(stopping, regrouping=(), regroup_until=NEVER))
    if not late:
        return state, []
    text = f"{_named('rank', state.workers.ranks(late))} did not let go of the round within {state.regroup_s:g} s"
    said = Say(text=f"{text} (--regroup-timeout); sent SIGKILL, to be started again", level="warning")
    state = replace(state, workers=replace(state.workers, killed=state.workers.killed.union(late)))
    return state, [KillWorkers(local_ranks=late), said]


def kill(state: State, stopping: Stopping, now: float) -> Step:
    """No more grace. Nothing to do where they have been killed already."""
    if stopping.kill_at == NEVER:
        return state, []
    workers, alive = state.workers, state.workers.alive
    who = _named("rank", workers.ranks(alive))
    if state.in_a_hurry:
        text = f"sent SIGKILL to {who} before the end of the grace period"
    else:
        text = f"{who} did not stop within {now - stopping.since:.1f} s; sent SIGKILL"
    killed = replace(stopping, last_words_until=NEVER, regroup_until=NEVER, kill_at=NEVER)
    killed = replace(killed, abandon_at=now + max(state.grace_s, 1.0))
    state = replace(state, stopping=killed, workers=replace(workers, killed=workers.killed.union(alive)))
    return state, [KillWorkers(local_ranks=alive), Say(text=text, level="warning")]


def _named(kind: str, numbers: Sequence[int | None]) -> str:
    """`rank 3`, `ranks 3, 4`, `processes 7, 8`."""
    plural = "es" if kind.endswith("s") else "s"
    return f"{kind}{plural if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def lease_over(state: State, over: LeaseOver, now: float) -> Step:
    """The coordinator has been silent for so long that others may start these ranks again at `over.until`."""
    actions: list[Action] = [Say(text=f"{over.reason}; stopping the workers", level="error")]
    if state.phase is Phase.RUNNING:
        # Where this agent has slept itself, nothing that a handler would do may happen any more.
        signum = signal.SIGTERM if now < over.until else signal.SIGKILL
        state, stopped = stop(replace(state, rejoin=True), signum, over.reason, now)
        actions += stopped
    if (stopping := state.stopping) is not None and stopping.kill_at != NEVER:
        state = replace(state, stopping=replace(stopping, kill_at=min(stopping.kill_at, over.until)))
    return state, actions


def _ask(state: State, local_ranks: tuple[int, ...], reason: str) -> list[Action]:
    if not local_ranks:
        return []
    signum, ranks = state.workers.stop_signal, state.workers.ranks(local_ranks)
    sent = StopSent(signal=name_of(signum), grace_s=state.grace_s, reason=reason, ranks=ranks)
    return [SignalWorkers(local_ranks=local_ranks, signum=signum), Record(event=sent)]


def deaf(state: State, seen: Stuck, now: float) -> Step:
    """A worker that is to end sleeps in the kernel, as its disk does not answer. It ends before it runs again: the others need
    not wait for that."""
    i = seen.local_rank
    if i not in state.workers.alive:
        return state, []
    worker = state.workers[i]
    text = f"rank {worker.rank} (pid {worker.pid}) waits in the kernel for a disk that does not answer; sent SIGKILL"
    workers = replace(state.workers, killed=state.workers.killed.union((i,))).gone((i,))
    actions: list[Action] = [KillWorkers(local_ranks=(i,)), Say(text=f"{text}, going on without it", level="warning")]
    return first(actions, settle(replace(state, workers=workers), now))


def _give_up(state: State) -> Step:
    stuck = state.workers.alive
    processes = _named("process", [state.workers[i].pid for i in stuck])
    stuck_in = "uninterruptible sleep in a driver or a mount?"
    text = f"{processes} survived SIGKILL ({stuck_in}); going on without {'it' if len(stuck) == 1 else 'them'}"
    return replace(state, workers=state.workers.gone(stuck)), [Say(text=text, level="error")]


# --- what their ends add up to ----------------------------------------------------------------------------------------------


def settle(state: State, now: float) -> Step:
    """See whether all workers have ended, and how."""
    if state.workers.alive:
        return state, []
    if state.phase is Phase.RUNNING and not state.workers.failures:
        state = replace(state, phase=Phase.SUCCEEDED)
        done = Succeeded(node=state.join.node, round=state.round, exited=state.workers.exited)
        return state, [Send(message=done)]
    return all_gone(state, now) if state.phase in (Phase.RUNNING, Phase.STOPPING) else (state, [])


def all_gone(state: State, now: float) -> Step:
    """The round's workers are no more: clean up behind them, and tell the coordinator."""
    took_s = 0.0 if state.stopping is None else now - state.stopping.since
    killed = state.workers.ranks(sorted(state.workers.killed))
    failures = tuple(state.workers.failures.values())
    actions: list[Action] = [Sweep(), Record(event=WorkersStopped(took_s=took_s, killed=killed))]
    ended = Stopped(node=state.join.node, round=state.round, failures=failures, exited=state.workers.exited)
    actions.append(Send(message=ended))
    state = replace(state, phase=Phase.STOPPED, stopping=None)
    if state.rejoin:
        return first(actions, round_start.begin(state, now))
    if state.leaving and not state.hosting:
        return first(actions, exit(state, 1, complaint=f"stopped: it {state.leaving.why}"))
    return state, actions

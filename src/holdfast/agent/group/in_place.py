"""Which workers go on with the next round in their own process? Those that have let go of the last one in time.

    running ──asked to regroup──▶ (stopping) ──it has let go──▶ let go ──the next round starts──▶ running, with the same pid
                                      │ the limit, its death, or the job's end                     │  ▲
                                      ▼                                                            │  │
                                    gone ──────────────────a new process──────────────────────────┼──┘
                                      ▲                                                            │
                                      └──hung: it has not called its script's code at the limit ───┘

Who has let go has no process group and no connection of the round any more: it counts as gone from the round, and neither
the fence nor the lease waits for it. Its death is no failure of a round, and its rank is started like any other then.
"""

from __future__ import annotations

from holdfast.agent.group.hang_response import hung
from holdfast.agent.group.messages import Ended, Hung, Lives, Send
from holdfast.agent.group.state import Phase, State, Step, WorkerState, with_worker
from holdfast.agent.group.stopping import no_regroup, settle
from holdfast.core.machine import NEVER, Action


def lives(state: State, seen: Lives, now: float) -> Step:
    """A worker says whether it can begin another round in place, or that it has let go of this one."""
    worker, i, stopping = state.workers[seen.local_rank], seen.local_rank, state.stopping
    if worker.pid != seen.pid or worker.state is not WorkerState.RUNNING or i in state.workers.killed:
        return state, []
    until = worker.begin_until if seen.let_go else NEVER
    state = with_worker(state, i, in_place=seen.in_place, begin_until=until)
    if state.phase is not Phase.STOPPING or stopping is None or i not in stopping.regrouping:
        return state, []
    if seen.let_go:
        return settle(with_worker(state, i, state=WorkerState.LET_GO), now)
    return (state, []) if seen.in_place else no_regroup(state, stopping, (i,), "it no longer begins again in place")


def late_to_begin(state: State, now: float) -> Step:
    """Some were told of their next round, and have not called their script's code: C code holds them, or the script does
    something else. They hang."""
    actions = list[Action]()
    reason = f"it did not begin the round in place within {state.regroup_s:g} s (--regroup-timeout)"
    for worker in [one for one in state.workers.values() if now >= one.begin_until]:
        i, at_unix = worker.local_rank, worker.began_at_unix + state.regroup_s
        state = with_worker(state, i, begin_until=NEVER)
        seen = Hung(local_rank=i, pid=worker.pid, reason=reason, at_unix=at_unix, quiet_s=state.regroup_s)
        state, more = hung(state, seen, now)
        actions += more
    return state, actions


def ended(state: State, seen: Ended) -> Step:
    """One that had let go of its round has ended: its rank starts as a new process, and no round has failed."""
    worker = state.workers[seen.local_rank]
    where = WorkerState.STARTING if worker.kept else WorkerState.GONE
    state = with_worker(state, worker.local_rank, state=where, pid=-1, kept=False, in_place=False)
    is_counted_on = state.phase is Phase.JOINING and bool(state.join.in_memory)  # for what it had in memory
    return state, [Send(message=state.join)] if is_counted_on and not state.checking else []

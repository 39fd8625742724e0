"""Which workers go on with the next round in their own process? Those that have let go of the last one in time.

    running ──asked to regroup──▶ (stopping) ──it has let go──▶ let go ──the next round starts──▶ running, with the same pid
                                      │ the limit, its death, or the job's end                        ▲
                                      ▼                                                               │
                                    gone ──────────────────a new process─────────────────────────────┘

Who has let go has no process group and no connection of the round any more: it counts as gone from the round, and neither
the fence nor the lease waits for it. Its death is no failure of a round, and its rank is started like any other then.
"""

from __future__ import annotations

from holdfast.agent.group.messages import Ended, Lives
from holdfast.agent.group.state import Phase, State, Step, Worker, WorkerState, with_worker
from holdfast.agent.group.stopping import no_regroup, settle


def lives(state: State, seen: Lives, now: float) -> Step:
    """A worker says whether it can begin another round in place, or that it has let go of this one."""
    worker, i, stopping = state.workers[seen.local_rank], seen.local_rank, state.stopping
    if worker.pid != seen.pid or worker.state is not WorkerState.RUNNING or i in state.workers.killed:
        return state, []
    state = with_worker(state, i, in_place=seen.in_place)
    if state.phase is not Phase.STOPPING or stopping is None or i not in stopping.regrouping:
        return state, []
    if seen.let_go:
        return settle(with_worker(state, i, state=WorkerState.LET_GO), now)
    return (state, []) if seen.in_place else no_regroup(state, stopping, (i,), "it no longer begins again in place")


def is_of_no_round(worker: Worker) -> bool:
    """It has let go of one and has not begun another, or ended meanwhile."""
    return worker.state is WorkerState.LET_GO or worker.kept or worker.pid < 0


def ended(state: State, seen: Ended) -> Step:
    """One that had let go of its round has ended: its rank starts as a new process, and no round has failed."""
    worker = state.workers[seen.local_rank]
    where = WorkerState.STARTING if worker.kept else WorkerState.GONE
    return with_worker(state, worker.local_rank, state=where, pid=-1, kept=False, in_place=False), []

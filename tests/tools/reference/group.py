"""What may be seen in which phase of a node, and what follows? Found by walking `agent.group.machine`: docs/reference/node.md.

Begins with a node that has asked for its first round, and shows it everything that can happen, until no new state comes up.
"""

from __future__ import annotations

from collections.abc import Iterator

from kit.stages import made_up

from holdfast.agent.group import messages as seen
from holdfast.agent.group.machine import step
from holdfast.agent.group.round_start import begin
from holdfast.agent.group.state import Phase, State, WorkerState
from holdfast.core.job.failure import Evidence
from holdfast.core.machine import NEVER, Observation, Signalled, Tick
from holdfast.core.signals import signal
from holdfast.core.value import replace
from holdfast.core.wire.messages import Finish, Join, LookAround, Message, Refused, Stop, Waiting
from tools.reference.phases import Seen, Step, drawn, table, walked

HEAD = """\
# A node: phases and observations

<!-- Made by `make reference`. Do not edit. -->

One machine, `Group`, decides what a node does. A program walks the machine for this page: it feeds every possible event to
every state, until no new state comes up.

## The phases

"""

JOIN = Join(node="a", name="a", addr="a", master_port=0, nproc=2, role="default")
PHASES = tuple(phase for phase in Phase if phase is not Phase.NEW)


def walk() -> set[Step]:
    """Every step that there is."""
    first = State(join=JOIN, backend="embedded", grace_s=5.0)
    begun = [begin(replace(first, hosting=hosting, checks=not hosting), 0.0)[0] for hosting in (False, True)]
    return walked(begun, _everything, step, lambda state: state.phase, _key)


def page(steps: set[Step]) -> str:
    """The whole page."""
    return HEAD + drawn(steps, begins=Phase.JOINING, ends=Phase.ENDED) + table(steps, PHASES)


def _everything(state: State, now: float) -> Iterator[Seen]:
    for text, message in _messages(state):
        yield f"`{type(message).__name__}`: {text}", seen.Told(message=message), now
    for text, observation in _of_workers(state):
        yield f"a worker {text}", observation, now
    unheard = seen.LeaseOver(reason="silent", until=now + 1.0)
    yield "the coordinator is silent for a lease", unheard, now
    yield "the agent gets SIGTERM", Signalled(signum=signal.SIGTERM), now + 2.0
    yield "the guardian is killed", seen.Unguarded(), now
    yield "another node takes over the coordinator as this node leaves", seen.MadeWay(reason="excluded"), now
    for unfit, text in (("", "fit"), ("gpu: gone", "unfit")):
        yield f"the node's checks find it {text}", seen.NodeChecked(unfit=unfit, asked=state.checking), now
    yield "an operator stops the job", seen.StopAsked(reason="told to"), now
    yield "a checkpoint is being written", seen.SavesSeen(open=True), now
    yield "the ranks' pace is known", seen.PaceKnown(longest_s={}, typical_s={}, straggler="", busy_s=0.0), now
    if state.opening_logs:
        yield "the log files are there, or will not be", seen.LogsOpened(round=state.round), now
    if state.look is not None:
        yield "the ranks have reported where they are", seen.Looked(positions=()), now
    if state.deadline() != NEVER:
        yield "time passes", Tick(), max(now, state.deadline())


def _messages(state: State) -> Iterator[tuple[str, Message]]:
    number = state.round
    yield "there is a place for this node", made_up.assigned(number + 1, group_rank=0, of=2, base_rank=0, world_size=4)
    yield "there is no place yet", Waiting(round=number, reason="full")
    yield "the job continues with another round", Stop(round=number, reason="r", rejoin=True)
    yield "the job ends", Stop(round=number, reason="r", rejoin=False)
    yield "a rank hangs somewhere", LookAround(round=number, reason="r")
    yield "the job has ended", Finish(report=made_up.report("failed", "r"))
    yield "this node may not take part", Refused(reason="r", hint="")


def _of_workers(state: State) -> Iterator[tuple[str, Observation]]:
    for i, worker in state.workers.seats.items():
        ended = seen.Ended(local_rank=i, pid=worker.pid, exitcode=0, gone=True, at_unix=0.0, evidence=Evidence())
        match worker.state:
            case WorkerState.STARTING if state.phase is Phase.RUNNING and not state.held:
                yield "has started", seen.Started(local_rank=i, pid=7, argv=(), log_dir=None)
                yield "could not be started", seen.StartFailed(local_rank=i, message="m", at_unix=0.0)
            case WorkerState.RUNNING:
                yield "is dying", replace(ended, exitcode=1, gone=False)
                yield "has exceeded its limit", seen.Hung(local_rank=i, pid=7, reason="r", at_unix=0.0)
                yield "sleeps in the kernel", seen.Stuck(local_rank=i, pid=7, asleep_s=9.0, at_unix=0.0)
                yield "asks for a restart", seen.ControlAsked(local_rank=i, kind="restart", reason="r")
        if worker.state in (WorkerState.RUNNING, WorkerState.DYING):
            yield "has exited with 0", ended
            yield "has failed", replace(ended, exitcode=1)


def _key(state: State) -> tuple[object, ...]:
    """What tells states apart: times only by whether there are any."""
    if state.phase is Phase.ENDED:
        return state.phase, state.hosting
    stop, look = state.stopping, state.look
    ends = stop is not None, stop is not None and stop.kill_at == NEVER
    workers = tuple(sorted((worker.state, worker.hangs) for worker in state.workers.values()))
    return (
        *(state.phase, min(state.round, 1), state.hosting, state.rejoin, state.leaving is not None, state.checking),
        *(*ends, look is not None, look is not None and bool(look.stop_because), bool(state.workers.failures), workers),
        state.opening_logs,
    )

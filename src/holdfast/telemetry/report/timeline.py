"""What became of the job? Folds its records into lives of the worker group, failures, decisions and time lost.

A *life* is one round in one attempt: workers of all nodes start, run, and end together. Time is lost from the moment a
life is disturbed (a failure seen, a node lost, a decision to start over) until the next one has come as far again.
Everything here is a pure function of records and of the nodes whose agents are known to live.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise

from holdfast.core.job import events
from holdfast.core.job.failure import Cause, Failure, describe, guilty, in_order
from holdfast.core.job.policy import Verdict
from holdfast.core.job.report import Outcome
from holdfast.core.value import Value, replace
from holdfast.telemetry.record.reader import Record
from holdfast.telemetry.report.phrasing import span
from holdfast.telemetry.report.restarts import Restart, by_round, is_sight, restart
from holdfast.telemetry.report.safe_text import one_line

AGAIN = (Verdict.RESTART, Verdict.REJOIN)  # Decisions after which there is another life.
ABOUT_NODES = (Verdict.EXCLUDE, Verdict.READMIT, Verdict.INJECT)  # Decisions that end no life.


class Decision(Value):
    """What was decided, and why."""

    at_unix: float
    node: str
    round: int
    attempt: int
    decision: Verdict
    reason: str
    delay_s: float = 0.0
    restarts_left: int | None = None


class Exclusion(Value):
    """A node that must not take part."""

    name: str
    reason: str
    by: str  # operator · failures · slowness · script · itself · declared lost
    since_unix: float


class WorkerState(StrEnum):
    """How far one worker has come."""

    RUNNING = "running"
    DYING = "dying"
    EXITED = "exited"
    UNKNOWN = "unknown"  # Its agent is gone.


class JobState(StrEnum):
    """How far a job has come."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"  # No agent lives, and none recorded the end.


class WorkerSeen(Value):
    """One worker of one life."""

    rank: int
    local_rank: int
    pid: int
    node: str
    state: WorkerState
    exitcode: int | None = None
    log_dir: str | None = None


class Life(Value):
    """One life of the worker group."""

    round: int
    attempt: int
    reason: str = ""  # Why this round was formed.
    nodes: tuple[str, ...] = ()  # Nodes that took part, in group-rank order as far as it is known.
    world_size: int = 0
    master: str = ""
    formed_at: float
    started_at: float | None = None  # When the last of its workers had started. None: none was started.
    disturbed_at: float | None = None  # When the first thing went wrong. None: nothing did.
    ended_at: float | None = None  # When its last worker was gone. None: some run, or that was not seen.
    workers: tuple[WorkerSeen, ...] = ()
    failures: tuple[Failure, ...] = ()
    decision: Decision | None = None  # What was decided when it was over.
    lost_s: float | None = None
    """As `Restart.total_s`. None: undisturbed, or there is no next life."""

    @property
    def guilty(self) -> list[Failure]:
        """Failures of workers and nodes that failed by themselves, the earliest first."""
        return guilty(self.failures)

    def what_failed(self, limit: int = 300) -> str:
        """The first failure as one line of at most `limit` characters, and how many followed. Empty: nothing failed."""
        if not (failed := self.guilty):
            return ""
        if failed[0].follows and self.decision is not None and self.decision.decision == Verdict.REJOIN:
            return one_line(self.decision.reason, limit)
        return one_line(describe(failed[0]), limit) + (f" (and {len(failed) - 1} more)" if failed[1:] else "")


class NodeSeen(Value):
    """One node's agent, as last started."""

    name: str
    host: str
    pid: int
    started_at: float
    nproc: int
    script: str = ""  # Its training script, program or module, as it was given.
    is_running: bool
    agents: int  # How many agents this node has had.


class Timeline(Value):
    """A whole job."""

    job: str
    state: JobState
    outcome: Outcome | None = None  # None: it has not ended.
    exit_code: int | None = None
    reason: str = ""  # Why it ended.
    started_at: float | None = None
    ended_at: float | None = None  # Its end, or the last sign of life where that was not recorded; None: it runs.
    nodes: tuple[NodeSeen, ...] = ()
    lives: tuple[Life, ...] = ()
    restarts: tuple[Restart, ...] = ()  # Where the time went of each life that followed another one's trouble.
    decisions: tuple[Decision, ...] = ()
    degraded: tuple[str, ...] = ()  # What this job had to do without.
    excluded: tuple[Exclusion, ...] = ()  # Nodes that must not take part (any more).
    stragglers: tuple[str, ...] = ()
    """Ranks, and nodes, that are much slower than the others of the running round, in words."""
    waits: tuple[str, str] = ("", "")
    """Why these nodes wait for a coordinator, and what a person can do. Empty: they have one."""
    coordinator: str = ""  # `host:port` of the coordinator, as these nodes last knew it. Empty: in the agent itself.
    lost_s: float = 0.0

    @property
    def is_alive(self) -> bool:
        """Whether any agent of the job lives."""
        return self.state in (JobState.STARTING, JobState.RUNNING)

    @property
    def is_between_rounds(self) -> bool:
        """Whether no rank runs, and the next round's shall: nodes are waited for, or checked."""
        life = self.life
        if self.state is not JobState.RUNNING or life is None or life.decision is None:
            return False
        goes_on = life.decision.decision in (Verdict.RESTART, Verdict.REJOIN)
        return goes_on and all(worker.state in (WorkerState.EXITED, WorkerState.UNKNOWN) for worker in life.workers)

    @property
    def life(self) -> Life | None:
        """The latest life."""
        return self.lives[-1] if self.lives else None

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Of all lives, in order."""
        return tuple(failure for life in self.lives for failure in life.failures)


def timeline(job: str, records: Sequence[Record], running: Collection[str] = ()) -> Timeline:
    """The story of `job` from its records in order (see `reader.merge`); `running` names the nodes whose agents live."""
    decisions = tuple(decision for record in records if (decision := _decision(record)) is not None)
    rounds = by_round(records)
    formed = [life for own in rounds.values() if (life := _life(own, decisions, running)) is not None]
    restarts = _restarts(formed, rounds)
    lives = tuple(replace(life, lost_s=_total_s(restarts.get(life.round))) for life in formed)
    end = None if running else _end(records)
    return Timeline(
        job=job,
        state=_state(end, lives, running),
        outcome=end.outcome if end else None,
        exit_code=end.exit_code if end else None,
        reason=end.reason if end else "",
        started_at=min((record.at for record in records), default=None),
        ended_at=None if running else max((record.at for record in records), default=None),
        nodes=_nodes(records, running),
        lives=lives,
        restarts=tuple(restarts.values()),
        decisions=decisions,
        degraded=tuple(dict.fromkeys(_lacking(one.event) for one in records if isinstance(one.event, events.Degraded))),
        excluded=_excluded(records),
        stragglers=_stragglers(records) if running else (),
        waits=_waits(records, running),
        coordinator=_coordinator(records),
        lost_s=sum(life.lost_s or 0.0 for life in lives),
    )


def _restarts(lives: Sequence[Life], rounds: Mapping[int, Sequence[Record]]) -> dict[int, Restart]:
    """By the round of the life whose trouble each followed."""
    return {
        life.round: restart(life.disturbed_at, rounds[life.round], rounds[following.round])
        for life, following in pairwise(lives)
        if life.disturbed_at is not None and following.started_at is not None
    }


def _total_s(restart: Restart | None) -> float | None:
    return None if restart is None else restart.total_s


def _state(end: events.JobEnded | None, lives: Sequence[Life], running: Collection[str]) -> JobState:
    if running:
        return JobState.RUNNING if lives else JobState.STARTING
    return JobState.ENDED if end else JobState.LOST


def _lacking(event: events.Degraded) -> str:
    return f"{event.what}: {event.instead}" if event.instead else event.what


def _end(records: Iterable[Record]) -> events.JobEnded | None:
    """The job's end as its last agent saw it; one that says what became of the job goes before one that was only stopped."""
    ends = [record.event for record in records if isinstance(record.event, events.JobEnded)]
    told = [end for end in ends if end.outcome != Outcome.STOPPED] or ends
    return told[-1] if told else None


def _nodes(records: Iterable[Record], running: Collection[str]) -> tuple[NodeSeen, ...]:
    seen: dict[str, NodeSeen] = {}
    for record in records:
        if isinstance(event := record.event, events.AgentStarted):
            seen[record.node] = NodeSeen(
                name=record.node,
                host=event.host,
                pid=event.pid,
                started_at=record.at,
                nproc=event.nproc,
                script=event.argv[0] if event.argv else "",
                is_running=record.node in running,
                agents=seen[record.node].agents + 1 if record.node in seen else 1,
            )
    return tuple(seen.values())


def _coordinator(records: Iterable[Record]) -> str:
    found = ""
    for record in records:
        match record.event:
            case events.CoordinatorFound(endpoint=endpoint) | events.JoinRequested(round=1, endpoint=endpoint):
                found = endpoint
    return found


def _waits(records: Iterable[Record], running: Collection[str]) -> tuple[str, str]:
    """What the nodes say that still wait, in the words of the last of them."""
    waiting: dict[str, tuple[str, str]] = {}
    for record in records:
        match record.event:
            case events.CoordinatorMissing(reason=reason, hint=hint):
                waiting.pop(record.node, None)
                waiting[record.node] = reason, hint
            case events.CoordinatorFound() | events.Decided() | events.RoundFormed() | events.AgentStarted():
                waiting.pop(record.node, None)
    return next((said for node, said in reversed(waiting.items()) if node in running), ("", ""))


def _excluded(records: Iterable[Record]) -> tuple[Exclusion, ...]:
    found: dict[str, Exclusion] = {}
    for record in records:
        match record.event:
            case events.NodeExcluded(name=name, reason=reason, by=by, age_s=age_s):
                found[name] = Exclusion(name=name, reason=reason, by=by, since_unix=record.at - age_s)
            case events.NodeReadmitted(name=name):
                found.pop(name, None)
    return tuple(found.values())


def _stragglers(records: Iterable[Record]) -> tuple[str, ...]:
    found: dict[tuple[str, int, str, str], str] = {}
    for record in records:
        match record.event:
            case events.StragglerSeen(name=name, rank=rank, series=series, took_s=took_s, typical_s=typical_s, against=against):
                who = name if rank < 0 else f"rank {rank} on {name}"
                found[name, rank, series, against] = f"{who}: {series} takes {span(took_s)}, {against} {span(typical_s)}"
            case events.StragglerOver(name=name, rank=rank, series=series, against=against):
                found.pop((name, rank, series, against), None)
            case events.RoundFormed():
                found.clear()
    return tuple(found.values())


def _decision(record: Record) -> Decision | None:
    """What the coordinator decided, or an operator for practice. None: nothing, or another coordinator had decided it."""
    match record.event:
        case events.Decided() as event:
            pass
        case events.NodeExcluded(name=name, reason=reason, age_s=0):
            event = events.Decided(decision=Verdict.EXCLUDE, reason=f"{name}: {reason}")
        case events.NodeReadmitted(name=name, reason=reason):
            event = events.Decided(decision=Verdict.READMIT, reason=f"{name}: {reason}")
        case events.FaultInjected(by=by, what=what):
            event = events.Decided(decision=Verdict.INJECT, reason=f"injected{f' by {by}' if by else ''}: {what}")
        case _:
            return None
    return Decision(
        at_unix=record.at,
        node=record.node,
        round=record.round,
        attempt=record.attempt,
        decision=event.decision,
        reason=event.reason,
        delay_s=event.delay_s,
        restarts_left=event.restarts_left,
    )


# ---- lives ---------------------------------------------------------------------------------------------------------


def _life(records: list[Record], decisions: Sequence[Decision], running: Collection[str]) -> Life | None:
    """Of the records of one round. Rounds are numbered by the job: the number tells lives apart. None: it was not formed."""
    formed = [(record.event, record) for record in records if isinstance(record.event, events.RoundFormed)]
    if not formed:
        return None
    (first, record), number = formed[0], formed[0][1].round
    by_group_rank = sorted(formed, key=lambda pair: pair[0].group_rank)
    workers = _workers(records, running)
    started = [record.at for record in records if isinstance(record.event, events.WorkerStarted)]
    exits = [record.at for record in records if isinstance(record.event, events.WorkerExited)]
    mine = [decision for decision in decisions if decision.round == number and decision.decision not in ABOUT_NODES]
    nodes = max((event.nodes for event, _ in formed), key=len) or tuple(record.node for _, record in by_group_rank)
    return Life(
        round=number,
        attempt=record.attempt,
        reason=first.reason,
        nodes=nodes,
        world_size=first.world_size,
        master=f"{first.master_addr}:{first.master_port}",
        formed_at=min(record.at for _, record in formed),
        started_at=max(started, default=None),
        disturbed_at=disturbed_at(records, mine),
        ended_at=max(exits) if exits and all(worker.state == WorkerState.EXITED for worker in workers) else None,
        workers=workers,
        failures=tuple(in_order((*_lost(records, nodes), *_failures(records, mine)))),
        decision=mine[-1] if mine else None,
    )


def _workers(records: Iterable[Record], running: Collection[str]) -> tuple[WorkerSeen, ...]:
    seen: dict[int, WorkerSeen] = {}
    for record in records:
        match record.event:
            case events.WorkerStarted(rank=rank, local_rank=local_rank, pid=pid, log_dir=log_dir):
                state = WorkerState.RUNNING if record.node in running else WorkerState.UNKNOWN
                seen[rank] = WorkerSeen(
                    rank=rank, local_rank=local_rank, pid=pid, node=record.node, state=state, log_dir=log_dir
                )
            case events.WorkerDying(rank=rank, pid=pid, exitcode=exitcode) if rank in seen and seen[rank].pid == pid:
                seen[rank] = replace(seen[rank], state=WorkerState.DYING, exitcode=exitcode)
            case events.WorkerExited(rank=rank, pid=pid, exitcode=exitcode) if rank in seen and seen[rank].pid == pid:
                seen[rank] = replace(seen[rank], state=WorkerState.EXITED, exitcode=exitcode)
    return tuple(seen[rank] for rank in sorted(seen))


def _lost(records: Iterable[Record], nodes: Collection[str]) -> Iterable[Failure]:
    """The losses of those of these nodes that were lost."""
    found: dict[str, Failure] = {}
    for record in records:
        if isinstance(event := record.event, events.NodeLost) and event.name in nodes:
            lost = Failure(
                node=event.name, rank=-1, cause=Cause.NODE_LOST, message=event.reason, at_unix=record.at - event.silent_s,
                round=record.round, attempt=record.attempt,
            )  # fmt: skip
            found.setdefault(event.name, lost)
    return found.values()


def _failures(records: Iterable[Record], decisions: Iterable[Decision]) -> Iterable[Failure]:
    """Each once, though several nodes may have recorded it. Where a node went, they follow from that."""
    follow = any(decision.decision == Verdict.REJOIN for decision in decisions)
    seen: dict[tuple[str, int, int], Failure] = {}
    for record in records:
        if isinstance(event := record.event, events.FailureSeen):
            failure = replace(event.failure, at_unix=event.failure.at_unix - record.skew_s)
            known = seen.setdefault((failure.node, failure.rank, failure.pid), failure)
            # Only the coordinator knows of what hangs that others waited for it, or that it hangs at all.
            tells_more = failure.cause == Cause.HUNG and len(failure.message) > len(known.message)
            if tells_more and known.cause in (Cause.HUNG, Cause.STOPPED):
                seen[failure.node, failure.rank, failure.pid] = replace(failure, at_unix=min(known.at_unix, failure.at_unix))
    return (replace(one, follows=one.follows or follow) for one in seen.values())


def disturbed_at(records: Sequence[Record], decisions: Sequence[Decision]) -> float | None:
    """When the first thing went wrong in a life: a failure or a lost node was seen, a rank was stopped (by a node whose lease
    was over; another coordinator decides later), or a new start was decided. A life that carried on without some was not
    disturbed before that decision."""
    again = [decision.at_unix for decision in decisions if decision.decision in AGAIN]
    if again and any(decision.decision == Verdict.CARRY_ON for decision in decisions):
        return min(again)
    troubles = [record for record in records if is_sight(record) and not isinstance(record.event, events.Decided)]
    moments = [record.at - _silence(record) for record in troubles]
    moments += [record.at for record in records if isinstance(record.event, events.WorkerExited) and record.event.exitcode != 0]
    return min([*moments, *again], default=None)


def _silence(record: Record) -> float:
    """How long a lost node, or a rank that hung, had been silent when that was noticed: they were lost when that began."""
    match record.event:
        case events.NodeLost(silent_s=silent_s):
            return silent_s
        case events.RankHung(quiet_s=quiet_s):
            return quiet_s
    return 0.0

"""What is a person, or a program, shown of the fleet? The shapes of the HTTP API, each once, and how they are made. Pure.

What is kept is shown as it is kept (`core.wire.fleet`: `Deed`, `Swap`, `DeviceKept`, `Change`, `JobLife`, `RankSaid`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.core.value import Value, to_plain
from holdfast.core.wire.fleet import BOUNDS_S, Deed, Hour, JobLife, NodeRecord, RankSaid, ReporterState, Standing, Swap
from holdfast.supervisor.fleet import awaiting
from holdfast.supervisor.fleet.job import FleetJob
from holdfast.supervisor.fleet.node import FleetNode
from holdfast.supervisor.fleet.numbers import part
from holdfast.supervisor.fleet.state import FleetState
from holdfast.supervisor.snapshot import DEEDS

SILENT = "silent"
"""State of a job of which no agent is heard, and no end is known."""

WAITING = "waiting"
"""State of a job whose ranks cannot run until another node is there."""

HISTORY = 20
"""Changes of a node in a list of all nodes; asked about by itself it tells all."""


class NodeJob(Value):
    """A job on one node."""

    job: str
    round: int
    state: str
    """joining · running · stopping, and the like"""
    ranks: tuple[RankSaid, ...]


class Node(NodeRecord):
    """One node, as the supervisor knows it."""

    linked: bool
    """Whether the supervisor can reach a reporter of the node now."""
    reported_at_unix: float
    """Time of the last report about its jobs; heartbeat ages refer to it. 0: no report since the supervisor started."""
    jobs: tuple[NodeJob, ...]


class Job(Value):
    """One job, over all its runs."""

    name: str
    state: str
    """running · waiting (for another node) · joining, stopping and the like, from its newest node · ended · silent"""
    round: int
    attempt: int
    """Restarts of its ranks so far."""
    outcome: str
    """How its last run ended. Empty: it has not ended."""
    least: int
    """A round of the job needs at least this many nodes."""
    nodes: tuple[str, ...]
    """Nodes with ranks."""
    spares: tuple[str, ...]
    """Nodes that wait for a place."""
    waits: str
    """What it waits for, and what ends that: another node, or a coordinator. Empty: for nothing."""
    is_open: bool
    """It is unauthenticated: who reaches it and knows its name can join it."""
    ranks: int
    """Of its newest round."""
    trained: float | None
    """The part of its last run's time, on all the nodes that it had, in which it trained: 0 to 1. None: not known."""
    lives: tuple[JobLife, ...]


class Gone(Value):
    """Names of nodes and jobs that the supervisor no longer knows."""

    nodes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


class Total(Value):
    """Number of deeds since the first start of the supervisor."""

    act: str
    trouble: str
    result: str
    """open (no result yet) · done · in_vain · unknown (the supervisor restarted before the result)"""
    count: int


class FleetPart(Value):
    """The fleet, or a part of it, at one version."""

    version: int
    at_unix: float
    """Time of this report. A later report with the same version means that nothing has changed."""
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    swaps: tuple[Swap, ...]
    deeds: tuple[Deed, ...]
    """The newest 200, oldest first."""
    totals: tuple[Total, ...]
    numbers: Hour
    """Of all times."""
    goodput: float | None
    """Of all jobs, in the last 24 hours. None: none was heard."""
    replacement_s: float | None
    """Within so many seconds the orchestrator gives another node. None: nobody knows."""
    replacement_by: str
    """Who says so, in words."""


class FleetShown(FleetPart):
    """Everything that the supervisor knows."""

    generation: int
    """Number of starts of the supervisor."""
    policy: str
    lease_s: float


class FleetChanged(FleetPart):
    """Changes: the new or changed nodes, jobs and deeds, and all swaps and totals."""

    gone: Gone


class History(Value):
    """Incidents, restarts and goodput of the last 30 days."""

    bounds_s: tuple[float, ...]
    """Of the histograms: the longest that is counted at each place. The last place of `counts` has what was longer."""
    hours: tuple[Hour, ...]
    """In order; those in which no job was heard are left out."""


class Culprit(Value):
    """The rank or node whose failure ended a round."""

    rank: int
    """-1: a whole node was lost."""
    node: str
    what: str


class Round(Value):
    """One round of a job."""

    number: int
    attempt: int
    began_unix: float
    ended_unix: float | None
    """None: the round still runs, or nobody saw its end."""
    world_size: int
    nodes: tuple[str, ...]
    why: str
    """Why it ended. Empty: it has not ended."""
    failure: Culprit | None
    lost_s: float | None
    """Seconds from its disturbance to the start of the next round. None: no disturbance, or no next round."""


class Goodput(Value):
    """Where the time of a job's workers went."""

    seconds: dict[str, float]
    """State → seconds × workers."""
    goodput: float
    """0 to 1"""
    published: dict[str, float | None]
    """Goodput by other definitions, which ignore capacity. None: not known."""


class IncidentBrief(Value):
    """One failure of a job, in one sentence."""

    id: str
    at_unix: float
    cause: str
    kind: str
    """Class of the cause, as `holdfast diagnose` names it: user-code · oom-gpu · network · unknown, and so on."""
    confidence: float
    """Of the class, 0 to 1."""
    rank: int
    """-1: a whole node was lost."""
    node: str


class ErrorText(Value):
    """What a rank that failed by itself said last of why."""

    rank: int
    node: str
    what: str
    """Its exception, or how it ended, in one line."""
    traceback: tuple[str, ...]
    """As Python prints it. Empty: it could write none."""


class StackGroup(Value):
    """Ranks that were in the same place."""

    ranks: tuple[int, ...]
    where: str
    stack: tuple[str, ...]
    """Innermost frame first."""


class LogTail(Value):
    """The end of one rank's log."""

    rank: int
    path: str
    lines: tuple[str, ...]


class Incident(IncidentBrief):
    """One failure of a job, with its evidence."""

    evidence: tuple[str, ...]
    errors: tuple[ErrorText, ...]
    """The first to fail first; at most 8."""
    groups: tuple[StackGroup, ...]
    logs: tuple[LogTail, ...]
    decision: str
    """The decision, and its reason."""


class NodeStory(Node):
    """One node, with the deeds about it."""

    deeds: tuple[Deed, ...]


class JobStory(Job):
    """One job, with the deeds about it, and with data from its folder if that is on this host."""

    deeds: tuple[Deed, ...]
    rounds: tuple[Round, ...]
    goodput: Goodput | None
    incidents: tuple[IncidentBrief, ...]


class Beat(Value):
    """The supervisor reported at that time that nothing has changed."""

    version: int
    at_unix: float


class Permission(Value):
    """What the caller is allowed to do."""

    role: str
    """read · operate"""
    logged_in: bool
    """True: by a cookie, which /logout revokes."""


class Told(Value):
    """The result of a request."""

    text: str


class Refusal(Value):
    """The request was not carried out."""

    error: str
    hint: str


class Reason(Value):
    """The reason for a request."""

    reason: str = ""


# --- how they are made ----------------------------------------------------------------------------------------------


def node(known: FleetNode, history: int = HISTORY) -> Node:
    """One node, with the last so many of its changes."""
    kept = known.kept()
    same = {field: getattr(kept, field) for field in NodeRecord.__fields__}
    jobs = {report.job: report for report in known.reports.values() if report.job}
    return Node(
        **same | {"history": kept.history[-history:]},
        linked=bool(known.linked),
        reported_at_unix=known.reported_at_unix,
        jobs=tuple(
            NodeJob(job=job, round=report.round, state=report.state, ranks=report.ranks) for job, report in jobs.items()
        ),
    )


def job(fleet: FleetState, known: FleetJob) -> Job:
    """One job."""
    here = [report for report in known.reports.values() if report.state != ReporterState.ENDED]
    newest = [report for report in here if report.round == known.round]
    wanted = f"for {text}" if (text := awaiting.wanted_by(fleet, job=known.name)) else ""
    return Job(
        name=known.name,
        state=WAITING if wanted and not known.is_running else _state(known, newest or here),
        round=known.round or (known.lives[-1].round if known.lives else 0),
        attempt=max((report.attempt for report in newest), default=known.lives[-1].attempt if known.lives else 0),
        outcome="" if here else known.outcome,
        least=known.least,
        nodes=tuple(sorted(known.ranked)),
        spares=tuple(sorted(fleet.spares(known))),
        waits=wanted or next((report.waits for report in here if report.waits), ""),
        is_open=known.is_open,
        ranks=sum(len(report.ranks) for report in newest),
        trained=part(known.trained_s, known.lost_s),
        lives=tuple(known.lives),
    )


def _state(known: FleetJob, newest: Iterable[Standing]) -> str:
    if known.is_running:
        return ReporterState.RUNNING
    states = sorted((not report.ranks, report.state) for report in newest)
    return states[0][1] if states else ReporterState.ENDED if known.outcome else SILENT


def fleet(known: FleetState, at_unix: float) -> dict[str, Any]:
    """All of it, as plain data."""
    part = _part(known, at_unix, sorted(known.nodes), sorted(known.jobs), list(known.action_log.deeds)[-DEEDS:])
    rules = known.rules
    shown = FleetShown(**part, generation=rules.generation, policy=rules.policy.name, lease_s=rules.lease_s)
    plain: dict[str, Any] = to_plain(shown)
    return plain


def changed(known: FleetState, since: int, at_unix: float) -> dict[str, Any]:
    """Changes since a version, as plain data; the whole `fleet` if the version is not of this life."""
    if not known.changes.knows(since):
        return fleet(known, at_unix)
    keys = known.changes.since(since)
    nodes, jobs, deeds = (keys.get(table, []) for table in ("nodes", "jobs", "deeds"))
    gone = Gone(
        nodes=tuple(name for name in nodes if name not in known.nodes),
        jobs=tuple(name for name in jobs if name not in known.jobs),
    )
    plain: dict[str, Any] = to_plain(FleetChanged(**_part(known, at_unix, nodes, jobs, reversed(deeds)), gone=gone))
    return plain


def _part(known: FleetState, at_unix: float, nodes: Iterable[str], jobs: Iterable[str], deeds: Iterable[str]) -> dict[str, Any]:
    """The fields of `FleetPart`, with these of the nodes, jobs and deeds."""
    counts = known.action_log.totals.items()
    return {
        "version": known.changes.version,
        "at_unix": at_unix,
        "nodes": tuple(node(known.nodes[name]) for name in nodes if name in known.nodes),
        "jobs": tuple(job(known, known.jobs[name]) for name in jobs if name in known.jobs),
        "swaps": tuple(one.swap for one in known.open_swaps.values()),
        "deeds": tuple(known.action_log.deeds[id] for id in deeds if id in known.action_log.deeds),
        "totals": tuple(
            Total(act=act, trouble=trouble, result=result, count=count) for (act, trouble, result), count in counts if count
        ),
        "numbers": known.numbers.total,
        "goodput": known.numbers.goodput(at_unix),
        "replacement_s": one.within_s if (one := known.standby()) is not None else None,
        "replacement_by": one.by if one is not None else "",
    }


def standby(known: FleetState) -> dict[str, Any] | None:
    """The node that the orchestrator would give, as plain data."""
    plain: dict[str, Any] | None = to_plain(known.standby())
    return plain


def history(known: FleetState) -> dict[str, Any]:
    """The hours that are remembered, as plain data."""
    plain: dict[str, Any] = to_plain(History(bounds_s=BOUNDS_S, hours=tuple(known.numbers.hours)))
    return plain

"""What is a person, or a program, shown of the fleet? The shapes of the HTTP API, each once, and how they are made. Pure.

What is kept is shown as it is kept (`core.wire.fleet`: `Deed`, `Swap`, `DeviceKept`, `Change`, `JobLife`, `RankSaid`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.core.value import Value, to_plain
from holdfast.core.wire.fleet import Deed, JobLife, NodeRecord, RankSaid, ReporterState, Standing, Swap
from holdfast.supervisor.fleet.job import FleetJob
from holdfast.supervisor.fleet.node import FleetNode
from holdfast.supervisor.fleet.state import FleetState
from holdfast.supervisor.snapshot import DEEDS

SILENT = "silent"
"""State of a job of which no agent is heard, and no end is known."""

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
    """One node, as far as the supervisor can tell."""

    linked: bool
    """Whether a reporter of it could be told something now."""
    reported_at_unix: float
    """When it was said how its jobs are: ages of heartbeats are of then. 0: not since the supervisor was started."""
    jobs: tuple[NodeJob, ...]


class Job(Value):
    """One job, over all its lives."""

    name: str
    state: str
    """running · joining, stopping and the like, as its newest node says · ended · silent (no agent of it is heard)"""
    round: int
    attempt: int
    """Restarts of its ranks so far."""
    outcome: str
    """How its last life ended. Empty: it has not."""
    least: int
    """A round of it needs so many nodes."""
    nodes: tuple[str, ...]
    """Those with ranks."""
    spares: tuple[str, ...]
    """Those that wait for a place."""
    ranks: int
    lives: tuple[JobLife, ...]


class Gone(Value):
    """Names of what is no longer known."""

    nodes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


class Total(Value):
    """How many deeds there were, over all lives of the supervisor."""

    act: str
    trouble: str
    result: str
    """open (it is not known yet what came of them) · done · in_vain · unknown (the supervisor was restarted meanwhile)"""
    count: int


class FleetPart(Value):
    """The fleet, or a part of it, as of a version."""

    version: int
    at_unix: float
    """When the supervisor said so: a later one with the same version says that nothing has changed since."""
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    swaps: tuple[Swap, ...]
    deeds: tuple[Deed, ...]
    """The newest 200, the oldest of them first."""
    totals: tuple[Total, ...]


class FleetShown(FleetPart):
    """All that the supervisor knows."""

    generation: int
    """Of the supervisor's lives."""
    policy: str
    lease_s: float


class FleetChanged(FleetPart):
    """What has changed: of the nodes, jobs and deeds those that are new or others; all swaps and totals."""

    gone: Gone


class Culprit(Value):
    """Whose failure ended a round."""

    rank: int
    """-1: a whole node was lost."""
    node: str
    what: str


class Round(Value):
    """One life of a job's ranks."""

    number: int
    attempt: int
    began_unix: float
    ended_unix: float | None
    """None: it runs, or its end was not seen."""
    world_size: int
    nodes: tuple[str, ...]
    why: str
    """Why it ended. Empty: it has not."""
    failure: Culprit | None
    lost_s: float | None
    """From its disturbance to the start of the next. None: undisturbed, or there is no next."""


class Goodput(Value):
    """Where the time of a job's workers went."""

    seconds: dict[str, float]
    """State → seconds times workers."""
    goodput: float
    """0 to 1"""
    published: dict[str, float | None]
    """The same by others' definitions, which are blind to capacity. None: it cannot be told."""


class IncidentBrief(Value):
    """One failure of a job, in a sentence."""

    id: str
    at_unix: float
    cause: str
    rank: int
    """-1: a whole node was lost."""
    node: str


class StackGroup(Value):
    """Ranks that were in one place."""

    ranks: tuple[int, ...]
    where: str
    stack: tuple[str, ...]
    """The innermost frame first."""


class LogTail(Value):
    """The end of one rank's log."""

    rank: int
    path: str
    lines: tuple[str, ...]


class Incident(IncidentBrief):
    """One failure of a job, with what it rests on."""

    evidence: tuple[str, ...]
    groups: tuple[StackGroup, ...]
    logs: tuple[LogTail, ...]
    decision: str
    """What was decided, and why."""


class NodeStory(Node):
    """One node, with what was done about it."""

    deeds: tuple[Deed, ...]


class JobStory(Job):
    """One job, with what was done about it, and what its folder on this host tells, if it has one here."""

    deeds: tuple[Deed, ...]
    rounds: tuple[Round, ...]
    goodput: Goodput | None
    incidents: tuple[IncidentBrief, ...]


class Beat(Value):
    """Nothing has changed, as the supervisor said at that time."""

    version: int
    at_unix: float


class Permission(Value):
    """What whoever asks may do."""

    role: str
    """read · operate"""
    logged_in: bool
    """By a cookie, which /logout takes back"""


class Told(Value):
    """What has become of a wish."""

    text: str


class Refusal(Value):
    """It was not done."""

    error: str
    hint: str


class Reason(Value):
    """Why something is wanted."""

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


def job(known: FleetJob) -> Job:
    """One job."""
    here = [report for report in known.reports.values() if report.state != ReporterState.ENDED]
    newest = [report for report in here if report.round == known.round]
    return Job(
        name=known.name,
        state=_state(known, newest or here),
        round=known.round or (known.lives[-1].round if known.lives else 0),
        attempt=max((report.attempt for report in newest), default=0),
        outcome="" if here else known.outcome,
        least=known.least,
        nodes=tuple(sorted(known.ranked)),
        spares=tuple(sorted(report.name for report in here if report.spare_because)),
        ranks=sum(len(report.ranks) for report in here),
        lives=tuple(known.lives),
    )


def _state(known: FleetJob, newest: Iterable[Standing]) -> str:
    if known.is_running:
        return ReporterState.RUNNING
    states = sorted((not report.ranks, report.state) for report in newest)
    return states[0][1] if states else ReporterState.ENDED if known.outcome else SILENT


def fleet(known: FleetState, at_unix: float) -> dict[str, Any]:
    """All of it, as plain data."""
    part = _part(known, at_unix, sorted(known.nodes), sorted(known.jobs), list(known.ledger.deeds)[-DEEDS:])
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
    counts = known.ledger.totals.items()
    return {
        "version": known.changes.version,
        "at_unix": at_unix,
        "nodes": tuple(node(known.nodes[name]) for name in nodes if name in known.nodes),
        "jobs": tuple(job(known.jobs[name]) for name in jobs if name in known.jobs),
        "swaps": tuple(one.swap for one in known.open_swaps.values()),
        "deeds": tuple(known.ledger.deeds[id] for id in deeds if id in known.ledger.deeds),
        "totals": tuple(
            Total(act=act, trouble=trouble, result=result, count=count) for (act, trouble, result), count in counts if count
        ),
    }

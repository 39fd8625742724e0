"""Which names does the supervisor forget? Whoever knows its token may invent them: nodes, jobs, reporters.

A name that somebody's link stands for is never forgotten, nor one of which something is under way, nor a node that an operator
holds. Of the others those go first that nothing is held against, or that are nobody's any more, the longest silent first.
"""

from __future__ import annotations

from holdfast.core.machine import Action
from holdfast.core.wire.fleet import HeldBy, NodeState, RepairStep, Standing
from holdfast.supervisor.fleet import repairs
from holdfast.supervisor.fleet.messages import Keep
from holdfast.supervisor.fleet.reporting import claims
from holdfast.supervisor.fleet.state import FleetState

REPAIRS = 1024
"""Nodes that are not here, and are in repair all the same, which are remembered: those first of which something has begun."""

SHARE = 8
"""Where there are too many names, so much of them goes at once: the look at all of them is worth it."""


def nodes(fleet: FleetState, now: float) -> list[Action]:
    """Forget some, if there are too many."""
    if not fleet.most_nodes.is_exceeded(len(fleet.nodes)):
        return []
    busy = {*fleet.missing, *fleet.promised, *_in_repair(fleet), *(one.swap.node for one in fleet.open_swaps.values())}
    busy |= {one.case.node for one in fleet.open_deeds.values()}
    idle = [node for node in fleet.nodes.values() if not node.linked and node.by != HeldBy.OPERATOR and node.name not in busy]
    idle.sort(key=lambda node: (node.standing != NodeState.FIT, node.reported_at_unix))
    gone = {node.name: node for node in idle[: len(fleet.nodes) // SHARE]}
    for reporter in [reporter for reporter, name in fleet.reporters.items() if name in gone]:
        claims.forget(fleet, fleet.nodes[fleet.reporters[reporter]], reporter, now)
    what = f"{len(fleet.nodes)} nodes are known: those are forgotten that have been silent longest"
    hint = "who has the supervisor's token may invent names (`holdfast nodes` shows them): if so, change the token"
    actions = fleet.crowd.said(f"{what}; {hint}")
    for name, node in gone.items():
        if node.repair is not None:
            actions += repairs.stop(fleet, node, "the node has been silent for long, and is forgotten", now)
        del fleet.nodes[name]
        fleet.leases.end(name)
    fleet.most_nodes.looked(len(fleet.nodes))
    return [*actions, *(Keep(table="nodes", key=name, value=None) for name in gone)]


def _in_repair(fleet: FleetState) -> list[str]:
    """Those that are not forgotten because of that."""
    found = [(node, node.repair.step) for node in map(fleet.nodes.__getitem__, fleet.repairs) if node.repair is not None]
    found.sort(key=lambda one: (bool(one[0].linked), one[1] != RepairStep.READY, one[0].reported_at_unix), reverse=True)
    return [node.name for node, _ in found[: REPAIRS + sum(bool(node.linked) for node, _ in found)]]


def jobs(fleet: FleetState, now: float) -> list[Action]:
    """Forget some, if there are too many."""
    if not fleet.most_jobs.is_exceeded(len(fleet.jobs)):
        return []
    busy = {one.swap.job for one in fleet.open_swaps.values()} | {one.case.job for one in fleet.open_deeds.values()}
    busy |= {one.case.job for one in fleet.missing.values()}
    at_unix = fleet.unix(now)
    idle = [job for job in fleet.jobs.values() if job.name not in busy and not any(map(fleet.is_linked, job.reports))]
    idle.sort(key=lambda job: (job.is_held(at_unix), job.heard_at_unix))
    gone = {job.name: job for job in idle[: len(fleet.jobs) // SHARE]}
    for job in gone.values():
        for reporter in list(job.reports):
            if (node := fleet.reporter_node(reporter)) is not None:
                claims.forget(fleet, node, reporter, now)
        del fleet.jobs[job.name]
    fleet.most_jobs.looked(len(fleet.jobs))
    return [Keep(table="jobs", key=name, value=None) for name in gone]


def absent(fleet: FleetState, reporter: str, report: Standing | None, now: float) -> None:
    """A reporter's link is gone; where too many are, the longest gone count no more. One that comes back says anew how it
    stands."""
    fleet.absent.add(reporter, weight(report))
    for old in fleet.absent.over():
        if (node := fleet.reporter_node(old)) is not None:
            claims.forget(fleet, node, old, now)


def weight(report: Standing | None) -> int:
    """About how many bytes a report takes in memory."""
    if report is None:
        return 0
    members = report.members or ()
    return 4000 + 400 * len(report.ranks) + 60 * len(members) + sum(map(len, members))

"""What does a reporter say about its node and its job, and who must learn of it?

A reporter is an agent or a host's daemon. Each pushes what changes; none is polled. Its news goes to its job and to whatever
waits for news of that job.
"""

from __future__ import annotations

from holdfast.core.machine import Action
from holdfast.core.wire.fleet import Bye, Heard, HeldBy, NodeState, ReporterState, Standing, Verb
from holdfast.supervisor.fleet import deeds, repairs, swap_steps
from holdfast.supervisor.fleet.job import FleetJob
from holdfast.supervisor.fleet.messages import Keep, Tell
from holdfast.supervisor.fleet.node import FleetNode
from holdfast.supervisor.fleet.reporting import claims, forgetting, silence
from holdfast.supervisor.fleet.state import FleetState


def stands(fleet: FleetState, report: Standing, now: float) -> list[Action]:
    """A reporter says how things are."""
    node = fleet.nodes.get(report.name) or fleet.nodes.setdefault(report.name, FleetNode(report.name))
    actions: list[Action] = []
    if (known := fleet.reporter_node(report.node)) is not None:
        before = known.reports.get(report.node, report)
        if (known.name, before.job) != (report.name, report.job):
            claims.forget(fleet, known, report.node, now)
    is_new = report.node not in fleet.reporters
    if is_new:
        _succeed(fleet, node, report, now)
    was_linked = fleet.is_linked(report.node)
    fleet.reporters[report.node] = report.name
    if not was_linked:
        actions += [fleet.heed(report.node), *fleet.queues.again(report.name)]
    was_lost = _present(fleet, node, report.node, now, is_beside=report.is_beside)
    node.hear(report, fleet.unix(now))
    fleet.changes.mark("nodes", node.name)
    actions += fleet.keep(node, now, "it is heard again" if was_lost else "")
    actions += forgetting.nodes(fleet, now)
    if report.job:
        actions += _job_stands(fleet, report, now) + forgetting.jobs(fleet, now)
        actions += _keep_out(fleet, node, report, now) if is_new else []
    actions += repairs.host_reports(fleet, node, report, now)
    return [*actions, Tell(node=report.node, message=Heard(number=report.number))]


def alive(fleet: FleetState, node: FleetNode, reporter: str, now: float) -> list[Action]:
    """A known reporter gives a sign of life; every message is one."""
    report = node.reports.get(reporter)
    if not _present(fleet, node, reporter, now, is_beside=report is not None and report.is_beside):
        return []
    return [*fleet.keep(node, now, "it is heard again"), fleet.heed(reporter)]


def bye(fleet: FleetState, node: FleetNode, message: Bye, now: float) -> list[Action]:
    """A reporter leaves in good order. A node without any is not waited for."""
    job = fleet.jobs.get(fleet.job_of(message.node))
    deeds.leaves(fleet, message.node)
    node.bye(message.node)
    del fleet.reporters[message.node]
    fleet.absent.remove(message.node)
    fleet.changes.mark("nodes", node.name)
    if not node.linked:
        fleet.leases.end(node.name)
    actions = fleet.keep(node, now)
    if job is None:
        return actions
    job.gone(message.node, fleet.unix(now))
    fleet.changes.mark("jobs", job.name)
    return actions + _job_reported(fleet, job, now)


def unlinked(fleet: FleetState, reporter: str, now: float) -> list[Action]:
    """A reporter's link is gone. Its lease goes on."""
    if (node := fleet.reporter_node(reporter)) is not None:
        node.unlink(reporter)
        fleet.unlinked.renew(reporter, now + fleet.rules.lease_s)
        fleet.changes.mark("nodes", node.name)
        forgetting.absent(fleet, reporter, node.reports.get(reporter), now)
    return []


def _job_stands(fleet: FleetState, report: Standing, now: float) -> list[Action]:
    job = fleet.jobs.get(report.job) or fleet.jobs.setdefault(report.job, FleetJob(report.job, fleet.unix(now)))
    fleet.changes.mark("jobs", job.name)
    kept: list[Action] = []
    is_anothers = claims.take(fleet, job, report, now)
    if job.hear(report, fleet.unix(now)) or is_anothers:
        kept = [Keep(table="jobs", key=job.name, value=job.kept())]
    if job.restarts:
        fleet.numbers.soon(now)
    return kept + _job_reported(fleet, job, now)


def _job_reported(fleet: FleetState, job: FleetJob, now: float) -> list[Action]:
    """Tell everything that waits for news of a job."""
    actions = swap_steps.job_reported(fleet, job.name, now) if fleet.open_swaps else []
    actions += deeds.job_reported(fleet, job, now)
    return actions + silence.job_reported(fleet, job, now)


def _succeed(fleet: FleetState, node: FleetNode, report: Standing, now: float) -> None:
    """A node has one agent in a job: its earlier ones are gone, said goodbye or not."""
    for old in [old for old, said in node.reports.items() if said.job == report.job]:
        claims.forget(fleet, node, old, now)


def _present(fleet: FleetState, node: FleetNode, reporter: str, now: float, *, is_beside: bool) -> bool:
    """Renew a node's lease, unless that is for others to do. Whether it was lost."""
    was_lost = node.is_lost
    if was_lost or reporter not in node.linked:
        fleet.changes.mark("nodes", node.name)
    fleet.absent.remove(reporter)
    if is_beside:
        node.linked.add(reporter)
        return False
    node.present(reporter)
    fleet.leases.renew(node.name, now + fleet.rules.lease_s)
    fleet.missing.pop(node.name, None)
    return was_lost


def _keep_out(fleet: FleetState, node: FleetNode, report: Standing, now: float) -> list[Action]:
    """A node that must not be used has come with a new agent: order its job to exclude it."""
    job = fleet.jobs[report.job]
    kept_out = node.standing in (NodeState.UNFIT, NodeState.DRAINING) and node.by != HeldBy.ITSELF
    if not kept_out or report.state == ReporterState.ENDED or fleet.swap_of(node.name) is not None:
        return []
    order = fleet.order(f"{report.node}.exclude", Verb.EXCLUDE, node.reason, target=node.name)
    return fleet.send(next(filter(fleet.is_linked, job.speakers(but=node.name)), report.node), order, now)

"""What does it mean that a node is not heard? It is lost to the supervisor; whether its job hears it is the job's to say.

And that a reporter has had no link for a lease, while others of its node may be heard? It counts no more: an agent that was
killed does not hold its job's name, nor its host's repair. One that comes back says anew how it stands.
"""

from __future__ import annotations

from holdfast.core.machine import Action, Say
from holdfast.core.value import replace
from holdfast.core.wire.fleet import TroubleKind
from holdfast.supervisor.fleet import deeds
from holdfast.supervisor.fleet.job import FleetJob
from holdfast.supervisor.fleet.reporting import claims
from holdfast.supervisor.fleet.state import FleetState, Missing

JUDGED_S = 30.0
"""How long to wait for the word of a job's coordinator about a node that the supervisor does not hear: longer than it takes to
find another coordinator. And for a host's daemon whose link was closed: that of a host that dies stays open, so that only the
daemon has ended, and is most often started again."""


def excused(fleet: FleetState, now: float) -> bool:
    """Extend all leases if this process has not run for a while (it was stopped, or the machine slept): what others said
    meanwhile is still unread. A process that is merely busy hears others, and the silent ones are lost."""
    awake_at = fleet.wake(now)
    if now - max(awake_at, fleet.leases.first) < fleet.rules.lease_s / 2:
        return False
    fleet.leases.extend(now + fleet.rules.lease_s)
    fleet.unlinked.extend(now + fleet.rules.lease_s)
    return True


def due(fleet: FleetState, now: float) -> list[Action]:
    """Leases have ended: of nodes, and of reporters without a link."""
    lost = [action for name in fleet.leases.over(now) for action in _lost(fleet, name, now)]
    return lost + [action for reporter in fleet.unlinked.over(now) for action in _gone(fleet, reporter, now)]


def unjudged(fleet: FleetState, now: float) -> list[Action]:
    """The time for a job's word about its lost nodes is over."""
    late = [name for name, one in fleet.missing.items() if now >= one.until]
    return [action for name in late for action in _judged(fleet, name, now)]


def job_reported(fleet: FleetState, job: FleetJob, now: float) -> list[Action]:
    """A job's coordinator may say that it does not hear a lost node either."""
    gone = [name for name, one in fleet.missing.items() if one.case.job == job.name and _is_out(job, name)]
    return [action for name in gone for action in _judged(fleet, name, now)]


def _lost(fleet: FleetState, name: str, now: float) -> list[Action]:
    fleet.leases.end(name)
    node = fleet.nodes[name]
    what = f"{name} was not heard for {fleet.rules.lease_s:g} s"
    has_closed = not node.linked
    watched = {report.job for report in node.reports.values() if report.job in fleet.jobs and fleet.jobs[report.job].is_watched}
    worked = sorted({(one.job, one.round) for one in node.reports.values() if one.ranks and one.job in fleet.jobs})
    cases = [replace(deeds.case_of(fleet, TroubleKind.LOST, name, job, what), round=round) for job, round in worked]
    for reporter, report in node.reports.items():
        if report.job in fleet.jobs:
            fleet.jobs[report.job].gone(reporter, fleet.unix(now))
            fleet.changes.mark("jobs", report.job)
    node.silent()
    actions = fleet.keep(node, now, what)
    for case in cases[:1]:
        fleet.missing[name] = Missing(case=case, until=now + JUDGED_S)
        job = fleet.jobs[case.job]
        waits_for_daemon = has_closed and case.job in watched
        if _is_out(job, name) or (not waits_for_daemon and (job.is_watched or not job.reports)):
            actions += _judged(fleet, name, now)
    return actions


def _gone(fleet: FleetState, reporter: str, now: float) -> list[Action]:
    fleet.unlinked.end(reporter)
    node, job = fleet.reporter_node(reporter), fleet.job_of(reporter)
    if node is None or reporter in node.linked:
        return []
    if not node.linked and node.name in fleet.leases:  # its last word came by another link: what is lost with it is said first
        fleet.unlinked.renew(reporter, now + fleet.rules.lease_s)
        return []
    claims.forget(fleet, node, reporter, now)
    if job in fleet.jobs:
        fleet.changes.mark("jobs", job)
    return fleet.keep(node, now, f"its reporter {reporter} has had no link for {fleet.rules.lease_s:g} s")


def _is_out(job: FleetJob, name: str) -> bool:
    """Whether the job's coordinator says that it does not hear the node."""
    return job.members is not None and name not in job.members


def _judged(fleet: FleetState, name: str, now: float) -> list[Action]:
    """The node is lost to its job too; or nobody can say that it is not."""
    case = fleet.missing.pop(name).case
    job = fleet.jobs[case.job]
    if job.members is not None and name in job.members:
        return [Say(text=f"{name}: its job hears it, so nothing is done: only its link to the supervisor is broken")]
    fresh = deeds.case_of(fleet, TroubleKind.LOST, name, case.job, case.what)
    goes_on = job.is_running and job.round > case.round > 0
    return deeds.consider(fleet, replace(fresh, round=case.round, goes_on=goes_on), now)

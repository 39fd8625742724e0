"""Who may speak for a job? All agents share the supervisor's token; a job's secret is its own nodes' alone.

So a name belongs to whoever first proved a secret for it, as long as that job is alive. A digest of the proof is kept over the
supervisor's restarts. A name for which nobody has proved anything is anybody's who may speak here, and goes to the first who
proves something.
"""

from __future__ import annotations

from hashlib import sha256
from hmac import compare_digest

from holdfast.core.wire.fleet import Standing
from holdfast.supervisor.fleet.job import FleetJob
from holdfast.supervisor.fleet.node import FleetNode
from holdfast.supervisor.fleet.state import FleetState


def objection(fleet: FleetState, report: Standing, now: float) -> str:
    """Why a reporter may not speak for the job that it names. Empty: it may."""
    job = fleet.jobs.get(report.job)
    if job is None or not job.is_held(fleet.unix(now)) or compare_digest(owner_of(report), job.owner):
        return ""
    shown = "another secret" if report.proof else "no secret"
    return f"{report.name} speaks for the job {job.name!r} and has {shown} (--token-file, HOLDFAST_TOKEN, a shared --state-dir)"


def owner_of(report: Standing) -> str:
    """Whose proof that is, as it is kept. Empty: there is none."""
    return sha256(report.proof.encode(errors="replace")).hexdigest() if report.proof else ""


def take(fleet: FleetState, job: FleetJob, report: Standing, now: float) -> bool:
    """The job is that of who reports. Whether it was another's: those who spoke for it until now have no say any more."""
    if (owner := owner_of(report)) == job.owner:
        return False
    for node in fleet.nodes.values():
        for old in [old for old, said in node.reports.items() if said.job == job.name and owner_of(said) != owner]:
            forget(fleet, node, old, now)
    for ended in [old for old, said in job.reports.items() if owner_of(said) != owner]:
        job.gone(ended, fleet.unix(now))
    job.belongs_to(owner)
    return True


def forget(fleet: FleetState, node: FleetNode, reporter: str, now: float) -> None:
    """A reporter counts no more."""
    job = fleet.jobs.get(fleet.job_of(reporter))
    node.bye(reporter)
    fleet.reporters.pop(reporter, None)
    fleet.early.pop(reporter, None)
    fleet.absent.remove(reporter)
    fleet.changes.mark("nodes", node.name)
    if job is not None:
        job.gone(reporter, fleet.unix(now))

"""Decides on requests of operators and ranks to end or restart the job, or to exclude or readmit a node.

The coordinator decides about what concerns the whole job: its end, a restart, which nodes it may have. Anything else it passes
on (`rendezvous.coordinator.pending_requests`).
"""

from __future__ import annotations

from holdfast.core.job.events import ExcludedBy
from holdfast.core.job.policy import Decision, Verdict
from holdfast.core.job.report import Outcome
from holdfast.core.machine import NEVER, Action, Say
from holdfast.core.wire.demands import MOST_ABSENT, too_large, too_many
from holdfast.core.wire.messages import Request, RequestKind
from holdfast.rendezvous.coordinator.admission import dismiss, is_member, readmit
from holdfast.rendezvous.coordinator.job import Job, Phase
from holdfast.rendezvous.coordinator.pending_requests import reply_to
from holdfast.rendezvous.coordinator.rounds import carry_out, end


def requested(job: Job, request: Request, now: float) -> list[Action]:
    """A request outlives its round; but one restart fulfils all requests for a restart."""
    if refused := _refused(job, request, now):
        return refused
    match request.kind:
        case RequestKind.STOP:
            why = f"{_who(job, request)} asked to stop the job: {request.reason}" if request.is_of_a_rank else request.reason
            return end(job, Outcome.STOPPED, why, now)
        case RequestKind.RESTART:
            return _restart(job, request, now)
        case RequestKind.EXCLUDE if request.is_of_a_rank:
            return _exclude_for_rank(job, request, now)
        case RequestKind.EXCLUDE:
            return _exclude(job, request, now)
        case RequestKind.READMIT:
            return _readmit(job, request, now)
        case _:
            return job.requests.pass_on(request)


def _refused(job: Job, request: Request, now: float) -> list[Action]:
    """It is too much for one node to ask. Nothing: it is not."""
    if not (why := too_large(request)):
        if job.demands.admit(request.node, request.kind, now):
            return []
        why = too_many(request.kind)
    said: list[Action] = []
    if job.demands.is_news(request.node, why):
        seat = job.seats.get(request.node)
        said = [Say(text=f"{seat.name if seat else request.node}: refused: {why}", level="warning")]
    return [*said, *reply_to(request, ok=False, text=why)]


def _restart(job: Job, request: Request, now: float) -> list[Action]:
    """An operator, who waits for the answer, may not end the job by it: a job that has no restart left goes on."""
    if request.round != job.round or job.phase is not Phase.RUNNING:
        return reply_to(request, ok=False, text=f"round {request.round} is over, and its ranks with it")
    if request.ask is not None and (why := job.policy.may_not_restart(now)):
        return reply_to(request, ok=False, text=f"{why}: the job would end; `holdfast stop` ends it")
    what = f"{_who(job, request)} asked for a restart: {request.reason}"
    uptime_s = now - job.formed_at if request.ask is None else NEVER  # else a person's patience: no crash at once
    decision = job.policy.consider_request(what, uptime_s=uptime_s, now=now)
    return [*carry_out(job, decision, now, anew=True), *reply_to(request, text=decision.reason)]


def _exclude_for_rank(job: Job, request: Request, now: float) -> list[Action]:
    """A rank wants its own node left out."""
    name = job.seats[request.node].name
    if job.excluded.why(name):
        return []
    what = f"{_who(job, request)} asked to exclude its node: {request.reason}"
    if needed := job.seats.lacking(name, job.round):
        job.excluded.want(name, request.reason, ExcludedBy.SCRIPT, now)
        why = f"{what}; not done, since the job cannot go on without it: {needed}; it is as soon as another can take its place"
        return carry_out(job, Decision(then=Verdict.CARRY_ON, reason=why), now)
    excluded = job.exclude(name, request.reason, ExcludedBy.SCRIPT, now)
    return [excluded, *dismiss(job, name, what, now)]


def _exclude(job: Job, request: Request, now: float) -> list[Action]:
    """An operator wants a node left out, or a node itself has found out that it is unfit."""
    name = request.target
    if before := job.excluded.why(name):
        said = reply_to(request, text=f"{name} is excluded already: {before}")
        outlasts = request.by is ExcludedBy.OPERATOR and job.excluded.by(name) is ExcludedBy.ITSELF  # whose word may change
        return [job.exclude(name, request.reason, request.by, now), *said] if outlasts else said
    if is_member(job, name) and (needed := job.seats.lacking(name, job.round)):
        text = f"{name} is not excluded, since the job cannot go on without it: {needed}"
        return reply_to(request, ok=False, text=text)
    is_here = any(seat.name == name for seat in job.seats.values())
    if not is_here and job.excluded.absent({seat.name for seat in job.seats.values()}) >= MOST_ABSENT:
        text = f"{name} is not here, and {MOST_ABSENT} nodes that are not are excluded already: readmit some first"
        return reply_to(request, ok=False, text=text)
    actions: list[Action] = [job.exclude(name, request.reason, request.by, now)]
    dismissed = dismiss(job, name, f"{name} is excluded: {request.reason}", now)
    then = "it takes part in no later round"
    if dismissed:
        carries_on = job.phase is Phase.RUNNING
        then = "the others carry on without it" if carries_on else "the ranks are restarted without it"
    text = f"{name} is excluded: {then}" if is_here else f"no node {name} is here now; it is excluded if it comes"
    return [*actions, *dismissed, *reply_to(request, text=text)]


def _readmit(job: Job, request: Request, now: float) -> list[Action]:
    name = request.target
    if not job.excluded.why(name):
        return reply_to(request, ok=False, text=f"{name} is not excluded")
    actions = readmit(job, name, request.reason, now)
    return [*actions, *reply_to(request, text=f"{name} may take part again")]


def _who(job: Job, request: Request) -> str:
    name = job.seats[request.node].name
    return f"rank {request.rank} on {name}" if request.is_of_a_rank else f"an operator of {name}"

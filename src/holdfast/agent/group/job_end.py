"""This agent's part is over: with which exit code, and which last word?"""

from __future__ import annotations

from holdfast.agent.group.messages import Exit, KillWorkers, Sweep
from holdfast.agent.group.state import Phase, State, Step, first
from holdfast.core.job.events import Decided, JobEnded
from holdfast.core.job.policy import Verdict
from holdfast.core.job.report import JobReport, Outcome
from holdfast.core.machine import Action, Record
from holdfast.core.value import replace
from holdfast.core.wire.messages import Finish, Refused


def exit(
    state: State,
    code: int,
    *,
    report: JobReport | None = None,
    outcome: Outcome = Outcome.STOPPED,
    reason: str = "",
    complaint: str = "",
) -> Step:
    """End. `complaint`: what is wrong, for people."""
    if state.clean_stop_is_success and state.leaving and all(one.exitcode == 0 for one in state.workers.values()):
        code = 0
    if report is not None:
        report = replace(report, exit_code=code)  # what it shows is how this agent ends
    outcome = report.outcome if report else outcome
    reason = report.reason if report else complaint or reason
    state = replace(state, phase=Phase.ENDED, held=False, stopping=None, look=None, memory=state.memory.end())
    ended = Record(event=JobEnded(outcome=outcome, exit_code=code, reason=reason))
    return state, [ended, Exit(code=code, report=report, complaint=complaint)]


def finished(state: State, finish: Finish) -> Step:
    """The job has ended."""
    return first(_killed(state), exit(state, finish.report.exit_code, report=finish.report))


def refused(state: State, refused: Refused) -> Step:
    """The coordinator does not take this node."""
    complaint = f"cannot take part in the job: {refused.reason}"
    decided = Record(event=Decided(decision=Verdict.STOP, reason=complaint))
    shown = complaint + (f"\n  hint: {refused.hint}" if refused.hint else "")
    return first([*_killed(state), decided], exit(state, 1, outcome=Outcome.FAILED, complaint=shown))


def _killed(state: State) -> list[Action]:
    alive = state.workers.alive + state.workers.let_go
    return [KillWorkers(local_ranks=alive), Sweep()] if alive else []

"""What was found out about a failure stops a restart, or leaves a node out, only where it is sure; a flag says otherwise."""

from __future__ import annotations

import pytest

from holdfast.core.errors import UsageError
from holdfast.core.job.ends import WORDLESS
from holdfast.core.job.failure import Failure
from holdfast.diagnosis.collect import diagnose
from holdfast.recovery.findings import Findings, overrides
from holdfast.recovery.policy import RestartOnFailure

MISSING = "ModuleNotFoundError: No module named 'apex'"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def failed(rank: int, message: str = MISSING, *, cause: str = "exception") -> Failure:
    traceback = f"Traceback (most recent call last):\n{message}" if cause == "exception" else None
    said = {"cause": cause, "message": message, "traceback": traceback}
    return Failure(node="n1", rank=rank, local_rank=rank, exitcode=1, at_unix=0.0, **said)


def policy(said: str = "") -> RestartOnFailure:
    return RestartOnFailure(max_restarts=3, findings=lambda: Findings(diagnose, overrides(said)))


def restarted(judge: RestartOnFailure, *failures: Failure) -> str:
    """Why the restart after these does not come; empty: it does."""
    assert judge.consider(failures[0], uptime_s=100.0, now=0.0).then == "restart"
    decision = judge.stalled(None, restarting=True, failures=failures)
    return "" if decision is None else decision.reason


def test_a_user_s_error_that_every_rank_raises_is_not_tried_again_and_spends_no_restart() -> None:
    judge = policy()
    assert "every rank says so" in restarted(judge, failed(0), failed(1))
    assert judge.restarts_left(0.0) == 3


def test_one_rank_s_error_is_tried_again_once_and_not_when_it_comes_again() -> None:
    judge = policy()
    assert restarted(judge, failed(0), failed(1, cause="stopped")) == ""
    assert "came again right after a restart" in restarted(judge, failed(1), failed(0, cause="stopped"))


def test_another_end_in_between_begins_anew() -> None:
    judge = policy()
    stopped = failed(1, cause="stopped")
    lives = ((failed(0), stopped), (failed(0, "", cause="signal"), stopped), (failed(0), stopped))
    assert [restarted(judge, *failures) for failures in lives] == ["", "", ""]


def test_another_error_in_between_begins_anew() -> None:
    judge = policy()
    messages = (MISSING, "NameError: name 'x' is not defined", MISSING)
    assert [restarted(judge, failed(0, said), failed(1, cause="stopped")) for said in messages] == ["", "", ""]


@pytest.mark.parametrize("message", ["RuntimeError: boom", "ValueError: odd", "ConnectionError: gone", ""])
def test_what_may_pass_is_tried_again_as_long_as_there_are_restarts(message: str) -> None:
    judge = policy()
    assert [restarted(judge, failed(0, message), failed(1, message)) for _ in range(3)] == ["", "", ""]


@pytest.mark.parametrize(("cause", "message"), [("signal", ""), *(("exit", said) for said in WORDLESS)])
def test_an_end_without_a_word_loads_no_rules(cause: str, message: str) -> None:
    def never() -> Findings:
        raise AssertionError

    judge = RestartOnFailure(max_restarts=3, findings=never)
    assert restarted(judge, failed(0, message, cause=cause)) == ""


def test_a_node_with_broken_hardware_is_left_out() -> None:
    decision = policy().consider(failed(0, ECC), uptime_s=100.0, now=0.0)
    assert "error that cannot be corrected" in decision.exclude and decision.then == "restart"


@pytest.mark.parametrize("said", ["gpu=ignore", "gpu=restart", "none"])
def test_a_flag_keeps_the_node(said: str) -> None:
    assert policy(said).consider(failed(0, ECC), uptime_s=100.0, now=0.0).exclude == ""


def test_a_flag_stops_at_once_or_never() -> None:
    assert "--on-finding environment=stop" in restarted(policy("environment=stop"), failed(0), failed(1, cause="stopped"))
    assert restarted(policy("environment=restart"), failed(0), failed(1)) == ""


@pytest.mark.parametrize(("said", "hint"), [("usr-code=stop", "user-code"), ("gpu=stopp", "stop"), ("gpu", "known")])
def test_a_wrong_flag_says_what_is_wrong(said: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        overrides(said)

"""What Holdfast has ended itself is not taken for somebody else's deed."""

from __future__ import annotations

import pytest

from holdfast.core.job.failure import NO_OOM_KILL, Cause, Failure
from holdfast.core.job.finding import Class
from holdfast.diagnosis.collect import diagnose


def failure(cause: Cause, exitcode: int, message: str = "", *, oom: str = "") -> Failure:
    return Failure(node="n1", rank=1, local_rank=1, at_unix=1.0, cause=cause, exitcode=exitcode, message=message, oom=oom)


@pytest.mark.parametrize("oom", ["", NO_OOM_KILL])
def test_a_rank_that_was_killed_because_it_hung_has_hung(oom: str) -> None:
    found = diagnose([failure(Cause.HUNG, -9, "no sign of life for 2 s (limit 2 s)", oom=oom)])
    assert found.kind == Class.UNKNOWN and "no sign of life for 2 s" in found.sentence
    assert "SIGKILL" not in found.sentence and "find the sender" not in found.sentence


@pytest.mark.parametrize("exitcode", [0, -15])
def test_a_rank_that_left_early_left_early_however_its_exit_was_cut_short(exitcode: int) -> None:
    found = diagnose([failure(Cause.EARLY, exitcode, "began to exit by itself while other ranks were still training")])
    assert (found.kind, found.action) == (Class.USER_CODE, "stop")
    assert "same number of steps" in found.sentence and "SIGTERM" not in found.sentence


def test_a_kill_that_nobody_here_has_sent_is_somebody_s() -> None:
    assert "find the sender" in diagnose([failure(Cause.SIGNAL, -9, oom=NO_OOM_KILL)]).sentence

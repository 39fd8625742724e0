"""What next, after a failure? The budget is never overdrawn, and a crash loop gets slower."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.job.failure import Failure
from holdfast.core.job.policy import Decision
from holdfast.recovery.policy import Budget, RestartOnFailure

CRASH = Failure(node="n1", rank=3, local_rank=1, exitcode=1, at_unix=0.0)


def crash(policy: RestartOnFailure, now: float = 0.0, uptime_s: float = 1000.0) -> Decision:
    return policy.consider(CRASH, uptime_s=uptime_s, now=now)


@given(st.integers(0, 5), st.floats(1.0, 100.0), st.lists(st.floats(0.0, 500.0), max_size=40).map(sorted))
def test_within_any_period_no_more_is_spent_than_allowed(restarts: int, period_s: float, times: list[float]) -> None:
    budget = Budget(restarts=restarts, period_s=period_s)
    spent = [now for now in times if budget.spend(now)]
    for now in times:
        assert sum(1 for at in spent if 0 <= now - at < period_s) <= restarts
        assert budget.left(times[-1]) >= 0


@given(st.integers(0, 5), st.integers(0, 10))
def test_over_a_whole_life_exactly_the_allowed_number_is_spent(restarts: int, failures: int) -> None:
    budget = Budget(restarts=restarts)
    assert sum(budget.spend(float(now) * 1e6) for now in range(failures)) == min(restarts, failures)


def test_a_restart_comes_back_when_its_period_is_over() -> None:
    budget = Budget(restarts=1, period_s=10.0)
    assert budget.spend(0.0) and not budget.spend(9.9) and budget.spend(10.0)


def test_a_failure_restarts_the_group_at_once_and_says_what_is_left() -> None:
    decision = crash(RestartOnFailure(max_restarts=3))
    assert decision == Decision(
        reason="rank 3 (local 1) on n1 exited with code 1; restarting all ranks (2 of 3 restarts left)",
        restarts_left=2,
    )


def test_without_restarts_the_reason_names_the_flag() -> None:
    decision = crash(RestartOnFailure(max_restarts=0))
    assert decision.then == "stop" and decision.reason.endswith("no restarts allowed (--max-restarts 0)")


def test_a_spent_period_is_named_in_the_reason() -> None:
    policy = RestartOnFailure(max_restarts=1, period_s=60.0)
    crash(policy, now=0.0)
    assert crash(policy, now=30.0).reason.endswith("no restart is left (1 of 1 used within 60 s)")
    assert crash(policy, now=60.0).then == "restart"


def test_the_pause_doubles_with_each_instant_crash_up_to_its_limit() -> None:
    policy = RestartOnFailure(max_restarts=100, longest_delay_s=3.0)
    delays = [crash(policy, uptime_s=0.1).delay_s for _ in range(6)]
    assert delays == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_long_life_ends_a_crash_loop() -> None:
    policy = RestartOnFailure(max_restarts=100)
    for _ in range(5):
        crash(policy, uptime_s=0.1)
    assert crash(policy, uptime_s=600.0).delay_s == 0.0
    assert crash(policy, uptime_s=0.1).delay_s == 0.0


def test_even_the_longest_crash_loop_has_a_finite_pause() -> None:
    policy = RestartOnFailure(max_restarts=10_000)
    assert max(crash(policy, uptime_s=0.0).delay_s for _ in range(500)) == 60.0


def test_a_program_that_cannot_be_started_is_not_started_again_and_spends_nothing() -> None:
    policy = RestartOnFailure(max_restarts=3)
    unstartable = Failure(node="n1", rank=0, local_rank=0, at_unix=0.0, cause="start", message="no such file")
    assert policy.consider(unstartable, uptime_s=0.0, now=0.0).then == "stop"
    assert policy.restarts_left(0.0) == 3


# --- nodes that fail again and again ------------------------------------------------------------------------------------------


def test_a_node_is_blamed_for_its_nth_first_failure_and_not_for_others() -> None:
    policy = RestartOnFailure(max_restarts=10, exclude_after=2)
    said = [policy.consider(Failure(node=node, rank=0, at_unix=0.0), uptime_s=60.0, now=0.0).exclude for node in "aba"]
    assert said == ["", "", "its workers were the first to fail 2 times"]


def test_a_nodes_failures_count_within_the_budgets_period() -> None:
    policy = RestartOnFailure(max_restarts=10, period_s=60.0, exclude_after=2)
    said = [crash(policy, now=now).exclude for now in (0.0, 60.0, 70.0)]
    assert said == ["", "", "its workers were the first to fail 2 times within 60 s"]


def test_nothing_is_held_against_the_node_of_a_hang_that_nobody_can_be_blamed_for() -> None:
    policy = RestartOnFailure(max_restarts=10, exclude_after=1)
    alike = Failure(node="a", rank=0, at_unix=0.0, cause="hung", undecided=True)
    assert policy.consider(alike, uptime_s=60.0, now=0.0).exclude == "" and not policy.suspects.faults


def test_a_pardoned_node_begins_anew() -> None:
    policy = RestartOnFailure(max_restarts=10, exclude_after=2)
    crash(policy)
    policy.pardon("n1")
    assert crash(policy).exclude == ""


def test_what_is_held_against_nodes_passes_to_a_successor() -> None:
    policy, successor = (RestartOnFailure(max_restarts=10, exclude_after=2) for _ in range(2))
    crash(policy, now=5.0)
    successor.suspects.resume(policy.suspects.ages_s(15.0), 100.0)
    assert successor.suspects.faults == {"n1": [90.0]}
    assert crash(successor, now=101.0).exclude


def test_nobody_is_blamed_where_no_number_is_too_large() -> None:
    policy = RestartOnFailure(max_restarts=100)
    assert {crash(policy).exclude for _ in range(50)} == {""} and not policy.suspects.faults


def test_once_somebody_wants_no_more_restarts_none_is_announced_and_the_verdict_is_the_reason() -> None:
    policy = RestartOnFailure(max_restarts=3)
    policy.heed("cycle 0: the attribution service says STOP: no module apex")
    decision = crash(policy)
    assert (decision.then, decision.exit_code) == ("stop", 93)
    assert "restarting" not in decision.reason and "says STOP: no module apex; it is not restarted again" in decision.reason

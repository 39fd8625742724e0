"""What becomes of a job whose workers fail? Each story is one trouble, told by what the nodes record."""

from __future__ import annotations

from kit.stages.stories import FAILS, STUBBORN, Start, decisions, formed_at, rounds, story, told

from holdfast.core.job.events import GpuMemoryReclaimed
from holdfast.sim.world import Clock, Life

# --- workers that fail --------------------------------------------------------------------------------------------------------


def test_a_crash_on_one_node_restarts_the_ranks_of_all(start: Start) -> None:
    cluster = start("ab", {(1, 0): FAILS})
    cluster.finish()
    assert told(cluster) == story("""
        a: starts, hosts the coordinator
        b: starts
        a: a joined
        a: b joined
        a: round 1 of a b, group rank 0, 2 ranks (first round)
        b: round 1 of a b, group rank 1, 2 ranks (first round)
        b: rank 1 (local 0) on b exited with code 1
        a: decides to restart: rank 1 (local 0) on b exited with code 1; restarting all ranks (2 of 3 restarts left)
        a: warning: rank 1 (local 0) on b exited with code 1; restarting all ranks (2 of 3 restarts left)
        b: warning: rank 1 (local 0) on b exited with code 1; restarting all ranks (2 of 3 restarts left)
        a: rank 0 (local 0) on a was killed by SIGTERM (stopped by us)
        a: round 2 of a b, group rank 0, 2 ranks (rank 1 (local 0) on b exited with code 1; restarting all ranks (2 of 3 restarts left))
        b: round 2 of a b, group rank 1, 2 ranks (rank 1 (local 0) on b exited with code 1; restarting all ranks (2 of 3 restarts left))
        a: decides to finish: every worker exited with 0
        a: ends with 0 (succeeded): every worker exited with 0
        b: ends with 0 (succeeded): every worker exited with 0
    """)  # noqa: E501


def test_a_restart_waits_for_the_memory_of_the_gpus_while_the_nodes_meet(start: Start) -> None:
    cluster = start("ab", {(1, 0): FAILS}, memory_s=4.0)
    cluster.run(30.0)
    cluster.finish()
    assert cluster.codes == {"a": 0, "b": 0}
    reclaimed = [(at, what) for at, _, what in cluster.transcript.entries if isinstance(what, GpuMemoryReclaimed)]
    assert len(reclaimed) == 2 and all(what.free and 4.0 <= what.waited_s < 7.0 for _, what in reclaimed)
    assert formed_at(cluster)[1] < 5.1 < reclaimed[0][0]  # agreed long before


def test_memory_that_never_comes_back_delays_the_job_and_does_not_end_it(start: Start) -> None:
    cluster = start("ab", {(1, 0): FAILS}, memory_s=float("inf"))
    cluster.finish()
    assert cluster.codes == {"a": 0, "b": 0}
    assert told(cluster).count("GPU 0 did not free its memory within 10 s; starting anyway") == 2


def test_a_round_that_fails_while_a_node_waits_for_memory_is_given_up_by_all(start: Start) -> None:
    """Node b is slow to free its memory; a, whose memory is free, fails meanwhile."""
    cluster = start("ab", {(1, 0): FAILS, (0, 1): Life(runs_s=0.5, exitcode=1)})
    cluster.agents["b"].world.memory_s = 4.0
    cluster.finish()
    assert cluster.codes == {"a": 0, "b": 0}
    assert len(formed_at(cluster)) == 3


def test_a_crash_loop_backs_off_and_ends_when_the_budget_is_spent(start: Start) -> None:
    dies = Life(runs_s=0.5, exitcode=1)
    cluster = start("ab", {(0, attempt): dies for attempt in range(5)}, max_restarts=4)
    cluster.finish()
    gaps = [later - earlier for earlier, later in zip(formed_at(cluster), formed_at(cluster)[1:])]
    assert [round(gap - 0.5, 1) for gap in gaps] == [0.0, 0.5, 1.0, 2.0]
    assert cluster.codes == {"a": 1, "b": 1}
    report = cluster.agents["b"].report
    assert report is not None and report.reason == "rank 0 (local 0) on a exited with code 1; no restart is left (4 of 4 used)"


def test_two_failures_at_once_spend_one_restart(start: Start) -> None:
    cluster = start("ab", {(0, 0): FAILS, (1, 0): FAILS})
    cluster.finish()
    assert decisions(cluster) == ["restart", "finish"]
    assert cluster.agents["a"].report is not None and cluster.agents["a"].report.restarts_used == 1


def test_a_node_that_has_succeeded_runs_again_when_its_peer_fails(start: Start) -> None:
    cluster = start("ab", {(0, 0): Life(runs_s=2.0), (1, 0): FAILS})
    cluster.finish()
    assert rounds(cluster) == ["ab", "ab"] and cluster.codes == {"a": 0, "b": 0}


def test_a_worker_that_ignores_sigterm_is_killed_after_its_grace_and_the_job_goes_on(start: Start) -> None:
    cluster = start("ab", {(0, 0): STUBBORN, (1, 0): FAILS}, grace_s=5.0)
    cluster.finish()
    assert 5.0 < formed_at(cluster)[1] - formed_at(cluster)[0] - 5.0 < 5.1
    assert "a: warning: rank 0 did not stop within 5.0 s; sent SIGKILL" in told(cluster)


def test_a_worker_that_even_sigkill_does_not_reach_is_left_behind_and_named(start: Start) -> None:
    cluster = start("ab", {(0, 0): Life(runs_s=float("inf"), on_sigterm=None, killable=False), (1, 0): FAILS}, grace_s=1.0)
    cluster.finish()
    assert "process 1000 survived SIGKILL" in told(cluster) and cluster.codes == {"a": 0, "b": 0}


def test_a_program_that_cannot_be_started_is_not_tried_again(start: Start) -> None:
    cluster = start("ab", {(1, 0): Life(start_error="no such file: train.py")}, nproc=2)
    cluster.finish()
    report = cluster.agents["b"].report
    assert report is not None and "starting it again would fail the same way" in report.reason
    assert cluster.timeline.now < 15.0


# --- whose fault it was -------------------------------------------------------------------------------------------------------


def test_a_node_that_vanished_comes_before_the_ranks_that_failed_because_of_it(start: Start) -> None:
    cluster = start("abc", max_restarts=0, runs_s=50.0)
    cluster.run(5.0)
    cluster.kill_agent("b")
    cluster.run_for(0.3)
    cluster.kill_worker("c", 0, exitcode=1)  # its collective has lost b
    cluster.finish()
    report = cluster.agents["c"].report
    assert report is not None
    told_of = [(failure.node, failure.cause) for failure in report.failures]
    assert told_of == [("b", "node_lost"), ("c", "exit"), ("a", "stopped")]


def test_the_first_failure_is_first_whatever_the_wall_clocks_say(start: Start) -> None:
    clocks = {"b": Clock(wall_skew_s=50.0), "c": Clock(wall_skew_s=-50.0)}
    second = Life(runs_s=5.005, exitcode=7)
    cluster = start("abc", {(1, 0): FAILS, (2, 0): second}, clocks=clocks, max_restarts=0)
    cluster.finish()
    report = cluster.agents["a"].report
    assert report is not None and [failure.node for failure in report.failures][:2] == ["b", "c"]

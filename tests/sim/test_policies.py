"""What becomes of a job under each policy, told by what its nodes record; and of what its ranks ask for."""

from __future__ import annotations

import pytest
from kit.stages.stories import FAILS, STUBBORN, Start, decisions, recorded, rounds, story, told

from holdfast.core.job.events import Decided, NodeExcluded
from holdfast.sim.cluster import Cluster
from holdfast.sim.world import Life


def reasons(cluster: Cluster) -> list[str]:
    return [what.reason for what in recorded(cluster, Decided)]


def begun(cluster: Cluster, place: str) -> int:
    """Workers that were ever started at a place."""
    return sum(len(life.world.workers) for life in cluster.lives if life.place == place)


# --- min-healthy ------------------------------------------------------------------------------------------------------------


def test_a_rank_lost_is_borne_with_and_the_job_succeeds_without_its_node(start: Start) -> None:
    cluster = start("abc", {(2, 0): FAILS}, carries_on=True, min_nodes=2)
    cluster.finish()
    assert told(cluster) == story("""
        a: starts, hosts the coordinator
        b: starts
        c: starts
        a: a joined
        a: c joined
        a: b joined
        a: round 1 of a b c, group rank 0, 3 ranks (first round)
        b: round 1 of a b c, group rank 1, 3 ranks (first round)
        c: round 1 of a b c, group rank 2, 3 ranks (first round)
        c: rank 2 (local 0) on c exited with code 1
        a: decides to carry-on: rank 2 (local 0) on c exited with code 1; the others carry on: 2 of 3 nodes healthy (min-healthy: 2)
        a: warning: rank 2 (local 0) on c exited with code 1; the others carry on: 2 of 3 nodes healthy (min-healthy: 2)
        a: decides to finish: b is the last to have done its part; 2 nodes succeeded, and that is enough (min-healthy: 2)
        a: ends with 0 (succeeded): b is the last to have done its part; 2 nodes succeeded, and that is enough (min-healthy: 2)
        b: ends with 0 (succeeded): b is the last to have done its part; 2 nodes succeeded, and that is enough (min-healthy: 2)
        c: ends with 0 (succeeded): b is the last to have done its part; 2 nodes succeeded, and that is enough (min-healthy: 2)
    """)  # noqa: E501


def test_other_workers_of_a_node_that_lost_one_are_left_alone_until_all_is_over(start: Start) -> None:
    cluster = start("ab", {(2, 0): FAILS, (3, 0): Life(runs_s=float("inf"))}, carries_on=True, min_nodes=1, nproc=2)
    cluster.run(15.0)
    assert [worker.env["RANK"] for worker in cluster.agents["b"].world.live] == ["3"]
    cluster.finish()
    assert cluster.codes == {"a": 0, "b": 0} and decisions(cluster) == ["carry-on", "finish"]
    assert "b: rank 3 (local 1) on b was killed by SIGTERM (stopped by us)" in told(cluster)


def test_a_node_lost_is_borne_with_and_one_that_comes_later_is_parked(start: Start) -> None:
    cluster = start("abc", carries_on=True, min_nodes=2)
    cluster.power_off("c")
    cluster.run(8.0)
    cluster.start("d")
    cluster.finish()
    assert rounds(cluster) == ["abc"] and decisions(cluster) == ["carry-on", "finish"]
    assert "d waits as a spare: nobody is restarted for a newcomer (min-healthy)" in told(cluster)
    assert cluster.codes["a"] == cluster.codes["b"] == cluster.codes["d"] == 0


def test_one_too_many_restarts_all_with_the_spare_and_spends_one(start: Start) -> None:
    cluster = start("abc", {(1, 0): FAILS, (2, 0): Life(runs_s=3.0, exitcode=1)}, carries_on=True, min_nodes=2, max_nodes=3)
    cluster.start("d")
    cluster.finish()
    assert decisions(cluster) == ["carry-on", "restart", "finish"]
    assert reasons(cluster)[1].endswith("(2 of 3 restarts left); only 1 of 3 nodes healthy (min-healthy: 2)")
    assert rounds(cluster) == ["abc", "abc"] and set(cluster.codes.values()) == {0}


def test_the_budget_counts_restarts_and_not_rounds(start: Start) -> None:
    acts = {(rank, 0): Life(runs_s=3.0 + rank, exitcode=1) for rank in (1, 2)}
    cluster = start("abc", acts, carries_on=True, min_nodes=2, max_restarts=1)
    cluster.run(1.5)
    cluster.signal("c", 15)  # it leaves: borne with, and no restart
    cluster.run(3.0)
    cluster.start("c")
    cluster.finish()
    assert decisions(cluster) == ["carry-on", "restart", "finish"] and cluster.codes["a"] == 0


def test_an_exclusion_is_borne_with_while_enough_are_healthy(start: Start) -> None:
    cluster = start("abc", carries_on=True, min_nodes=2, runs_s=30.0)
    cluster.exclude("c", through="a")
    cluster.run(5.0)
    assert "answers: c is excluded: the others carry on without it" in told(cluster)
    assert [begun(cluster, place) for place in "abc"] == [1, 1, 1] and not cluster.agents["c"].world.live
    cluster.finish()
    assert rounds(cluster) == ["abc"] and set(cluster.codes.values()) == {0}


def test_when_the_coordinator_is_lost_all_restart_whatever_the_policy(start: Start) -> None:
    cluster = start("abc", carries_on=True, min_nodes=2, runs_s=15.0)
    cluster.power_off("a")
    cluster.finish()
    assert cluster.codes["b"] == cluster.codes["c"] == 0
    assert begun(cluster, "b") == 2


# --- what a rank asks for ---------------------------------------------------------------------------------------------------


def test_a_node_that_a_rank_wants_excluded_makes_room_for_a_spare(start: Start) -> None:
    cluster = start("abc", min_nodes=2, max_nodes=2)
    cluster.ask("c", "exclude")
    cluster.finish()
    assert rounds(cluster) == ["ac", "ab"] and decisions(cluster) == ["rejoin", "finish"]
    assert "c: rank 1 asks to exclude: uncorrectable ECC error" in told(cluster)
    assert set(cluster.codes.values()) == {0}


@pytest.mark.parametrize("again", [False, True])
def test_a_node_stays_excluded_under_the_next_coordinator(start: Start, again: bool) -> None:
    cluster = start("abcd", min_nodes=2, max_nodes=3)
    cluster.ask("b", "exclude")
    cluster.run(3.0)
    cluster.power_off("a")
    if again:
        cluster.run(12.0)
        cluster.kill_agent("b")
        cluster.start("b")
    cluster.finish()
    excluded = [what.name for what in recorded(cluster, NodeExcluded)]
    assert set(excluded) == {"b"} and begun(cluster, "b") == 1


def test_a_stop_reaches_a_rank_that_is_deaf(start: Start) -> None:
    cluster = start("ab", {(0, 0): STUBBORN})
    cluster.ask("b", "stop")
    cluster.finish()
    assert set(cluster.codes.values()) == {1}
    assert reasons(cluster) == ["rank 1 on b asked to stop the job: uncorrectable ECC error"]


def test_a_restart_that_two_ask_for_is_one(start: Start) -> None:
    cluster = start("ab")
    cluster.ask("a", "restart")
    cluster.ask("b", "restart")
    cluster.finish()
    assert decisions(cluster) == ["restart", "finish"] and rounds(cluster) == ["ab", "ab"]


# --- no progress ------------------------------------------------------------------------------------------------------------


def test_restarts_in_vain_end_the_job_with_one_code_on_every_node(start: Start) -> None:
    acts = {(1, attempt): FAILS for attempt in range(9)}
    cluster = start("ab", acts, max_restarts=9, no_progress_cycles=2)
    cluster.reach("a", 100)
    cluster.finish()
    assert set(cluster.codes.values()) == {93}
    assert reasons(cluster)[-1].startswith("no progress: 2 restarts in a row brought no iteration (iteration 100)")
    assert len(rounds(cluster)) == 3  # the first got it to 100


def test_a_successor_remembers_how_far_the_job_was(start: Start) -> None:
    acts = {(rank, attempt): FAILS for rank in (0, 1, 2) for attempt in range(9)}
    cluster = start("abc", acts, min_nodes=2, max_restarts=9, no_progress_cycles=2)
    for place in "abc":
        cluster.reach(place, 100)
    cluster.run(14.0)  # two failures: one that got it to 100, one in vain
    cluster.power_off("a")
    cluster.finish()
    assert cluster.codes["b"] == cluster.codes["c"] == 93
    assert decisions(cluster).count("restart") == 3

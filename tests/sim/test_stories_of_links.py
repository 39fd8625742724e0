"""What becomes of a job whose links break and whose leases end? Each story is one trouble, told by what the nodes record."""

from __future__ import annotations

import pytest
from kit.stages.stories import FAILS, STUBBORN, Start, decisions, recorded, rounds, story, told

from holdfast.core.job.events import NodeLost, RoundFormed
from holdfast.sim.cluster import Cluster, Job
from holdfast.sim.world import Clock, Life


def test_a_link_that_breaks_and_comes_back_within_the_lease_is_nobodys_business(start: Start) -> None:
    cluster = start("ab")
    cluster.break_links("b")
    cluster.run_for(1.0)
    cluster.partition("b")
    cluster.run_for(0.9)  # and up to a second more, until what was said meanwhile has been sent again
    cluster.heal("b")
    cluster.finish()
    assert rounds(cluster) == ["ab"] and decisions(cluster) == ["finish"]


def test_an_assignment_that_went_down_with_its_link_is_said_again(start: Start) -> None:
    cluster = start("a", min_nodes=2, max_nodes=2)
    cluster.start("b")
    while not rounds(cluster):
        cluster.run_for(0.0001)
    cluster.break_links("b")
    cluster.finish()
    assert rounds(cluster) == ["ab"] and decisions(cluster) == ["finish"]


def test_an_order_to_stop_that_went_down_with_its_link_is_said_again(start: Start) -> None:
    cluster = start("ab", {(0, 0): FAILS})
    while not decisions(cluster):
        cluster.run_for(0.0001)
    cluster.break_links("b")
    cluster.finish()
    assert rounds(cluster) == ["ab", "ab"] and decisions(cluster) == ["restart", "finish"]


def test_the_end_of_the_job_that_went_down_with_its_link_is_said_again(start: Start) -> None:
    cluster = start("ab", runs_s=3.0)
    while not decisions(cluster):
        cluster.run_for(0.0001)
    cluster.break_links("b", lag_s=0.5, other_lag_s=0.0)
    cluster.finish()
    assert cluster.codes == {"a": 0, "b": 0} and cluster.timeline.now < 9.0


def test_a_link_that_only_one_end_knows_to_be_dead_is_replaced(start: Start) -> None:
    cluster = start("ab")
    cluster.break_links("b", lag_s=0.1, other_lag_s=300.0)
    cluster.finish()
    assert rounds(cluster) == ["ab"] and decisions(cluster) == ["finish"]


def test_a_node_that_cannot_renew_stops_its_workers_before_others_take_their_ranks(start: Start) -> None:
    cluster = start("ab", {(1, 0): Life(runs_s=25.0, on_sigterm=None)}, min_nodes=1, grace_s=60.0)
    cluster.partition("b")
    cluster.run(20.0)
    cluster.heal("b")
    cluster.finish()
    # 2.75 s, rounded up or down
    assert told(cluster).replace("for 2.7 s;", "for 2.8 s;") == story("""
        a: starts, hosts the coordinator
        b: starts
        a: a joined
        a: b joined
        a: round 1 of a b, group rank 0, 2 ranks (first round)
        b: round 1 of a b, group rank 1, 2 ranks (first round)
        b: * cut off (both ways)
        b: error: the coordinator at endpoint:29400 has not answered for 2.8 s; stopping the workers
        b: warning: rank 1 did not stop within 0.2 s; sent SIGKILL
        a: b lost: not heard from for 3.0 s (lease 3 s)
        a: decides to rejoin: node b was lost: not heard from for 3.0 s (lease 3 s)
        a: warning: node b was lost: not heard from for 3.0 s (lease 3 s)
        b: rank 1 (local 0) on b was killed by SIGKILL (stopped by us)
        a: rank 0 (local 0) on a was killed by SIGTERM (stopped by us)
        a: round 2 of a, group rank 0, 1 ranks (node b was lost: not heard from for 3.0 s (lease 3 s))
        b: error: the coordinator at endpoint:29400 is lost, or cut off from this node; the other of two nodes cannot know which, so its ranks stay stopped
          hint: let a third party decide: --witness DIR, which all nodes share; or risk two sides: --on-split continue; if a is gone for good: holdfast force-leader job --lost a
        b: * reachable again
        a: b joined
        a: decides to rejoin: b joined
        a: warning: b joined
        a: rank 0 (local 0) on a was killed by SIGTERM (stopped by us)
        a: round 3 of a b, group rank 0, 2 ranks (b joined)
        b: round 3 of a b, group rank 1, 2 ranks (b joined)
        a: decides to finish: every worker exited with 0
        a: ends with 0 (succeeded): every worker exited with 0
        b: ends with 0 (succeeded): every worker exited with 0
    """)  # noqa: E501


def test_an_agent_stopped_for_longer_than_its_lease_is_ended_by_its_guardian(start: Start) -> None:
    cluster = start("ab", {(1, 0): STUBBORN}, min_nodes=1)
    cluster.pause("b")
    cluster.finish()
    assert rounds(cluster) == ["ab", "a"]


def test_a_coordinator_that_was_stopped_itself_blames_nobody(start: Start) -> None:
    cluster = start("abc", lease_s=3.0, runs_s=30.0)
    cluster.pause("a")
    cluster.run_for(2.5)
    cluster.resume("a")
    cluster.finish()
    assert not recorded(cluster, NodeLost)


def test_a_clock_that_is_wrong_and_drifts_costs_nobody_the_membership(start: Start) -> None:
    clocks = {"a": Clock(origin=7.0, rate=1.0002, wall_skew_s=-3600.0), "b": Clock(origin=9e6, rate=0.9998, wall_skew_s=3600.0)}
    cluster = start("ab", {(1, 0): FAILS}, clocks=clocks, runs_s=1000.0)
    cluster.finish(within_s=2000.0)
    assert rounds(cluster) == ["ab", "ab"] and cluster.codes == {"a": 0, "b": 0}


def test_whoever_finished_its_part_is_not_given_up_when_it_falls_silent(start: Start) -> None:
    cluster = start("ab", {(1, 0): Life(runs_s=2.0)}, min_nodes=1)
    cluster.run(4.0)
    cluster.partition("b")
    cluster.run(12.0)
    cluster.heal("b")
    cluster.finish()
    assert rounds(cluster) == ["ab"] and cluster.codes == {"a": 0, "b": 0}


def test_when_the_host_of_the_coordinator_is_lost_the_other_of_two_ends_and_says_what_would_help(start: Start) -> None:
    cluster = start("ab")
    cluster.power_off("a")
    cluster.finish()
    assert cluster.codes == {"a": None, "b": 1} and cluster.timeline.now < 40.0
    assert "the coordinator at endpoint:29400 is out of reach: no answer for 33 s" in told(cluster)
    assert "hint: let a third party decide: --witness DIR" in told(cluster)


def test_a_restarted_coordinator_gathers_the_members_that_are_left_under_a_newer_round(start: Start) -> None:
    cluster = start("abc", {(2, 0): FAILS})
    cluster.run(8.0)
    cluster.kill_agent("a")
    cluster.run_for(2.0)
    cluster.start("a", host=True)
    cluster.finish()
    numbers = [what.round for what in recorded(cluster, RoundFormed, "b")]
    assert numbers == [1, 2, 3] and set(cluster.codes.values()) == {0}


def test_each_node_knows_how_far_its_clock_is_off_and_nobody_acts_on_it() -> None:
    skews = {"a": 40.0, "b": 0.0, "c": 0.3, "d": 0.1, "e": 0.2}
    clocks = {place: Clock(origin=1e5 * number, wall_skew_s=skew) for number, (place, skew) in enumerate(skews.items())}
    script = lambda place, env: Life(runs_s=30.0)
    cluster = Cluster(Job(min_nodes=5, max_nodes=5, nproc=1), script=script, clocks=clocks, delay_s=(0.001, 0.02))
    for place in "abcde":
        cluster.start(place, host=place == "a")
    cluster.run(12.0)
    leads = {place: agent.node.clock_lead for place, agent in cluster.agents.items()}
    for place, lead in leads.items():
        assert lead is not None and lead.ahead_s == pytest.approx(skews[place] - 0.2, abs=0.03), place
    cluster.step_clock("d", 3600.0)
    cluster.run(18.0)
    lead = cluster.agents["d"].node.clock_lead
    assert lead is not None and lead.ahead_s == pytest.approx(3600.1, abs=0.35)
    cluster.finish()
    assert set(cluster.codes.values()) == {0} and len(recorded(cluster, RoundFormed, "a")) == 1

"""What becomes of nodes that are cut off from the others: the coordinator's, a minority, one of two, one of an earlier run?"""

from __future__ import annotations

import pytest
from kit.stages import stories
from kit.stages.stories import Start
from kit.stages.succession_stage import begin, leaders, rounds, said

from holdfast.agent.leader.peer_elected_node import PeerElectedNode
from holdfast.core.job.events import JobEnded, NodeLost
from holdfast.core.value import replace
from holdfast.sim.cluster import Cluster
from holdfast.sim.world import Clock


@pytest.fixture
def start() -> Start:
    """As `succession_stage.begin`."""
    return begin


# --- a cut in the network ---------------------------------------------------------------------------------------------------


def test_a_host_that_is_cut_off_stops_and_comes_back_as_a_member(start: Start) -> None:
    cluster = start("abc", runs_s=40.0, min_nodes=2)
    cluster.partition("a")
    cluster.run(20.0)
    assert said(cluster, "a", "no longer leads the job") and not cluster.agents["a"].world.live
    cluster.heal("a")
    cluster.finish()
    assert rounds(cluster, "b") == ["abc", "bc", "abc"] and leaders(cluster) == ["b"]


def test_a_host_that_is_cut_off_begins_no_round_of_its_own(start: Start) -> None:
    """Though one node is enough, and it gives the others up before its mandate is over: they count on from that number."""
    cluster = start("abc", runs_s=40.0)
    cluster.partition("a")
    cluster.run(20.0)
    assert rounds(cluster, "a") == ["abc"] and rounds(cluster, "b") == ["abc", "bc"]


@pytest.mark.parametrize("rates", [(1.0002, 0.9998), (0.9998, 1.0002)])
def test_no_worker_of_the_lost_side_lives_beside_the_new_round_though_clocks_drift(
    start: Start, rates: tuple[float, float]
) -> None:
    clocks = {"a": Clock(origin=7.0, rate=rates[0]), "b": Clock(origin=9e5, rate=rates[1]), "c": Clock(rate=rates[1])}
    cluster = start("abc", clocks=clocks, deaf="a", grace_s=60.0)
    cluster.partition("a")
    cluster.finish()  # the rule itself is checked at every start of a worker
    assert rounds(cluster, "b") == ["abc", "bc"]


def cut_off_at_the_end(start: Start) -> Cluster:
    cluster = start("abcd", runs_s=20.0, min_nodes=3, max_nodes=3, join_timeout_s=600.0)
    cluster.run(5.0)
    spare = next(place for place in "abcd" if cluster.agents[place].node.group.round == 0)
    cluster.partition(spare)
    cluster.run(40.0)
    assert [agent.place for agent in cluster.running] == [spare]
    cluster.heal(spare)
    return cluster


def test_a_spare_that_was_cut_off_at_the_end_gives_up_soon_when_all_the_others_agents_are_gone(start: Start) -> None:
    cluster = cut_off_at_the_end(start)
    (left,) = cluster.running
    healed_at = cluster.timeline.now
    cluster.finish()
    assert left.code == 1 and left.exit is not None and "agents of all other nodes are gone" in left.exit.complaint
    assert "this node, a spare, was cut off as it ended" in left.exit.complaint
    assert cluster.timeline.now - healed_at < 20.0, "ten seconds after they refused, and not ten minutes"


def test_a_node_that_had_a_rank_gives_up_a_minute_after_all_the_others_agents_have_gone(start: Start) -> None:
    cluster = start("abcd", runs_s=20.0, min_nodes=3, max_nodes=4, join_timeout_s=600.0)
    cluster.run(5.0)
    cluster.partition("d")
    cluster.run(70.0)
    (left,) = cluster.running
    cluster.heal("d")
    healed_at = cluster.timeline.now
    cluster.finish()
    assert left.place == "d" and left.exit is not None and left.exit.complaint.count("agents of all other nodes are gone") == 1
    assert 55.0 < cluster.timeline.now - healed_at < 70.0


@pytest.mark.parametrize("places", ["ab", "abc"])
def test_a_spare_that_was_cut_off_shortly_before_the_end_is_waited_for_and_told(start: Start, places: str) -> None:
    cluster = start(f"{places}d", runs_s=20.0, min_nodes=len(places), max_nodes=len(places), join_timeout_s=600.0)
    cluster.run(5.0)
    (spare,) = (place for place, agent in cluster.agents.items() if agent.node.group.round == 0)
    cluster.partition(spare)
    while not stories.recorded(cluster, JobEnded):
        cluster.run_for(0.1)
    assert stories.recorded(cluster, NodeLost), "it has no seat any more"
    cluster.run_for(2.0)
    cluster.heal(spare)
    cluster.finish()
    assert cluster.codes == dict.fromkeys(f"{places}d", 0)


def test_nobody_waits_for_a_node_whose_agent_is_dead_when_the_job_ends(start: Start) -> None:
    cluster = start("abcd", runs_s=20.0, min_nodes=3, max_nodes=3, join_timeout_s=600.0)
    cluster.run(5.0)
    cluster.kill_agent(next(place for place, agent in cluster.agents.items() if agent.node.group.round == 0))
    while not stories.recorded(cluster, JobEnded):
        cluster.run_for(0.1)
    ended_at = cluster.timeline.now
    cluster.finish()
    assert cluster.timeline.now - ended_at < 1.0


def test_a_host_that_does_not_answer_may_come_back_and_is_waited_for(start: Start) -> None:
    cluster = cut_off_at_the_end(start)
    (left,) = cluster.running
    for place in "abc":
        cluster.agents[place].links.silent = place != left.place  # as while it starts again
    cluster.run(200.0)
    assert not left.ended
    for place in "abc":
        cluster.agents[place].links.silent = False
    cluster.run(207.0)
    assert not left.ended, "from its answering on, its agent has ten seconds to come back"
    cluster.finish()


def test_a_minority_stops_its_workers_and_waits_for_the_others(start: Start) -> None:
    cluster = start("abcde", runs_s=60.0)
    for place in "de":
        cluster.partition(place)
    cluster.run(20.0)
    assert leaders(cluster) == [] and rounds(cluster, "a") == ["abcde", "abc"]
    assert said(cluster, "e", "of 5 nodes are here, and 3 could go on")
    for place in "de":
        cluster.heal(place)
    cluster.finish()
    assert set(cluster.codes.values()) == {0} and rounds(cluster, "e")[-1] == "abcde"


def test_a_link_to_the_host_that_breaks_for_one_node_only_moves_no_lead(start: Start) -> None:
    cluster = start("abc", runs_s=40.0, min_nodes=2)
    cluster.partition("c", into=False)
    cluster.run(15.0)
    cluster.heal("c")
    cluster.finish()
    assert leaders(cluster) == [] and rounds(cluster, "a") == ["abc", "ab", "abc"]


def test_while_the_host_lives_it_alone_decides_and_the_job_shrinks_to_one(start: Start) -> None:
    cluster = start("abc", runs_s=60.0)
    cluster.power_off("c")
    cluster.run(15.0)
    cluster.power_off("b")
    cluster.finish()
    assert rounds(cluster, "a") == ["abc", "ab", "a"] and leaders(cluster) == []


# --- two nodes --------------------------------------------------------------------------------------------------------------


def test_of_two_nodes_the_one_that_is_left_stops_and_says_what_to_set(start: Start) -> None:
    cluster = start("ab")
    cluster.power_off("a")
    cluster.finish()
    assert cluster.codes["b"] == 1 and rounds(cluster, "b") == ["ab"]
    assert said(cluster, "b", "--witness DIR") and said(cluster, "b", "--on-split continue")


def test_a_witness_lets_the_one_that_is_left_go_on(start: Start) -> None:
    cluster = start("ab", witness=True)
    cluster.power_off("a")
    cluster.finish()
    assert rounds(cluster, "b") == ["ab", "b"] and cluster.codes["b"] == 0


def test_a_witness_speaks_for_one_of_two_that_are_cut_apart(start: Start) -> None:
    cluster = start("ab", witness=True, runs_s=40.0)
    cluster.partition("b")
    cluster.run(20.0)
    at_work = [place for place in "ab" if cluster.agents[place].world.live]
    assert len(at_work) == 1
    cluster.heal("b")
    cluster.finish()
    assert set(cluster.codes.values()) == {0} and rounds(cluster, "a")[-1] == rounds(cluster, "b")[-1] == "ab"


def test_a_witness_that_was_needed_for_a_moment_is_free_again_for_the_next_loss(start: Start) -> None:
    cluster = start("ab", witness=True, runs_s=60.0)
    cluster.partition("b")
    cluster.run(12.0)
    cluster.heal("b")
    cluster.run(25.0)
    cluster.power_off("a")
    cluster.finish()
    assert rounds(cluster, "b")[-1] == "b" and cluster.codes["b"] == 0


def test_on_split_continue_goes_on_without_a_majority_and_says_what_it_risks(start: Start) -> None:
    cluster = start("ab", on_split="continue")
    cluster.power_off("a")
    cluster.finish()
    assert rounds(cluster, "b") == ["ab", "b"] and said(cluster, "b", "without a majority (--on-split continue)")


# --- two runs of one job ----------------------------------------------------------------------------------------------------


def a_new_run_while_a_node_of_the_last_is_cut_off(start: Start, cut_off: str = "c") -> Cluster:
    cluster = start("abc", runs_s=8.0, min_nodes=2)
    cluster.partition(cut_off)
    cluster.run(30.0)
    assert [agent.place for agent in cluster.running] == [cut_off]
    cluster.start("a", host=True)
    cluster.run_for(1.0)
    return cluster


def test_a_node_of_a_run_that_is_over_is_told_its_end_and_holds_up_no_new_run(start: Start) -> None:
    cluster = a_new_run_while_a_node_of_the_last_is_cut_off(start)
    old, new = cluster.agents["c"], cluster.agents["a"]
    cluster.heal("c")
    cluster.run_for(5.0)
    assert old.report is not None and old.report.nodes == ("a", "b") and old.code == 0
    assert not new.ended and not said(cluster, "a", "no longer leads the job")
    cluster.start("b")
    cluster.finish()
    assert new.report is not None and new.report.rounds == 1 and set(new.report.nodes) == {"a", "b"}


def test_a_node_of_a_run_that_is_over_takes_no_part_in_a_new_one_that_runs(start: Start) -> None:
    cluster = a_new_run_while_a_node_of_the_last_is_cut_off(start)
    cluster.start("b")
    cluster.run_for(4.0)
    cluster.heal("c")
    cluster.finish()
    old, new = cluster.agents["c"].report, cluster.agents["a"].report
    assert old is not None and new is not None and (new.rounds, set(new.nodes)) == (1, {"a", "b"})
    assert old.ended_at_unix < new.started_at_unix


def test_a_node_that_comes_over_from_a_run_that_nobody_remembers_holds_the_new_one_s_roster(start: Start) -> None:
    cluster = start("abc", runs_s=8.0, min_nodes=2)
    cluster.partition("c")
    cluster.run(30.0)
    cluster.job = replace(cluster.job, max_nodes=5)
    for place in "defg":
        cluster.start(place, host=place == "d")  # another disk: that run's end is not known here
    cluster.run_for(5.0)
    cluster.heal("c")
    nodes = [node for place in "cdefg" if isinstance(node := cluster.agents[place].node, PeerElectedNode)]
    mandate = nodes[1].election.mandate
    assert mandate is not None
    while len(rounds(cluster, "c")) < 2:
        assert cluster.timeline.step(60.0)
        assert all(len(body.members) <= body.size for body in mandate.bodies), "it has had a say in that run, not in this one"
    cluster.run_for(3.0)
    held = [node.election.roster for node in nodes if node.election.roster is not None]
    assert [(one.past.life, one.largest.size) for one in held] == [(nodes[1].group.join.node, 5)] * 5
    cluster.finish()

"""What becomes of a job whose coordinator is lost, or told to go? Told as in `stories`, by what the nodes record."""

from __future__ import annotations

import signal

import pytest
from kit.stages.stories import Start, formed_at, recorded, story, told
from kit.stages.succession_stage import begin, holds_a_roster, leaders, rounds, said

from holdfast.agent.group.messages import Unguarded
from holdfast.agent.leader.peer_elected_node import PeerElectedNode
from holdfast.core.job.events import NodeExcluded
from holdfast.core.job.report import JobReport
from holdfast.core.wire.links import Arrived
from holdfast.core.wire.messages import Finish
from holdfast.rendezvous.election.leading import YIELD_S


@pytest.fixture
def start() -> Start:
    """As `succession_stage.begin`."""
    return begin


def test_a_renewal_is_answered_in_short_as_it_is_at_length(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def what_happens() -> str:
        cluster = start("abcd", max_nodes=3, min_nodes=2, runs_s=40.0)
        cluster.run(10.0)
        cluster.partition("b")
        cluster.run(16.0)
        cluster.heal("b")
        cluster.run(20.0)
        cluster.power_off("a")
        cluster.finish()
        return told(cluster)

    answers, short = list[object](), PeerElectedNode._answer

    def noted(self: PeerElectedNode, *given: object) -> object:
        answers.append(short(self, *given))  # type: ignore[arg-type]
        return answers[-1]

    monkeypatch.setattr(PeerElectedNode, "_answer", noted)
    story = what_happens()
    assert sum(answer is not None for answer in answers) > 100
    monkeypatch.setattr(PeerElectedNode, "_answer", lambda self, *given: None)
    assert what_happens() == story


# --- the host is told to go ---------------------------------------------------------------------------------------------------


def test_an_excluded_host_that_is_told_to_go_leaves_the_job_to_the_others(start: Start) -> None:
    cluster = start("abc", min_nodes=2, runs_s=40.0)
    cluster.exclude("a", through="b")
    cluster.run(5.0)
    assert rounds(cluster, "b") == ["abc", "bc"]
    cluster.signal("a", signal.SIGTERM)  # as whoever evicts it from its node does
    cluster.finish()
    assert len(leaders(cluster)) == 1 and rounds(cluster, "c") == ["abc", "bc", "bc"]
    assert cluster.codes == {"a": 1, "b": 0, "c": 0}


def test_one_that_others_cannot_follow_still_stops_the_job(start: Start) -> None:
    cluster = start("ab", min_nodes=1, runs_s=40.0)
    cluster.exclude("a", through="b")
    cluster.run(5.0)
    cluster.signal("a", signal.SIGTERM)
    cluster.finish()
    assert rounds(cluster, "b") == ["ab", "b"] and not leaders(cluster) and cluster.codes["b"] == 1


def test_a_host_whose_guardian_is_killed_makes_way_and_the_others_go_on(start: Start) -> None:
    cluster = start("abc", min_nodes=2, runs_s=40.0)
    cluster.agents["a"].world.see(Unguarded())
    cluster.run_for(0.4)
    assert cluster.codes["a"] == 1 and not cluster.agents["a"].world.live, "before a thread would do it by force"
    cluster.finish()
    assert leaders(cluster) == ["b"] and rounds(cluster, "c") == ["abc", "bc"]
    assert cluster.codes == {"a": 1, "b": 0, "c": 0}
    assert said(cluster, "a", "its guardian was killed; the others choose another coordinator")


@pytest.mark.parametrize("places", ["a", "ab"])
def test_one_that_nobody_can_follow_ends_the_job_when_its_guardian_is_killed(start: Start, places: str) -> None:
    cluster = start(places, min_nodes=1, max_nodes=2, runs_s=40.0)
    cluster.agents["a"].world.see(Unguarded())
    cluster.finish()
    assert not leaders(cluster) and rounds(cluster, "a") == [places] and cluster.codes == dict.fromkeys(places, 1)


def test_a_witness_lets_the_other_of_two_go_on_when_the_host_s_guardian_is_killed(start: Start) -> None:
    cluster = start("ab", min_nodes=1, runs_s=40.0, witness=True)
    cluster.agents["a"].world.see(Unguarded())
    cluster.finish()
    assert leaders(cluster) == ["b"] and rounds(cluster, "b") == ["ab", "b"] and cluster.codes["b"] == 0


def test_a_host_that_was_told_to_stop_the_job_stops_it_though_its_guardian_is_killed_then(start: Start) -> None:
    cluster = start("abc", min_nodes=2, runs_s=40.0, deaf="abc", grace_s=5.0)
    cluster.signal("a", signal.SIGTERM)
    cluster.agents["a"].world.see(Unguarded())
    cluster.finish()
    assert not leaders(cluster) and rounds(cluster, "b") == ["abc"]


# --- the host dies ----------------------------------------------------------------------------------------------------------


def test_when_the_host_dies_the_next_in_line_takes_over_and_the_job_restarts_once(start: Start) -> None:
    cluster = start("abc", min_nodes=2)
    cluster.power_off("a")
    cluster.finish()
    # 2.75 s and a link's latency, or less the time that the question took
    assert told(cluster).replace("for 2.7 s;", "for 2.8 s;") == story("""
        a: starts, hosts the coordinator
        b: starts
        c: starts
        a: a joined
        a: c joined
        a: b joined
        a: round 1 of a b c, group rank 0, 3 ranks (first round)
        b: round 1 of a b c, group rank 1, 3 ranks (first round)
        c: round 1 of a b c, group rank 2, 3 ranks (first round)
        a: * host loses its power
        b: error: the coordinator at endpoint:29400 has not answered for 2.8 s; stopping the workers
        c: error: the coordinator at endpoint:29400 has not answered for 2.8 s; stopping the workers
        b: rank 1 (local 0) on b was killed by SIGTERM (stopped by us)
        c: rank 2 (local 0) on c was killed by SIGTERM (stopped by us)
        b: decides to rejoin: the coordinator at endpoint:29400 was lost
        b: warning: the coordinator at endpoint:29400 was lost: this agent leads the job now, with the votes of 2 of 3 nodes; new nodes can join at b:1
        b: b joined
        c: warning: the coordinator is at b:1 now
        b: c joined
        b: round 2 of c b, group rank 1, 2 ranks (the coordinator at endpoint:29400 was lost)
        c: round 2 of c b, group rank 0, 2 ranks (the coordinator at endpoint:29400 was lost)
        b: decides to finish: every worker exited with 0
        b: ends with 0 (succeeded): every worker exited with 0
        c: ends with 0 (succeeded): every worker exited with 0
    """)  # noqa: E501


def test_from_power_cut_to_training_again_it_takes_seconds(start: Start) -> None:
    cluster = start("abcde")
    cluster.power_off("a")
    cluster.finish()
    assert formed_at(cluster, "b")[1] - 3.0 < 7.0
    assert rounds(cluster, "e") == ["abcde", "bcde"]


def test_the_successor_s_successor_takes_over_too(start: Start) -> None:
    cluster = start("abcde", runs_s=60.0)
    cluster.power_off("a")
    cluster.run(20.0)
    cluster.power_off("b")
    cluster.finish()
    assert leaders(cluster) == ["b", "e"], "by group rank, and e has been given that of a"
    assert rounds(cluster, "e") == ["abcde", "bcde", "cde"]


def test_a_spare_votes_and_takes_the_lost_host_s_place(start: Start) -> None:
    cluster = start("ab", runs_s=60.0, min_nodes=2)
    cluster.start("c")
    cluster.run(10.0)
    cluster.power_off("a")
    cluster.finish()
    assert rounds(cluster, "b") == ["ab", "bc"] and leaders(cluster) == ["b"]


def test_whoever_is_next_but_dead_as_well_is_passed_over(start: Start) -> None:
    cluster = start("abcde")
    cluster.power_off("a")
    cluster.power_off("b")
    cluster.finish()
    assert leaders(cluster) == ["c"] and rounds(cluster, "d") == ["abcde", "cde"]


@pytest.mark.parametrize("lost", ["b", "c"])
@pytest.mark.parametrize("after_s", [1.0, 2.0, 3.0])
def test_an_agent_that_dies_and_comes_back_has_one_say_and_not_two(start: Start, lost: str, after_s: float) -> None:
    """While the earlier life's lease lasts: were both counted, two of four would be left, and three be needed."""
    cluster = start("abc", min_nodes=2, max_nodes=2, runs_s=60.0)
    cluster.run(5.0)
    cluster.kill_agent(lost)
    cluster.run_for(0.2)
    cluster.start(lost)
    cluster.run_for(after_s)
    cluster.kill_agent("a")
    cluster.finish()
    assert len(leaders(cluster)) == 1 and cluster.codes["b"] == cluster.codes["c"] == 0


def test_of_four_two_that_die_one_after_the_other_leave_two_that_go_on(start: Start) -> None:
    cluster = start("abcd", min_nodes=2, runs_s=60.0)
    cluster.kill_agent("b")
    cluster.run_for(1.0)
    cluster.kill_agent("a")
    cluster.finish()
    assert len(leaders(cluster)) == 1 and rounds(cluster, "d")[-1] == "cd"


def test_with_a_witness_the_one_of_three_that_is_left_goes_on(start: Start) -> None:
    cluster = start("abc", witness=True, runs_s=60.0)
    cluster.kill_agent("b")
    cluster.run_for(1.0)
    cluster.kill_agent("a")
    cluster.finish()
    assert leaders(cluster) == ["c"] and rounds(cluster, "c")[-1] == "c"


def test_of_two_that_die_in_one_moment_the_one_at_the_endpoint_has_its_say_when_it_is_back(start: Start) -> None:
    cluster = start("abc", min_nodes=2, max_nodes=2, runs_s=60.0)
    cluster.run(5.0)
    cluster.kill_agent("b")
    cluster.kill_agent("a")
    cluster.forget("b")
    cluster.start("b")
    cluster.run_for(20.0)
    assert not leaders(cluster) and said(cluster, "c", "1 of 3 nodes are here, and 2 could go on")
    cluster.start("a", host=True)
    cluster.finish()
    assert len(leaders(cluster)) == 1 and set(cluster.codes.values()) == {0}


def test_of_two_that_die_in_one_moment_another_has_its_say_too_when_it_is_back(start: Start) -> None:
    cluster = start("abc", min_nodes=2, max_nodes=2, runs_s=60.0)
    cluster.run(5.0)
    cluster.kill_agent("b")
    cluster.kill_agent("a")
    cluster.start("b")
    cluster.finish()
    assert len(leaders(cluster)) == 1 and {cluster.codes[place] for place in "bc"} == {0}


@pytest.mark.parametrize("witness", [False, True])
@pytest.mark.parametrize("min_nodes", [2, 3])
@pytest.mark.parametrize("back_s", [0.3, 6.0, 30.0])
def test_when_the_two_others_die_together_and_come_back_the_job_goes_on(
    start: Start, back_s: float, min_nodes: int, witness: bool
) -> None:
    cluster = start("abc", min_nodes=min_nodes, runs_s=90.0, witness=witness)
    cluster.kill_agent("b")
    cluster.kill_agent("c")
    cluster.run_for(back_s)
    cluster.start("b")
    cluster.start("c")
    cluster.run_for(8.0)
    assert all(cluster.agents[place].world.live for place in "abc"), "a lease and five seconds later"
    cluster.finish()
    assert rounds(cluster, "a")[-1] == "abc" and set(cluster.codes.values()) == {0}


def test_one_at_the_endpoint_that_is_stopped_before_its_first_round_hears_the_successor_first(start: Start) -> None:
    cluster = start("abc", min_nodes=1, runs_s=90.0, last_call_s=1.0)
    cluster.kill_agent("a")
    cluster.run_for(0.5)
    cluster.start("a", host=True)
    cluster.run_for(0.05)
    cluster.pause("a")
    cluster.run_for(12.0)
    assert len(leaders(cluster)) == 1
    cluster.resume("a")
    cluster.finish()
    assert rounds(cluster, "a")[-1] == "abc" and said(cluster, "a", "no longer leads the job")


def test_one_that_is_started_again_is_found_by_a_successor_though_nobody_is_at_the_endpoint(start: Start) -> None:
    cluster = start("abc", min_nodes=1, runs_s=90.0)
    cluster.power_off("a")
    cluster.run_for(15.0)
    (leader,) = leaders(cluster)
    (other,) = set("bc") - {leader}
    cluster.kill_agent(other)
    cluster.run_for(20.0)
    assert rounds(cluster, leader)[-1] == leader
    cluster.start(other)
    cluster.run_for(8.0)
    assert rounds(cluster, leader)[-1] == "bc"
    cluster.finish()


def test_a_node_whose_link_breaks_for_a_moment_keeps_its_say(start: Start) -> None:
    cluster = start("abcd", min_nodes=3, runs_s=60.0)
    cluster.break_links("b")
    cluster.run_for(5.0)
    node = cluster.agents["a"].node
    assert isinstance(node, PeerElectedNode) and node.election.mandate is not None
    assert [body.size for body in node.election.mandate.bodies] == [4]
    cluster.finish()
    assert rounds(cluster, "b") == ["abcd"] and not leaders(cluster)


def test_restarts_that_were_spent_stay_spent(start: Start) -> None:
    cluster = start("abc", runs_s=60.0, max_restarts=3)
    cluster.kill_worker("c", 0, exitcode=1)
    cluster.run(10.0)
    cluster.power_off("a")
    cluster.finish()
    report = cluster.agents["c"].report
    assert report is not None and (report.restarts_used, report.rounds, report.outcome) == (1, 3, "succeeded")


@pytest.mark.parametrize("places", ["abc", "abcde"])
def test_a_host_that_is_lost_as_soon_as_all_ranks_run_costs_no_more_than_later(start: Start, places: str) -> None:
    cluster = start(places, runs_s=60.0, min_nodes=2, until=places)
    cluster.run_for(0.01)
    cluster.power_off("a")
    cluster.finish()
    assert rounds(cluster, "c") == [places, places[1:]] and formed_at(cluster, "c")[1] < 8.0


def test_a_node_that_was_never_told_who_is_next_is_found_by_one_that_was(start: Start) -> None:
    cluster = start("abc", runs_s=60.0, min_nodes=2, until="c")
    cluster.partition("c")
    cluster.run_for(0.01)
    assert [holds_a_roster(cluster, place) for place in "bc"] == [True, False]
    cluster.power_off("a")
    cluster.heal("c")
    cluster.finish()
    assert rounds(cluster, "b") == ["abc", "bc"] and {cluster.codes[place] for place in "bc"} == {0}


# --- the host comes back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("after_s", "leader"), [(0.5, "a"), (3.5, "b"), (15.0, "b")])
def test_the_endpoint_s_node_may_come_back_as_an_elector_or_as_a_plain_member(
    start: Start, after_s: float, leader: str
) -> None:
    cluster = start("abc", runs_s=60.0, min_nodes=2)
    cluster.kill_agent("a")
    cluster.run_for(after_s)
    cluster.start("a", host=True)
    cluster.finish()
    assert leaders(cluster) == [leader] and rounds(cluster, "a")[-1] == "abc"
    assert set(cluster.codes.values()) == {0} and len(rounds(cluster, "b")) == (2 if after_s < 10 else 3)


def test_of_two_nodes_a_host_that_comes_back_is_enough_to_go_on(start: Start) -> None:
    cluster = start("ab", min_nodes=2)
    cluster.kill_agent("a")
    cluster.run_for(2.0)
    cluster.start("a", host=True)
    cluster.finish()
    assert rounds(cluster, "b") == ["ab", "ab"] and set(cluster.codes.values()) == {0}


def test_a_new_node_at_the_endpoint_is_sent_to_whoever_leads(start: Start) -> None:
    cluster = start("abc", runs_s=60.0, min_nodes=2)
    cluster.kill_agent("a")
    cluster.run(15.0)
    cluster.start("a", host=True)
    cluster.run_for(1.0)
    cluster.kill_agent("c")
    cluster.start("d")
    cluster.finish()
    assert "abd" in rounds(cluster, "d")


@pytest.mark.parametrize("elected", [False, True], ids=["by peers", "by a store"])
def test_a_wish_to_leave_a_node_out_is_granted_by_the_next_coordinator(start: Start, elected: bool) -> None:
    cluster = start("abc", runs_s=60.0, min_nodes=3, elected=elected)
    leads = next(agent.place for agent in cluster.running if agent.node.server is not None)
    asks = "b" if leads != "b" else "c"
    cluster.ask(asks, "exclude")
    cluster.run_for(3.0)
    cluster.kill_agent(leads)
    cluster.run_for(15.0)
    cluster.start(leads, host=leads == "a")
    cluster.run_for(10.0)
    assert not recorded(cluster, NodeExcluded), "the job needs it"
    cluster.start("d")
    cluster.finish()
    assert {out.name for out in recorded(cluster, NodeExcluded)} == {asks}
    assert asks not in rounds(cluster, "d")[-1] and "d" in rounds(cluster, "d")[-1]


def test_a_host_that_comes_back_at_once_begins_nothing_with_a_spare_that_was_there_before(start: Start) -> None:
    cluster = start("ab", runs_s=60.0)  # seed 5860: the spare's Join was from before it held a roster
    cluster.start("c")
    cluster.run(6.0)
    cluster.kill_agent("a")
    cluster.run_for(0.5)
    cluster.start("a", host=True)
    cluster.finish()
    assert said(cluster, "a", "this job was there before") and set(cluster.codes.values()) == {0}


def test_a_host_that_comes_back_at_once_begins_nothing_with_a_newcomer_while_ranks_of_the_old_round_live(start: Start) -> None:
    cluster = start("ab", runs_s=60.0, min_nodes=1, max_nodes=3)  # seed 20333: b's lease lasted longer than a was away
    cluster.power_off("a")
    cluster.run_for(1.0)
    cluster.power_on("a")
    cluster.start("a", host=True)
    cluster.start("c")
    cluster.finish()  # at whose every start the ranks of other rounds are looked for
    assert said(cluster, "a", "3.5 s for its nodes, should they go on") and set(cluster.codes.values()) == {0}


@pytest.mark.parametrize("cut", ["a", "b"])
def test_one_that_comes_back_alone_begins_nothing_while_others_may_lead_beyond_a_cut(start: Start, cut: str) -> None:
    cluster = start("abc", runs_s=60.0)
    cluster.kill_agent("a")
    cluster.run_for(8.0)
    assert leaders(cluster) == ["b"]
    cluster.partition(cut)
    cluster.start("a", host=True)
    cluster.run_for(20.0)
    assert rounds(cluster, "a") == ["abc"]
    cluster.heal(cut)
    cluster.finish()
    assert rounds(cluster, "a")[-1] == "abc"


def test_a_job_that_was_begun_anew_unawares_gives_way_to_the_old_one(start: Start) -> None:
    cluster = start("abc", runs_s=90.0)
    cluster.kill_agent("a")
    cluster.start("a", host=True)
    cluster.partition("a")
    cluster.run_for(YIELD_S + 6.0)
    assert rounds(cluster, "a") == ["abc", "a"] and rounds(cluster, "b") == ["abc", "bc"]
    cluster.heal("a")
    cluster.finish()
    assert said(cluster, "a", "no longer leads the job: b:1 leads it")
    assert rounds(cluster, "a")[-1] == rounds(cluster, "b")[-1] == "abc"


def test_a_host_that_comes_back_leads_nobody_who_was_cut_off_before_others_had_a_say(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = start("abc", runs_s=60.0, max_nodes=5)
    cluster.partition("c")
    cluster.run(15.0)
    for place in "de":
        cluster.start(place)
    cluster.run(25.0)
    assert rounds(cluster, "a")[-1] == "abde"
    cluster.kill_agent("a")
    one_side = lambda place: place in "ac"
    monkeypatch.setattr(cluster.ether, "is_blocked", lambda source, target: one_side(source) != one_side(target))
    cluster.heal("c")
    cluster.start("a", host=True)
    cluster.run(50.0)  # at whose every start the ranks of other rounds are looked for
    assert len(leaders(cluster)) == 1 and rounds(cluster, leaders(cluster)[0])[-1] == "bde"
    monkeypatch.undo()
    cluster.heal("c")
    cluster.finish()


# --- an operator says who is gone for good ------------------------------------------------------------------------------------


def test_those_that_are_left_go_on_when_an_operator_says_that_the_others_are_gone(start: Start) -> None:
    cluster = start("abcd", min_nodes=2, runs_s=60.0)
    cluster.kill_agent("a")
    cluster.kill_agent("b")
    cluster.run_for(20.0)
    assert not leaders(cluster)
    assert said(cluster, "c", "force-leader job --lost a,b") and said(cluster, "d", "force-leader job --lost a,b")
    cluster.force("d", "a", "b")
    cluster.finish()
    assert len(leaders(cluster)) == 1 and rounds(cluster, "c")[-1] == "cd"
    assert {cluster.codes[place] for place in "cd"} == {0}


def test_one_that_was_declared_lost_comes_back_and_has_neither_a_place_nor_a_say(start: Start) -> None:
    cluster = start("abcde", min_nodes=2, runs_s=60.0)
    for place in "cde":
        cluster.kill_agent(place)
    cluster.run_for(20.0)
    cluster.force("b", "c", "d", "e")
    cluster.run_for(15.0)
    cluster.start("c")
    cluster.run_for(10.0)
    node = cluster.agents["c"].node
    assert rounds(cluster, "a")[-1] == "ab" and node.group.state.spare_because == "excluded: an operator declared it lost"
    assert isinstance(node, PeerElectedNode) and node.election.roster is not None and not node.election.state.is_in_line
    cluster.exclude("c", through="a", readmit=True)
    cluster.run_for(5.0)
    assert rounds(cluster, "a")[-1] == "abc", "until somebody readmits it"
    cluster.finish()


def test_one_that_is_named_and_answers_is_not_lost(start: Start) -> None:
    cluster = start("abcd", min_nodes=2, runs_s=60.0)
    cluster.kill_agent("a")
    cluster.kill_agent("b")
    cluster.run_for(20.0)
    cluster.force("d", "a", "b", "c")
    cluster.run_for(5.0)
    assert said(cluster, "d", "c is not lost: its agent answers") and not leaders(cluster)


def test_one_that_may_be_cut_off_is_taken_for_lost_only_if_the_operator_vouches_for_that(start: Start) -> None:
    cluster = start("abc", min_nodes=1, runs_s=90.0)
    cluster.partition("c")
    cluster.run_for(20.0)
    cluster.force("c", "a", "b")
    cluster.run_for(5.0)
    assert said(cluster, "c", "may be cut off from this node") and not leaders(cluster)
    assert rounds(cluster, "a")[-1] == "ab"
    cluster.force("c", "a", "b", powered_off=True)
    cluster.run_for(10.0)
    assert leaders(cluster) == ["c"], "the operator was wrong, and two sides lead"
    cluster.heal("c")
    cluster.run_for(10.0)
    assert said(cluster, "c", "this agent no longer leads the job") and rounds(cluster, "a")[-1] == "abc", "until they meet"


def test_both_sides_that_are_forced_are_one_job_when_they_meet(start: Start) -> None:
    cluster = start("abcde", min_nodes=1, runs_s=120.0)
    cluster.kill_agent("e")
    cluster.run_for(0.1)
    for place in "cd":
        cluster.partition(place)
    cluster.run_for(25.0)
    cluster.force("c", "a", "b", "d", "e", powered_off=True)
    cluster.force("d", "a", "b", "c", "e", powered_off=True)
    cluster.run_for(10.0)
    for place in "cd":
        cluster.heal(place)
    cluster.run_for(15.0)
    assert sum(bool(cluster.agents[place].world.live) for place in "abcd") == 1


# --- far away -----------------------------------------------------------------------------------------------------------------


def test_nodes_that_are_far_from_one_another_choose_a_successor_too(start: Start) -> None:
    cluster = start("abc", min_nodes=2, runs_s=60.0, lease_s=6.0)
    cluster.slow_network((0.2, 0.2))
    cluster.run(8.0)
    cluster.power_off("a")
    cluster.finish()
    assert len(leaders(cluster)) == 1 and [cluster.codes[place] for place in "bc"] == [0, 0]


# --- many names ---------------------------------------------------------------------------------------------------------------


def test_one_that_joins_under_many_names_has_one_say_and_its_silence_ends_no_mandate(start: Start) -> None:
    cluster = start("abc", min_nodes=3, runs_s=60.0)
    for name in "xyz":
        cluster.start(name)
        cluster.agents[name].links.place = "x"  # all come from one address
    cluster.run_for(5.0)
    node = cluster.agents["a"].node
    assert isinstance(node, PeerElectedNode) and node.election.mandate is not None
    assert node.election.mandate.bodies[0].size == 4, "a, b, c and one of the three"
    for name in "xyz":
        cluster.power_off(name)
    cluster.run_for(10.0)
    assert node.election.mandate is not None and rounds(cluster, "a") == ["abc"]


# --- who lies ---------------------------------------------------------------------------------------------------------------


def test_a_leader_is_told_by_nobody_that_its_run_has_ended(start: Start) -> None:
    """It calls nodes that are silent, and the job's endpoint: whoever answers there may be anybody with the job's token."""
    cluster = start("abc", min_nodes=2, runs_s=60.0)
    cluster.run(10.0)
    cluster.power_off("a")
    cluster.run_for(20.0)
    (place,) = leaders(cluster)
    agent = cluster.agents[place]
    report = JobReport(job="j", outcome="succeeded", exit_code=0, started_at_unix=0.0, ended_at_unix=1.0, reason="done")
    calls = lambda: agent.node.election.state.dial.link if agent.node.election.state.dial.to else 0
    while not (link := calls()):
        cluster.run_for(0.1)
    agent.world.see(Arrived(link=link, message=Finish(report=report)))
    cluster.run_for(5.0)
    assert leaders(cluster) == [place] and agent.world.live, "its ranks train on"

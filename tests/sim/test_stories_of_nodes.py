"""What becomes of a job whose nodes come and go? Each story is one trouble, told by what the nodes record."""

from __future__ import annotations

import pytest
from kit.stages.stories import FAILS, Start, decisions, formed_at, rounds, story, told

from holdfast.core.job.events import NodeLost
from holdfast.rendezvous.coordinator.gathering import SETTLE_S
from holdfast.rendezvous.lease import fence_after_loss_s
from holdfast.sim.agent import SAVE_S
from holdfast.sim.world import Life

# --- nodes that come and go ---------------------------------------------------------------------------------------------------


def test_a_lost_node_is_waited_for_and_its_replacement_goes_on(start: Start) -> None:
    cluster = start("ab")
    cluster.power_off("b")
    cluster.run(6.0)
    cluster.start("c")
    cluster.finish()
    assert told(cluster) == story("""
        a: starts, hosts the coordinator
        b: starts
        a: a joined
        a: b joined
        a: round 1 of a b, group rank 0, 2 ranks (first round)
        b: round 1 of a b, group rank 1, 2 ranks (first round)
        b: * host loses its power
        a: b lost: not heard from for 3.0 s (lease 3 s)
        a: decides to rejoin: node b was lost: not heard from for 3.0 s (lease 3 s)
        a: warning: node b was lost: not heard from for 3.0 s (lease 3 s)
        a: rank 0 (local 0) on a was killed by SIGTERM (stopped by us)
        c: starts
        a: c joined
        a: round 2 of a c, group rank 0, 2 ranks (node b was lost: not heard from for 3.0 s (lease 3 s))
        c: round 2 of a c, group rank 1, 2 ranks (node b was lost: not heard from for 3.0 s (lease 3 s))
        a: decides to finish: every worker exited with 0
        a: ends with 0 (succeeded): every worker exited with 0
        c: ends with 0 (succeeded): every worker exited with 0
    """)


def test_losing_a_node_shrinks_the_job_and_spends_no_restart(start: Start) -> None:
    cluster = start("abc", min_nodes=2, max_restarts=0)
    cluster.power_off("b")
    cluster.finish()
    assert rounds(cluster) == ["abc", "ac"] and cluster.codes == {"a": 0, "b": None, "c": 0}


def test_the_next_round_begins_after_the_lease_and_the_fence_of_the_lost_node(start: Start) -> None:
    cluster = start("ab", min_nodes=1)
    cluster.power_off("b")
    cluster.finish()
    lost_at = next(at for at, _, what in cluster.transcript.entries if isinstance(what, NodeLost))
    assert formed_at(cluster)[1] - lost_at == pytest.approx(fence_after_loss_s(3.0), abs=0.001)
    assert formed_at(cluster)[1] - 1.0 < 3.3, "from power cut to training again, with a lease of 3 s"


def test_an_arriving_node_grows_the_job(start: Start) -> None:
    cluster = start("ab", min_nodes=2, max_nodes=3, last_call_s=0.1)
    cluster.start("c")
    cluster.finish()
    assert rounds(cluster) == ["ab", "abc"] and set(cluster.codes.values()) == {0}


def test_an_arriving_node_waits_for_the_hold_off_and_then_for_a_checkpoint(start: Start) -> None:
    cluster = start("ab", max_nodes=3, last_call_s=0.1, grow="at-checkpoint", grow_after_s=5.0, save_every_s=2.0)
    cluster.start("c")
    cluster.finish()
    assert rounds(cluster) == ["ab", "abc"] and set(cluster.codes.values()) == {0}
    joined, began, again = 1.0, *formed_at(cluster)
    assert again - joined > 5.0
    since_saved_s = (again - began) % 2.0 - SAVE_S
    assert SETTLE_S < since_saved_s < SETTLE_S + 0.1


def test_a_surplus_node_waits_and_ends_as_the_job_does(start: Start) -> None:
    cluster = start("ab")
    cluster.start("c")
    cluster.finish()
    assert rounds(cluster) == ["ab"] and cluster.codes == {"a": 0, "b": 0, "c": 0}
    assert "a: info: c waits as a spare: the job has its 2 nodes" in told(cluster)


def test_a_spare_takes_the_place_of_a_lost_node(start: Start) -> None:
    cluster = start("ab")
    cluster.start("c")
    cluster.run(2.0)
    cluster.power_off("b")
    cluster.finish()
    assert rounds(cluster) == ["ab", "ac"]


def test_a_spare_takes_the_place_of_an_excluded_node_which_takes_it_back_when_that_is_lost(start: Start) -> None:
    cluster = start("ab", runs_s=100.0)
    cluster.start("c")
    cluster.run_for(1.0)
    cluster.exclude("b", through="c")
    cluster.run_for(2.0)
    cluster.exclude("b", through="b", readmit=True)
    cluster.run_for(2.0)
    cluster.power_off("c")
    cluster.finish()
    assert rounds(cluster) == ["ab", "ac", "ab"]
    assert (cluster.codes["a"], cluster.codes["b"]) == (0, 0)
    assert "answers: b is excluded: the ranks are restarted without it" in told(cluster)


def test_an_excluded_node_stays_excluded_in_its_next_life(start: Start) -> None:
    cluster = start("abc", runs_s=30.0, min_nodes=2, max_nodes=3)
    cluster.exclude("c", through="a")
    cluster.run_for(2.0)
    cluster.kill_agent("c")
    cluster.start("c")
    cluster.finish()
    assert rounds(cluster) == ["abc", "ab"]
    assert cluster.codes == {"a": 0, "b": 0, "c": 0}


def test_the_coordinators_own_node_can_be_excluded(start: Start) -> None:
    cluster = start("ab")
    cluster.start("c")
    cluster.run_for(1.0)
    cluster.exclude("a", through="b")
    cluster.finish()
    last = cluster.agents["a"].report
    assert last is not None and last.outcome == "succeeded" and last.rounds == 2
    assert cluster.codes == {"a": 0, "b": 0, "c": 0}


def test_a_node_that_fails_again_and_again_makes_room_for_a_spare(start: Start) -> None:
    cluster = start("ab", {(1, 0): FAILS, (1, 1): FAILS}, exclude_after=2)
    cluster.start("c")
    cluster.finish()
    assert rounds(cluster) == ["ab", "ab", "ac"]
    assert "a: b excluded (failures): its workers were the first to fail 2 times" in told(cluster)


def test_a_node_that_comes_when_others_have_finished_their_part_disturbs_nobody(start: Start) -> None:
    cluster = start("ab", {(0, 0): Life(runs_s=2.0)}, min_nodes=2, max_nodes=3, last_call_s=0.1, runs_s=10.0)
    cluster.run(5.0)
    cluster.start("c")
    cluster.finish()
    assert rounds(cluster) == ["ab"] and set(cluster.codes.values()) == {0}


def test_a_late_joiner_is_told_how_the_job_ended(start: Start) -> None:
    cluster = start("ab", runs_s=3.0)
    cluster.run(3.0004)
    cluster.break_links("b", other_lag_s=0.0)  # so the host stays to tell b, and is there for c
    cluster.start("c")
    cluster.finish()
    assert cluster.codes == {"a": 0, "b": 0, "c": 0}


def test_too_few_nodes_end_the_job_with_their_names(start: Start) -> None:
    cluster = start("ab", min_nodes=3, max_nodes=4, join_timeout_s=30.0)
    cluster.finish()
    report = cluster.agents["b"].report
    assert report is not None and cluster.codes == {"a": 1, "b": 1}
    assert report.reason == (
        "round 1 had 2 of 3 nodes (a, b) after 30 s. Start the missing nodes, or allow fewer: --nnodes 2:4"
    )


def test_a_restarted_agent_has_to_wait_only_for_its_own_old_lease(start: Start) -> None:
    cluster = start("ab")
    cluster.kill_agent("b")
    cluster.start("b")
    cluster.finish()
    assert rounds(cluster) == ["ab", "ab"] and formed_at(cluster)[1] < 6.0 and cluster.codes == {"a": 0, "b": 0}


# --- ranks given by the user --------------------------------------------------------------------------------------------------


def test_given_ranks_are_kept_whatever_the_order_of_arrival(start: Start) -> None:
    cluster = start("a", ranks_given=True, min_nodes=3, max_nodes=3)
    for place, rank in (("c", 2), ("b", 1)):
        cluster.start(place, rank=rank)
        cluster.run_for(1.0)
    cluster.finish()
    assert rounds(cluster) == ["abc"]


def test_a_rank_given_twice_is_refused_and_the_missing_one_is_waited_for(start: Start) -> None:
    cluster = start("a", ranks_given=True, min_nodes=2, max_nodes=2)
    cluster.start("b", rank=0)
    cluster.run(10.0)
    assert cluster.codes == {"a": None, "b": 1} and rounds(cluster) == []
    assert "node rank 0 is already taken by a\n  hint: give each node its own --node-rank" in told(cluster)
    cluster.start("c", rank=1)
    cluster.finish()
    assert rounds(cluster) == ["ac"] and cluster.codes == {"a": 0, "b": 1, "c": 0}


def test_a_restarted_agent_takes_its_given_rank_over_from_its_dead_predecessor(start: Start) -> None:
    cluster = start("ab", ranks_given=True)
    cluster.kill_agent("b")
    cluster.run_for(0.1)
    cluster.start("b", rank=1)
    cluster.finish()
    assert rounds(cluster) == ["ab", "ab"] and cluster.codes == {"a": 0, "b": 0}


@pytest.mark.parametrize("elected", [False, True])
def test_who_comes_while_the_last_run_s_end_is_told_belongs_to_the_next_one(start: Start, elected: bool) -> None:
    cluster = start("ab", runs_s=3.0, elected=elected, join_timeout_s=30.0)
    while "finish" not in decisions(cluster):
        cluster.run_for(0.0001)
    host = next(agent for agent in cluster.lives if agent.node.server is not None)
    other = next(agent for agent in cluster.lives if agent is not host)
    cluster.partition(other.place)  # it does not hear of the end, so the host stays a while
    cluster.run_for(1.0)
    assert host.exit is not None and not host.ended
    cluster.start("c")
    cluster.run_for(1.0)
    assert cluster.agents["c"].exit is None and not host.ended
    cluster.run_for(5.0)
    cluster.start("d", host=True)
    cluster.run_for(20.0)
    first, second = host.report, cluster.agents["c"].report
    assert first is not None and second is not None and second == cluster.agents["d"].report
    assert set(first.nodes) == {"a", "b"} and set(second.nodes) == {"c", "d"}

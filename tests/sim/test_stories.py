"""What becomes of a job when …? Each story is one trouble, told by what the nodes record.

Where the order of everything matters the whole transcript is compared; it is what an operator would read.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from textwrap import dedent

import pytest

from holdfast.core.events import Decided, GpuMemoryReclaimed, NodeLost, RoundFormed
from holdfast.rendezvous.lease import FENCE_S
from holdfast.sim.cluster import Cluster, Job
from holdfast.sim.world import Clock, Life

FAILS = Life(runs_s=5.0, exitcode=1)
STUBBORN = Life(runs_s=float("inf"), on_sigterm=None)
HANGS = Life(runs_s=float("inf"))


class Acts:
    """A script by rank and restart: `{(1, 0): Life(...)}` for rank 1 before the first restart; the rest run 20 s."""

    def __init__(self, acts: Mapping[tuple[int, int], Life], usual: Life) -> None:
        self.acts = acts
        self.usual = usual

    def __call__(self, place: str, env: Mapping[str, str]) -> Life:
        return self.acts.get((int(env["RANK"]), int(env["TORCHELASTIC_RESTART_COUNT"])), self.usual)


Start = Callable[..., Cluster]


@pytest.fixture
def start() -> Start:
    """`start("ab", acts={...}, **job)`: agents at places a (it hosts) and b, one worker each, running for a second already."""

    def begin(
        places: str,
        acts: Mapping[tuple[int, int], Life] | None = None,
        *,
        runs_s: float = 20.0,
        clocks: Mapping[str, Clock] | None = None,
        **job: object,
    ) -> Cluster:
        given = {"nproc": 1, "min_nodes": len(places), "max_nodes": len(places), **job}
        cluster = Cluster(Job(**given), script=Acts(acts or {}, Life(runs_s=runs_s)), clocks=clocks)  # type: ignore[arg-type]
        for number, place in enumerate(places):
            cluster.start(place, host=number == 0, rank=number if job.get("ranks_given") else None)
        cluster.run(1.0)
        return cluster

    return begin


def rounds(cluster: Cluster) -> list[str]:
    """The nodes of each round, as the host recorded them."""
    entries = cluster.transcript.entries
    return ["".join(what.nodes) for _, place, what in entries if isinstance(what, RoundFormed) and place == "a"]


def decisions(cluster: Cluster) -> list[str]:
    return [what.decision for _, _, what in cluster.transcript.entries if isinstance(what, Decided)]


def formed_at(cluster: Cluster) -> list[float]:
    return [at for at, place, what in cluster.transcript.entries if isinstance(what, RoundFormed) and place == "a"]


def told(cluster: Cluster) -> str:
    return "\n" + cluster.transcript.story() + "\n"


def story(text: str) -> str:
    return dedent(text)


# --- workers that fail ----------------------------------------------------------------------------------------------------


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
    assert told(cluster).count("GPU 0 has not given its memory back within 10 s; starting all the same") == 2


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
    assert "process 1000 does not die even of SIGKILL" in told(cluster) and cluster.codes == {"a": 0, "b": 0}


def test_a_program_that_cannot_be_started_is_not_tried_again(start: Start) -> None:
    cluster = start("ab", {(1, 0): Life(start_error="no such file: train.py")}, nproc=2)
    cluster.finish()
    report = cluster.agents["b"].report
    assert report is not None and "starting it again would fail the same way" in report.reason
    assert cluster.timeline.now < 15.0


# --- nodes that come and go -------------------------------------------------------------------------------------------------


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
    assert formed_at(cluster)[1] - lost_at == pytest.approx(FENCE_S, abs=0.001)
    assert formed_at(cluster)[1] - 1.0 < 5.0, "from power cut to training again"


def test_an_arriving_node_grows_the_job(start: Start) -> None:
    cluster = start("ab", min_nodes=2, max_nodes=3, last_call_s=0.1)
    cluster.start("c")
    cluster.finish()
    assert rounds(cluster) == ["ab", "abc"] and set(cluster.codes.values()) == {0}


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


# --- ranks given by the user ------------------------------------------------------------------------------------------------


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


# --- signals ----------------------------------------------------------------------------------------------------------------


def test_a_node_that_is_told_to_go_leaves_and_the_others_go_on_without_it(start: Start) -> None:
    cluster = start("abc", min_nodes=2)
    cluster.signal("c", signal.SIGTERM)
    cluster.finish()
    assert rounds(cluster) == ["abc", "ab"] and cluster.codes == {"a": 0, "b": 0, "c": 1}
    assert formed_at(cluster)[1] < 1.2, "it said so, and that its workers are gone: there is nothing to wait for"


def test_sigterm_to_the_hosting_agent_ends_the_job_everywhere(start: Start) -> None:
    cluster = start("ab")
    cluster.signal("a", signal.SIGTERM)
    cluster.finish()
    assert told(cluster) == story("""
        a: starts, hosts the coordinator
        b: starts
        a: a joined
        a: b joined
        a: round 1 of a b, group rank 0, 2 ranks (first round)
        b: round 1 of a b, group rank 1, 2 ranks (first round)
        a: received SIGTERM
        a: warning: received SIGTERM; stopping the workers, SIGKILL in 5 s, or at another signal
        a: decides to stop: a received SIGTERM
        a: rank 0 (local 0) on a was killed by SIGTERM (stopped by us)
        b: rank 1 (local 0) on b was killed by SIGTERM (stopped by us)
        a: ends with 1 (stopped): a received SIGTERM
        b: ends with 1 (stopped): a received SIGTERM
    """)


def test_a_second_signal_leaves_no_grace(start: Start) -> None:
    cluster = start("ab", {(0, 0): STUBBORN, (1, 0): HANGS}, grace_s=60.0)
    cluster.signal("a", signal.SIGINT)
    cluster.run_for(2.0)
    cluster.signal("a", signal.SIGINT)
    cluster.finish()
    assert cluster.timeline.now < 4.0 and cluster.codes == {"a": 1, "b": 1}


def test_signals_after_the_end_change_neither_exit_code_nor_report(start: Start) -> None:
    cluster = start("ab", runs_s=3.0)
    cluster.run(2.0)
    cluster.partition("b")
    cluster.run(2.9)
    cluster.power_off("b")
    cluster.run(8.0)  # b is lost; a alone cannot form a round of two
    cluster.start("c")
    cluster.run(12.0)
    cluster.break_links("c", other_lag_s=0.0)
    for _ in range(3):
        cluster.signal("a", signal.SIGTERM)
        cluster.run_for(0.01)
    cluster.finish()
    assert cluster.agents["a"].report is not None


def test_a_signal_before_the_first_round_is_died_of(start: Start) -> None:
    cluster = start("ab", min_nodes=3, max_nodes=3)
    cluster.signal("b", signal.SIGTERM)
    cluster.run_for(1.0)
    assert cluster.codes["b"] == -signal.SIGTERM and "a: b left: received SIGTERM" in told(cluster)


# --- links and leases -------------------------------------------------------------------------------------------------------


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
    assert told(cluster) == story("""
        a: starts, hosts the coordinator
        b: starts
        a: a joined
        a: b joined
        a: round 1 of a b, group rank 0, 2 ranks (first round)
        b: round 1 of a b, group rank 1, 2 ranks (first round)
        b: * cut off (both ways)
        b: error: the coordinator at endpoint:29400 has not answered for 3.0 s; stopping the workers
        a: b lost: not heard from for 3.0 s (lease 3 s)
        a: decides to rejoin: node b was lost: not heard from for 3.0 s (lease 3 s)
        a: warning: node b was lost: not heard from for 3.0 s (lease 3 s)
        a: rank 0 (local 0) on a was killed by SIGTERM (stopped by us)
        b: warning: rank 1 did not stop within 0.5 s; sent SIGKILL
        b: rank 1 (local 0) on b was killed by SIGKILL (stopped by us)
        a: round 2 of a, group rank 0, 1 ranks (node b was lost: not heard from for 3.0 s (lease 3 s))
        b: error: the coordinator at endpoint:29400 is lost, or cut off from this node; the other of two nodes cannot know which, so its ranks stay stopped
          hint: let a third party decide: --witness DIR, which all nodes share; or risk two sides: --on-split continue
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
    assert not [what for _, _, what in cluster.transcript.entries if isinstance(what, NodeLost)]


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
    numbers = [what.round for _, place, what in cluster.transcript.entries if isinstance(what, RoundFormed) and place == "b"]
    assert numbers == [1, 2, 3] and set(cluster.codes.values()) == {0}


# --- a store that elects --------------------------------------------------------------------------------------------------


def leads(cluster: Cluster) -> str:
    """The place of the leader."""
    return next(agent.place for agent in cluster.running if agent.node.server is not None)


def test_when_the_leader_is_lost_another_leads_and_everybody_keeps_its_rank(start: Start) -> None:
    cluster = start("abc", runs_s=30.0, elected=True)
    cluster.run_for(2.0)
    lost = leads(cluster)
    cluster.power_off(lost)
    cluster.run_for(10.0)
    cluster.start(lost)
    cluster.finish()
    formed = [what for _, _, what in cluster.transcript.entries if isinstance(what, RoundFormed)]
    assert {"".join(what.nodes) for what in formed} == {"abc"} and {what.round for what in formed} == {1, 2}
    assert set(cluster.codes.values()) == {0} and decisions(cluster) == ["finish"]


def test_whoever_is_excluded_is_so_under_the_next_leader_too(start: Start) -> None:
    cluster = start("abcd", runs_s=30.0, elected=True, min_nodes=2, max_nodes=4)
    cluster.run_for(2.0)
    lost = leads(cluster)
    out, *others = [place for place in "abcd" if place != lost]
    cluster.exclude(out, through=out)
    cluster.run_for(3.0)
    cluster.power_off(lost)
    cluster.finish()
    last = cluster.agents[out].report
    assert last is not None and sorted(last.nodes) == others


def test_a_store_that_forgot_everything_costs_one_round_and_no_restart_comes_back(start: Start) -> None:
    """Its leader, elected anew, remembers what it took part in itself: the round, who was in it, and the budget."""
    cluster = start("ab", {(1, 0): FAILS}, runs_s=30.0, elected=True, max_restarts=1)
    cluster.run_for(8.0)
    cluster.keys.stop()
    cluster.keys.restart(empty=True)
    cluster.run_for(8.0)
    cluster.kill_worker("b", 0)
    cluster.finish()
    assert {what.round for _, _, what in cluster.transcript.entries if isinstance(what, RoundFormed)} == {1, 2, 3}
    report = cluster.agents["a"].report
    assert report is not None and "no restart is left (1 of 1 used)" in report.reason


def test_a_store_that_is_away_for_long_stops_the_ranks_and_the_job_goes_on_when_it_is_back(start: Start) -> None:
    cluster = start("ab", runs_s=10.0, elected=True)
    cluster.run_for(2.0)
    cluster.keys.stop()
    cluster.run_for(20.0)
    assert not any(agent.world.live for agent in cluster.lives)
    cluster.keys.restart()
    cluster.finish()
    assert set(cluster.codes.values()) == {0} and decisions(cluster) == ["finish"]


# --- whose fault it was -----------------------------------------------------------------------------------------------------


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

"""What does a job know of its own pace, and what comes of it? Told by many nodes, for longer than a test could wait."""

from __future__ import annotations

from kit.stages.stories import recorded

from holdfast.core.job.events import Decided, LimitsLearned, RankHung, Unwatched
from holdfast.core.wire.messages import Pace, Paced
from holdfast.sim.cluster import Cluster, Job
from holdfast.sim.world import Life

ENDLESS, BRIEF = Life(runs_s=float("inf")), Life(runs_s=2.0)


def running(places: str, **job: object) -> Cluster:
    """A job of two ranks per node, for ever unless it is restarted."""
    given = {"min_nodes": 2, "max_nodes": 4, "last_call_s": 0.5, **job}
    cluster = Cluster(Job(**given), script=lambda place, env: ENDLESS if env["HOLDFAST_ROUND"] == "1" else BRIEF)  # type: ignore[arg-type]
    for number, place in enumerate(places):
        cluster.start(place, host=number == 0)
    cluster.run(5.0)
    return cluster


def test_a_new_node_starts_with_what_the_job_has_learned() -> None:
    cluster = running("ab")
    cluster.run_for(130.0)
    assert len(recorded(cluster, LimitsLearned)) == 2 and not recorded(cluster, Unwatched)
    cluster.start("c")
    cluster.run_for(1.5)
    knows = cluster.agents["c"].monitoring.monitor.state.learned
    assert knows.is_ready("beat") and 0.0 < knows.job_s["beat"] < 3.0


def test_a_successor_gives_on_what_its_predecessor_knew() -> None:
    cluster = running("abcd", max_restarts=3)
    cluster.run_for(130.0)
    cluster.power_off("a")
    cluster.run_for(15.0)
    assert all(cluster.agents[place].node.group.assigned.longest_s.get("beat") for place in "bcd")  # type: ignore[union-attr]


def test_a_node_says_one_word_a_minute_and_is_answered_only_if_others_need_more() -> None:
    said: list[object] = []
    cluster = running("abcd")
    heard = cluster.checks.transmitted
    cluster.checks.transmitted = lambda agent, message: (said.append(message), heard(agent, message))[1]  # type: ignore[method-assign]
    cluster.run_for(601.0)
    words = [message for message in said if isinstance(message, Pace)]
    answers = [message for message in said if isinstance(message, Paced)]
    assert len(words) <= 4 * 11 and len(answers) <= len(words)


def test_ranks_whose_heartbeats_stop_hang_by_what_was_learned_and_one_restart_is_spent() -> None:
    cluster = running("ab", max_restarts=1)
    cluster.run_for(130.0)
    for agent in cluster.agents.values():
        for worker in agent.world.live:
            worker.quiet_since = cluster.timeline.now
    cluster.run_for(590.0)
    assert not recorded(cluster, RankHung), "a silence of ten minutes is a guess's least"
    cluster.run_for(300.0)
    hung = recorded(cluster, RankHung)
    assert hung and "(learned limit 600 s)" in hung[0].reason and "nothing on this node has done anything" in hung[0].reason
    assert [what.decision for what in recorded(cluster, Decided)] == ["restart", "finish"]


def test_ranks_that_wait_for_another_one_of_their_node_that_gets_on_are_left_alone() -> None:
    """One of a node's ranks evaluates; the others of it wait, and so their node does not stand still."""
    cluster = running("ab", max_restarts=1)
    cluster.run_for(130.0)
    for local_rank, worker in enumerate(cluster.agents["a"].world.live):
        worker.quiet_since = None if local_rank else cluster.timeline.now
    cluster.run_for(3000.0)
    assert not recorded(cluster, RankHung)


def test_a_node_that_stands_still_waits_for_another_one_that_works_in_silence_and_for_no_longer() -> None:
    """Rank 0 evaluates, and all others are in a barrier; then it hangs in earnest."""
    cluster = running("abc", max_restarts=1)
    cluster.run_for(130.0)
    for agent in cluster.agents.values():
        for worker in agent.world.live:
            worker.quiet_since = cluster.timeline.now
    evaluates = next(iter(cluster.agents["b"].world.live))
    evaluates.spins = True
    cluster.run_for(3000.0)
    assert not recorded(cluster, RankHung)
    evaluates.spins = False
    cluster.run_for(500.0)
    assert recorded(cluster, RankHung)

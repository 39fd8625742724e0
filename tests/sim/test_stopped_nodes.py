"""A node that was stopped, and goes on beside its replacements, does no harm: its ranks are dead, or commit nothing."""

from __future__ import annotations

import pytest
from kit.stages.stories import Start, rounds

from holdfast.sim.checks import Violation, Watched
from holdfast.sim.cluster import Cluster
from holdfast.sim.storage import commits
from holdfast.sim.world import KILL_S, Worker


def _round_of(cluster: Cluster, number: int) -> list[Worker]:
    return [worker for life in cluster.lives for worker in life.workers_of(number)]


def _until(cluster: Cluster, number: int) -> None:
    while not _round_of(cluster, number):
        cluster.run_for(0.05)


def test_its_ranks_are_killed_in_their_sleep_when_its_lease_is_over(start: Start) -> None:
    cluster = start("abc", min_nodes=2, runs_s=60.0)
    old = cluster.agents["c"].world.live[0]
    cluster.stop_node("c")
    _until(cluster, 2)
    assert not old.alive and old.asleep, "nobody has continued it"
    cluster.resume("c")
    cluster.finish()
    assert set(cluster.codes.values()) == {0}


def test_a_coordinator_s_node_is_no_exception(start: Start) -> None:
    cluster = start("abc", min_nodes=2, runs_s=60.0)
    old = cluster.agents["a"].world.live[0]
    cluster.stop_node("a")
    _until(cluster, 2)
    assert not old.alive and old.asleep
    cluster.resume("a")
    cluster.finish()
    assert set(cluster.codes.values()) == {0}


def test_where_the_host_is_frozen_its_agent_acts_first_and_they_live_on_for_a_kill(start: Start) -> None:
    cluster = start("abc", min_nodes=2, runs_s=60.0)
    old = cluster.agents["c"].world.live[0]
    cluster.stop_node("c", frozen=True)
    _until(cluster, 2)
    assert old.alive, "nobody could end it"
    cluster.resume("c")
    cluster.run_for(2 * KILL_S)
    assert not old.alive
    cluster.finish()


def test_a_node_that_goes_on_within_its_lease_loses_nothing(start: Start) -> None:
    cluster = start("abc", min_nodes=2, runs_s=30.0)
    cluster.stop_node("c")
    cluster.run_for(1.5)
    cluster.resume("c")
    cluster.finish()
    assert rounds(cluster) == ["abc"]


def _stopped_between_look_and_rename(cluster: Cluster) -> str:
    """Freeze rank 0's host there, and let its successor commit. Returns the place."""
    cluster.commits.rng.choice = max  # type: ignore[method-assign,assignment]
    rank, home = next((one, place) for place, agent in cluster.agents.items() for one in agent.world.live if one.rank == 0)
    looked = cluster.checks.may_commit

    def may_commit(agent: Watched, worker: Worker) -> None:
        looked(agent, worker)
        if worker is rank and not rank.asleep:
            cluster.stop_node(home, frozen=True)

    cluster.checks.may_commit = may_commit  # type: ignore[method-assign]
    while not rank.asleep:
        cluster.run_for(0.05)
    before = cluster.commits.replaced
    while cluster.commits.replaced == before:
        cluster.run_for(0.05)
    return home


def test_a_rank_that_was_stopped_between_look_and_rename_finds_nothing_to_rename(start: Start) -> None:
    cluster = start("abc", min_nodes=2, runs_s=60.0)
    home = _stopped_between_look_and_rename(cluster)
    cluster.resume(home)
    cluster.run_for(KILL_S)
    assert cluster.commits.refused == 1
    cluster.finish()


def test_if_its_successor_took_nothing_away_it_would_replace_a_newer_checkpoint(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "outdated", lambda *given: [])
    cluster = start("abc", min_nodes=2, runs_s=60.0)
    home = _stopped_between_look_and_rename(cluster)
    cluster.resume(home)
    with pytest.raises(Violation, match=r"rank 0 of round 1 .* replaces that of round 2"):
        cluster.run_for(KILL_S)


def test_without_a_look_at_the_lease_a_rank_that_is_none_any_more_could_commit(start: Start) -> None:
    cluster = start("abc", min_nodes=2, runs_s=60.0)
    (old,) = cluster.agents["a"].world.live
    cluster.stop_node("a", frozen=True)
    _until(cluster, 2)
    with pytest.raises(Violation, match="which is none any more, may replace the checkpoint"):
        cluster.checks.may_commit(cluster.agents["a"], old)

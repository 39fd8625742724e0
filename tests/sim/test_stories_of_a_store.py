"""What becomes of a job whose coordinator a store elects? Each story is one trouble, told by what the nodes record."""

from __future__ import annotations

from kit.stages.stories import FAILS, Start, decisions, recorded

from holdfast.core.job.events import RoundFormed
from holdfast.sim.cluster import Cluster


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
    formed = recorded(cluster, RoundFormed)
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
    assert {what.round for what in recorded(cluster, RoundFormed)} == {1, 2, 3}
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

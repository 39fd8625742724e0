"""What if somebody comes, goes or dies just when the others agree? One story for each race that has cost other launchers a job:
a stale slot, a dead survivor's hole, a late joiner, a surplus joiner, concurrent openings, an unhealthy group.

Each begins with two members of two (a hosts, b) and a spare c, unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from kit.stages.stories import decisions, recorded

from holdfast.core.job.events import RoundFormed
from holdfast.sim.cluster import Cluster, Job
from holdfast.sim.world import Life

MOMENTS = [0.0, 0.001, 0.01, 0.02, 0.03, 0.05, 0.1, 0.5, 2.9, 3.1]
"""Seconds after the failure: while the ranks are stopped, while the nodes join, when the round has formed, around the lease."""


def job(*, spares: str = "c", runs_s: float = 20.0, **job: object) -> Cluster:
    def script(place: str, env: Mapping[str, str]) -> Life:
        return Life(runs_s=runs_s, term_s=0.02)

    given = {"nproc": 1, "min_nodes": 2, "max_nodes": 2, "last_call_s": 0.5, **job}
    cluster = Cluster(Job(**given), script=script)  # type: ignore[arg-type]
    for place in "ab":
        cluster.start(place, host=place == "a")
    cluster.run(1.0)
    for place in spares:
        cluster.start(place)
    cluster.run(2.0)
    return cluster


def rounds(cluster: Cluster) -> list[str]:
    """The nodes of each round, in order of group rank."""
    formed = {formed.round: formed.nodes for formed in recorded(cluster, RoundFormed)}
    return ["".join(nodes) for _, nodes in sorted(formed.items())]


def succeeds(cluster: Cluster, places: str) -> None:
    cluster.finish()
    assert {place: cluster.codes[place] for place in places} == dict.fromkeys(places, 0), "\n".join(cluster.transcript.lines())


def test_stale_slot_a_node_that_died_while_it_waited_is_in_no_round() -> None:
    cluster = job(spares="", min_nodes=3, max_nodes=3)
    cluster.kill_agent("b")
    cluster.start("b")
    cluster.start("c")
    cluster.run_for(1.0)
    assert rounds(cluster) == []  # three seats, but behind one of them there is nobody
    succeeds(cluster, "abc")
    assert rounds(cluster) == ["abc"]


def test_stale_slot_a_spare_that_died_unnoticed_gives_way_to_the_next() -> None:
    cluster = job(spares="cd")
    cluster.run_for(2.0)  # until those who have a say are four: of three, two would be lost
    cluster.power_off("c")
    cluster.power_off("b")
    succeeds(cluster, "ad")
    assert rounds(cluster)[-1] == "ad"


@pytest.mark.parametrize("after_s", MOMENTS)
def test_dead_survivors_hole_the_spare_fills_it_whenever_it_dies(after_s: float) -> None:
    cluster = job()
    cluster.kill_worker("a", 0)
    cluster.run_for(after_s)
    cluster.power_off("b")
    succeeds(cluster, "ac")
    assert rounds(cluster)[-1] == "ac"
    assert decisions(cluster).count("restart") == 1


@pytest.mark.parametrize("after_s", MOMENTS)
def test_dead_survivors_hole_without_a_spare_the_job_goes_on_smaller(after_s: float) -> None:
    cluster = job(spares="", min_nodes=1)
    cluster.kill_worker("a", 0)
    cluster.run_for(after_s)
    cluster.power_off("b")
    succeeds(cluster, "a")
    assert rounds(cluster)[-1] == "a"


@pytest.mark.parametrize("after_s", MOMENTS)
def test_late_joiner_whenever_it_comes_the_members_keep_their_places(after_s: float) -> None:
    cluster = job(spares="")
    cluster.kill_worker("b", 0)
    cluster.run_for(after_s)
    cluster.start("aa")  # by name it would be before b
    succeeds(cluster, "ab")
    assert (rounds(cluster), cluster.codes["aa"]) == (["ab", "ab"], 0)


@pytest.mark.parametrize("after_s", MOMENTS)
def test_surplus_joiners_whenever_they_come_and_go_close_nothing(after_s: float) -> None:
    cluster = job(spares="cd")
    cluster.kill_worker("b", 0)
    cluster.run_for(after_s)
    cluster.start("e")
    cluster.kill_agent("c")
    cluster.run_for(0.01)
    cluster.power_off("d")
    succeeds(cluster, "abe")
    assert rounds(cluster) == ["ab", "ab"]


@pytest.mark.parametrize("after_s", MOMENTS)
def test_returning_node_is_taken_back_as_a_spare(after_s: float) -> None:
    cluster = job()
    cluster.kill_agent("b")
    cluster.run_for(after_s)
    cluster.start("b")
    succeeds(cluster, "abc")
    assert rounds(cluster)[0] == "ab" and len(rounds(cluster)) == 2
    assert decisions(cluster) == ["rejoin", "finish"]


@pytest.mark.parametrize("after_s", MOMENTS[:6])
def test_concurrent_opens_all_that_happens_at_once_makes_one_round(after_s: float) -> None:
    cluster = job(spares="cd", max_nodes=3, grow="next-failure")
    cluster.kill_worker("a", 0)
    cluster.kill_worker("b", 0)
    cluster.run_for(after_s)
    cluster.start("e")
    cluster.exclude("b", through="d")
    succeeds(cluster, "abcde")
    assert len(rounds(cluster)) == (3 if "b" in rounds(cluster)[1] else 2) and "b" not in rounds(cluster)[-1]
    assert decisions(cluster).count("restart") == 1


def test_unhealthy_group_is_replaced_as_a_whole_and_comes_back_when_its_node_does() -> None:
    given = {"nproc": 1, "min_nodes": 2, "max_nodes": 2, "last_call_s": 0.5}
    cluster = Cluster(Job(**given), script=lambda place, env: Life(runs_s=20.0))  # type: ignore[arg-type]
    for place, group in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "y")):
        cluster.start(place, host=place == "a", group=group)
        cluster.run_for(1.0)
    cluster.exclude("b", through="a")
    cluster.run_for(2.0)
    assert rounds(cluster) == ["ab", "cd"]
    cluster.exclude("b", through="a", readmit=True)
    cluster.run_for(1.0)
    cluster.exclude("d", through="a")
    succeeds(cluster, "abcd")
    assert rounds(cluster) == ["ab", "cd", "ab"]

"""Warm spares: what becomes of them never costs the job anything, and nobody counts them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from kit.stages.stories import FAILS, Start, decisions, recorded, rounds

from holdfast.core.job.events import SpareLost, SpareReady, WorkerStarted
from holdfast.sim.checks import Violation
from holdfast.sim.cluster import Cluster
from holdfast.sim.spares import SpareLife


def warm(cluster: Cluster, place: str) -> list[bool]:
    """Of each worker that was started there: whether it had been a spare."""
    return [started.spare for started in recorded(cluster, WorkerStarted, place)]


def cold_because(cluster: Cluster, place: str) -> list[str]:
    return [started.cold_because for started in recorded(cluster, WorkerStarted, place) if started.cold_because]


def made_anew(cluster: Cluster, life: SpareLife, within_s: float = 1.5) -> None:
    """Those that there are end; the next ones live so."""
    cluster.run_for(1.0)
    cluster.spare_life = lambda place: life
    for place in cluster.agents:
        cluster.kill_spare(place)
    cluster.run_for(within_s)
    cluster.spare_life = lambda place: SpareLife()


@pytest.mark.parametrize("fork", [False, True], ids=["spawn", "fork"])
def test_a_restart_takes_them_and_others_are_made(start: Start, fork: bool) -> None:
    cluster = start("ab", {(1, 0): FAILS}, warm_spares=None, warm_fork=fork)
    cluster.finish()
    assert warm(cluster, "a") == warm(cluster, "b") == [False, True] and rounds(cluster) == ["ab", "ab"]
    assert len(recorded(cluster, SpareReady)) == (2 if fork else 4) and set(cluster.codes.values()) == {0}


def test_a_restart_soon_after_another_waits_for_what_is_importing(start: Start) -> None:
    cluster = start("ab", warm_spares=None)
    cluster.run_for(2.0)
    cluster.spare_life = lambda place: SpareLife(import_s=1.2)
    cluster.kill_worker("a", 0)
    cluster.run_for(0.8)
    cluster.kill_worker("a", 0)
    cluster.finish()
    assert warm(cluster, "a") == warm(cluster, "b") == [False, True, True] and set(cluster.codes.values()) == {0}


def test_one_that_dies_while_it_waits_is_replaced_and_disturbs_nobody(start: Start) -> None:
    cluster = start("ab", warm_spares=None)
    cluster.run_for(2.0)
    cluster.kill_spare("b")
    cluster.finish()
    assert [lost.reason for lost in recorded(cluster, SpareLost, "b")] == ["it ended with -9"]
    assert len(recorded(cluster, SpareReady, "b")) == 2 and decisions(cluster) == ["finish"]


def test_one_that_is_dead_when_it_is_to_take_over_makes_the_start_cold(start: Start) -> None:
    reasons = set()
    for before_s in (0.05, 0.012, 0.01, 0.008, 0.004, 0.0):
        cluster = start("a", min_nodes=1, warm_spares=None)
        cluster.run_for(2.0)
        cluster.kill_spare("a")
        cluster.run_for(before_s)
        cluster.kill_worker("a", 0)
        cluster.finish()
        assert set(cluster.codes.values()) == {0}, before_s
        reasons |= set(cold_because(cluster, "a"))
    assert {"it has ended", "it ended with -9"} <= reasons, "not yet seen, and seen"


def test_one_that_dies_as_a_worker_is_a_worker_that_has_failed(start: Start) -> None:
    cluster = start("ab", warm_spares=None)
    made_anew(cluster, SpareLife(lasts_s=4.0))
    cluster.kill_worker("a", 0)
    cluster.finish()
    assert decisions(cluster) == ["restart", "restart", "finish"] and set(cluster.codes.values()) == {0}


def test_imports_that_fail_are_tried_three_times_and_said_once(start: Start) -> None:
    cluster = start("a", min_nodes=1, warm_spares=None, runs_s=200.0)
    made_anew(cluster, SpareLife(fails=True), within_s=100.0)
    cluster.kill_worker("a", 0)
    cluster.finish()
    assert [lost.reason for lost in recorded(cluster, SpareLost)][1:] == 3 * ["importing torch failed"]
    assert cold_because(cluster, "a") == ["importing torch failed"]
    said = [str(what) for _, _, what in cluster.transcript.entries if "no warm spare" in str(what)]
    assert said == ["warning: no warm spare for local rank 0: importing torch failed"]


def test_a_node_that_waits_has_them_too_and_takes_the_lost_one_s_place_with_them(start: Start) -> None:
    cluster = start("ab", warm_spares=None, runs_s=60.0)
    cluster.start("c")
    cluster.run_for(5.0)
    assert recorded(cluster, SpareReady, "c") and not recorded(cluster, WorkerStarted, "c")
    cluster.power_off("b")
    cluster.finish()
    assert rounds(cluster) == ["ab", "ac"] and warm(cluster, "c") == [True]


def test_a_node_that_waits_is_told_under_the_next_coordinator_too(start: Start) -> None:
    cluster = start("abc", warm_spares=None, runs_s=60.0, min_nodes=2, max_nodes=3, elected=True)
    cluster.power_off("a")
    cluster.run_for(15.0)
    cluster.start("d")
    cluster.run_for(3.0)
    cluster.start("e")  # they have their three nodes
    cluster.run_for(10.0)
    assert recorded(cluster, SpareReady, "e") and not recorded(cluster, WorkerStarted, "e")


def test_the_checkers_see_a_spare_that_is_counted_as_a_worker(start: Start) -> None:
    cluster = start("a", {(0, 0): FAILS}, min_nodes=1, warm_spares=None)
    spares = cluster.agents["a"].spares
    world = cluster.agents["a"].world

    def become(local_rank: int, env: Mapping[str, str]) -> tuple[int, str]:
        pid = next(iter(spares.parked))
        world.begin_life(pid, env)
        return pid, ""

    spares.become = become  # type: ignore[method-assign]
    with pytest.raises(Violation, match="spares that are workers"):
        cluster.finish()


def test_the_checkers_see_more_spares_than_were_wanted(start: Start) -> None:
    cluster = start("a", min_nodes=1, warm_spares=1)
    cluster.run_for(2.0)
    cluster.agents["a"].spares._make(0, 0)
    with pytest.raises(Violation, match="1 are wanted"):
        cluster.finish()

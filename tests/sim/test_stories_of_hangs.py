"""What becomes of a job in which a rank hangs? Each story is one hang, told by what the nodes record.

`Cluster.hang` silences a rank whose script has set a limit; from there on everything is what runs on real nodes.
"""

from __future__ import annotations

from collections import Counter

import pytest
from kit.stages.stories import Start, recorded

from holdfast.core.job.events import Decided, FailureSeen, RoundFormed, WorkerExited
from holdfast.core.job.failure import Failure, describe
from holdfast.core.wire.messages import HangFound, LookAround, Message, Positions
from holdfast.sim.agent import SimAgent
from holdfast.sim.checks import Checks
from holdfast.sim.cluster import LOADING, WAITING, Cluster, Job
from holdfast.sim.world import Life

ENDLESS, BRIEF = Life(runs_s=float("inf")), Life(runs_s=2.0)


@pytest.fixture
def start() -> Start:
    """`start("abc")`: a job of one rank per node that runs for a second already, for ever unless it is restarted."""

    def begin(places: str, delay_s: tuple[float, float] = (0.0002, 0.001), **job: object) -> Cluster:
        usual = lambda place, env: ENDLESS if env["TORCHELASTIC_RESTART_COUNT"] == "0" else BRIEF
        given = {"nproc": 1, "min_nodes": len(places), "max_nodes": len(places), **job}
        cluster = Cluster(Job(**given), script=usual, delay_s=delay_s)  # type: ignore[arg-type]
        for number, place in enumerate(places):
            cluster.start(place, host=number == 0)
        cluster.run(1.0)
        return cluster

    return begin


def all_hang(cluster: Cluster, culprit: str) -> None:
    """One rank loads data for ever, the others wait for it in a collective, and their limits run out a little sooner."""
    for number, place in enumerate(cluster.agents):
        where, late_s = (LOADING, 0.2) if place == culprit else (WAITING, 0.0)
        cluster.hang(place, 0, limit_s=4.0 + 0.001 * number + late_s, where=where)


def decided(cluster: Cluster) -> list[str]:
    return [f"{what.decision}: {what.reason}" for what in recorded(cluster, Decided)]


def guilty(cluster: Cluster) -> list[Failure]:
    return [seen.failure for seen in recorded(cluster, FailureSeen) if not seen.failure.innocent]


def ended_at(cluster: Cluster, place: str) -> float:
    """When the first round's worker was gone there."""
    exits = [at for at, where, what in cluster.transcript.entries if where == place and isinstance(what, WorkerExited)]
    return exits[0]


def test_a_rank_that_hangs_on_one_of_many_nodes_is_killed_and_all_start_again(start: Start) -> None:
    cluster = start("abcd")
    cluster.hang("c", 0, limit_s=3.0)
    cluster.finish()
    assert decided(cluster) == [
        "restart: rank 2 (local 0) on c hung: no heartbeat for 3.0 s (limit 3 s); at step 1, in load (data.py:88); "
        "restarting all ranks (2 of 3 restarts left)",
        "finish: every worker exited with 0",
    ]
    assert ended_at(cluster, "c") < 1.0 + 3.0 + 0.05
    assert set(cluster.codes.values()) == {0}


def test_the_rank_that_all_others_wait_for_is_blamed_and_not_the_first_to_exceed_its_limit(start: Start) -> None:
    cluster = start("abcd")
    all_hang(cluster, culprit="d")
    cluster.finish()
    first, *_ = decided(cluster)
    assert first.startswith("restart: rank 3 (local 0) on d hung: ") and "others wait for it in a collective" in first
    assert max(ended_at(cluster, place) for place in "abcd") < 1.0 + 4.0 + 0.1, "a rank that is deaf to SIGTERM was waited for"
    assert recorded(cluster, Decided)[0].restarts_left == 2, "one hang costs one restart"


def test_two_that_hang_at_once_are_one_incident(start: Start) -> None:
    cluster = start("abcd")
    cluster.hang("b", 0, limit_s=3.0)
    cluster.hang("d", 0, limit_s=3.0)
    cluster.finish()
    restart, end = decided(cluster)
    assert restart.startswith("restart: rank ") and end.startswith("finish: ")
    assert {failure.rank for failure in guilty(cluster)} == {1, 3}
    assert len([formed for formed in recorded(cluster, RoundFormed) if formed.round == 2]) == 4


@pytest.mark.parametrize("sooner_s", [number / 400 for number in range(-12, 13)])
def test_whenever_each_node_finds_its_rank_to_hang_the_same_one_is_blamed(start: Start, sooner_s: float) -> None:
    """c may have looked already, and killed its rank, when it is asked to look."""
    cluster = start("abc", delay_s=(0.02, 0.02))
    for place, limit_s, where in (("a", 4.0, WAITING), ("b", 9.0, WAITING), ("c", 4.0 - sooner_s, LOADING)):
        cluster.hang(place, 0, limit_s=limit_s, where=where)
    cluster.finish()
    first, *_ = decided(cluster)
    assert first.startswith("restart: rank 2 (local 0) on c hung: ") and "others wait for it in a collective" in first


def test_a_hang_on_the_coordinator_s_own_node_is_a_hang_like_any_other(start: Start) -> None:
    cluster = start("abc")
    all_hang(cluster, culprit="a")
    cluster.finish()
    assert decided(cluster)[0].startswith("restart: rank 0 (local 0) on a hung: ")
    assert set(cluster.codes.values()) == {0}


def test_a_node_that_is_cut_off_is_not_waited_for_and_kills_its_own_rank_all_the_same(start: Start) -> None:
    cluster = start("abc", min_nodes=2, succession=False)
    cluster.partition("c")
    cluster.hang("b", 0, limit_s=1.0)
    cluster.hang("c", 0, limit_s=1.0)
    cluster.run_for(1.2)
    assert not cluster.agents["b"].world.live and not cluster.agents["c"].world.live, "both died within the lease"
    cluster.heal("c")
    cluster.finish()
    assert decided(cluster)[0].startswith("restart: rank 1 (local 0) on b hung: ")
    assert set(cluster.codes.values()) == {0}


def test_a_hang_found_while_another_failure_is_handled_costs_no_second_restart(start: Start) -> None:
    cluster = start("abc", grace_s=1.0)
    cluster.hang("b", 0, limit_s=2.0)
    cluster.run(2.9999)
    cluster.kill_worker("c", 0, exitcode=1)
    cluster.finish()
    restart, end = decided(cluster)
    assert restart.startswith("restart: rank 2 (local 0) on c exited with code 1") and end.startswith("finish: ")
    assert set(cluster.codes.values()) == {0}


def test_a_crash_during_the_look_is_the_cause_and_whoever_hangs_dies_with_it(start: Start) -> None:
    cluster = start("abc", grace_s=30.0)
    cluster.hang("b", 0, limit_s=2.0)
    cluster.run(3.002)
    cluster.kill_worker("c", 0, exitcode=1)
    cluster.finish()
    assert decided(cluster)[0].startswith("restart: rank 2 (local 0) on c exited with code 1")
    assert ended_at(cluster, "b") < 3.1, "its grace was not waited for"


def test_whoever_dies_of_the_end_of_a_rank_that_hung_is_not_blamed(start: Start) -> None:
    """b's rank has been ended before c is asked to look, over slow links; c's breaks on that."""
    cluster = start("abc", delay_s=(0.02, 0.02))
    cluster.hang("b", 0, limit_s=2.0)
    cluster.run(3.018)
    cluster.kill_worker("c", 0, exitcode=1)
    cluster.finish()
    assert decided(cluster)[0].startswith("restart: rank 1 (local 0) on b hung: ")
    assert ended_at(cluster, "b") < 3.018


def test_each_node_is_asked_once_and_answers_once_however_many_ranks_hang(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: Counter[str] = Counter()
    transmitted = Checks.transmitted

    def count(checks: Checks, agent: SimAgent, message: Message) -> None:
        said[type(message).__name__] += 1
        transmitted(checks, agent, message)

    monkeypatch.setattr(Checks, "transmitted", count)
    cluster = start("abcdefgh", nproc=8)
    for place in "abcdefgh":
        for local_rank in range(8):
            culprit = place == "e" and local_rank == 3
            cluster.hang(place, local_rank, limit_s=4.0 + 0.01 * local_rank, where=LOADING if culprit else WAITING)
    cluster.finish()
    assert decided(cluster)[0].startswith("restart: rank 35 (local 3) on e hung: ")
    assert max(said[kind.__name__] for kind in (HangFound, LookAround, Positions)) <= 8


def test_the_sentence_says_who_where_since_when_and_where_the_stacks_are() -> None:
    failure = Failure(
        node="gpu-07",
        rank=3,
        local_rank=1,
        at_unix=0.0,
        cause="hung",
        message="hung: no heartbeat for 12.3 s (limit 12 s), in section data; at step 41, in load (data.py:88)",
        stacks_path="/jobs/x/incidents/round-1/b/rank-3.txt",
    )
    assert describe(failure) == (
        "rank 3 (local 1) on gpu-07 hung: no heartbeat for 12.3 s (limit 12 s), in section data; at step 41, "
        "in load (data.py:88); stacks: /jobs/x/incidents/round-1/b/rank-3.txt"
    )

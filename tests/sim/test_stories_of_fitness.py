"""What becomes of a job whose nodes are not all fit? Each story is one ailment; all else is what real nodes run."""

from __future__ import annotations

import pytest
from kit.stages.stories import Start, decisions, recorded, rounds

from holdfast.agent.group import node_health
from holdfast.agent.group.state import Phase
from holdfast.core.job.events import HealthChanged, JobEnded, NodeExcluded, NodeReadmitted, RoundFormed
from holdfast.health.examiner import StartCheck
from holdfast.sim.checking import HANGS, always, flapping
from holdfast.sim.checks import Violation
from holdfast.sim.cluster import Cluster, Job
from holdfast.sim.scene import DEADLINE_S
from holdfast.sim.world import Life

LOST = "GPU 3 is lost"


@pytest.fixture
def start() -> Start:
    """`start("abc", ails={"b": always(LOST)}, max_nodes=2)`: a job whose ranks run for 30 s; each node checks itself."""

    def begin(places: str, ails: dict[str, object] | None = None, runs_s: float = 30.0, **job: object) -> Cluster:
        given = {"nproc": 1, "checks": True, "check_every_s": 2.0, "last_call_s": 2.0, "join_timeout_s": 40.0, **job}
        cluster = Cluster(Job(**given), script=lambda place, env: Life(runs_s=runs_s))  # type: ignore[arg-type]
        for place, ailment in (ails or {}).items():
            cluster.ail(place, ailment, "from the start")  # type: ignore[arg-type]
        for number, place in enumerate(places):
            cluster.start(place, host=number == 0)
        return cluster

    return begin


def changes(cluster: Cluster, place: str) -> list[str]:
    return [changed.state for changed in recorded(cluster, HealthChanged, place)]


def excluded(cluster: Cluster) -> list[tuple[str, str]]:
    return [(event.name, event.by) for event in recorded(cluster, NodeExcluded)]


def test_a_node_that_is_unfit_from_the_start_holds_no_rank_where_there_is_a_spare(start: Start) -> None:
    cluster = start("abc", {"b": always(LOST)})
    cluster.finish()
    assert rounds(cluster) == ["ac"] and excluded(cluster) == [("b", "itself")]
    assert cluster.agents["b"].world.workers == {} and set(cluster.codes.values()) == {0}


def test_without_a_spare_the_job_waits_for_it_says_so_and_ends_in_time(start: Start) -> None:
    cluster = start("ab", {"b": always(LOST)})
    cluster.finish()
    (ended,) = {event.reason for event in recorded(cluster, JobEnded)}
    assert "had 1 of 2 nodes (a) after 40 s; excluded: b (gpu: GPU 3 is lost)" in ended, ended
    assert rounds(cluster) == [] and set(cluster.codes.values()) == {1}


def test_one_that_is_mended_while_the_others_wait_takes_part(start: Start) -> None:
    cluster = start("ab", {"b": always(LOST)})
    cluster.run(10.0)
    cluster.mend("b")
    cluster.finish()
    assert rounds(cluster) == ["ab"] and changes(cluster, "b") == ["unfit", "fit"] and set(cluster.codes.values()) == {0}


def test_a_node_that_falls_ill_while_it_trains_is_replaced_and_no_restart_is_spent(start: Start) -> None:
    cluster = start("ab", max_restarts=0)
    cluster.run(5.0)
    cluster.start("c")
    cluster.run(8.0)
    cluster.ail("b", always(LOST), LOST)
    cluster.finish()
    assert rounds(cluster) == ["ab", "ac"] and excluded(cluster) == [("b", "itself")]
    assert decisions(cluster) == ["rejoin", "finish"] and set(cluster.codes.values()) == {0}


def test_the_job_goes_on_with_an_ill_node_that_it_cannot_do_without_and_replaces_it_when_a_spare_comes(start: Start) -> None:
    cluster = start("ab")
    cluster.run(8.0)
    cluster.ail("b", always(LOST), LOST)
    cluster.run(14.0)
    assert cluster.agents["b"].node.group.phase is Phase.RUNNING and not excluded(cluster)
    said = [what for _, place, what in cluster.transcript.entries if place == "b" and "cannot go on without it" in str(what)]
    assert len(said) == 1, "the same again is silence"
    cluster.start("c")
    cluster.finish()
    assert rounds(cluster) == ["ab", "ac"] and excluded(cluster) == [("b", "itself")]


def test_one_that_flaps_comes_back_only_after_so_many_good_answers_and_costs_few_rounds(start: Start) -> None:
    flaps = flapping(LOST, half_s=3.0)
    restless = start("abc", {"b": flaps}, runs_s=60.0, grow="at-once", max_nodes=3)
    steady = start("abc", {"b": flaps}, runs_s=60.0, grow="at-once", max_nodes=3, good_in_a_row=4)
    for cluster in (restless, steady):
        cluster.run(60.0)
    assert len(rounds(restless)) > 5, "without hysteresis each change is a round"
    assert rounds(steady) == ["ac"] and len(changes(steady, "b")) == 1


def test_a_single_bad_answer_costs_nothing_where_two_in_a_row_are_asked_for(start: Start) -> None:
    cluster = start("ab", bad_in_a_row=2)
    cluster.run(8.0)
    cluster.ail("a", lambda now: LOST if now < 10.5 else "", "for a moment")
    cluster.finish()
    assert changes(cluster, "a") == ["degraded", "fit"] and not excluded(cluster) and len(rounds(cluster)) == 1


def test_a_check_that_hangs_costs_its_deadline_and_the_node_its_place(start: Start) -> None:
    cluster = start("abc", {"b": always(HANGS)})
    cluster.run(20.0)
    assert rounds(cluster) == ["ac"] and excluded(cluster) == [("b", "itself")]
    assert "no answer within 2 s" in recorded(cluster, NodeExcluded)[0].reason
    formed_at = [at for at, place, what in cluster.transcript.entries if isinstance(what, RoundFormed) and place == "a"]
    assert formed_at[0] < 2.0 + DEADLINE_S, "nobody waited for more than its answer"
    cluster.mend("b")
    cluster.run(25.0)
    assert [event.name for event in recorded(cluster, NodeReadmitted)] == ["b"]


def test_an_ailment_as_its_assignment_is_on_its_way_is_not_forgotten(start: Start) -> None:
    """It was fit when it joined, and says so again as it starts."""
    cluster = start("abc")
    cluster.run(0.5)
    agent = cluster.agents["b"]

    def fall_ill() -> None:
        cluster.ail("b", always(LOST), LOST)
        assert agent.checking is not None
        agent.checking._start(StartCheck(label="gpu", before={}))  # as an operator's question would

    cluster.timeline.at(1.9, fall_ill)
    cluster.finish()
    assert "b" not in rounds(cluster)[-1]


def test_a_node_that_keeps_its_illness_to_itself_breaks_a_rule(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = node_health.checked
    monkeypatch.setattr(node_health, "checked", lambda state, seen: checked(state, seen) if seen.asked else (state, []))
    cluster = start("ab")
    cluster.run(5.0)
    cluster.start("c")
    cluster.ail("b", always(LOST), LOST)
    with pytest.raises(Violation, match=r"b is unfit .* and holds ranks that others could have"):
        cluster.finish()

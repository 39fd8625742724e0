"""The fleet as Prometheus' text: names and values that its parser takes, whatever reporters call themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from tools.reference.metrics import page

from holdfast.core.wire.fleet import Deed
from holdfast.supervisor import metrics
from holdfast.supervisor.fleet.action_log import ActionLog

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def node(name: str, state: str = "fit", **more: Any) -> dict[str, Any]:
    return {"name": name, "state": state, "by": "", "domain": "", "linked": True, "devices": [], "jobs": []} | more


def fleet(**more: Any) -> dict[str, Any]:
    return {"generation": 3, "policy": "default", "lease_s": 5.0, "at_unix": 1000.0, "nodes": [], "jobs": []} | more


def told(shown: dict[str, Any]) -> dict[tuple[str, ...], float]:
    """(metric, label's value, …) → value, as Prometheus' own parser reads it."""
    text = metrics.exposition(shown).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    assert len(found) == len(samples), "a series came twice"
    return found


def a_job() -> dict[str, Any]:
    ranks = [
        {"rank": 0, "state": "running", "step": 7, "step_s": 0.5, "beat_age_s": 0.1},
        {"rank": 1, "state": "dying", "step": 5, "step_s": 2.5, "beat_age_s": 9.0},
        {"rank": 2, "state": "running", "step": None, "step_s": None, "beat_age_s": None},
    ]
    devices = [{"name": "0000:9b:00", "state": "unfit"}, {"name": "0000:9c:00", "state": "fit"}]
    jobs = [{"job": "train", "round": 2, "state": "running", "ranks": ranks}]
    nodes = [node("a", jobs=jobs, devices=devices, reported_at_unix=990.0), node("b", "spare", linked=False)]
    job = {"name": "train", "state": "running", "round": 2, "attempt": 1, "least": 1, "nodes": ["a"], "spares": ["b"]}
    numbers = {"incidents": {"signal": 2, "a new word": 1}, "detect": {"counts": [1, 0, 2] + 9 * [0], "sum_s": 1.5}}
    some = {"swaps": [{"id": "1", "step": "drain"}], "numbers": numbers, "goodput": 0.9, "replacement_s": 90.0}
    return fleet(nodes=nodes, jobs=[job | {"trained": 0.75}], **some)


def test_every_metric_of_the_list_is_told_and_no_other():
    families = {family.name for family in metrics.families(a_job())}
    assert families == set(metrics.BY_NAME)
    samples = {name for name, *_ in told(a_job())}
    exported = {name for metric in metrics.METRICS for name in metric.exported}
    silent = exported - samples
    assert not silent, f"listed in METRICS, but `_samples` yields none of it, or `a_job` here has nothing to tell: {silent}"
    assert samples <= exported


def test_nodes_jobs_and_the_worst_of_a_job_s_ranks():
    seen = told(a_job())
    assert seen["holdfast_nodes", "fit"] == seen["holdfast_nodes", "spare"] == 1 and seen["holdfast_nodes", "lost"] == 0
    assert seen["holdfast_node_linked", "a"] == 1 and seen["holdfast_node_linked", "b"] == 0
    assert seen["holdfast_node_report_age_seconds", "a"] == 10.0
    assert seen["holdfast_node_sick_devices", "a"] == 1 and seen["holdfast_devices", "unfit"] == 1
    assert seen["holdfast_job_ranks", "train", "running"] == 2 and seen["holdfast_job_ranks", "train", "dying"] == 1
    assert (seen["holdfast_job_step_lowest", "train"], seen["holdfast_job_step_highest", "train"]) == (5, 7)
    assert seen["holdfast_job_step_seconds_longest", "train"] == 2.5
    assert seen["holdfast_job_heartbeat_age_seconds_longest", "train"] == 9.0
    assert seen["holdfast_swaps", "drain"] == 1 and seen["holdfast_supervisor_generation",] == 3


def test_times_are_histograms_and_incidents_counted_by_cause():
    seen = told(a_job())
    assert seen["holdfast_incidents_total", "signal"] == 2 and seen["holdfast_incidents_total", "hung"] == 0
    buckets = [seen["holdfast_detect_seconds_bucket", bound] for bound in ("0.01", "0.1", "1.0", "+Inf")]
    assert buckets == [1, 1, 3, 3] and seen["holdfast_detect_seconds_count",] == 3
    assert seen["holdfast_detect_seconds_sum",] == 1.5
    assert seen["holdfast_train_again_seconds_count",] == 0, "before the first there is no increase to be seen"
    assert seen["holdfast_job_goodput", "train"] == 0.75 and seen["holdfast_goodput",] == 0.9


def test_whatever_a_reporter_says_the_text_stays_text():
    names = ['a"} 1\nholdfast_nodes{state="lost', "back\\slash", "\ud800", "\x1b[31mred", "x" * 500, "x" * 500 + "y", ""]
    jobs = [{"job": "train", "round": 1, "state": "running", "ranks": [{"rank": 0, "state": "\n", "step": 10**400}]}]
    strange = [node(name, "made up", domain=name, by=name, jobs=jobs) for name in names]
    seen = told(fleet(nodes=strange, jobs=[{"name": name, "state": name} for name in [*names, "train"]]))
    assert seen["holdfast_nodes", "lost"] == 0 and seen["holdfast_nodes", "other"] == len(names)
    assert seen["holdfast_job_ranks", "train", "other"] == len(names)
    assert ("holdfast_job_step_lowest", "train") not in seen
    linked = [labels[0] for name, *labels in seen if name == "holdfast_node_linked"]
    assert len(linked) == len(names) - 1 and max(map(len, linked)) <= metrics.LABEL
    assert all(label.isprintable() for label in linked)


def test_of_too_many_those_that_are_not_well_are_told():
    many = [node(f"n{number:05}") for number in range(metrics.NODES + 10)]
    many[-1]["state"] = "lost"
    seen = told(fleet(nodes=many))
    assert seen["holdfast_node_linked", many[-1]["name"]] == 1 and seen["holdfast_left_out", "nodes"] == 10
    assert sum(1 for name, *_ in seen if name == "holdfast_node_linked") == metrics.NODES
    assert seen["holdfast_nodes", "fit"] == metrics.NODES + 9, "the sums are of all"


def deed(id: str, outcome: str = "", act: str = "swap") -> Deed:
    return Deed(
        id=id, at_unix=1.0, node="a", job="j", trouble="lost", seen="", policy="default", act=act, reason="", outcome=outcome
    )


def test_deeds_are_counted_over_all_lives_and_those_that_are_forgotten_too():
    action_log = ActionLog(2, [deed("1-1", "in vain: late"), deed("1-2", "not known: the supervisor was restarted meanwhile")])
    for number in range(3):
        action_log.write(deed(f"2-{number}"))
    action_log.note("2-0", "drain: done")
    action_log.close("2-0", "b has taken over in round 2", 5.0)
    totals = [
        {"act": act, "trouble": trouble, "result": result, "count": count}
        for (act, trouble, result), count in action_log.totals.items()
    ]
    seen = told(fleet(totals=totals))
    assert seen["holdfast_deeds_total", "swap", "lost"] == 5 and seen["holdfast_deeds_open",] == 2
    assert [seen["holdfast_deeds_ended_total", "swap", result] for result in metrics.RESULTS] == [1, 1, 1]
    assert seen["holdfast_deeds_total", "stop", "hang"] == 0, "else its first would be no increase"


def test_the_page_is_made_from_the_list() -> None:
    assert PAGE.read_text() == page(), "run: make reference"


def test_a_fault_for_practice_is_counted_by_its_own_name():
    shown = fleet(totals=[{"act": "inject", "trouble": "operator", "result": "done", "count": 2}])
    assert told(shown)["holdfast_deeds_total", "inject", "operator"] == 2

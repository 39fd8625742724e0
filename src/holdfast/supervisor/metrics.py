"""What does the supervisor look like to Prometheus? Text made of what /api/fleet tells; `METRICS` lists all metrics.

Each node and each job has its series, and no rank: of a job's ranks the worst is told. So there are at most `NODES` x 4 +
`JOBS` x 16 series and some hundred more; beyond, the healthy are left out first, and `holdfast_left_out` counts them. Names
from reporters are cut, and shown without control characters, before they become labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import generate_latest

from holdfast.core.wire.fleet import BOUNDS_S, Act, NodeState, ReporterState, SwapStep, TroubleKind
from holdfast.supervisor.fleet.action_log import Result
from holdfast.supervisor.fleet.numbers import CAUSES
from holdfast.supervisor.web.view import SILENT, WAITING
from holdfast.telemetry.report.safe_text import one_line

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of what `exposition` returns."""

NODES, JOBS = 4096, 512
"""So many have series of their own."""

LABEL = 128
"""Characters of a label's value."""

NODE_STATES = tuple(map(str, NodeState))
DEVICE_STATES = (NodeState.FIT, NodeState.SUSPECT, NodeState.UNFIT)
JOB_STATES = (*map(str, ReporterState), SILENT, WAITING)
RANK_STATES = ("starting", "running", "dying", "gone")
STEPS = tuple(map(str, SwapStep))
ACTS = tuple(map(str, Act))
TROUBLES = tuple(map(str, TroubleKind))
RESULTS = tuple(str(result) for result in Result if result != Result.OPEN)
OTHER = "other"
"""Any word that is not in these lists: a reporter's new word adds no series."""


class Metric(NamedTuple):
    """One row of the list."""

    name: str
    help: str
    """What it is, with its unit."""
    labels: tuple[str, ...] = ()
    is_counter: bool = False
    histogram: str = ""
    """The field of `Hour` that it shows. Empty: it is no histogram."""

    @property
    def kind(self) -> str:
        """As Prometheus calls it."""
        return "histogram" if self.histogram else "counter" if self.is_counter else "gauge"

    @property
    def exported(self) -> tuple[str, ...]:
        """Its names in the text."""
        if self.histogram:
            return tuple(f"{self.name}_{series}" for series in ("bucket", "sum", "count"))
        return (f"{self.name}_total",) if self.is_counter else (self.name,)


JOB = ("job_name",)
NODE_INFO = "1; the node's state, who set it (by), and its network domain (domain)"
OLDEST_BEAT = "Age of the oldest heartbeat of its ranks, at the last report of their nodes"
BEGUN = "Decisions since the first start of the supervisor, by act and trouble"
GOODPUT = "Part of the job's time, on all the nodes that it had in this run, in which it trained: 0 to 1"
GOODPUT_OF_ALL = "The same of all jobs in the last 24 hours"
INCIDENTS = "Rounds of jobs that something ended since the first start of the supervisor, by the first cause that was heard"
DETECT = "From a trouble (a death, the last sign of life of a rank that hangs or of a lost node) until it was seen"
ACT = "From then until the ranks of the next round ran"
TRAIN = "From a trouble until each rank had made a step again"
ENDED = "Decisions by result: done, in_vain, or unknown (the supervisor restarted before the result)"

METRICS = (
    Metric("holdfast_supervisor_info", "1; label `policy` names the policy that decides", ("policy",)),
    Metric("holdfast_supervisor_generation", "Number of starts of the supervisor; it grows by one with each start"),
    Metric("holdfast_supervisor_lease_seconds", "Silence after which a node counts as lost"),
    Metric("holdfast_replacement_seconds", "Time in which the orchestrator gives another node, where that is known"),
    Metric("holdfast_nodes", "Nodes in each state", ("state",)),
    Metric("holdfast_node_info", NODE_INFO, ("node", "domain", "state", "by")),
    Metric("holdfast_node_linked", "1: an agent of the node is connected", ("node",)),
    Metric("holdfast_node_report_age_seconds", "Time since its agent last reported something new", ("node",)),
    Metric("holdfast_node_sick_devices", "GPUs of the node that are suspect or unfit", ("node",)),
    Metric("holdfast_devices", "GPUs in each state, of those with a report", ("state",)),
    Metric("holdfast_jobs", "Jobs in each state", ("state",)),
    Metric("holdfast_job_info", "1; the job's state", ("job_name", "state")),
    Metric("holdfast_job_round", "The newest round that a node of the job has reached", JOB),
    Metric("holdfast_job_attempt", "Restarts of the job's ranks in this run of the job", JOB),
    Metric("holdfast_job_nodes", "Nodes on which ranks of the job run", JOB),
    Metric("holdfast_job_nodes_least", "Least number of nodes for a round of the job", JOB),
    Metric("holdfast_job_spares", "Nodes that wait for a place in the job", JOB),
    Metric("holdfast_job_ranks", "Ranks of the job in each state", ("job_name", "state")),
    Metric("holdfast_job_step_lowest", "Step of the rank that is furthest behind", JOB),
    Metric("holdfast_job_step_highest", "Step of the rank that is furthest ahead", JOB),
    Metric("holdfast_job_step_seconds_longest", "Duration of the last step of the slowest rank", JOB),
    Metric("holdfast_job_heartbeat_age_seconds_longest", OLDEST_BEAT, JOB),
    Metric("holdfast_job_goodput", GOODPUT, JOB),
    Metric("holdfast_goodput", GOODPUT_OF_ALL),
    Metric("holdfast_incidents", INCIDENTS, ("cause",), is_counter=True),
    Metric("holdfast_detect_seconds", DETECT, histogram="detect"),
    Metric("holdfast_act_seconds", ACT, histogram="act"),
    Metric("holdfast_train_again_seconds", TRAIN, histogram="train"),
    Metric("holdfast_swaps", "Nodes that are being taken out now, by step", ("step",)),
    Metric("holdfast_deeds", BEGUN, ("act", "trouble"), is_counter=True),
    Metric("holdfast_deeds_ended", ENDED, ("act", "result"), is_counter=True),
    Metric("holdfast_deeds_open", "Decisions without a result yet"),
    Metric("holdfast_left_out", "Nodes and jobs without series, because there are too many", ("kind",)),
)
BY_NAME = {metric.name: metric for metric in METRICS}


def exposition(fleet: Mapping[str, Any]) -> bytes:
    """Prometheus text of a fleet, as /api/fleet tells it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Told(fleet))
    return generate_latest(registry)


def families(fleet: Mapping[str, Any]) -> Iterator[Family]:
    """The same as values of the client library: a family of samples for each metric, in the order of `METRICS`."""
    samples: dict[str, dict[tuple[str, ...], float]] = {metric.name: {} for metric in METRICS}
    for name, labels, value in _samples(fleet):
        # Of two whose names look alike once they are cut the first counts: Prometheus takes no text with a series twice.
        samples[name].setdefault(tuple(_label(label) for label in labels), value)
    for metric in METRICS:
        if metric.histogram:
            yield _histogram(metric, (fleet.get("numbers") or {}).get(metric.histogram) or {})
            continue
        kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=metric.labels)
        for labels, value in samples[metric.name].items():
            family.add_metric(labels, value)
        yield family


class _Told:
    """A collector, for the client library."""

    def __init__(self, fleet: Mapping[str, Any]) -> None:
        self.fleet = fleet

    def collect(self) -> Iterator[Family]:
        return families(self.fleet)


Sample = tuple[str, tuple[str, ...], float]
"""Metric, its labels' values, value."""


def _samples(fleet: Mapping[str, Any]) -> Iterator[Sample]:
    nodes, jobs = list(fleet.get("nodes") or ()), list(fleet.get("jobs") or ())
    at_unix = _number(fleet.get("at_unix")) or 0.0
    yield "holdfast_supervisor_info", (str(fleet.get("policy", "")),), 1.0
    yield from _known("holdfast_supervisor_generation", (), fleet.get("generation"))
    yield from _known("holdfast_supervisor_lease_seconds", (), fleet.get("lease_s"))
    yield from _known("holdfast_replacement_seconds", (), fleet.get("replacement_s"))
    yield from _counted("holdfast_nodes", (), (node.get("state") for node in nodes), NODE_STATES)
    devices = [device.get("state") for node in nodes for device in node.get("devices") or ()]
    yield from _counted("holdfast_devices", (), devices, DEVICE_STATES)
    yield from _counted("holdfast_jobs", (), (job.get("state") for job in jobs), JOB_STATES)
    well = (NodeState.FIT, NodeState.SPARE)
    for node in sorted(nodes, key=lambda one: (one.get("state") in well, str(one.get("name"))))[:NODES]:
        yield from _of_node(node, at_unix)
    ranks = _ranks(nodes)
    for job in sorted(jobs, key=lambda one: (one.get("state") != ReporterState.RUNNING, str(one.get("name"))))[:JOBS]:
        yield from _of_job(job, ranks.get(str(job.get("name")), []))
    yield from _counted("holdfast_swaps", (), (swap.get("step") for swap in fleet.get("swaps") or ()), STEPS)
    yield from _of_deeds(fleet)
    yield from _known("holdfast_goodput", (), fleet.get("goodput"))
    yield from _of_incidents((fleet.get("numbers") or {}).get("incidents") or {})
    yield "holdfast_left_out", ("nodes",), float(max(0, len(nodes) - NODES))
    yield "holdfast_left_out", ("jobs",), float(max(0, len(jobs) - JOBS))


def _of_node(node: Mapping[str, Any], at_unix: float) -> Iterator[Sample]:
    name = str(node.get("name"))
    state, by = _word(node.get("state"), NODE_STATES), str(node.get("by") or "")
    yield "holdfast_node_info", (name, str(node.get("domain") or ""), state, by), 1.0
    yield "holdfast_node_linked", (name,), float(bool(node.get("linked")))
    if said := _number(node.get("reported_at_unix")):
        yield "holdfast_node_report_age_seconds", (name,), max(0.0, at_unix - said)
    sick = [device for device in node.get("devices") or () if device.get("state") != NodeState.FIT]
    yield "holdfast_node_sick_devices", (name,), float(len(sick))


def _of_job(job: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> Iterator[Sample]:
    name = str(job.get("name"))
    yield "holdfast_job_info", (name, _word(job.get("state"), JOB_STATES)), 1.0
    yield from _known("holdfast_job_round", (name,), job.get("round"))
    yield from _known("holdfast_job_attempt", (name,), job.get("attempt"))
    yield "holdfast_job_nodes", (name,), float(len(job.get("nodes") or ()))
    yield from _known("holdfast_job_goodput", (name,), job.get("trained"))
    yield from _known("holdfast_job_nodes_least", (name,), job.get("least"))
    yield "holdfast_job_spares", (name,), float(len(job.get("spares") or ()))
    yield from _counted("holdfast_job_ranks", (name,), (rank.get("state") for rank in ranks), RANK_STATES)
    for metric, field, worst in (
        ("holdfast_job_step_lowest", "step", min),
        ("holdfast_job_step_highest", "step", max),
        ("holdfast_job_step_seconds_longest", "step_s", max),
        ("holdfast_job_heartbeat_age_seconds_longest", "beat_age_s", max),
    ):
        if told := [value for rank in ranks if (value := _number(rank.get(field))) is not None]:
            yield metric, (name,), worst(told)


def _of_deeds(fleet: Mapping[str, Any]) -> Iterator[Sample]:
    """`totals` are the supervisor's own counts: of the deeds themselves only the newest are told. All that there can be is told
    from the beginning: the step from nothing to 1 is no increase to Prometheus."""
    begun = {(act, trouble): 0.0 for act in ACTS for trouble in TROUBLES}
    ended = {(act, result): 0.0 for act in ACTS for result in RESULTS}
    for total in fleet.get("totals") or ():
        act, trouble = _word(total.get("act"), ACTS), _word(total.get("trouble"), TROUBLES)
        number = _number(total.get("count")) or 0.0
        begun[act, trouble] = begun.get((act, trouble), 0.0) + number
        if (result := total.get("result")) != Result.OPEN:
            key = act, _word(result, RESULTS)
            ended[key] = ended.get(key, 0.0) + number
    yield from (("holdfast_deeds", labels, number) for labels, number in begun.items())
    yield from (("holdfast_deeds_ended", labels, number) for labels, number in ended.items())
    yield "holdfast_deeds_open", (), sum(begun.values()) - sum(ended.values())


def _of_incidents(counts: Mapping[str, Any]) -> Iterator[Sample]:
    yield from (("holdfast_incidents", (cause,), float(counts.get(cause, 0))) for cause in CAUSES)


def _histogram(metric: Metric, told: Mapping[str, Any]) -> HistogramMetricFamily:
    """Prometheus' buckets count what is shorter, too."""
    upto = accumulate(told.get("counts") or (0,) * (len(BOUNDS_S) + 1))
    buckets = [(bound, float(count)) for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), upto)]
    return HistogramMetricFamily(metric.name, metric.help, buckets=buckets, sum_value=told.get("sum_s") or 0.0)


def _ranks(nodes: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for job in (job for node in nodes for job in node.get("jobs") or ()):
        found.setdefault(str(job.get("job")), []).extend(job.get("ranks") or ())
    return found


def _counted(metric: str, labels: tuple[str, ...], words: Iterable[object], known: Sequence[str]) -> Iterator[Sample]:
    """How often each word comes; 0 is told too, so that an alert sees it go."""
    counts = dict.fromkeys(known, 0)
    for word in words:
        told = _word(word, known)
        counts[told] = counts.get(told, 0) + 1
    yield from ((metric, (*labels, word), float(number)) for word, number in counts.items())


def _known(metric: str, labels: tuple[str, ...], value: object) -> Iterator[Sample]:
    if (number := _number(value)) is not None:
        yield metric, labels, number


def _word(word: object, known: Sequence[str]) -> str:
    return word if isinstance(word, str) and word in known else OTHER


def _label(text: str) -> str:
    return one_line(text, LABEL)


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float)) else None
    except OverflowError:  # a whole number of any size may come from a reporter
        return None

"""What a receiver of OTLP hears of a fleet and of a job: over HTTP, from OpenTelemetry's own exporters."""

from __future__ import annotations

from typing import Any

import pytest
from kit.fleet.told_fleet import ToldFleet
from kit.network.receiver import Receiver, receiver

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def spans(collector: Receiver) -> dict[str, Any]:
    """By name, of those that were taken."""
    found = {}
    for post in list(collector.taken):
        if post.path == "/v1/traces":
            for scope in ExportTraceServiceRequest.FromString(post.body).resource_spans[0].scope_spans:
                found |= {span.name: span for span in scope.spans}
    return found


def metrics(collector: Receiver) -> dict[str, Any]:
    """By name, in the newest export."""
    for post in reversed(list(collector.taken)):
        if post.path == "/v1/metrics":
            return {
                one.name: one
                for one in ExportMetricsServiceRequest.FromString(post.body).resource_metrics[0].scope_metrics[0].metrics
            }
    return {}


def told_of(span: Any) -> dict[str, Any]:
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


def job(round: int, state: str = "running") -> dict[str, Any]:
    life = {"life": "x", "at_unix": 1.0, "round": round, "outcome": ""}
    return {"name": "train", "state": state, "round": round, "attempt": round - 1, "nodes": ["a"], "ranks": 4, "lives": [life]}


def test_deeds_rounds_and_metrics_of_a_fleet(holdfast, tmp_path, wait_until):
    told = ToldFleet(tmp_path / "fleet")
    total = {"act": "swap", "trouble": "lost", "result": "done", "count": 7}
    told.change(nodes=[{"name": "a", "state": "fit"}], jobs=[job(1)], totals=[total])
    with receiver(wait_until) as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_METRIC_EXPORT_INTERVAL": "100"}
        holdfast.start("notify", "--state", told.folder, env=env)
        wait_until(lambda: metrics(collector))
        collector.answers = [400] * 3  # a collector that does not take it: a deed is kept, and comes again
        told.deed("1", "c has taken over in round 2")
        told.deed("2", "in vain: nobody answers", act="restart-job")
        told.change(jobs=[job(2)])
        wait_until(lambda: {"swap", "restart-job", "round 1"} <= spans(collector).keys())
        found, gauges = spans(collector), metrics(collector)
    told.close()
    assert told_of(found["swap"])["holdfast.outcome"] == "c has taken over in round 2"
    assert found["swap"].trace_id == found["round 1"].trace_id, "one life of a job is one trace"
    assert found["restart-job"].status.message == "in vain: nobody answers" and found["restart-job"].status.code == 2
    assert told_of(found["round 1"])["holdfast.ranks"] == 4
    points = {point.attributes[0].value.string_value: point.as_double for point in gauges["holdfast_nodes"].gauge.data_points}
    assert points["fit"] == 1 and points["lost"] == 0
    assert gauges["holdfast_deeds"].sum.is_monotonic
    assert max(point.as_double for point in gauges["holdfast_deeds"].sum.data_points) == 7


def test_a_job_s_record_is_one_trace_with_a_span_for_each_life_of_its_ranks(holdfast, script, wait_until):
    fails_once = script("import os, sys; sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')")
    assert holdfast.run("run", "--rdzv-id", "train", "--max-restarts", "1", fails_once).returncode == 0
    with receiver(wait_until) as collector:
        told = holdfast.run("report", "train", "--otlp", collector.url)
        assert told.returncode == 0 and "exported to" in told.stdout, told.output
        found = spans(collector)
    assert set(found) == {"job train", "round 1, attempt 0", "round 2, attempt 1"}
    whole, first = found["job train"], found["round 1, attempt 0"]
    assert first.parent_span_id == whole.span_id and first.trace_id == whole.trace_id
    assert first.status.code == 2 and "exited with code 1" in first.status.message
    assert [event.name for event in first.events] == ["ranks started", "failure"]
    assert whole.start_time_unix_nano <= first.start_time_unix_nano <= first.end_time_unix_nano <= whole.end_time_unix_nano


def test_a_collector_that_is_not_there_is_said_and_costs_an_error(holdfast, script):
    assert holdfast.run("run", "--rdzv-id", "train", script("")).returncode == 0
    refused = holdfast.run("report", "--otlp", "http://127.0.0.1:9", env={"OTEL_EXPORTER_OTLP_TIMEOUT": "1"})
    assert refused.returncode == 1 and "did not accept the trace" in refused.stderr and "Traceback" not in refused.stderr

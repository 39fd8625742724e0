"""How do a fleet and a job look to OpenTelemetry? Deeds, rounds and attempts as spans, and the metrics that Prometheus has.

A span's id is made of what the span is about, so exporting it twice gives one span. Of the SDK only values and OTLP exporters
are used, no global provider. Resource, headers, certificates, compression and time limit are OpenTelemetry's variables
(OTEL_RESOURCE_ATTRIBUTES, OTEL_EXPORTER_OTLP_HEADERS, …).
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from holdfast import __version__
from holdfast.core.job.failure import describe
from holdfast.core.job.report import Outcome
from holdfast.core.wire.fleet import BOUNDS_S
from holdfast.supervisor.metrics import BY_NAME, families
from holdfast.supervisor.notify.delivery_queue import Notification
from holdfast.supervisor.notify.round_events import Rounds, RoundSeen, life_at
from holdfast.supervisor.notify.webhook import Answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.telemetry.report.timeline import Life, Timeline

EVERY_S = 60.0
"""Between two exports of metrics, unless OTEL_METRIC_EXPORT_INTERVAL (in ms) says so. OpenTelemetry's own: 60."""

ROUNDS = 1000  # Rounds that wait for a receiver that does not answer; the oldest of more are dropped.

SCOPE = InstrumentationScope("holdfast", __version__)


class Otlp:
    """One receiver of OTLP over HTTP."""

    def __init__(self, url: str) -> None:
        """`url`: as OTEL_EXPORTER_OTLP_ENDPOINT; empty: that, and the variables for each signal."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)  # our caller says what was not taken
        base = url.rstrip("/")
        self.spans = OTLPSpanExporter(endpoint=f"{base}/v1/traces" if base else None)
        self.metrics = OTLPMetricExporter(endpoint=f"{base}/v1/metrics" if base else None)
        self.name = f"OTLP at {base or os.environ.get('OTEL_EXPORTER_OTLP_ENDPOINT') or 'localhost'}"
        self.resource = Resource.create({"service.name": "holdfast"} if "OTEL_SERVICE_NAME" not in os.environ else {})
        self.every_s = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or EVERY_S * 1e3) / 1e3
        self.fleet: dict[str, Any] = {}
        self.rounds, self.waiting = Rounds(), deque[ReadableSpan](maxlen=ROUNDS)
        self._news, self._never = threading.Event(), threading.Event()
        self.clock, self.unix = time.monotonic, time.time
        self._turn = threading.Lock()
        """Deeds and rounds are sent by two threads; nobody says that an exporter is for more than one."""

    # --- the supervisor's -----------------------------------------------------------------------------------------------

    def deliver(self, notification: Notification) -> Answer:
        """A deed that has ended, as one span. See `Receiver`."""
        return self.send([self._deed(notification.deed)])

    def send(self, spans: Sequence[ReadableSpan]) -> Answer:
        """Export these spans, once."""
        try:
            with self._turn:
                taken = self.spans.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # the exporter's transport, and what it rests on, may be replaced by the user's
            return Answer(taken=False, text=f"{type(error).__name__}: {error}")
        return Answer(taken=taken, text="" if taken else "no answer, or a refusal")

    def start(self) -> None:
        """Export metrics, and rounds as they end, from a thread, as long as this process lives."""
        threading.Thread(target=self._run, name="otlp", daemon=True).start()

    def hear(self, fleet: dict[str, Any], jobs: Sequence[dict[str, Any]]) -> None:
        """The fleet is so now; these of its jobs have changed. Never waits."""
        self.fleet = fleet
        for ended in self.rounds.hear(jobs, float(fleet.get("at_unix") or self.unix())):
            self.waiting.append(self._round(ended))
        self._news.set()

    def _run(self) -> None:
        self._news.wait()  # before, there is nothing to tell
        while True:
            began = self.clock()
            spans = [self.waiting.popleft() for _ in range(len(self.waiting))]
            if spans and not self.send(spans).taken:
                self.waiting.extendleft(reversed(spans[len(self.waiting) :]))  # the oldest make room for what came meanwhile
            self.measure()
            self._never.wait(max(0.0, began + self.every_s - self.clock()))

    def measure(self) -> bool:
        """Export the fleet's metrics, once; whether they were taken."""
        try:
            return self.metrics.export(self.measured(self.fleet)) is sdk.MetricExportResult.SUCCESS
        except Exception:  # as in `send`; what is missed is said in the next one, a minute later
            return False

    def measured(self, fleet: dict[str, Any]) -> sdk.MetricsData:
        at_ns = _ns(self.unix())
        metrics = []
        for family in families(fleet):
            if field := BY_NAME[family.name].histogram:
                data: Any = sdk.Histogram([_durations(fleet, field, at_ns)], sdk.AggregationTemporality.CUMULATIVE)
                metrics.append(sdk.Metric(name=family.name, description=family.documentation, unit="", data=data))
                continue
            points = [
                sdk.NumberDataPoint(attributes=sample.labels, start_time_unix_nano=0, time_unix_nano=at_ns, value=sample.value)
                for sample in family.samples
            ]
            if BY_NAME[family.name].is_counter:
                data = sdk.Sum(points, sdk.AggregationTemporality.CUMULATIVE, is_monotonic=True)
            else:
                data = sdk.Gauge(points)
            metrics.append(sdk.Metric(name=family.name, description=family.documentation, unit="", data=data))
        scoped = sdk.ScopeMetrics(scope=SCOPE, metrics=metrics, schema_url="")
        return sdk.MetricsData([sdk.ResourceMetrics(resource=self.resource, scope_metrics=[scoped], schema_url="")])

    def _deed(self, deed: Any) -> ReadableSpan:
        job, at_unix = str(deed.get("job") or ""), float(deed.get("at_unix") or 0.0)
        life = life_at(self.fleet.get("jobs") or (), job, at_unix)
        fields = ("node", "job", "trouble", "seen", "policy", "act", "reason", "outcome")
        told = {f"holdfast.{field}": str(deed.get(field) or "") for field in fields}
        in_vain = told["holdfast.outcome"].startswith("in vain")
        return self.span(
            str(deed.get("act")),
            trace=(job, life) if job else ("deed", str(deed.get("id"))),
            own=("deed", str(deed.get("id")), str(at_unix)),
            began_unix=at_unix,
            ended_unix=float(deed.get("ended_at_unix") or at_unix),
            attributes=told,
            events=[Event(str(step), timestamp=_ns(at_unix)) for step in deed.get("done") or ()],
            error=told["holdfast.outcome"] if in_vain else "",
        )

    def _round(self, seen: RoundSeen) -> ReadableSpan:
        told = {"holdfast.job": seen.job, "holdfast.round": seen.round, "holdfast.attempt": seen.attempt}
        told |= {"holdfast.ranks": seen.ranks, "holdfast.nodes": len(seen.nodes)}
        return self.span(
            f"round {seen.round}",
            trace=(seen.job, seen.life),
            own=("round", str(seen.round)),
            began_unix=seen.began_unix,
            ended_unix=seen.ended_unix,
            attributes=told,
        )

    # --- one job's, from its record -------------------------------------------------------------------------------------

    def story(self, job: Timeline) -> list[ReadableSpan]:
        """A job as one trace: itself, and below it each life of its ranks."""
        until = job.ended_at or self.unix()
        trace = job.job, str(job.started_at)
        failed = job.reason if job.outcome == Outcome.FAILED else ""
        told = {"holdfast.job": job.job, "holdfast.state": job.state, "holdfast.outcome": job.outcome or ""}
        told["holdfast.reason"] = job.reason
        whole = self.span(
            f"job {job.job}",
            trace=trace,
            own=("job",),
            began_unix=job.started_at or until,
            ended_unix=until,
            attributes=told,
            error=failed,
        )
        return [whole, *(self._life(life, trace, whole.context, until) for life in job.lives)]

    def _life(self, life: Life, trace: tuple[str, ...], parent: SpanContext | None, until: float) -> ReadableSpan:
        told: dict[str, Any] = {"holdfast.round": life.round, "holdfast.attempt": life.attempt, "holdfast.why": life.reason}
        told |= {"holdfast.ranks": life.world_size, "holdfast.nodes": list(life.nodes)}
        if life.decision is not None:
            told |= {"holdfast.decision": life.decision.decision, "holdfast.reason": life.decision.reason}
        if life.lost_s is not None:
            told["holdfast.lost_s"] = life.lost_s
        events = [Event("failure", {"holdfast.what": describe(one)}, _ns(one.at_unix)) for one in life.guilty]
        if life.started_at is not None:
            events.insert(0, Event("ranks started", timestamp=_ns(life.started_at)))
        return self.span(
            f"round {life.round}, attempt {life.attempt}",
            trace=trace,
            own=("life", str(life.round), str(life.attempt)),
            parent=parent,
            began_unix=life.formed_at,
            ended_unix=life.ended_at or life.disturbed_at or until,
            attributes=told,
            events=events,
            error=describe(life.guilty[0]) if life.guilty else "",
        )

    # --- spans ----------------------------------------------------------------------------------------------------------

    def span(
        self,
        name: str,
        *,
        trace: tuple[str, ...],
        own: tuple[str, ...],
        began_unix: float,
        ended_unix: float,
        attributes: dict[str, Any],
        events: Sequence[Event] = (),
        parent: SpanContext | None = None,
        error: str = "",
    ) -> ReadableSpan:
        """One that is over. `trace`, `own`: what its ids are made of."""
        context = SpanContext(_id(trace, 16), _id((*trace, *own), 8), is_remote=False, trace_flags=TraceFlags(1))
        return ReadableSpan(
            name,
            context=context,
            parent=parent,
            resource=self.resource,
            attributes=attributes,
            events=events,
            status=Status(StatusCode.ERROR, error) if error else Status(StatusCode.UNSET),
            start_time=_ns(began_unix),
            end_time=_ns(max(began_unix, ended_unix)),
            instrumentation_scope=SCOPE,
        )


def _id(words: tuple[str, ...], length: int) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(words).encode(errors="replace")).digest()[:length], "big") or 1


def _durations(fleet: dict[str, Any], field: str, at_ns: int) -> sdk.HistogramDataPoint:
    """One of the fleet's histograms; the shortest and the longest are not known."""
    told = (fleet.get("numbers") or {}).get(field) or {}
    counts = told.get("counts") or [0] * (len(BOUNDS_S) + 1)
    unknown: Any = None
    return sdk.HistogramDataPoint(
        attributes={},
        start_time_unix_nano=0,
        time_unix_nano=at_ns,
        count=sum(counts),
        sum=told.get("sum_s") or 0.0,
        bucket_counts=counts,
        explicit_bounds=BOUNDS_S,
        min=unknown,
        max=unknown,
    )


def _ns(at_unix: float) -> int:
    return int(at_unix * 1e9)

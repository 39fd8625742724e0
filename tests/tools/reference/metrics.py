"""What does docs/reference/metrics.md say? Made from the list in supervisor/metrics.py."""

from __future__ import annotations

from holdfast.supervisor import metrics

HEAD = """# Metrics

<!-- Made from the list in supervisor/metrics.py by `make reference`. Do not edit. -->

The supervisor exports these metrics to Prometheus at `/metrics`, and to OpenTelemetry by OTLP (where counters have no
`_total`). To use them, read [Metrics and alerts](../how-to/metrics-and-alerts.md).

| metric | kind | labels | meaning |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    words = [
        ("`state` of nodes", metrics.NODE_STATES),
        ("`state` of GPUs", metrics.DEVICE_STATES),
        ("`state` of jobs", metrics.JOB_STATES),
        ("`state` of ranks", metrics.RANK_STATES),
        ("`step` of swaps", metrics.STEPS),
        ("`act`", metrics.ACTS),
        ("`trouble`", metrics.TROUBLES),
        ("`result`", metrics.RESULTS),
        ("`cause`", metrics.CAUSES),
    ]
    lines = ["## Labels\n", "| label | values |", "|---|---|"]
    lines += [f"| {label} | {', '.join(known)} |" for label, known in words]
    return HEAD + "\n".join(map(_row, metrics.METRICS)) + "\n\n" + "\n".join(lines) + "\n" + TAIL


def _row(metric: metrics.Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    name = metric.name if metric.histogram else metric.exported[0]
    return f"| `{name}` | {metric.kind} | {labels or '–'} | {metric.help} |"


TAIL = f"""
Any other value counts as `{metrics.OTHER}`. Agents send the names of nodes, jobs and domains: the supervisor escapes control
characters and cuts names to {metrics.LABEL} characters. The label is `job_name` because Prometheus sets the label `job` itself.

## How many series

At most {metrics.NODES:,} nodes and {metrics.JOBS} jobs have their own series: 4 per node and 16 per job, plus about one hundred
others. Nodes that are neither fit nor spare, and running jobs, come first. `holdfast_left_out` counts those without series.
Ranks have no series: the job's series show its worst rank, and `holdfast top JOB` shows each rank.
"""

"""What does docs/reference/metrics.md say? Made from the list in supervisor/metrics.py."""

from __future__ import annotations

from holdfast.supervisor import metrics

HEAD = """# Metrics

<!-- Made from the list in supervisor/metrics.py by `make reference`. Do not edit. -->

What the supervisor tells Prometheus at `/metrics`, and OpenTelemetry by OTLP (there counters have no `_total`). To use them:
[Metrics and alerts](../how-to/metrics-and-alerts.md).

| metric | kind | labels | what it is |
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
    ]
    lines = ["## Labels\n", "| label | values |", "|---|---|"]
    lines += [f"| {label} | {', '.join(known)} |" for label, known in words]
    return HEAD + "\n".join(map(_row, metrics.METRICS)) + "\n\n" + "\n".join(lines) + "\n" + TAIL


def _row(metric: metrics.Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.exported}` | {'counter' if metric.is_counter else 'gauge'} | {labels or '–'} | {metric.help} |"


TAIL = f"""
Any other word counts as `{metrics.OTHER}`. The names of nodes, jobs and domains come from agents: control characters are
escaped, and what is longer than {metrics.LABEL} characters is cut. `job_name` is not called `job`, which is the scrape's own.

## How many series

At most {metrics.NODES:,} nodes and {metrics.JOBS} jobs have series of their own: 4 for each node, 15 for each job, and some
hundred beside. Nodes that are neither fit nor spare, and jobs that run, come first;
`holdfast_left_out` tells how many have none.
There is no series for a rank: of a job's ranks the worst is told, and `holdfast top JOB` shows each.
"""

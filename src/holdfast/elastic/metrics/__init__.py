"""Numbers from the agent, or from your own code, to a handler of your choice. By default they go nowhere.

    import holdfast.elastic.metrics as metrics

    metrics.configure(metrics.ConsoleMetricHandler(), group="my_app")
    metrics.put_metric("epochs", 3, "my_app")

    @metrics.prof(group="my_app")          # → <class or module>.<function>.success / .failure / .duration.ms
    def step(): ...

A metric is named by its group and its name; the agent's own are in the group `torchelastic`.
"""

from __future__ import annotations

from .api import (
    ConsoleMetricHandler,
    MetricData,
    MetricHandler,
    MetricsConfig,
    NullMetricHandler,
    configure,
    get_elapsed_time_ms,
    getStream,
    prof,
    profile,
    publish_metric,
    put_metric,
)

__all__ = [
    "ConsoleMetricHandler",
    "MetricData",
    "MetricHandler",
    "MetricsConfig",
    "NullMetricHandler",
    "configure",
    "getStream",
    "get_elapsed_time_ms",
    "initialize_metrics",
    "prof",
    "profile",
    "publish_metric",
    "put_metric",
]


def initialize_metrics(cfg: MetricsConfig | None = None) -> None:
    """Called by the launcher before the agent runs; does nothing, and may be replaced."""

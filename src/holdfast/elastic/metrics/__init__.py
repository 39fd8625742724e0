"""Numbers from the agent, or from your own code, to a handler of your choice. By default they go nowhere.

    import holdfast.elastic.metrics as metrics

    metrics.configure(metrics.ConsoleMetricHandler(), group="my_app")
    metrics.put_metric("epochs", 3, "my_app")

    @metrics.prof(group="my_app")          # → <class or module>.<function>.success / .failure / .duration.ms
    def step(): ...

A metric is named by its group and its name; the agent's own are in the group `torchelastic`.
"""

from __future__ import annotations

from .api import *  # noqa: F403 (its `__all__` is the list)
from .api import MetricsConfig
from .api import __all__ as _of_api

__all__ = [*_of_api, "initialize_metrics"]


def initialize_metrics(cfg: MetricsConfig | None = None) -> None:
    """Called by the launcher before the agent runs; does nothing, and may be replaced."""

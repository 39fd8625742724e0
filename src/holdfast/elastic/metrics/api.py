"""Where does a metric go? Handlers, by group, and the few ways to give them a number."""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple

__all__ = [
    "ConsoleMetricHandler",
    "MetricData",
    "MetricHandler",
    "MetricStream",
    "MetricsConfig",
    "NullMetricHandler",
    "configure",
    "getStream",
    "get_elapsed_time_ms",
    "prof",
    "profile",
    "publish_metric",
    "put_metric",
]

Function = Callable[..., Any]


class MetricData(NamedTuple):
    """One number. `timestamp` in seconds since the epoch."""

    timestamp: float
    group_name: str
    name: str
    value: float


class MetricsConfig:
    """Free-form settings for `initialize_metrics`."""

    __slots__ = ["params"]

    def __init__(self, params: dict[str, str] | None = None) -> None:
        self.params = {} if params is None else params


class MetricHandler(ABC):
    """Takes the metrics somewhere. Yours implements `emit`."""

    @abstractmethod
    def emit(self, metric_data: MetricData) -> None: ...


class ConsoleMetricHandler(MetricHandler):
    """Prints `[timestamp][group]: name=value` to stdout."""

    def emit(self, metric_data: MetricData) -> None:
        print(f"[{metric_data.timestamp}][{metric_data.group_name}]: {metric_data.name}={metric_data.value}")


class NullMetricHandler(MetricHandler):
    """Drops everything."""

    def emit(self, metric_data: MetricData) -> None:
        pass


@dataclass(eq=False)
class MetricStream:
    """One group and its handler."""

    group_name: str
    handler: MetricHandler

    def add_value(self, metric_name: str, metric_value: float) -> None:
        self.handler.emit(MetricData(time.time(), self.group_name, metric_name, metric_value))


_metrics_map: dict[str, MetricHandler] = {}
_default_metrics_handler: MetricHandler = NullMetricHandler()


def configure(handler: MetricHandler, group: str | None = None) -> None:
    """`handler` takes the group's metrics; without a group, those of every group that has no handler of its own."""
    global _default_metrics_handler
    if group is None:
        _default_metrics_handler = handler
    else:
        _metrics_map[group] = handler


def getStream(group: str) -> MetricStream:
    """The group with the handler that it has now."""
    return MetricStream(group, _metrics_map.get(group, _default_metrics_handler))


def put_metric(metric_name: str, metric_value: float, metric_group: str = "torchelastic") -> None:
    """Give one number to the group's handler."""
    getStream(metric_group).add_value(metric_name, metric_value)


def prof(fn: Function | None = None, group: str = "torchelastic") -> Function:
    """Decorator, with or without arguments: each call puts `<name>.success` or `.failure` (1), and `<name>.duration.ms`.

    `<name>` is the method's qualified name, or module and function for a function of a module.
    """

    def wrap(function: Function) -> Function:
        return _measured(function, lambda: _get_metric_name(function), lambda name, value: put_metric(name, value, group))

    return wrap(fn) if fn else wrap


def profile(group: str | None = None) -> Function:
    """Deprecated: `prof`. Names metrics after the bare function."""
    _deprecated("profile", "prof")

    def wrap(function: Function) -> Function:
        stream = getStream(group)  # type: ignore[arg-type]
        return _measured(function, lambda: function.__name__, stream.add_value)

    return wrap


def publish_metric(metric_group: str, metric_name: str, metric_value: float) -> None:
    """Deprecated: `put_metric`."""
    _deprecated("publish_metric", "put_metric")
    getStream(metric_group).add_value(metric_name, metric_value)


def get_elapsed_time_ms(start_time_in_seconds: float) -> int:
    """Milliseconds since a `time.time()`."""
    return int((time.time() - start_time_in_seconds) * 1000)


def _measured(function: Function, named: Callable[[], str], put: Callable[[str, float], None]) -> Function:
    @wraps(function)
    def measured(*args: Any, **kwargs: Any) -> Any:
        name = named()
        began = time.time()
        try:
            result = function(*args, **kwargs)
            put(f"{name}.success", 1)
            return result
        except Exception:
            put(f"{name}.failure", 1)
            raise
        finally:
            put(f"{name}.duration.ms", get_elapsed_time_ms(began))

    return measured


def _get_metric_name(fn: Function) -> str:
    qualname = fn.__qualname__
    if "." in qualname or not fn.__module__:
        return qualname
    return f"{fn.__module__.split('.')[-1]}.{qualname}"


def _deprecated(name: str, instead: str) -> None:
    warnings.warn(f"{name} is deprecated: use {instead}", FutureWarning, stacklevel=3)

"""NVRx's `inprocess` by its own names: a script changes its import, and nothing else.

    from holdfast import inprocess

Under `holdfast run` it is `client.run_in_place`; under another launcher the ranks that live go on by themselves. What differs
from NVRx on purpose: docs/reference/in-process.md.
"""

from __future__ import annotations

from holdfast.inprocess import (
    abort,
    completion,
    compose,
    exception,
    finalize,
    health_check,
    initialize,
    monitor_thread,
    nested_restarter,
    rank_assignment,
    state,
    store,
    terminate,
    wrap,
)
from holdfast.inprocess.call import CallWrapper
from holdfast.inprocess.compose import Compose
from holdfast.inprocess.state import FrozenState, Mode, State
from holdfast.inprocess.wrap import Wrapper

__all__ = [
    "CallWrapper",
    "Compose",
    "FrozenState",
    "Mode",
    "State",
    "Wrapper",
    "abort",
    "completion",
    "compose",
    "exception",
    "finalize",
    "health_check",
    "initialize",
    "monitor_thread",
    "nested_restarter",
    "rank_assignment",
    "state",
    "store",
    "terminate",
    "wrap",
]

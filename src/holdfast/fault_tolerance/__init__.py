"""NVRx's `fault_tolerance` by its own names, over Holdfast's monitor: a script changes its import, and nothing else.

    from holdfast import fault_tolerance as ft

Under `holdfast run` a rank's client writes to the page that its agent reads; a `RankMonitorServer` gets a page from it. A
heartbeat is a store to shared memory, so no monitor can make a trainer wait. docs/reference/fault-tolerance.md says what
differs from NVRx on purpose.
"""

from __future__ import annotations

from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.fault_tolerance.data import WorkloadAction, WorkloadControlRequest
from holdfast.fault_tolerance.rank_monitor_client import RankMonitorClient, RankMonitorClientError
from holdfast.fault_tolerance.rank_monitor_server import RankMonitorServer
from holdfast.fault_tolerance.rank_monitor_state_machine import (
    InvalidStateTransitionException,
    RankMonitorState,
    RankMonitorStateMachine,
)

__all__ = [
    "FaultToleranceConfig",
    "InvalidStateTransitionException",
    "RankMonitorClient",
    "RankMonitorClientError",
    "RankMonitorServer",
    "RankMonitorState",
    "RankMonitorStateMachine",
    "WorkloadAction",
    "WorkloadControlRequest",
]

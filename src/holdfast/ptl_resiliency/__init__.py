"""NVRx's `ptl_resiliency` by its own names: a script changes its import, and nothing else.

    from holdfast.ptl_resiliency import FaultToleranceCallback
"""

from __future__ import annotations

from holdfast.ptl_resiliency._utils import SimulatedFaultParams
from holdfast.ptl_resiliency.fault_tolerance_callback import FaultToleranceCallback
from holdfast.ptl_resiliency.fault_tolerance_sections_callback import FaultToleranceSectionsCallback
from holdfast.ptl_resiliency.straggler_det_callback import StragglerDetectionCallback

__all__ = ["FaultToleranceCallback", "FaultToleranceSectionsCallback", "SimulatedFaultParams", "StragglerDetectionCallback"]

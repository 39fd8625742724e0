"""NVRx's module of this name; see `holdfast.integrations.lightning`."""

from __future__ import annotations

from importlib import import_module

__all__ = ["FaultToleranceCallback", "SimulatedFaultParams"]

_lightning = import_module("holdfast.integrations.lightning")
FaultToleranceCallback, SimulatedFaultParams = _lightning.FaultToleranceCallback, _lightning.SimulatedFaultParams

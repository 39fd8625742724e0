"""NVRx's module of this name, as far as scripts use it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

__all__ = ["SimulatedFaultParams", "is_module_available"]

SimulatedFaultParams = import_module("holdfast.integrations.simulated_fault").SimulatedFaultParams


def is_module_available(module: str) -> bool:
    """Could it be imported?"""
    return find_spec(module) is not None

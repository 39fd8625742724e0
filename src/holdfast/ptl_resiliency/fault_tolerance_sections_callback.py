"""NVRx's module of this name; see `holdfast.integrations.lightning_sections`."""

from __future__ import annotations

from importlib import import_module

__all__ = ["FaultToleranceSectionsCallback"]

FaultToleranceSectionsCallback = import_module("holdfast.integrations.lightning_sections").FaultToleranceSectionsCallback

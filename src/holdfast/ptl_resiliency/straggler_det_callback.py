"""NVRx's module of this name; see `holdfast.integrations.lightning_straggler`."""

from __future__ import annotations

from importlib import import_module

__all__ = ["StragglerDetectionCallback"]

StragglerDetectionCallback = import_module("holdfast.integrations.lightning_straggler").StragglerDetectionCallback

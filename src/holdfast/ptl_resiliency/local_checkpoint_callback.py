"""NVRx's module of this name; see `holdfast.integrations.lightning_local`."""

from __future__ import annotations

from importlib import import_module

__all__ = ["LOCAL_CKPT_OPTS_KEY", "HierarchicalCheckpointIO", "LocalCheckpointCallback"]

_local = import_module("holdfast.integrations.lightning_local")
LOCAL_CKPT_OPTS_KEY = _local.LOCAL_CKPT_OPTS_KEY
HierarchicalCheckpointIO, LocalCheckpointCallback = _local.HierarchicalCheckpointIO, _local.LocalCheckpointCallback

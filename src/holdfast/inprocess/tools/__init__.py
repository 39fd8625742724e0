"""NVRx's `inprocess.tools`: faults to practise with."""

from __future__ import annotations

from holdfast.inprocess.tools import inject_fault

__all__ = ["inject_fault"]

"""What may a training script say to Holdfast? That it lives, and how far it is.

Cheap on purpose: importing this costs no more than the standard library's lightest modules, and each call is a store or two
into shared memory. Without an agent every call does nothing, so a script can be run by hand unchanged.
"""

from __future__ import annotations

import sys
from time import monotonic_ns

from holdfast.client.record import record
from holdfast.core import page as _layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class _Worker(Protocol):
        words: memoryview | None


__all__ = ["heartbeat", "progress", "record"]


class _Alone:
    """No agent: a script started by hand."""

    words: memoryview | None = None


def _find_worker() -> _Worker:
    """The bootstrap that mapped the page, if its page is laid out as we know it."""
    worker = sys.modules.get("_holdfast_bootstrap")
    if worker is not None and getattr(worker.layout, "VERSION", None) == _layout.VERSION:
        return worker
    return _Alone()


_worker = _find_worker()
_BEAT_NS, _BEATS, _STEP, _STEP_NS = _layout.BEAT_NS, _layout.BEATS, _layout.STEP, _layout.STEP_NS


def heartbeat() -> None:
    """Say that this worker is getting on."""
    words = _worker.words
    if words is not None:
        words[_BEAT_NS] = monotonic_ns()
        words[_BEATS] += 1


def progress(step: int) -> None:
    """Say that `step` (0 or more) is done. It counts as a heartbeat."""
    words = _worker.words
    if words is not None:
        words[_STEP] = step
        words[_STEP_NS] = words[_BEAT_NS] = monotonic_ns()
        words[_BEATS] += 1

"""What may a training script say to Holdfast? That it lives, how far it is, what it is doing, and what it wants of the job.

Cheap on purpose: importing this costs no more than the standard library's lightest modules, and a call is a few stores into
shared memory. Without an agent every call does nothing, so a script can be run by hand unchanged; so it is in forked children,
data loaders for example, which are none of the agent's workers. Any thread may call anything (`client.writer` says more).
"""

from __future__ import annotations

import sys

from holdfast.client.record import record
from holdfast.core import page as _layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.client.writer import Writer

__all__ = ["control", "heartbeat", "progress", "record", "section", "set_limits"]


def _find_writer() -> Writer:
    """That of the bootstrap, if its page is laid out as we know it; else one without a page."""
    bootstrap = sys.modules.get("_holdfast_bootstrap")
    if bootstrap is not None and getattr(bootstrap.layout, "VERSION", None) == _layout.VERSION:
        found: Writer = bootstrap.writer()
        return found
    from holdfast.client.writer import Writer

    return Writer()


this_worker = _find_writer()
"""What all of the below writes with."""

# Its methods themselves: a function around each would cost half as much again.
heartbeat = this_worker.heartbeat
progress = this_worker.progress
section = this_worker.section
set_limits = this_worker.set_limits

from holdfast.client import control  # noqa: E402  it needs this_worker

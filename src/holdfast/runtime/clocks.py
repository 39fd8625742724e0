"""What time is it for those who lead by a lease? A clock that goes on while this machine sleeps, and the time of day."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def passed_s() -> float:
    """Seconds that have passed since some moment, those included in which this machine slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def utc() -> datetime:
    """The time of day."""
    return datetime.now(UTC)

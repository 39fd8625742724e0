"""What is logged when timers have expired. A hook: replace it to collect more."""

from __future__ import annotations

from holdfast.elastic.utils.logging import get_logger

logger = get_logger(__name__)


def log_debug_info_for_expired_timers(run_id: str, expired_timers: dict[int, list[str]]) -> None:
    """`expired_timers`: pid → its expired requests, as JSON. Called at every look, so it may be empty."""
    if expired_timers:
        logger.info("timers expired in run %s: %s", run_id, expired_timers)

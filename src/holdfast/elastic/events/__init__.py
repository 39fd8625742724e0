"""What happened in the agent, as events: to a logging handler chosen by name, and to a handler object of your own.

from holdfast.elastic import events

events.handlers._log_handlers["audit"] = logging.FileHandler("audit.jsonl")     # → --event-log-handler audit
events.configure(MyEventHandler())                                              # its record(event) gets every event
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
import traceback
from dataclasses import replace

from holdfast.elastic.events.handlers import get_logging_handler

from .api import Event, EventHandler, EventMetadataValue, EventSource, NodeState, NullEventHandler, RdzvEvent

__all__ = [
    "Event",
    "EventHandler",
    "EventMetadataValue",
    "EventSource",
    "NodeState",
    "NullEventHandler",
    "RdzvEvent",
    "configure",
    "construct_and_record_rdzv_event",
    "get_logging_handler",
    "record",
    "record_rdzv_event",
]

_events_loggers: dict[str, logging.Logger] = {}
_event_handler: EventHandler = NullEventHandler()


def configure(handler: EventHandler) -> None:
    """From now on `handler.record(event)` is called with every event, besides the logger of its destination."""
    global _event_handler
    _event_handler = handler


def record(event: Event, destination: str = "null") -> None:
    """Log `event` as JSON to `destination` (`KeyError` when no such handler is known) and give it to the configured handler.

    An event without a timestamp gets the time of now, in milliseconds since the epoch.
    """
    if not event.timestamp:
        event = replace(event, timestamp=int(time.time() * 1000))
    _get_or_create_logger(destination).info(event.serialize())
    _event_handler.record(event)


def record_rdzv_event(event: RdzvEvent) -> None:
    """Log an event of the rendezvous, to the destination `dynamic_rendezvous`."""
    _get_or_create_logger("dynamic_rendezvous").info(event.serialize())


def construct_and_record_rdzv_event(
    run_id: str,
    message: str,
    node_state: NodeState,
    name: str = "",
    hostname: str = "",
    pid: int | None = None,
    master_endpoint: str = "",
    local_id: int | None = None,
    rank: int | None = None,
) -> None:
    """Record what happened in a rendezvous, named `<file>:<name>` after the caller. Costs nothing without a handler."""
    if isinstance(get_logging_handler("dynamic_rendezvous"), logging.NullHandler):
        return
    caller = sys._getframe(1).f_code
    record_rdzv_event(
        RdzvEvent(
            name=f"{os.path.basename(caller.co_filename)}:{name or caller.co_name}",
            run_id=run_id,
            message=message,
            hostname=hostname or socket.getfqdn(),
            pid=pid or os.getpid(),
            node_state=node_state,
            master_endpoint=master_endpoint,
            rank=rank,
            local_id=local_id,
            error_trace=traceback.format_exc() if node_state == NodeState.FAILED else "",
        )
    )


def _get_or_create_logger(destination: str = "null") -> logging.Logger:
    if destination not in _events_loggers:
        logger = logging.getLogger(f"torchelastic-events-{destination}")
        logger.setLevel(os.environ.get("LOGLEVEL", "INFO"))
        logger.propagate = False  # each event once: not again through the root logger
        logger.addHandler(get_logging_handler(destination))
        _events_loggers[destination] = logger
    return _events_loggers[destination]

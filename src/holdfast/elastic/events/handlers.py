"""Which logging handler is meant by `--event-log-handler NAME`? Add your own to `_log_handlers`."""

from __future__ import annotations

import logging

_log_handlers: dict[str, logging.Handler] = {
    "console": logging.StreamHandler(),
    "dynamic_rendezvous": logging.NullHandler(),
    "null": logging.NullHandler(),
}


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """The handler of that name; `KeyError` when there is none."""
    return _log_handlers[destination]

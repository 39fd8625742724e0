"""Level of the elastic loggers where `LOGLEVEL` is not set."""

from __future__ import annotations


def get_log_level() -> str:
    return "WARNING"

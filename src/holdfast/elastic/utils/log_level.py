"""How much do the elastic loggers say, where `LOGLEVEL` is not set?"""

from __future__ import annotations


def get_log_level() -> str:
    return "WARNING"

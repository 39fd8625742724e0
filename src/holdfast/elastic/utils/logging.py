"""A logger named after the module that asks for it, at the level that `LOGLEVEL` names."""

from __future__ import annotations

import logging
import os
import sys

from holdfast.elastic.utils.log_level import get_log_level


def get_logger(name: str | None = None) -> logging.Logger:
    """The logger `name`, or the one named after the calling module."""
    return _setup_logger(name or _derive_module_name(depth=2))


def _setup_logger(name: str | None = None) -> logging.Logger:
    logger = logging.getLogger(name)
    logger.setLevel(os.environ.get("LOGLEVEL", get_log_level()))
    return logger


def _derive_module_name(depth: int = 1) -> str | None:
    """Name of the module `depth` calls up the stack; None where the stack is not that deep."""
    try:
        frame = sys._getframe(depth)
    except ValueError:
        return None
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else None

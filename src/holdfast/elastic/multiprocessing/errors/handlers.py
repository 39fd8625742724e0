"""Which error handler does `@record` use? A hook: replace it with your own."""

from __future__ import annotations

from holdfast.elastic.multiprocessing.errors.error_handler import ErrorHandler

__all__ = ["get_error_handler"]


def get_error_handler() -> ErrorHandler:
    return ErrorHandler()

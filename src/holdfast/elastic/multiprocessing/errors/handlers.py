"""Which error handler does `@record` use? A hook: replace it with your own."""

from __future__ import annotations

from holdfast.elastic.multiprocessing.errors.error_handler import ErrorHandler


def get_error_handler() -> ErrorHandler:
    return ErrorHandler()

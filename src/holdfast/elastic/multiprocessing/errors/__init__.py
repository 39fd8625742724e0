"""How does a worker's exception reach its agent, and how is the failure of a group reported?

A function under `@record` writes an uncaught exception to the file that `TORCHELASTIC_ERROR_FILE` names. The agent sets that
variable for each worker, reads the files back as `ProcessFailure`s, and raises one `ChildFailedError` for the group, whose text
is the failure box that scripts look for at the end of stderr.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from holdfast.elastic.utils.logging import get_logger

from .error_handler import ErrorHandler
from .failure import NOT_AVAILABLE, ChildFailedError, ProcessFailure
from .handlers import get_error_handler

__all__ = ["ChildFailedError", "ErrorHandler", "ProcessFailure", "get_error_handler", "record"]

logger = get_logger(__name__)

R = TypeVar("R")
P = ParamSpec("P")


def record(fn: Callable[P, R], error_handler: ErrorHandler | None = None) -> Callable[P, R | None]:
    """Decorator for a worker's main function: what it raises is recorded, and raised.

    `SystemExit(0)` becomes a return value of None. Of a `ChildFailedError` (the function was itself an agent) the first
    failure's error file is copied to ours.
    """
    handler = error_handler or get_error_handler()

    @wraps(fn)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> R | None:
        handler.initialize()
        try:
            return fn(*args, **kwargs)
        except SystemExit as stop:
            if stop.code == 0:
                return None
            raise
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            if failure.error_file == NOT_AVAILABLE:
                logger.info("rank %s failed without an error file: decorate its main function with @record to get one", rank)
            else:
                handler.dump_error_file(failure.error_file, failure.exitcode)
            raise
        except Exception as error:
            handler.record_exception(error)
            raise

    return recorded

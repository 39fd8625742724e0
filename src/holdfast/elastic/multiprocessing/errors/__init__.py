"""How does a worker's exception reach its agent, and how is the failure of a group reported?

A function under `@record` writes an uncaught exception to the file that `TORCHELASTIC_ERROR_FILE` names. The agent sets that
variable for each worker, reads the files back as `ProcessFailure`s, and raises one `ChildFailedError` for the group, whose text
is the failure box that scripts look for at the end of stderr.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from holdfast.elastic.utils.logging import get_logger

from .error_handler import ErrorHandler
from .failure import NOT_AVAILABLE, ChildFailedError, ProcessFailure, about_signals
from .handlers import get_error_handler

__all__ = ["ChildFailedError", "ErrorHandler", "ProcessFailure", "get_error_handler", "record"]

logger = get_logger(__name__)

R = TypeVar("R")
P = ParamSpec("P")


def record(fn: Callable[P, R], error_handler: ErrorHandler | None = None) -> Callable[P, R | None]:
    """Decorator for a worker's main function: what it raises is recorded, and raised.

    `SystemExit(0)` becomes a return value of None. Of a `ChildFailedError` (the function was itself an agent) the first
    failure's error file is copied to ours. The handler is told the function's name before, and of its success.
    """
    handler = error_handler or get_error_handler()

    @wraps(fn)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> R | None:
        _hook(handler, "set_entrypoint_fn_name")(getattr(fn, "__qualname__", None))
        handler.initialize()
        try:
            value: R | None = fn(*args, **kwargs)
        except SystemExit as stop:
            if stop.code != 0:
                raise
            value = None
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
        _hook(handler, "record_success")()
        return value

    return recorded


def _hook(handler: Any, name: str) -> Callable[..., Any]:
    """What torch's handlers have had since 2.14; does nothing where `handler` is built on an older one."""
    return getattr(handler, name, lambda *_: None)


def _about_signal(message: str, error_file: str) -> str:
    said = _hook(get_error_handler(), "maybe_enrich_signal_failure_message")(message, error_file)
    return said if isinstance(said, str) else message


about_signals.append(_about_signal)

"""torch's `multiprocessing.api`: the names, and which signals to this process are handled while it has workers.

A group of workers is `context`'s, where their streams go `logs_specs`'s.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading

from holdfast.elastic.multiprocessing.context import PContext, RunProcsResult, before_start
from holdfast.elastic.multiprocessing.context import validate_full_rank as _validate_full_rank
from holdfast.elastic.multiprocessing.errors import ProcessFailure, record
from holdfast.elastic.multiprocessing.function_context import MultiprocessContext
from holdfast.elastic.multiprocessing.function_worker import _wrap, get_std_cm
from holdfast.elastic.multiprocessing.logs_specs import DefaultLogsSpecs, LogsDest, LogsSpecs, Std, to_map
from holdfast.elastic.multiprocessing.program_context import SubprocessContext
from holdfast.elastic.multiprocessing.redirects import redirect_stderr, redirect_stdout
from holdfast.elastic.multiprocessing.signal_exception import SignalException, _terminate_process_handler
from holdfast.elastic.multiprocessing.subprocess_handler import SubprocessHandler, get_subprocess_handler
from holdfast.elastic.multiprocessing.tail_log import TailLog

__all__ = [
    "DefaultLogsSpecs",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "PContext",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "SubprocessHandler",
    "TailLog",
    "_validate_full_rank",
    "_wrap",
    "get_std_cm",
    "get_subprocess_handler",
    "record",
    "redirect_stderr",
    "redirect_stdout",
    "to_map",
]

IS_WINDOWS = sys.platform == "win32"
IS_MACOS = sys.platform == "darwin"

logger = logging.getLogger(__name__)


def _get_kill_signal() -> signal.Signals:
    return signal.SIGKILL


def _get_default_signal() -> signal.Signals:
    return signal.SIGTERM


def _register_signal_handlers() -> None:
    """From now on the signals that TORCHELASTIC_SIGNALS_TO_HANDLE names raise `SignalException` in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        logger.warning(
            "Failed to register signal handlers since torchelastic is running on a child thread. "
            "This could lead to orphaned worker processes if the torchrun is terminated."
        )
        return
    for name in os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT").split(","):
        try:
            signal.signal(getattr(signal, name.strip()), _terminate_process_handler)
            logger.info("Registered signal handler for %s", name)
        except (AttributeError, ValueError, OSError, RuntimeError) as error:
            if IS_WINDOWS and isinstance(error, RuntimeError):
                logger.info("Signal %s is not supported on Windows, skipping", name)
            else:
                logger.warning("Failed to register signal handler for %s: %r", name, error)


before_start.append(lambda: _register_signal_handlers())  # whichever it is then

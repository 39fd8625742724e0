"""How is an exception written down, and how does an agent pass a worker's record on? Override what you want otherwise."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import time
import warnings
from typing import Any

from holdfast.client.record import ERROR_FILE, write

logger = logging.getLogger(__name__)


class ErrorHandler:
    """Writes to the file that `TORCHELASTIC_ERROR_FILE` names; to none where that is empty or not set."""

    _fn_name: str | None = None

    def _get_error_file_path(self) -> str | None:
        return os.environ.get(ERROR_FILE)

    def set_entrypoint_fn_name(self, fn_name: str | None) -> None:
        """Called before all else: what the recorded function is called. None: it has no name."""
        self._fn_name = fn_name

    def initialize(self) -> None:
        """Called before the recorded function: a crash in C code then prints every thread's stack."""
        try:
            faulthandler.enable(all_threads=True)
        except Exception as error:
            warnings.warn(f"Unable to enable fault handler. {type(error).__name__}: {error}", stacklevel=2)

    def _write_error_file(self, file_path: str, error_msg: str) -> None:
        try:
            with open(file_path, "w") as file:
                file.write(error_msg)
        except Exception as error:
            warnings.warn(f"Unable to write error to file. {type(error).__name__}: {error}", stacklevel=2)

    def record_exception(self, e: BaseException) -> None:
        """Write the exception, its traceback and the time (whole epoch seconds, as text) to this process's error file."""
        if self._fn_name:
            logger.debug("%s failed: %s", self._fn_name, type(e).__name__)
        path = self._get_error_file_path()
        if not path:
            return
        try:
            write(path, e, time.time_ns())
        except OSError as error:  # the exception itself is what the caller needs to see
            warnings.warn(f"Unable to write error to file. {type(error).__name__}: {error}", stacklevel=2)

    def record_success(self) -> None:
        """The recorded function has returned."""
        if self._fn_name:
            logger.debug("%s succeeded", self._fn_name)

    def maybe_enrich_signal_failure_message(self, message: str, error_file: str) -> str:
        """What the failure box says of the first failure, if a signal ended that worker: `message`, and what you add."""
        return message

    def override_error_code_in_rootcause_data(
        self, rootcause_error_file: str, rootcause_error: dict[str, Any], error_code: int = 0
    ) -> None:
        """Add to a worker's record how it really ended, which it could not know itself (a signal, say)."""
        message = rootcause_error.get("message")
        if isinstance(message, dict):
            message["errorCode"] = error_code
        else:
            logger.warning("%s has no structured message to add the exit code %s to", rootcause_error_file, error_code)

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Copy a worker's record to this process's own error file, with its exit code."""
        with open(rootcause_error_file) as file:
            rootcause_error = json.load(file)
        if error_code:
            self.override_error_code_in_rootcause_data(rootcause_error_file, rootcause_error, error_code)
        logger.debug("%s: %s", rootcause_error_file, rootcause_error)
        path = self._get_error_file_path()
        if not path:
            logger.error("no error file defined for parent, to copy child error file (%s)", rootcause_error_file)
            return
        # There may be one: a worker that dies before it has its own environment writes to the file of its parent.
        self._rm(path)
        self._write_error_file(path, json.dumps(rootcause_error))
        logger.info("copied %s to %s", rootcause_error_file, path)

    def _rm(self, my_error_file: str) -> None:
        if not os.path.isfile(my_error_file):
            return
        with open(my_error_file, errors="replace") as file:
            logger.warning("%s is replaced; it said: %s", my_error_file, file.read())
        os.remove(my_error_file)

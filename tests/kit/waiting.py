"""Waiting for a condition: the only way in which a test lets time go by."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

PATIENCE_S = 60.0
"""How long to wait for what should take no time: long enough for a busy machine, so that a timeout means a bug."""


def wait_for(predicate: Callable[[], Any], timeout: float = PATIENCE_S, what: str | Callable[[], str] = "") -> Any:
    """The first true value of `predicate()`; fails the test after `timeout` seconds, and says what it waited for: `what`, asked
    then if it can be, or else where the predicate stands."""
    began = time.monotonic()
    deadline = began + timeout
    while not (seen := predicate()):
        asked_s, began = time.monotonic() - began, time.monotonic()
        if began > deadline:
            awaited = what() if callable(what) else what
            pytest.fail(f"waited {timeout:.0f} s for {awaited or _place(predicate)}", pytrace=True)
        time.sleep(max(0.01, 2 * asked_s))  # what starts a command each time is not to keep a processor busy by itself
        began = time.monotonic()
    return seen


def _place(predicate: Callable[[], Any]) -> str:
    if (code := getattr(predicate, "__code__", None)) is None:
        return "a condition"
    return f"{code.co_name} in line {code.co_firstlineno} of {os.path.basename(code.co_filename)}"

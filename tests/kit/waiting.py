"""Waiting for a condition: the only way in which a test lets time go by."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

PATIENCE_S = 60.0
"""How long to wait for what should take no time: long enough for a busy machine, so that a timeout means a bug."""


def wait_for(predicate: Callable[[], Any], timeout: float = PATIENCE_S, what: str = "") -> Any:
    """The first true value of `predicate()`; fails the test after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (seen := predicate()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout:.0f} s for {what or getattr(predicate, '__name__', 'a condition')}", pytrace=True)
        time.sleep(0.01)
    return seen

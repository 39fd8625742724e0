"""Writes the agent's messages to stderr without blocking, even when nobody reads it.

A reader that has gone (`2>&1 | head`), a full disk, a terminal that was closed or stopped with Ctrl-S: none of them may end a
job, hold it up, or change its exit code. What cannot be written at once waits here; what can never be written is dropped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from holdfast.agent.logs.nonblocking_writer import Console
from holdfast.core.machine import NEVER, Observation

RETRY_S = 0.1  # Seconds until a stderr that takes nothing is tried again.

PATIENCE_S = 5.0  # How long `close` waits for a stderr that takes nothing.

KEPT_BYTES = 1 << 20  # What waits at most; what is said after that is dropped.


class Voice:
    """Our own stderr, or another descriptor. Nothing here raises OSError, and only `close` waits."""

    def __init__(self, fd: int = 2, clock: Callable[[], float] = time.monotonic) -> None:
        self._fd, self._clock = fd, clock
        self._console: Console | None = None  # opened with the first word: most jobs have nothing to say

    def say(self, text: str) -> None:
        """Say `text`, which ends with its line; at once if that goes."""
        if self._console is None:
            try:
                self._console = Console(self._fd)
            except OSError:
                return  # there is no such descriptor
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        self._console.write(text.encode(encoding, "backslashreplace"), at_most=KEPT_BYTES)

    def deadline(self) -> float:
        """When to call `due`: soon, while something waits."""
        return self._clock() + RETRY_S if self._console is not None and self._console.pending else NEVER

    def due(self) -> list[Observation]:
        if self._console is not None:
            self._console.flush()
        return []

    def close(self, patience_s: float = PATIENCE_S) -> None:
        """Say the rest, as far as somebody takes it."""
        if self._console is None:
            return
        end = self._clock() + patience_s
        while not self._console.flush() and self._clock() < end:
            self._console.ready(RETRY_S)
        self._console.close()
        self._console = None


def tell(text: str) -> None:
    """Say one thing, by a voice that is used once."""
    voice = Voice()
    voice.say(f"{text}\n")
    voice.close()

"""What does the supervisor know, and what is new? The client of its socket's question `fleet`, which waits there for news."""

from __future__ import annotations

import os
from typing import Any

from holdfast.agent.control.control_client import ask_at
from holdfast.core.errors import HoldfastError
from holdfast.supervisor.snapshot import Snapshot

SOCKET = "supervisor.sock"
"""In the supervisor's state directory: where people and processes on its host ask it."""

ANSWER_S = 10.0
"""How long an answer may take beyond the time that it was asked to wait."""


class Feed:
    """The fleet, as of the last answer."""

    def __init__(self, folder: str) -> None:
        """`folder`: the supervisor's state directory."""
        self.path = os.path.join(folder, SOCKET)
        self.snapshot = Snapshot()

    @property
    def fleet(self) -> dict[str, Any]:
        """As /api/fleet has it. Empty: nothing has been heard yet."""
        tables = {table: list(rows.values()) for table, rows in self.snapshot.tables.items()}
        return {**self.snapshot.head, **tables} if self.snapshot.head else {}

    def wait(self, wait_s: float) -> dict[str, Any]:
        """What is new; empty-handed after `wait_s`. OSError, ProtocolError: nobody answers. HoldfastError: it refuses."""
        request = {"ask": "fleet", "since": self.snapshot.head.get("version", 0), "wait_s": wait_s}
        answer = ask_at(self.path, "the supervisor", request, wait_s + ANSWER_S)
        if not answer.pop("ok", False):
            raise HoldfastError(str(answer.get("error")))
        self.snapshot.take(answer)
        return answer

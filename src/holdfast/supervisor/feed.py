"""What does the supervisor know, and what is new? The other end of its socket's question `fleet`, for processes beside it.

Each answer but the first tells only what has changed; here it is put together again. The question waits at the supervisor until
something is new, so nobody polls.
"""

from __future__ import annotations

import os

from holdfast.agent.ask import ask_at
from holdfast.core.errors import HoldfastError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SOCKET = "supervisor.sock"
"""As `supervisor.service` has it, which a process that only listens need not load."""

ANSWER_S = 10.0
"""How much longer than it was asked to wait the supervisor may take."""


class Feed:
    """The fleet, as of the last answer."""

    def __init__(self, folder: str) -> None:
        """`folder`: the supervisor's state directory."""
        self.path = os.path.join(folder, SOCKET)
        self.fleet: dict[str, Any] = {}
        """As /api/fleet tells it. Empty: nothing has been heard yet."""

    def wait(self, wait_s: float) -> dict[str, Any]:
        """What is new, as it was told: after at most `wait_s`, and at once if much is. OSError, ProtocolError: nobody answers.
        HoldfastError: it refuses."""
        request = {"ask": "fleet", "since": self.fleet.get("version", 0), "wait_s": wait_s}
        answer = ask_at(self.path, "the supervisor", request, wait_s + ANSWER_S)
        if not answer.pop("ok", False):
            raise HoldfastError(str(answer.get("error")))
        self.fleet = merged(self.fleet, answer)
        return answer


def merged(fleet: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """A fleet with what has changed in it. An answer that names nothing as gone is the whole."""
    if "gone" not in answer:
        return answer
    new = {**fleet, **{field: value for field, value in answer.items() if field not in ("nodes", "jobs", "deeds", "gone")}}
    for table, key in (("nodes", "name"), ("jobs", "name"), ("deeds", "id")):
        rows = {row[key]: row for row in (*fleet.get(table, ()), *answer.get(table, ()))}
        for name in answer["gone"].get(table, ()):
            rows.pop(name, None)
        new[table] = list(rows.values())
    new["deeds"] = new["deeds"][-DEEDS:]
    return new


DEEDS = 200
"""The newest that are remembered, as /api/fleet has them."""

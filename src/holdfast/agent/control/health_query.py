"""Collects the answers of all nodes to one `holdfast check`.

The answer goes out when all nodes have answered, or when the checks' deadlines have passed: it names the silent nodes.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.wire.messages import Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.control.control_socket import Request

MARGIN_S = 4.0  # How much longer than the longest of its checks a node may take to answer: two links, and SIGKILL.

SILENT = "it has not answered: is its agent stopped, or its link to the coordinator broken?"


class Examination:
    """Open until `replied`."""

    def __init__(self, request: Request, until: float) -> None:
        self.request, self.until = request, until
        self.names: list[str] | None = None  # Who has been asked. None: the coordinator has not said yet.
        self.told: dict[str, list[dict[str, Any]]] = {}

    def hear(self, reply: Reply) -> None:
        """What one node has found; or, from the coordinator, which nodes were asked."""
        if not reply.name:
            self.names = reply.text.split("\n")
        elif not reply.ok:
            self.told[reply.name] = [_row("-", "degraded", reply.text)]
        else:
            fields = ("check", "state", "reason", "advice", "took_s")
            self.told[reply.name] = [{field: getattr(one, field) for field in fields} for one in reply.verdicts]

    def is_over(self, now: float) -> bool:
        """All have answered, or it is too late."""
        return now >= self.until or (self.names is not None and set(self.names) <= set(self.told))

    def reply(self) -> None:
        if self.names is None and not self.told:
            self.request.refuse("the coordinator has not answered: see `holdfast status`")
            return
        silent = [name for name in self.names or () if name not in self.told]
        self.request.reply({"nodes": self.told | {name: [_row("-", "degraded", SILENT)] for name in silent}})


def _row(check: str, state: str, reason: str) -> dict[str, Any]:
    return {"check": check, "state": state, "reason": reason, "advice": "", "took_s": 0.0}

"""Who has asked what others answer? Members know one another by name only: an asker is a number to the others."""

from __future__ import annotations

MOST = 16
"""Questions whose answers still find who asked."""


class Tickets:
    """Those that are under way."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[str, int]] = {}
        self._last = 0

    def draw(self, node: str, ask: int) -> int:
        """A number for the question that `node` has asked as its own number `ask`."""
        self._last += 1
        self._asked[self._last] = node, ask
        self._asked.pop(self._last - MOST, None)
        return self._last

    def whose(self, ticket: int) -> tuple[str, int] | None:
        """Who has asked it, and as which of its own. None: it is too long ago, or was never asked."""
        return self._asked.get(ticket)

"""Which connections were turned away? Each reason is told once for each address, and the rest is counted."""

from __future__ import annotations

from holdfast.core.machine import NEVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PER_PEER, IN_ALL = 4, 24
"""Lines about one address, and about all: a scanner with many addresses and words must not fill the log."""

AGAIN_S, LONGEST_S = 60.0, 3600.0
"""How long after a line that was not said the count is; it doubles up to an hour."""


class Door:
    """Remembers what has been said about whom. `complain` tells a person."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        self.complain = complain
        self.said: dict[str, set[str]] = {}
        """peer → what was said about it"""
        self.lines = 0
        self.unsaid = 0
        self.last = ""
        self.tell_at = NEVER
        self.pause_s = AGAIN_S

    def note(self, peer: str, line: str, now: float) -> None:
        """`line` is what happened with `peer`: say it, or count it."""
        known = self.said.get(peer, set())
        if line not in known and len(known) < PER_PEER and self.lines < IN_ALL:
            self.said.setdefault(peer, set()).add(line)
            self.lines += 1
            self.complain(line)
            return
        self.unsaid += 1
        self.last = line
        if self.tell_at == NEVER:
            self.tell_at = now + self.pause_s

    def due(self, now: float) -> None:
        """Tell the count, when it is time for that."""
        if now >= self.tell_at:
            self.tell()
            self.pause_s = min(LONGEST_S, 2 * self.pause_s)

    def tell(self) -> None:
        """Tell how often nothing was said."""
        if self.unsaid:
            again = "once more" if self.unsaid == 1 else f"{self.unsaid} times more"
            self.complain(f"such connections came {again}; the last: {self.last}")
        self.unsaid, self.tell_at = 0, NEVER

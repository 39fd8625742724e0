"""Requests that wait for a change in the fleet. Each answer tells everything since the last, at most five times a second."""

from __future__ import annotations

from holdfast.agent.control.control_socket import Request
from holdfast.core.machine import NEVER
from holdfast.supervisor.fleet.state import FleetState
from holdfast.supervisor.web import view

PAUSE_S, LONGEST_S = 0.2, 60.0
"""Between two answers, and the longest that a request is held."""


class Held:
    """Requests `fleet`, with `since` (a version) and `wait_s`."""

    def __init__(self, fleet: FleetState) -> None:
        self.fleet = fleet
        self.waiting: list[tuple[Request, int, float]] = []
        """Each with the version that it knows, and when its time is up."""
        self.next_at = 0.0

    def take(self, request: Request, now: float) -> None:
        """Answer it at once, or keep it until `due` does."""
        since, wait_s = request.arguments.get("since"), request.arguments.get("wait_s")
        knows = since if isinstance(since, int) else -1
        patience_s = min(wait_s, LONGEST_S) if isinstance(wait_s, (int, float)) else 0.0
        if patience_s > 0 and self.fleet.changes.knows(knows):
            self.waiting.append((request, knows, now + patience_s))
        else:
            self._answer(request, knows, now)

    def deadline(self) -> float:
        version = self.fleet.changes.version
        return min((until if knows == version else min(until, self.next_at) for _, knows, until in self.waiting), default=NEVER)

    def due(self, now: float) -> None:
        """Something may have changed, or the time is up."""
        version, waiting = self.fleet.changes.version, self.waiting
        ready = [one for one in waiting if now >= one[2] or (one[1] != version and now >= self.next_at)]
        if not ready:
            return
        self.waiting = [one for one in waiting if one not in ready]
        for request, knows, _ in ready:
            self._answer(request, knows, now)
        self.next_at = now + PAUSE_S

    def _answer(self, request: Request, knows: int, now: float) -> None:
        request.reply(view.changed(self.fleet, knows, self.fleet.unix(now)))

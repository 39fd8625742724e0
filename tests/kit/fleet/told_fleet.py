"""A supervisor's socket that tells of a made-up fleet: what listens to a supervisor can be tried without nodes and jobs."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from holdfast.agent.control.control_socket import ControlSocket, Request


class ToldFleet:
    """In a thread; answers as `holdfast supervisor` does, with the whole each time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.version, self._ends = folder, 1, False
        self.fleet: dict[str, Any] = {"generation": 1, "policy": "default", "lease_s": 5.0}
        self.fleet |= {table: [] for table in ("nodes", "jobs", "swaps", "deeds", "totals")}
        self.control = ControlSocket(str(folder / "supervisor.sock"))
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def deed(self, id: str, outcome: str = "", **more: Any) -> dict[str, Any]:
        """One more, or one that is over."""
        deed = {
            "id": id,
            "at_unix": time.time(),
            "node": "b",
            "job": "train",
            "trouble": "lost",
            "seen": "b was not heard for 5 s",
        }
        deed |= {"policy": "default", "act": "swap", "reason": "c takes over", "done": [], "outcome": outcome}
        deed |= {"ended_at_unix": time.time() if outcome else 0.0, **more}
        deeds = [one for one in self.fleet["deeds"] if one["id"] != id]
        self.change(deeds=[*deeds, deed])
        return deed

    def change(self, **fields: Any) -> None:
        """The fleet is so now."""
        self.fleet = {**self.fleet, **fields}
        self.version += 1

    def close(self) -> None:
        self._ends = True
        self.thread.join()
        self.control.close()

    def _serve(self) -> None:
        waiting: list[tuple[Request, int, float]] = []
        while not self._ends:
            for request in self.control.requests():
                since, patience_s = request.arguments["since"], request.arguments["wait_s"]
                waiting.append((request, since, time.monotonic() + patience_s))
            ready = [one for one in waiting if one[1] != self.version or time.monotonic() > one[2]]
            waiting = [one for one in waiting if one not in ready]
            for request, _, _ in ready:
                request.reply({**self.fleet, "version": self.version, "at_unix": time.time()})
            time.sleep(0.01)

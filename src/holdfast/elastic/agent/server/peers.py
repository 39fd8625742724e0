"""Has another node of this round failed? A failed node says so in the round's store, so that the others stop waiting for it."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import Any

FAILED_KEY, RESTARTING_KEY = "torchelastic/agent/failed", "torchelastic/agent/restarting"
FAIL_FAST_ENV = "HOLDFAST_ELASTIC_FAIL_FAST"
"""Set to 1: when another node has failed for good, this one stops its workers and fails too, instead of reporting it only."""
LOOK_EVERY_S = 1.0
"""How often the store is asked: news that matters within a minute, from a store that every node asks."""


class PeerFailedError(Exception):
    """Another node of the job has failed for good."""


class PeerRestartsError(Exception):
    """Another node of the round restarts its workers: the round is over, for all."""


class Peers:
    """The other nodes of one round, seen through its store. A store that does not answer has no news."""

    def __init__(self, store: Any, group_rank: int | None, group_world_size: int | None) -> None:
        self._store = store if (group_world_size or 1) > 1 and hasattr(store, "check") else None
        self._group_rank = group_rank
        self._looked_at = float("-inf")
        self._known = False

    def announce(self, host: str, exit_codes: dict[int, int]) -> None:
        """This node has failed for good; `exit_codes` by global rank. Only the round's first such node is remembered."""
        said = json.dumps({"group_rank": self._group_rank, "host": host, "exit_codes": exit_codes})
        if self._store is not None:
            with suppress(Exception):  # we are failing already: that is what must be reported
                self._store.compare_set(FAILED_KEY, "", said)

    def announce_restart(self) -> None:
        """This node's workers have failed, and it leaves the round for the next one."""
        if self._store is not None:
            with suppress(Exception):  # the next round finds out whether the store can still be reached
                self._store.set(RESTARTING_KEY, str(self._group_rank))

    def restarting(self) -> bool:
        """Whether another node has left this round for the next one. Asks the store every time."""
        return self._read(RESTARTING_KEY) is not None

    def news(self) -> str | None:
        """Who has failed, in words, when that is new. Looks at most once in `LOOK_EVERY_S` seconds."""
        now = time.monotonic()
        if self._known or now < self._looked_at + LOOK_EVERY_S:
            return None
        self._looked_at = now
        data = self._read(FAILED_KEY)
        said = None if data is None else json.loads(data)
        if said is None or said["group_rank"] == self._group_rank:
            return None
        self._known = True
        ranks = ", ".join(f"rank {rank} exit code {code}" for rank, code in said["exit_codes"].items())
        return f"node {said['group_rank']} ({said['host']}) has failed for good{': ' if ranks else ''}{ranks}"

    def _read(self, key: str) -> bytes | None:
        try:
            return self._store.get(key) if self._store is not None and self._store.check([key]) else None
        except Exception:  # the store's host may be the one that is gone
            return None


def fail_fast() -> bool:
    """Whether the user wants this node to fail with another."""
    return os.environ.get(FAIL_FAST_ENV, "0") == "1"

"""What is the fleet like, for clients of the HTTP API? A mirror of what the supervisor says, and a stream of its changes.

The supervisor is asked what has changed since the version that the mirror knows: at most ten times a second, and while somebody
watches by a request that it holds. A watcher has no queue: a slow one is told less often, and then everything. Watchers hear
when the supervisor is gone (`event: silent`), all of it when it is back, and while nothing changes when it last said so
(`event: beat`): a quiet fleet is not a stale one.

Each message is compressed once, for all watchers: a block of deflate that refers to nothing before it (`web/compression.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from holdfast.agent.control.control_client import MAX_REPLY, Reachable
from holdfast.core.value import to_plain
from holdfast.supervisor.change_log import ChangeLog
from holdfast.supervisor.snapshot import Snapshot
from holdfast.supervisor.web.auth import Refused
from holdfast.supervisor.web.compression import HEAD, block
from holdfast.supervisor.web.view import Beat, FleetPart

ANSWER_S, HOLD_S = 10.0, 5.0
"""How long the supervisor has for an answer, and for how long it is asked to hold a request: what is watched is never known
as of longer ago."""

FRESH_S, RETRY_S, BEAT_S = 0.1, 0.5, 10.0
"""How old an answer may be, the pause before a supervisor that is gone is asked again, and that between two signs of life."""

MOST_WATCHERS = 200


class Message:
    """Bytes of the stream, plain and compressed."""

    def __init__(self, plain: bytes) -> None:
        self.plain = plain

    @cached_property
    def compressed(self) -> bytes:
        return block(self.plain)


class Mirror:
    """Of the fleet. For one asyncio loop, whose clock it goes by."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.snapshot, self.changes = Snapshot(), ChangeLog()
        self.wholes = 0
        """How often all was told, as by each life of the supervisor."""
        self.is_heard = False
        self.watchers = 0
        self._news = asyncio.Condition()
        self._one = asyncio.Lock()
        self._asked_at = self._stale_at = float("-inf")
        """When what is known was asked for, and when somebody has wanted something that may have changed it."""
        self._follower: asyncio.Task[None] | None = None
        self._told: dict[tuple[int, int, int], Message] = {}
        """The last messages, since most watchers are told the same."""

    async def ask(self, request: dict[str, Any], within_s: float = ANSWER_S) -> dict[str, Any]:
        """The supervisor's answer. Refused (503): it gives none."""
        try:
            async with asyncio.timeout(within_s):
                with Reachable(self.path) as address:
                    reader, writer = await asyncio.open_unix_connection(address, limit=MAX_REPLY)
                try:
                    writer.write(json.dumps(request).encode() + b"\n")
                    answer = json.loads(await reader.readline())
                finally:
                    writer.close()
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            why = str(error) or "no answer in time"
            hint = "jobs go on without it; is `holdfast supervisor` running on this host?"
            raise Refused(503, f"the supervisor does not answer ({why})", hint=hint) from error
        return dict(answer)

    async def fresh(self) -> None:
        """Be as the fleet is now. Refused (503): nobody tells."""
        async with self._one:
            old = _now() - self._asked_at >= FRESH_S or self._asked_at <= self._stale_at
            if old or not self.is_heard:
                await self._look(0.0)

    async def wish(self, request: dict[str, Any]) -> dict[str, Any]:
        """As `ask`, for what changes something: the next `fresh` sees it."""
        answer = await self.ask(request)
        self._stale_at = _now()
        return answer

    async def _look(self, wait_s: float) -> None:
        asked_at = _now()
        try:
            answer = await self.ask({"ask": "fleet", "since": self.version, "wait_s": wait_s}, ANSWER_S + wait_s)
            if not answer.get("ok"):
                raise Refused(503, f"the supervisor does not tell: {answer.get('error')}", hint="is it of another version?")
            self._take(answer)
            self.is_heard, self._asked_at = True, asked_at
        except Refused:
            self.is_heard = False
            raise
        finally:
            async with self._news:
                self._news.notify_all()

    @property
    def version(self) -> int:
        """Of what is known. 0: nothing is."""
        return self.changes.version if self.snapshot.head else 0

    def _take(self, answer: dict[str, Any]) -> None:
        version = int(answer["version"])
        if "gone" not in answer:
            self.wholes, self.changes = self.wholes + 1, ChangeLog()
        elif version <= self.version:
            # Nothing has happened, or another question was answered meanwhile.
            self.snapshot.head["at_unix"] = max(self.snapshot.head["at_unix"], answer["at_unix"])
            return
        self.changes.reach(version)
        for table, key in self.snapshot.take(answer):
            self.changes.mark(table, key, version)
            if table == "deeds" and key not in self.snapshot.tables[table]:
                self.changes.forget(table, key)

    def shown(self) -> dict[str, Any]:
        """As `view.FleetShown`."""
        known = self.snapshot.tables
        deeds = sorted(known["deeds"].values(), key=lambda deed: deed["at_unix"])
        tables = {table: [rows[name] for name in sorted(rows)] for table, rows in known.items() if table != "deeds"}
        return {**self.snapshot.head, **tables, "deeds": deeds}

    def changed(self, since: int) -> dict[str, Any]:
        """As `view.FleetChanged`."""
        keys, known, head = self.changes.since(since), self.snapshot.tables, self.snapshot.head
        rows = {table: [own[key] for key in keys.get(table, ()) if key in own] for table, own in known.items()}
        gone = {table: [key for key in keys.get(table, ()) if key not in known[table]] for table in ("nodes", "jobs")}
        told = {name: value for name, value in head.items() if name in FleetPart.__fields__}
        return {**told, **rows, "gone": gone}

    async def compressed(self) -> AsyncIterator[bytes]:
        """As `watch`, for who takes gzip."""
        yield HEAD
        async for message in self._messages():
            yield message.compressed

    async def watch(self) -> AsyncIterator[bytes]:
        """Server-sent events: all of it, then what changes. `fresh` has been called. For who is counted by `watched`."""
        async for message in self._messages():
            yield message.plain

    async def _messages(self) -> AsyncIterator[Message]:
        wholes, version, heard = 0, 0, True
        while True:
            if not self.is_heard and heard:
                heard = False
                yield _event("silent", {"error": "the supervisor does not answer; jobs go on without it"})
            elif self.is_heard and (wholes, version, heard) != (self.wholes, self.version, True):
                since = version if wholes == self.wholes else 0
                wholes, version, heard = self.wholes, self.version, True
                yield self._message(wholes, since)
            elif await self._nothing_new(wholes, version, heard):
                yield self._beat() if heard else Message(b": beat\n\n")

    async def _nothing_new(self, wholes: int, version: int, heard: bool) -> bool:
        """Whether nothing has happened for as long as a watcher should be left alone."""
        try:
            async with asyncio.timeout(BEAT_S), self._news:
                await self._news.wait_for(lambda: (wholes, version, heard) != (self.wholes, self.version, self.is_heard))
        except TimeoutError:
            return True
        return False

    def _message(self, wholes: int, since: int) -> Message:
        key = wholes, since, self.version
        if key not in self._told:
            self._told = dict(list(self._told.items())[-3:])
            name, value = ("change", self.changed(since)) if since else ("fleet", self.shown())
            self._told[key] = _event(f"{name}\nid: {self.version}", value)
        return self._told[key]

    def _beat(self) -> Message:
        return _event("beat", to_plain(Beat(version=self.version, at_unix=self.snapshot.head["at_unix"])))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Somebody watches, and counts as one of MOST_WATCHERS."""
        self.watchers += 1
        if self._follower is None:
            self._follower = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            self.watchers -= 1
            if not self.watchers:
                self._follower.cancel()
                self._follower = None

    async def _follow(self) -> None:
        while True:
            try:
                await self._look(HOLD_S)
            except Refused:
                await asyncio.sleep(RETRY_S)


def _event(head: str, value: object) -> Message:
    return Message(f"event: {head}\ndata: {json.dumps(value)}\n\n".encode())


def _now() -> float:
    return asyncio.get_running_loop().time()

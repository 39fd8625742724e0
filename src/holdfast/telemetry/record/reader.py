"""What was recorded? Reads the events files of all nodes of a job as one story, and follows it while it goes on.

Within a node the order on disk is the truth. Across nodes: by round, and within a round by time. Clocks of nodes differ, so
where one clearly does (`SKEW_S`), its times are shifted: every node records that a round was formed at nearly the same
moment, which is a common point to compare by. An agent's records before its first round belong to the round that it joins.

Reading is tolerant: a last line that is still being written is left for later, a damaged one is passed over, and an event
that this version does not know, or not in this shape, is kept as plain fields.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from statistics import median
from typing import Any

from holdfast.core.job.events import CATALOGUE, Event, RoundFormed
from holdfast.core.value import Value, replace
from holdfast.telemetry.record.file_watch import Watch
from holdfast.telemetry.record.plain_values import from_plain
from holdfast.telemetry.record.state_dir import events_files

SKEW_S = 0.2
"""Differences of clocks below this are not corrected: NTP keeps nodes within milliseconds, while the news of a round takes
about as long to arrive, and longer to a busy node."""

ENVELOPE = ("seq", "at_unix", "node", "round", "attempt", "event")

FOLLOW_S = 1.0
"""How long to wait for the file system to say that something was written, before looking anyway: network file systems do
not say what other hosts write."""


class Record(Value):
    """One line: an event, and where and when it was recorded."""

    seq: int
    at_unix: float  # As its node's clock had it.
    node: str
    round: int
    attempt: int
    name: str  # The event's name on disk.
    event: Event | None  # None: not known to this version, or not in this shape; see `fields`.
    fields: dict[str, Any]  # The event's own fields as they stand on disk.
    skew_s: float = 0.0  # How much this node's clock is ahead of the others', as far as that shows.

    @property
    def at(self) -> float:
        """When, comparable across nodes (seconds since the epoch)."""
        return self.at_unix - self.skew_s


def read(job_dir: str) -> list[Record]:
    """All that has been recorded for the job in `job_dir`, by all nodes, in order."""
    return merge(Tail(path, node).read() for node, path in events_files(job_dir))


def follow(job_dir: str, is_over: Callable[[], bool], *, wait_s: float = FOLLOW_S) -> Iterator[Record]:
    """What has been recorded, then what is recorded from now on, until `is_over()` and everything is read.

    Each batch is in order; a batch is what came since the last look."""
    tails: dict[str, Tail] = {}
    with Watch(job_dir) as watch:
        while True:
            over = is_over()  # before reading: what it writes last must not be missed
            for node, path in events_files(job_dir):
                tails.setdefault(path, Tail(path, node))
            yield from merge(tail.read() for tail in tails.values())
            if over:
                return
            watch.wait(wait_s)


# ---- one file ------------------------------------------------------------------------------------------------------


class Tail:
    """One node's file, read as far as whole lines go; the next `read` goes on there."""

    def __init__(self, path: str, node: str) -> None:
        self.path = path
        self.node = node
        self._offset = 0

    def read(self, *, limit: int | None = None) -> list[Record]:
        """The records that are whole by now and were not read before, at most about `limit`. A file that is gone has none."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                text = file.read() if limit is None else b"".join(islice(file, limit))
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = (parse(line, self.node) for line in whole.splitlines())
        return [record for record in found if record is not None]


def parse(line: bytes | str, node: str = "") -> Record | None:
    """The record in a line; None where there is none. `node` is used where the line names none."""
    try:
        plain = json.loads(line)
        name = plain["event"]
        fields = {field: item for field, item in plain.items() if field not in ENVELOPE}
        record = Record(
            seq=int(plain.get("seq", 0)),
            at_unix=float(plain["at_unix"]),
            node=str(plain.get("node", node)),
            round=int(plain.get("round", 0)),
            attempt=int(plain.get("attempt", 0)),
            name=str(name),
            event=None,
            fields=fields,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    kind = CATALOGUE.get(record.name)
    if kind is None:
        return record
    if "round" in kind.__fields__:
        fields["round"] = record.round
    return replace(record, event=from_plain(kind, fields))


# ---- several files as one story ------------------------------------------------------------------------------------


def merge(nodes: Iterable[list[Record]]) -> list[Record]:
    """One story from the records of each node; see the module's first paragraphs for the order."""
    stories = _aligned([records for records in nodes if records])
    keyed = [[(*key, number, i) for i, key in enumerate(_keys(story))] for number, story in enumerate(stories)]
    return [stories[number][i] for *_, number, i in heapq.merge(*keyed)]


def _keys(story: list[Record]) -> list[tuple[int, float]]:
    """(round, time) of each record, never falling within a node: its own order is the truth."""
    keys: list[tuple[int, float]] = []
    for record, round in zip(story, _rounds(story)):
        key = (round, record.at)
        keys.append(max(key, keys[-1]) if keys else key)
    return keys


def _rounds(story: list[Record]) -> list[int]:
    """The round each record belongs to: before an agent's first, that which it joins."""
    rounds, ahead = [0] * len(story), 0
    for i in range(len(story) - 1, -1, -1):
        ahead = story[i].round or ahead
        rounds[i] = ahead
        if story[i].name == "AgentStarted":  # what lies before was another agent
            ahead = 0
    return rounds


def _aligned(stories: list[list[Record]]) -> list[list[Record]]:
    """The same, with the skew of each node's clock against the first node's where it is more than `SKEW_S`."""
    formed = [{record.round: record.at_unix for record in story if isinstance(record.event, RoundFormed)} for story in stories]
    aligned = []
    for story, moments in zip(stories, formed):
        # The first node that took part in a round says when it was formed.
        common = [at - next(told[round] for told in formed if round in told) for round, at in moments.items()]
        skew = median(common) if common else 0.0
        aligned.append([replace(record, skew_s=skew) for record in story] if abs(skew) > SKEW_S else story)
    return aligned

"""What does each operation of a round's store do? One round's keys, values and queues, without those who wait.

An operation means what it means to torch's TCPStore: an absent key and an empty expectation make `compare_set` write, `add`
counts from 0, a queue that is not empty counts as a key. A value, and all of them together, are limited in size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from holdfast.core.machine import NEVER
from holdfast.core.wire.messages import StoreAnswer, StoreAsk

TIMEOUT, EMPTY, OVER, FULL, WRONG = "timeout", "empty", "over", "full", "wrong"
"""What an answer's `error` may be: not in time · nothing in the queue · the round is over · no room · not to be done."""

VALUE_BYTES = 8 << 20  # Longest value, and most of one answer: with its base64 it fits into a frame (16 MiB).
STORE_BYTES = 256 << 20  # Most of all keys and values together, of both rounds.
ENTRY_BYTES = 200  # What a key costs Python beyond its text and value, about.
KEY_BYTES, OLD_SHARE = 40, 8
"""What it takes to look at a key, and at a part of an old value of which a new one is made, in bytes of an answer's pace."""
LEAST_SUM, GREATEST_SUM = -(2**63), 2**63 - 1  # `add` counts in a machine's word, as torch's does.


class Room:
    """What all tables of a store use together."""

    def __init__(self) -> None:
        self.used = 0

    def take(self, size: int) -> None:
        """So many bytes more."""
        self.used += size

    def give_back(self, size: int) -> None:
        """So many bytes less."""
        self.used -= size


class Table:
    """One round's keys."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.values: dict[str, bytes] = {}
        self.queues: dict[str, deque[bytes]] = {}

    def has(self, key: str) -> bool:
        """Whether somebody waiting for `key` need not wait."""
        return key in self.values or key in self.queues

    def weight(self) -> int:
        """Bytes that it costs, about."""
        values = sum(ENTRY_BYTES + len(key) + len(value) for key, value in self.values.items())
        return values + sum(ENTRY_BYTES + len(key) + len(item) for key, queue in self.queues.items() for item in queue)

    def work(self, ask: StoreAsk) -> int:
        """What it takes beyond its answer, in bytes of that: all keys may be looked through, or a long value copied."""
        if ask.op in ("count", "list"):
            return KEY_BYTES * len(self.values)
        return len(self.values.get(ask.keys[0], b"")) // OLD_SHARE if ask.op in ("add", "append") else 0

    def done(self, ask: StoreAsk) -> StoreAnswer:
        """Do it: one of OPERATIONS, which is not `unfit` and whose keys are there if it is one that waits."""
        answer: StoreAnswer = getattr(self, f"_{ask.op}")(ask)
        return answer

    # --- operations -----------------------------------------------------------------------------------------------------

    def _set(self, ask: StoreAsk) -> StoreAnswer:
        if len(ask.keys) != len(ask.values):
            return refusal(ask, WRONG, f"{len(ask.keys)} keys and {len(ask.values)} values")
        if no_room := self._no_room(ask, zip(ask.keys, ask.values)):
            return no_room
        for key, value in zip(ask.keys, ask.values):
            self._put(key, value)
        return StoreAnswer(ask=ask.ask)

    def _get(self, ask: StoreAsk) -> StoreAnswer:
        """As many of the values as fit into one answer, the first at least: the rest is asked for again."""
        values: list[bytes] = []
        size = 0
        for key in ask.keys:
            value = self.values.get(key, b"")
            size += len(value)
            if values and size > VALUE_BYTES:
                break
            values.append(value)
        return StoreAnswer(ask=ask.ask, values=tuple(values))

    def _wait(self, ask: StoreAsk) -> StoreAnswer:
        return StoreAnswer(ask=ask.ask)

    def _check(self, ask: StoreAsk) -> StoreAnswer:
        return StoreAnswer(ask=ask.ask, number=int(all(map(self.has, ask.keys))))

    def _add(self, ask: StoreAsk) -> StoreAnswer:
        key = ask.keys[0]
        try:
            total = int(self.values.get(key, b"0")) + ask.number
        except ValueError:
            return refusal(ask, WRONG, f"what stands under {key} is not a whole number")
        if not LEAST_SUM <= total <= GREATEST_SUM:
            return refusal(ask, WRONG, f"the sum under {key} would not fit into 64 bits")
        return self._written(ask, str(total).encode(), number=total)

    def _append(self, ask: StoreAsk) -> StoreAnswer:
        return self._written(ask, self.values.get(ask.keys[0], b"") + ask.values[0])

    def _compare_set(self, ask: StoreAsk) -> StoreAnswer:
        current, (expected, desired) = self.values.get(ask.keys[0]), ask.values
        if current == expected or (current is None and not expected):
            return self._written(ask, desired, values=(desired,))
        return StoreAnswer(ask=ask.ask, values=(expected if current is None else current,))

    def _delete(self, ask: StoreAsk) -> StoreAnswer:
        key = ask.keys[0]
        there = self.has(key)
        self._drop(key)
        self.room.give_back(sum(ENTRY_BYTES + len(key) + len(item) for item in self.queues.pop(key, ())))
        return StoreAnswer(ask=ask.ask, number=int(there))

    def _count(self, ask: StoreAsk) -> StoreAnswer:
        prefix = ask.keys[0]
        found = len(self.values) if not prefix else sum(key.startswith(prefix) for key in self.values)
        return StoreAnswer(ask=ask.ask, number=found)

    def _list(self, ask: StoreAsk) -> StoreAnswer:
        """Keys from number `number` on, as many as fit; `number` of the answer is how many there are in all."""
        found = [key.encode() for key in self.values if key.startswith(ask.keys[0])]
        shown: list[bytes] = []
        size = 0
        for key in found[max(0, ask.number) :]:
            size += len(key) + 8
            if shown and size > VALUE_BYTES:
                break
            shown.append(key)
        return StoreAnswer(ask=ask.ask, values=tuple(shown), number=len(found))

    def _push(self, ask: StoreAsk) -> StoreAnswer:
        key, item = ask.keys[0], ask.values[0]
        added = ENTRY_BYTES + len(key) + len(item)
        if self.room.used + added > STORE_BYTES:
            return refusal(ask, FULL, f"the store holds {self.room.used} bytes (at most {STORE_BYTES})")
        self.room.take(added)
        self.queues.setdefault(key, deque()).append(item)
        return StoreAnswer(ask=ask.ask)

    def _pop(self, ask: StoreAsk) -> StoreAnswer:
        key = ask.keys[0]
        queue = self.queues.get(key)
        if queue is None:
            return refusal(ask, EMPTY, f"the queue {key} is empty")
        item = queue.popleft()
        self.room.give_back(ENTRY_BYTES + len(key) + len(item))
        if not queue:
            del self.queues[key]
        return StoreAnswer(ask=ask.ask, values=(item,))

    def _length(self, ask: StoreAsk) -> StoreAnswer:
        return StoreAnswer(ask=ask.ask, number=len(self.queues.get(ask.keys[0], ())))

    # --- room -----------------------------------------------------------------------------------------------------------

    def _written(
        self, ask: StoreAsk, value: bytes, *, values: tuple[bytes, ...] = (), number: int = 0
    ) -> StoreAnswer:
        if no_room := self._no_room(ask, [(ask.keys[0], value)]):
            return no_room
        self._put(ask.keys[0], value)
        return StoreAnswer(ask=ask.ask, values=values, number=number)

    def _no_room(self, ask: StoreAsk, wanted: Iterable[tuple[str, bytes]]) -> StoreAnswer | None:
        added = 0
        for key, value in wanted:
            if len(value) > VALUE_BYTES:
                return refusal(ask, FULL, f"{key} would have {len(value)} bytes (at most {VALUE_BYTES} are allowed)")
            old = self.values.get(key)
            added += len(value) - len(old) if old is not None else ENTRY_BYTES + len(key) + len(value)
        if added > 0 and self.room.used + added > STORE_BYTES:
            return refusal(ask, FULL, f"the store holds {self.room.used} bytes (at most {STORE_BYTES})")
        return None

    def _put(self, key: str, value: bytes) -> None:
        self._drop(key)
        self.values[key] = value
        self.room.take(ENTRY_BYTES + len(key) + len(value))

    def _drop(self, key: str) -> None:
        old = self.values.pop(key, None)
        if old is not None:
            self.room.give_back(ENTRY_BYTES + len(key) + len(old))


OPERATIONS = ("set", "get", "wait", "check", "add", "append", "compare_set", "delete", "count", "list", "push", "pop", "length")

NEEDED = {"add": (1, 0), "append": (1, 1), "compare_set": (1, 2), "push": (1, 1)} | {
    op: (1, 0) for op in ("delete", "count", "list", "pop", "length")
}
"""Operation → how many keys and values it takes; the others take any number of keys."""


def unfit(ask: StoreAsk) -> str:
    """What an operation lacks. Empty: nothing."""
    if ask.op not in OPERATIONS:
        return "there is no such operation"
    given, wanted = (len(ask.keys), len(ask.values)), NEEDED.get(ask.op)
    if wanted is not None and given != wanted:
        return f"{given[0]} keys and {given[1]} values were given, it takes {wanted[0]} and {wanted[1]}"
    if not 0 <= ask.wait_s < NEVER:
        return "it cannot wait for such a time"
    return ""


def refusal(ask: StoreAsk, error: str, reason: str) -> StoreAnswer:
    """An answer that says why not."""
    return StoreAnswer(ask=ask.ask, error=error, reason=reason)

"""What do the agents of a round tell one another? Keys and values that the coordinator keeps for them, one table per round.

    Arrived(StoreAsk) ──▶ ┌───────────┐ ──▶ Transmit(StoreAnswer), at once
    LinkDown          ──▶ │ KeyValues │         or when the keys are there, or `wait_s` is over, or the round
    Tick              ──▶ └───────────┘

What each operation means is what it means to torch's TCPStore: an absent key and an empty expectation make `compare_set`
write, `add` counts from 0, a queue that is not empty counts as a key. A value, all values together, and those who wait are
limited in size and number, so that no agent can fill the coordinator's memory; a waiter goes with its link. With the start of
a round the tables of those before the last go, and who still waits there is told so.
"""

from __future__ import annotations

import heapq
from collections import deque

from holdfast.core.links import Arrived, LinkDown, Transmit
from holdfast.core.machine import NEVER, Action, Observation, Tick
from holdfast.core.messages import StoreAnswer, StoreAsk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Doing = Callable[["Table", StoreAsk], StoreAnswer]

TIMEOUT, EMPTY, OVER, FULL, WRONG = "timeout", "empty", "over", "full", "wrong"
"""What an answer's `error` may be: not in time · nothing in the queue · the round is over · no room · not to be done."""

WAITING = ("get", "wait", "pop")
"""Operations that wait for their keys."""
WRITING = ("set", "add", "append", "compare_set", "push")
"""Operations that others may be waiting for."""

VALUE_BYTES = 8 << 20
"""Longest value, and most of one answer: with its base64 it fits into a frame (16 MiB)."""
STORE_BYTES = 256 << 20
"""Most of all keys and values together, of both rounds."""
ENTRY_BYTES = 200
"""What a key costs Python beyond its text and value, about."""
LONGEST_WAIT_S = 7 * 86400.0
"""Whoever wants to wait longer waits so long: an asker must not give its coordinator times that no clock knows."""
WAITERS = 1 << 16
"""At most so many unanswered operations."""
LEAST_SUM, GREATEST_SUM = -(2**63), 2**63 - 1
"""`add` counts in a machine's word, as torch's does."""
NAMED = 10
"""At most so many missing keys are named in a message."""


class Table:
    """One round's keys."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.queues: dict[str, deque[bytes]] = {}

    def has(self, key: str) -> bool:
        """Whether somebody waiting for `key` need not wait."""
        return key in self.values or key in self.queues

    def weight(self) -> int:
        """Bytes that it costs, about."""
        values = sum(ENTRY_BYTES + len(key) + len(value) for key, value in self.values.items())
        return values + sum(ENTRY_BYTES + len(key) + len(item) for key, queue in self.queues.items() for item in queue)


class Waiter:
    """An operation whose keys are not all there."""

    def __init__(self, link: int, ask: StoreAsk, until: float) -> None:
        self.link, self.ask, self.until = link, ask, until
        self.missing: set[str] = set()


class KeyValues:
    """The machine."""

    def __init__(self) -> None:
        self.round = 0
        self.tables: dict[int, Table] = {}
        self.weight = 0
        self.waiters: dict[int, dict[int, Waiter]] = {}
        """link → number of the ask → who waits"""
        self.count = 0
        self.by_key: dict[tuple[int, str], dict[Waiter, None]] = {}
        """(round, key) → who misses it, in the order of their coming"""
        self.due: list[tuple[float, int, int]] = []
        """(until, link, ask): a heap; those answered meanwhile stay in it until their time."""

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`."""
        match seen:
            case Arrived(link=link, message=StoreAsk() as ask):
                return self._asked(link, ask, now)
            case LinkDown(link=link):
                for waiter in list(self.waiters.get(link, {}).values()):
                    self._forget(waiter)
            case Tick():
                return self._late(now)
        return []

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        return self.due[0][0] if self.due else NEVER

    def begin_round(self, number: int) -> list[Action]:
        """From now on `number` is the newest round. Its predecessor's keys stay: an agent may be about to read there."""
        self.round = number
        for old in [round for round in self.tables if round < number - 1]:
            self.weight -= self.tables.pop(old).weight()
        late = [waiter for asks in self.waiters.values() for waiter in asks.values() if waiter.ask.round < number - 1]
        return [self._answered(waiter, self._over(waiter.ask)) for waiter in late]

    # --- asked ----------------------------------------------------------------------------------------------------------

    def _asked(self, link: int, ask: StoreAsk, now: float) -> list[Action]:
        if ask.round < self.round - 1:
            return [_to(link, self._over(ask))]
        doing = self._doing().get(ask.op)
        wrong = "there is no such operation" if doing is None else _unfit(ask)
        if wrong:
            return [_to(link, _refusal(ask, WRONG, f"{ask.op}: {wrong}"))]
        table = self.tables.get(ask.round) or self.tables.setdefault(ask.round, Table())
        missing = self._missing(table, ask)
        if missing:
            return self._wait(Waiter(link, ask, now + min(ask.wait_s, LONGEST_WAIT_S)), missing, now)
        return [_to(link, self._done(table, ask)), *self._woken(ask)]

    def _doing(self) -> dict[str, Doing]:
        return {
            "set": self._set,
            "get": self._get,
            "wait": self._said,
            "check": self._check,
            "add": self._add,
            "append": self._append,
            "compare_set": self._compare_set,
            "delete": self._delete,
            "count": self._count,
            "list": self._list,
            "push": self._push,
            "pop": self._pop,
            "length": self._length,
        }

    def _done(self, table: Table, ask: StoreAsk) -> StoreAnswer:
        return self._doing()[ask.op](table, ask)

    def _over(self, ask: StoreAsk) -> StoreAnswer:
        return _refusal(ask, OVER, f"round {ask.round} is over: the job is in round {self.round}")

    # --- waiting --------------------------------------------------------------------------------------------------------

    @staticmethod
    def _missing(table: Table, ask: StoreAsk) -> set[str]:
        if ask.op == "pop":
            return {key for key in ask.keys if ask.number and key not in table.queues}
        return {key for key in ask.keys if not table.has(key)} if ask.op in WAITING else set()

    def _wait(self, waiter: Waiter, missing: set[str], now: float) -> list[Action]:
        if now >= waiter.until:
            return [_to(waiter.link, _too_late(waiter.ask, missing))]
        if self.count >= WAITERS:
            return [_to(waiter.link, _refusal(waiter.ask, FULL, f"{WAITERS} operations wait here already"))]
        mine = self.waiters.setdefault(waiter.link, {})
        if waiter.ask.ask in mine:
            return [_to(waiter.link, _refusal(waiter.ask, WRONG, "two operations of one number"))]
        mine[waiter.ask.ask] = waiter
        self.count += 1
        if len(self.due) > 2 * self.count + 100:  # most of them have been answered long ago
            self.due = [(each.until, each.link, number) for asks in self.waiters.values() for number, each in asks.items()]
            heapq.heapify(self.due)
        else:
            heapq.heappush(self.due, (waiter.until, waiter.link, waiter.ask.ask))
        self._miss(waiter, missing)
        return []

    def _miss(self, waiter: Waiter, missing: set[str]) -> None:
        waiter.missing = missing
        for key in sorted(missing):
            self.by_key.setdefault((waiter.ask.round, key), {})[waiter] = None

    def _woken(self, written: StoreAsk) -> list[Action]:
        """Answer those who were waiting for what has just been written."""
        out: list[Action] = []
        if written.op not in WRITING:
            return out
        table = self.tables[written.round]
        for key in written.keys:
            for waiter in self.by_key.pop((written.round, key), {}) if table.has(key) else ():
                waiter.missing.discard(key)
                if waiter.missing:
                    continue
                again = self._missing(table, waiter.ask)  # a key may have been deleted, or an item taken, meanwhile
                if again:
                    self._miss(waiter, again)
                else:
                    out.append(self._answered(waiter, self._done(table, waiter.ask)))
        return out

    def _late(self, now: float) -> list[Action]:
        out: list[Action] = []
        while self.due and self.due[0][0] <= now:
            until, link, number = heapq.heappop(self.due)
            waiter = self.waiters.get(link, {}).get(number)
            if waiter is not None and waiter.until == until:
                out.append(self._answered(waiter, _too_late(waiter.ask, waiter.missing)))
        return out

    def _answered(self, waiter: Waiter, answer: StoreAnswer) -> Action:
        self._forget(waiter)
        return _to(waiter.link, answer)

    def _forget(self, waiter: Waiter) -> None:
        mine = self.waiters[waiter.link]
        del mine[waiter.ask.ask]
        if not mine:
            del self.waiters[waiter.link]
        self.count -= 1
        for key in waiter.missing:
            others = self.by_key.get((waiter.ask.round, key), {})
            others.pop(waiter, None)
            if not others:
                self.by_key.pop((waiter.ask.round, key), None)

    # --- operations -----------------------------------------------------------------------------------------------------

    def _set(self, table: Table, ask: StoreAsk) -> StoreAnswer:
        if len(ask.keys) != len(ask.values):
            return _refusal(ask, WRONG, f"{len(ask.keys)} keys and {len(ask.values)} values")
        if no_room := self._no_room(ask, table, zip(ask.keys, ask.values)):
            return no_room
        for key, value in zip(ask.keys, ask.values):
            self._put(table, key, value)
        return StoreAnswer(ask=ask.ask)

    def _get(self, table: Table, ask: StoreAsk) -> StoreAnswer:
        """As many of the values as fit into one answer, the first at least: the rest is asked for again."""
        values: list[bytes] = []
        size = 0
        for key in ask.keys:
            value = table.values.get(key, b"")
            size += len(value)
            if values and size > VALUE_BYTES:
                break
            values.append(value)
        return StoreAnswer(ask=ask.ask, values=tuple(values))

    def _said(self, table: Table, ask: StoreAsk) -> StoreAnswer:
        return StoreAnswer(ask=ask.ask)

    def _check(self, table: Table, ask: StoreAsk) -> StoreAnswer:
        return StoreAnswer(ask=ask.ask, number=int(all(map(table.has, ask.keys))))

    def _add(self, table: Table, ask: StoreAsk) -> StoreAnswer:
        key = ask.keys[0]
        try:
            total = int(table.values.get(key, b"0")) + ask.number
        except ValueError:
            return _refusal(ask, WRONG, f"what stands under {key} is no whole number")
        if not LEAST_SUM <= total <= GREATEST_SUM:
            return _refusal(ask, WRONG, f"the sum under {key} would not fit into 64 bits")
        return self._written(table, ask, str(total).encode(), number=total)

    def _append(self, table: Table, ask: StoreAsk) -> StoreAnswer:
        return self._written(table, ask, table.values.get(ask.keys[0], b"") + ask.values[0])

    def _compare_set(self, table: Table, ask: StoreAsk) -> StoreAnswer:
        current, (expected, desired) = table.values.get(ask.keys[0]), ask.values
        if current == expected or (current is None and not expected):
            return self._written(table, ask, desired, values=(desired,))
        return StoreAnswer(ask=ask.ask, values=(expected if current is None else current,))

    def _delete(self, table: Table, ask: StoreAsk) -> StoreAnswer:
        key = ask.keys[0]
        there = table.has(key)
        self._drop(table, key)
        self.weight -= sum(ENTRY_BYTES + len(key) + len(item) for item in table.queues.pop(key, ()))
        return StoreAnswer(ask=ask.ask, number=int(there))

    def _count(self, table: Table, ask: StoreAsk) -> StoreAnswer:
        prefix = ask.keys[0]
        found = len(table.values) if not prefix else sum(key.startswith(prefix) for key in table.values)
        return StoreAnswer(ask=ask.ask, number=found)

    def _list(self, table: Table, ask: StoreAsk) -> StoreAnswer:
        """Keys from number `number` on, as many as fit; `number` of the answer is how many there are in all."""
        found = [key.encode() for key in table.values if key.startswith(ask.keys[0])]
        shown: list[bytes] = []
        size = 0
        for key in found[max(0, ask.number) :]:
            size += len(key) + 8
            if shown and size > VALUE_BYTES:
                break
            shown.append(key)
        return StoreAnswer(ask=ask.ask, values=tuple(shown), number=len(found))

    def _push(self, table: Table, ask: StoreAsk) -> StoreAnswer:
        key, item = ask.keys[0], ask.values[0]
        added = ENTRY_BYTES + len(key) + len(item)
        if self.weight + added > STORE_BYTES:
            return _refusal(ask, FULL, f"the store holds {self.weight} bytes (at most {STORE_BYTES})")
        self.weight += added
        table.queues.setdefault(key, deque()).append(item)
        return StoreAnswer(ask=ask.ask)

    def _pop(self, table: Table, ask: StoreAsk) -> StoreAnswer:
        key = ask.keys[0]
        queue = table.queues.get(key)
        if queue is None:
            return _refusal(ask, EMPTY, f"the queue {key} is empty")
        item = queue.popleft()
        self.weight -= ENTRY_BYTES + len(key) + len(item)
        if not queue:
            del table.queues[key]
        return StoreAnswer(ask=ask.ask, values=(item,))

    def _length(self, table: Table, ask: StoreAsk) -> StoreAnswer:
        return StoreAnswer(ask=ask.ask, number=len(table.queues.get(ask.keys[0], ())))

    # --- room -----------------------------------------------------------------------------------------------------------

    def _written(
        self, table: Table, ask: StoreAsk, value: bytes, *, values: tuple[bytes, ...] = (), number: int = 0
    ) -> StoreAnswer:
        if no_room := self._no_room(ask, table, [(ask.keys[0], value)]):
            return no_room
        self._put(table, ask.keys[0], value)
        return StoreAnswer(ask=ask.ask, values=values, number=number)

    def _no_room(self, ask: StoreAsk, table: Table, wanted: Iterable[tuple[str, bytes]]) -> StoreAnswer | None:
        added = 0
        for key, value in wanted:
            if len(value) > VALUE_BYTES:
                return _refusal(ask, FULL, f"{key} would have {len(value)} bytes (at most {VALUE_BYTES} are allowed)")
            old = table.values.get(key)
            added += len(value) - len(old) if old is not None else ENTRY_BYTES + len(key) + len(value)
        if added > 0 and self.weight + added > STORE_BYTES:
            return _refusal(ask, FULL, f"the store holds {self.weight} bytes (at most {STORE_BYTES})")
        return None

    def _put(self, table: Table, key: str, value: bytes) -> None:
        self._drop(table, key)
        table.values[key] = value
        self.weight += ENTRY_BYTES + len(key) + len(value)

    def _drop(self, table: Table, key: str) -> None:
        old = table.values.pop(key, None)
        if old is not None:
            self.weight -= ENTRY_BYTES + len(key) + len(old)


NEEDED = {"add": (1, 0), "append": (1, 1), "compare_set": (1, 2), "push": (1, 1)} | {
    op: (1, 0) for op in ("delete", "count", "list", "pop", "length")
}
"""Operation → how many keys and values it takes; the others take any number of keys."""


def _unfit(ask: StoreAsk) -> str:
    """What an operation lacks. Empty: nothing."""
    given, wanted = (len(ask.keys), len(ask.values)), NEEDED.get(ask.op)
    if wanted is not None and given != wanted:
        return f"{given[0]} keys and {given[1]} values were given, it takes {wanted[0]} and {wanted[1]}"
    if not 0 <= ask.wait_s < NEVER:
        return "it cannot wait for such a time"
    return ""


def _to(link: int, answer: StoreAnswer) -> Transmit:
    return Transmit(link=link, message=answer)


def _refusal(ask: StoreAsk, error: str, reason: str) -> StoreAnswer:
    return StoreAnswer(ask=ask.ask, error=error, reason=reason)


def _too_late(ask: StoreAsk, missing: Iterable[str]) -> StoreAnswer:
    names = sorted(missing)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    what = f"waited {round(ask.wait_s, 3):g} s for {', '.join(names[:NAMED])}{more}, which nobody has set"
    return _refusal(ask, TIMEOUT, what)

"""What do the agents of a round tell one another? Keys and values that the coordinator keeps for them, one table per round.

    Arrived(StoreAsk) ──▶ ┌───────────┐ ──▶ Transmit(StoreAnswer), at once
    LinkDown          ──▶ │ KeyValues │         or when the keys are there, or `wait_s` is over, or the round;
    LinkUp, Tick      ──▶ └───────────┘         later where much is answered: each address in turn, and of it each link

What an operation does is `rendezvous.kvstore.table`'s; here is who waits, how long, and in which round. Those who wait are
limited in number, as the tables are in size, so that no agent can fill the coordinator's memory; a waiter goes with its link.
An address has a part of them and one turn, however many links come from it: one member keeps no other from the store.
A short question may have a long answer, or have much looked through, and one word may wake thousands: answers have a pace,
which leaves the coordinator time for its leases.
With the start of a round the tables of those before the last go, and who still waits there is told so.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

from holdfast.core.machine import NEVER, Action, Observation, Tick
from holdfast.core.wire.links import Arrived, LinkDown, LinkUp, Transmit
from holdfast.core.wire.messages import StoreAnswer, StoreAsk
from holdfast.rendezvous.kvstore.table import FULL, KEY_BYTES, OVER, TIMEOUT, WRONG, Room, Table, refusal, unfit

WAITING = ("get", "wait", "pop")  # Operations that wait for their keys.
WRITING = ("set", "add", "append", "compare_set", "push")  # Operations that others may be waiting for.

LONGEST_WAIT_S = 7 * 86400.0
"""A longer wait is cut to this: no asker may give its coordinator a time beyond any clock."""
WAITERS, WAITED_KEYS = 1 << 16, 1 << 19  # At most so many unanswered operations, and keys that they name together.
OF_ONE = 4  # Of both an address has no more than this part.
BYTES_PER_S, BURST_S = 128 << 20, 0.05
"""Of answers. To make so many takes less than half of a processor's time. So much of that time is given at once."""
ANSWER_BYTES = 2048  # What an answer costs beyond its values, in their bytes.
NAMED = 10  # At most so many missing keys are named in a message.


class Waiter:
    """An operation whose keys are not all there."""

    def __init__(self, link: int, ask: StoreAsk, until: float) -> None:
        self.link, self.ask, self.until = link, ask, until
        self.missing: set[str] = set()

    def misses(self, keys: set[str]) -> None:
        """These are not there (any more)."""
        self.missing = keys


class KeyValues:
    """The machine."""

    def __init__(self) -> None:
        self.round = 0
        self.tables: dict[int, Table] = {}
        self.room = Room()
        self.waiters: dict[int, dict[int, Waiter]] = {}  # link → number of the ask → who waits
        self.peers: dict[int, str] = {}  # Link → the address that it comes from.
        self.count = self.keys = 0  # Who waits, and the keys that they have named.
        self.counts: dict[str, tuple[int, int]] = {}  # Both of each address that has any.
        self.by_key: dict[tuple[int, str], dict[Waiter, None]] = {}
        """(round, key) → who misses it, in the order of their coming"""
        self.due: list[tuple[float, int, int]] = []
        """(until, link, ask): a heap; those answered meanwhile stay in it until their time."""
        self.turns: dict[str, dict[int, deque[tuple[float, StoreAsk]]]] = {}
        """address → link → until when it would wait for its keys, and what it asks, where much is answered; whose turn is next,
        first"""
        self.paid_at = 0.0  # When all that was answered will have had its time.

    def observe(self, seen: Observation, now: float) -> list[Action]:
        match seen:
            case LinkUp(link=link, peer=peer):
                self.peers[link] = peer
            case Arrived(link=link, message=StoreAsk() as ask):
                until = now + min(ask.wait_s, LONGEST_WAIT_S)
                if self._is_busy(now) or link in self.turns.get(self._peer(link), {}):
                    return self._take_turn(link, ask, until)
                return self._asked(link, ask, until, now)
            case LinkDown(link=link):
                self._lose_turns(link)
                for waiter in list(self.waiters.get(link, {}).values()):
                    self._forget(waiter)
                self.peers.pop(link, None)
            case Tick():
                return self._late(now) + self._go_on(now)
        return []

    def deadline(self) -> float:
        return min(self.due[0][0] if self.due else NEVER, self.paid_at - BURST_S if self.turns else NEVER)

    def begin_round(self, number: int) -> list[Action]:
        """From now on `number` is the newest round. Its predecessor's keys stay: an agent may be about to read there."""
        self.round = number
        for old in [round for round in self.tables if round < number - 1]:
            self.room.give_back(self.tables.pop(old).weight())
        late = [waiter for asks in self.waiters.values() for waiter in asks.values() if waiter.ask.round < number - 1]
        return [self._answered(waiter, self._over(waiter.ask)) for waiter in late]

    # --- at a pace --------------------------------------------------------------------------------------------------------

    def _is_busy(self, now: float) -> bool:
        return self.paid_at - BURST_S > now  # as `deadline` says it

    def _take_turn(self, link: int, ask: StoreAsk, until: float) -> list[Action]:
        if self._has_no_room(link, 0):
            return [_to(link, self._full(ask))]
        self.turns.setdefault(self._peer(link), {}).setdefault(link, deque()).append((until, ask))
        self._count(link, 1, 0)
        return []

    def _lose_turns(self, link: int) -> None:
        links = self.turns.get(self._peer(link), {})
        self._count(link, -len(links.pop(link, ())), 0)
        if not links:
            self.turns.pop(self._peer(link), None)

    def _go_on(self, now: float) -> list[Action]:
        """Answer those whose turn it is."""
        out: list[Action] = []
        while self.turns and not self._is_busy(now):
            peer, links = next(iter(self.turns.items()))
            link, asks = next(iter(links.items()))
            del self.turns[peer], links[link]  # to the end of both lines
            until, ask = asks.popleft()
            if asks:
                links[link] = asks
            if links:
                self.turns[peer] = links
            self._count(link, -1, 0)
            out += self._asked(link, ask, until, now)
        return out

    def _done(self, table: Table, link: int, ask: StoreAsk, now: float) -> Action:
        work, answer = table.work(ask), table.done(ask)
        self._pay(ANSWER_BYTES + work + sum(map(len, answer.values)), now)
        return _to(link, answer)

    def _pay(self, cost: int, now: float) -> None:
        self.paid_at = max(self.paid_at, now) + cost / BYTES_PER_S

    # --- asked ----------------------------------------------------------------------------------------------------------

    def _asked(self, link: int, ask: StoreAsk, until: float, now: float) -> list[Action]:
        if ask.round < self.round - 1:
            return [_to(link, self._over(ask))]
        # One ahead, since who follows a coordinator that has just moved may know of a round before it does; no more tables.
        ahead = f"round {ask.round} has not begun" if ask.round > self.round + 1 else ""
        if wrong := ahead or unfit(ask):
            return [_to(link, refusal(ask, WRONG, f"{ask.op}: {wrong}"))]
        table = self.tables.get(ask.round) or self.tables.setdefault(ask.round, Table(self.room))
        missing = self._missing(table, ask)
        if missing:
            return self._wait(Waiter(link, ask, until), missing, now)
        return [self._done(table, link, ask, now), *self._woken(ask, now)]

    def _full(self, ask: StoreAsk) -> StoreAnswer:
        return refusal(ask, FULL, f"{self.count} operations wait here already (from one address at most {WAITERS // OF_ONE})")

    def _over(self, ask: StoreAsk) -> StoreAnswer:
        return refusal(ask, OVER, f"round {ask.round} is over: the job is in round {self.round}")

    # --- room -----------------------------------------------------------------------------------------------------------

    def _peer(self, link: int) -> str:
        return self.peers.get(link, "")

    def _has_no_room(self, link: int, keys: int) -> bool:
        """Whether one more that waits for so many keys is one too many: in all, or from its address."""
        count, named = self.counts.get(self._peer(link), (0, 0))
        is_full = self.count >= WAITERS or self.keys + keys > WAITED_KEYS
        return is_full or count >= WAITERS // OF_ONE or named + keys > WAITED_KEYS // OF_ONE

    def _count(self, link: int, asks: int, keys: int) -> None:
        peer = self._peer(link)
        count, named = self.counts.pop(peer, (0, 0))
        if count + asks:
            self.counts[peer] = count + asks, named + keys
        self.count += asks
        self.keys += keys

    # --- waiting --------------------------------------------------------------------------------------------------------

    @staticmethod
    def _missing(table: Table, ask: StoreAsk) -> set[str]:
        if ask.op == "pop":
            return {key for key in ask.keys if ask.number and key not in table.queues}
        return {key for key in ask.keys if not table.has(key)} if ask.op in WAITING else set()

    def _wait(self, waiter: Waiter, missing: set[str], now: float) -> list[Action]:
        if now >= waiter.until:
            return [_to(waiter.link, _too_late(waiter.ask, missing))]
        if self._has_no_room(waiter.link, len(waiter.ask.keys)):
            return [_to(waiter.link, self._full(waiter.ask))]
        mine = self.waiters.setdefault(waiter.link, {})
        if waiter.ask.ask in mine:
            return [_to(waiter.link, refusal(waiter.ask, WRONG, "two operations of one number"))]
        mine[waiter.ask.ask] = waiter
        self._count(waiter.link, 1, len(waiter.ask.keys))
        if len(self.due) > 2 * self.count + 100:  # most of them have been answered long ago
            self.due = [(each.until, each.link, number) for asks in self.waiters.values() for number, each in asks.items()]
            heapq.heapify(self.due)
        else:
            heapq.heappush(self.due, (waiter.until, waiter.link, waiter.ask.ask))
        self._miss(waiter, missing)
        return []

    def _miss(self, waiter: Waiter, missing: set[str]) -> None:
        waiter.misses(missing)
        for key in sorted(missing):
            self.by_key.setdefault((waiter.ask.round, key), {})[waiter] = None

    def _woken(self, written: StoreAsk, now: float) -> list[Action]:
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
                self._pay(KEY_BYTES * len(waiter.ask.keys), now)
                again = self._missing(table, waiter.ask)  # a key may have been deleted, or an item taken, meanwhile
                if again:
                    self._miss(waiter, again)
                    continue
                self._forget(waiter)
                if self._is_busy(now):
                    self._take_turn(waiter.link, waiter.ask, waiter.until)
                else:
                    out.append(self._done(table, waiter.link, waiter.ask, now))
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
        self._count(waiter.link, -1, -len(waiter.ask.keys))
        for key in waiter.missing:
            others = self.by_key.get((waiter.ask.round, key), {})
            others.pop(waiter, None)
            if not others:
                self.by_key.pop((waiter.ask.round, key), None)


def _to(link: int, answer: StoreAnswer) -> Transmit:
    return Transmit(link=link, message=answer)


def _too_late(ask: StoreAsk, missing: Iterable[str]) -> StoreAnswer:
    names = sorted(missing)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    what = f"waited {round(ask.wait_s, 3):g} s for {', '.join(names[:NAMED])}{more}, which nobody has set"
    return refusal(ask, TIMEOUT, what)

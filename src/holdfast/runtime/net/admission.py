"""Who may stay of those that come to a port? The same for every listener of an agent, the supervisor and the services.

A guest has proved nothing when it enters, then it has (a handshake, a whole request), then it has spoken. When there are too
many, or no descriptors left but those that this process needs itself, one goes: first who has proved nothing, then who has
proved itself and said nothing, each time of the origin and address that have most (`addresses.origin`). So nobody keeps
others out by coming often.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from _thread import allocate_lock
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

from holdfast.core.machine import NEVER
from holdfast.core.value import Value

PER_PEER, IN_ALL = 4, 24
"""Lines about one address, and about all: a scanner with many addresses and words must not fill the log."""

AGAIN_S, LONGEST_S = 60.0, 3600.0  # Until unsaid lines are counted aloud; doubles.


class RejectionLog:
    """Tells each reason once for each address, and counts the rest. `complain` tells a person."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        self.complain = complain
        self.said: dict[str, set[str]] = {}  # peer → what was said about it
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


UNPROVED = 1024  # Guests that have proved nothing, at a time; and no more than an eighth of the open files that are allowed.

CROWD, YOUNG_S = 16, 1.0
"""While no address has more guests without proof than `CROWD`, these are many nodes that come at once: those who come next
wait in the kernel's queue, until the oldest has had `YOUNG_S` for its proof."""

HELD_BYTES = 128 << 20  # Of messages that have not come whole, or are not read, of all guests together: eight of the largest.

OWN_FILES, OWN_SHARE = 256, 4  # Descriptors that no guest gets: so many, and no more than a quarter of all.

NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Limits(Value):
    """What the guests of one listener may take: see the numbers of the same names."""

    unproved: int = UNPROVED
    in_all: int = 1 << 20
    crowd: int = CROWD
    young_s: float = YOUNG_S
    held_bytes: int = HELD_BYTES


LIMITS = Limits()

Guest = TypeVar("Guest", bound=Hashable)

STRANGER, SILENT, KNOWN = range(3)
"""Has proved nothing; has proved itself, and said nothing; has spoken. Who goes first is first."""

FEW = 16  # Guests that are let in though descriptors are short: what a process needs itself may be more than is kept for it.


class Seat:
    """What is known of a guest."""

    __slots__ = ("address", "came_at", "held", "origin", "state")

    def __init__(self, origin: str, address: str, came_at: float) -> None:
        self.origin, self.address, self.came_at = origin, address, came_at
        self.state = STRANGER
        self.held = 0  # Bytes of messages that have not come whole, or are not read.

    def becomes(self, state: int) -> None:
        """It is known better."""
        self.state = state

    def holds(self, size: int) -> int:
        """So many bytes now: how many more than before."""
        before, self.held = self.held, size
        return size - before


class Crowd(Generic[Guest]):
    """Guests in one state."""

    def __init__(self) -> None:
        self.count = 0
        self._of: dict[str, dict[str, dict[Guest, None]]] = {}  # By origin and address; the oldest first.
        self._counts: dict[str, int] = {}  # By origin.

    def add(self, guest: Guest, seat: Seat) -> None:
        """One more."""
        self.count += 1
        self._of.setdefault(seat.origin, {}).setdefault(seat.address, {})[guest] = None
        self._counts[seat.origin] = self._counts.get(seat.origin, 0) + 1

    def remove(self, guest: Guest, seat: Seat) -> None:
        """One less."""
        self.count -= 1
        addresses = self._of[seat.origin]
        del addresses[seat.address][guest]
        if not addresses[seat.address]:
            del addresses[seat.address]
        self._counts[seat.origin] -= 1
        if not addresses:
            del self._of[seat.origin], self._counts[seat.origin]

    def of(self, origin: str) -> int:
        """How many have that origin."""
        return self._counts.get(origin, 0)

    def at(self, origin: str, address: str) -> int:
        """How many of them have that address."""
        return len(self._of.get(origin, {}).get(address, ()))

    def heaviest(self) -> tuple[str, dict[Guest, None]] | None:
        """The origin that has most, and those of its address that has most, the oldest first."""
        if not self._counts:
            return None
        origin = max(self._counts, key=self._counts.__getitem__)
        return origin, max(self._of[origin].values(), key=len)

    def oldest_of_each(self) -> Iterable[Guest]:
        """The first of each address."""
        return (next(iter(guests)) for addresses in self._of.values() for guests in addresses.values())


class Admission(Generic[Guest]):
    """The guests of one listener. Any thread may ask. Who is returned has to go, and is no guest any more."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self._seats: dict[Guest, Seat] = {}
        self._in: tuple[Crowd[Guest], ...] = (Crowd(), Crowd(), Crowd())  # By state.
        self._holding: dict[Guest, Seat] = {}  # Who has sent part of a message, or reads none; who began first, first.
        self._held = 0
        self._room = limits.in_all  # Guests that there are descriptors for, as it was last.
        self._lock = allocate_lock()

    def __len__(self) -> int:
        return len(self._seats)

    @property
    def unproved(self) -> int:
        """Those that have proved nothing."""
        return self._in[STRANGER].count

    def enter(self, guest: Guest, origin: tuple[str, str], now: float, fd: int = -1) -> Guest | None:
        """One has come, over descriptor `fd`, as `addresses.origin` says: who has to go for it, which may be itself."""
        with self._lock:
            gone = self._for_whom(guest, *origin, fd)
            if gone is not guest:
                if gone is not None:
                    self._remove(gone)
                self._seats[guest] = seat = Seat(*origin, now)
                self._in[STRANGER].add(guest, seat)
            return gone

    def prove(self, guest: Guest) -> None:
        """It belongs here."""
        self._move(guest, SILENT)

    def speak(self, guest: Guest) -> None:
        """It has said what it wants."""
        self._move(guest, KNOWN)

    def leave(self, guest: Guest) -> None:
        """It is gone, or going."""
        with self._lock:
            self._remove(guest)

    def hold(self, guest: Guest, size: int) -> list[Guest]:
        """So many bytes are held for it: who has to go, since they are too many for all together."""
        gone: list[Guest] = []
        with self._lock:
            if (seat := self._seats.get(guest)) is None or seat.held == size:
                return gone
            self._held += seat.holds(size)
            if size:
                self._holding.setdefault(guest, seat)
            else:
                self._holding.pop(guest, None)
            while self._held > self.limits.held_bytes:
                gone.append(self._first_of_heaviest())
                self._remove(gone[-1])
        return gone

    def late(self, before: float) -> list[Guest]:
        """Those that came before then and have proved nothing: they have to go."""
        with self._lock:
            late = [guest for guest, seat in self._seats.items() if seat.state == STRANGER and seat.came_at < before]
            for guest in late:
                self._remove(guest)
            return late

    def is_crowded(self, now: float) -> bool:
        """Another is better left in the kernel's queue: those without proof are likely to be nodes that have only just come."""
        with self._lock:
            strangers = self._in[STRANGER]
            if strangers.count < self._most_unproved() or (found := strangers.heaviest()) is None:
                return False
            if len(found[1]) > self.limits.crowd:
                return False
            return now < min(self._seats[one].came_at for one in strangers.oldest_of_each()) + self.limits.young_s

    def least_wanted(self) -> Guest | None:
        """Descriptors have run out: who has to go, if anybody has proved nothing."""
        with self._lock:
            if (found := self._in[STRANGER].heaviest()) is None:
                return None
            gone = next(iter(found[1]))
            self._remove(gone)
            return gone

    # --- with the lock ----------------------------------------------------------------------------------------------------

    def _for_whom(self, guest: Guest, origin: str, address: str, fd: int) -> Guest | None:
        count = len(self._seats)
        if fd >= _guests_files() and count >= FEW:
            self._room = count  # the next may get a lower one, which somebody has left
        elif count < self._room // 2:
            self._room = self.limits.in_all
        if count < self._room and self.unproved < self._most_unproved():
            return None
        for state in (STRANGER, SILENT):
            if found := self._in[state].heaviest():
                return next(iter(found[1]))
        known = self._in[KNOWN]
        most, guests = known.heaviest() or ("", {})
        has_more = known.of(most) > known.of(origin) + 1
        if most == origin:  # all nodes of a cluster may be in one network
            has_more = len(guests) > known.at(origin, address) + 1
        return next(reversed(guests)) if has_more else guest

    def _most_unproved(self) -> int:
        return min(self.limits.unproved, max(1, soft_limit() // 8))

    def _first_of_heaviest(self) -> Guest:
        held: dict[str, dict[str, int]] = {}
        for seat in self._holding.values():
            of = held.setdefault(seat.origin, {})
            of[seat.address] = of.get(seat.address, 0) + seat.held
        origin, of = max(held.items(), key=lambda one: sum(one[1].values()))
        heaviest = origin, max(of, key=of.__getitem__)
        return next(guest for guest, seat in self._holding.items() if (seat.origin, seat.address) == heaviest)

    def _move(self, guest: Guest, state: int) -> None:
        with self._lock:
            if (seat := self._seats.get(guest)) is not None and seat.state != state:
                self._in[seat.state].remove(guest, seat)
                seat.becomes(state)
                self._in[state].add(guest, seat)

    def _remove(self, guest: Guest) -> None:
        if (seat := self._seats.pop(guest, None)) is not None:
            self._in[seat.state].remove(guest, seat)
            self._holding.pop(guest, None)
            self._held -= seat.held


def soft_limit() -> int:
    """How many files this process may open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def _guests_files() -> int:
    """The first descriptor that no guest gets."""
    soft = soft_limit()
    return soft - min(OWN_FILES, soft // OWN_SHARE)


def turn_away(listener: socket.socket, reserve: int) -> int:
    """Close whoever waits first at `listener`, by giving up the descriptor `reserve`, since there is no other: while it waits
    nobody rests. Returns the next reserve; -1: there is none."""
    with suppress(OSError):
        os.close(reserve)
        listener.accept()[0].close()
    return last_descriptor()


def last_descriptor() -> int:
    """One for `turn_away`; -1: there is none."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def dismiss(sock: socket.socket) -> None:
    """Have the thread that reads from it find its end, and close it."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)

"""How does a node report to the supervisor, and take its orders, without ever waiting for it? One link's machine.

It connects, and again when the link breaks, later each time. The newest `Standing` counts, and the next is sent when the one
before was heard: a supervisor that hangs is owed one. `Trouble`s are sent until they are heard, the oldest forgotten where too
many wait. An order is carried out once: its id is kept with its result. An order of an older supervisor is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from holdfast.core.machine import NEVER, Action, Observation, Say, Tick
from holdfast.core.value import replace
from holdfast.core.wire.fleet import Alive, Bye, Did, FleetMessage, Heard, Heed, NotHeard, Order, Standing, Trouble
from holdfast.core.wire.links import Arrived, Connect, HangUp, LinkDown, LinkUp, Transmit

FIRST_S, LONGEST_S, REFUSED_S = 0.1, 5.0, 60.0
"""Before the first attempt after a link was lost, the longest pause between two, and the pause after an attempt that cannot
help (a wrong token): the supervisor may be started anew with the right one."""

BEATS = 4  # So many signs of life in a lease: three may be lost.

ANSWER_S = 10.0  # A supervisor that has not heard a report by then hangs, or is cut off: another link is made.

SOON_S = 2.5  # The same, and for a link to stand, where another may lead. Half a lease, where that is less.

DID_CHARS = 1000  # Of what became of an order.

TROUBLES, ORDERS = 64, 256  # Troubles that may wait, and orders whose ends are remembered.


class Obey(Action):
    """Carry out an order; `Uplink.did` tells what became of it."""

    order: Order


class Uplink:
    """See the module's text."""

    def __init__(
        self,
        reporter: str,
        endpoint: str,
        *others: str,
        now: float,
        haste: float = 1.0,
        links: Iterator[int] | None = None,
    ) -> None:
        """`others`: where else it may be. `haste`: from 0.5 to 1, different on each node, so that not all come back at once.
        `links`: numbers for its links, from 1 on, which uplinks of one network share."""
        self.reporter, self.endpoints, self.haste = reporter, (endpoint, *others), haste
        self.at = 0  # Which of them is tried.
        self.failed = 0  # Attempts since one of them has heeded us.
        self.links, self.link = links or count(1), 0  # `link`: the number of the newest; 0: it is lost.
        self.is_up = False
        self.is_heeded = False  # Over this link.
        self.pause_s = FIRST_S
        self.connect_at = now  # NEVER: we are connected, or are being.
        self.beat_s, self.beat_at = NEVER, NEVER
        self.numbers = 0
        self.standing: Standing | None = None  # The newest.
        self.unheard: Standing | None = None  # The one that was said, and of which no answer has come.
        self.answer_by = NEVER
        self.troubles: list[Trouble] = []
        self.orders: dict[str, Did | None] = {}  # By id, of those that were taken: what became of it; None: nothing yet.
        self.generation = 0
        self.said = ""  # The last complaint.

    # --- what the node has to say ---------------------------------------------------------------------------------------

    def stands(self, standing: Standing, now: float) -> list[Action]:
        """How things are now; its number is ours to give."""
        self.numbers += 1
        self.standing = replace(standing, number=self.numbers)
        return self._report(now)

    def trouble(self, trouble: Trouble, now: float) -> list[Action]:
        """Something has gone wrong; its number is ours to give."""
        self.numbers += 1
        self.troubles = [*self.troubles[1 - TROUBLES :], replace(trouble, number=self.numbers)]
        return self._say(self.troubles[-1]) if self.is_up and self.standing is not None else []

    def did(self, order: str, ok: bool, text: str) -> list[Action]:
        done = self.orders[order] = Did(node=self.reporter, order=order, ok=ok, text=text[:DID_CHARS])
        return self._say(done)

    def bye(self, reason: str) -> list[Action]:
        """The node's agent goes. What has not been heard is said once more."""
        last = self._say(self.standing) if self.standing is not None and self.standing is not self.unheard else []
        return last + self._say(Bye(node=self.reporter, reason=reason))

    # --- what happens ---------------------------------------------------------------------------------------------------

    def observe(self, seen: Observation, now: float) -> list[Action]:
        match seen:
            case LinkUp(link=link) if link == self.link:
                self.is_up, self.unheard, self.answer_by = True, None, NEVER
                return self._report(now) + self._repeat()
            case LinkDown(link=link) if link == self.link:
                return self._lost(f"is not heard ({seen.reason})", now, final=seen.final)
            case Arrived(link=link, message=message) if link == self.link:
                return self._told(message, now)
            case Tick():
                return self._late(now)
        return []

    def deadline(self) -> float:
        return min(self.connect_at, self.beat_at, self.answer_by)

    def _told(self, message: object, now: float) -> list[Action]:
        match message:
            case Heed(lease_s=lease_s, generation=generation):
                self.generation = max(generation, self.generation)
                self.is_heeded, self.failed, self.pause_s, self.said = True, 0, FIRST_S, ""
                self.beat_s = lease_s / BEATS
                self.beat_at = now + self.beat_s
                # Where nothing is owed, it has taken us for lost meanwhile, and forgotten what we said.
                return self._report(now) if self.unheard is None else []
            case Heard(number=number):
                return self._heard(number, now)
            case Order():
                return self._ordered(message)
            case NotHeard(reason=reason):
                return [HangUp(link=self.link), *self._lost(f"refuses this node: {reason}", now, final=True)]
        return []

    def _heard(self, number: int, now: float) -> list[Action]:
        self.troubles = [one for one in self.troubles if one.number != number]
        if self.unheard is None or self.unheard.number != number:
            return []
        was, self.unheard, self.answer_by = self.unheard, None, NEVER
        return self._report(now) if self.standing is not was else []

    def _ordered(self, order: Order) -> list[Action]:
        if order.order in self.orders:
            done = self.orders[order.order]
            return self._say(done) if done is not None else []
        if order.generation < self.generation:
            why = f"it is of generation {order.generation}, and {self.generation} has spoken"
            return self._say(Did(node=self.reporter, order=order.order, ok=False, text=why))
        self.generation = order.generation
        for old in list(self.orders)[: max(0, len(self.orders) + 1 - ORDERS)]:
            del self.orders[old]
        self.orders[order.order] = None
        return [Obey(order=order)]

    def _late(self, now: float) -> list[Action]:
        if now >= self.connect_at:
            self.link, self.connect_at = next(self.links), NEVER
            self.answer_by = now + self._patience_s() if len(self.endpoints) > 1 else NEVER
            return [Connect(link=self.link, endpoint=self.endpoints[self.at])]
        if now >= self.answer_by:
            hung = f"is not heard (it has not answered for {self._patience_s():g} s)"
            return [HangUp(link=self.link), *self._lost(hung, now)]
        if now >= self.beat_at:
            self.beat_at = now + self.beat_s
            if len(self.endpoints) > 1 and self.unheard is None:
                return self._report(now)
            return self._say(Alive(node=self.reporter))
        return []

    def _lost(self, why: str, now: float, *, final: bool = False) -> list[Action]:
        self.failed += final or not self.is_heeded
        self.is_up, self.is_heeded, self.unheard = False, False, None
        self.link = 0  # that it is closed is no news, and does not shorten the pause
        self.beat_at = self.answer_by = NEVER
        self.at = (self.at + 1) % len(self.endpoints)
        if self.failed % len(self.endpoints):
            self.connect_at = now  # another may lead
            return []
        self.connect_at = now + self.haste * (REFUSED_S if final else self.pause_s)
        self.pause_s = min(LONGEST_S, 2 * self.beat_s, 2 * self.pause_s)  # it is soon told who is lost
        said = f"the supervisor at {' or '.join(self.endpoints)} {why}; the job goes on without it"
        if said == self.said:
            return []
        self.said = said
        return [Say(text=said, level="warning" if final else "info")]

    def _patience_s(self) -> float:
        return ANSWER_S if len(self.endpoints) == 1 else min(SOON_S, 2 * self.beat_s)

    # --- saying ---------------------------------------------------------------------------------------------------------

    def _report(self, now: float) -> list[Action]:
        if not self.is_up or self.standing is None or self.unheard is not None:
            return []
        self.unheard, self.answer_by = self.standing, now + self._patience_s()
        if self.beat_s < NEVER:
            self.beat_at = now + self.beat_s  # it is a sign of life
        return self._say(self.standing)

    def _repeat(self) -> list[Action]:
        """What a supervisor that was not there, or another one, may have missed."""
        return [action for one in self.troubles for action in self._say(one)] if self.standing is not None else []

    def _say(self, message: FleetMessage) -> list[Action]:
        return [Transmit(link=self.link, message=message)] if self.is_up else []

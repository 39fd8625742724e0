"""The simulated store that elects coordinators: two keys, leases on its own clock, and troubles, as an etcd has them.

`SimStore` is one agent's hands there (`agent.leader.build.Store`); it asks one thing at a time, and each is answered once: by
what `integrations.etcd.election` would say, or by `StoreTrouble`. The store hears what is sent even if its answer gets lost.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from holdfast.core.machine import Action
from holdfast.core.value import Value
from holdfast.core.wire.messages import Past
from holdfast.rendezvous.election.store_election import (
    Await,
    Campaign,
    Deposed,
    Keep,
    Kept,
    Leads,
    Persist,
    Persisted,
    Resign,
    StoreSeen,
    StoreTrouble,
    Vacant,
    Won,
    inherited,
)
from holdfast.sim.network import Ether
from holdfast.sim.timeline import Timeline
from holdfast.sim.world import SimHost

PLACE = "the store"
"""It is on a host of its own, which can be cut off like others."""

TIMEOUT_S = 1.0
"""After so long without an answer a client gives up (`integrations.etcd.client`: some seconds)."""

WATCH_S = 5.0
"""A watch that has seen nothing answers that nothing has changed."""


class Leader(Value):
    """Who leads: the key that goes with its lease."""

    endpoint: str
    life: str
    term: int
    ttl_s: float


class Keys:
    """What the store knows, and how it is."""

    def __init__(self, timeline: Timeline, rng: random.Random, ether: Ether) -> None:
        self.timeline = timeline
        self.rng = rng
        self.ether = ether
        self.leader: Leader | None = None
        self.ends = 0.0
        """When the leader's lease is over, in true time."""
        self.state: Past | None = None
        self.revision = 0
        self.down = False
        self.slow_s = 0.0
        """Takes up to so much longer than usual."""
        self.unreachable: set[str] = set()
        """Places that the store does not hear, nor they it, though they reach each other."""
        self.watching: list[SimStore] = []

    def look(self) -> Leader | None:
        """Who leads now."""
        if self.leader is not None and self.timeline.now >= self.ends:
            self.leader = None
        return self.leader

    def stop(self) -> None:
        """It answers nobody, and forgets who watches; leases go on when it is back, as if they had just been renewed."""
        self.down = True

    def restart(self, *, empty: bool = False) -> None:
        """It is back; `empty`: with nothing of what it knew."""
        self.down = False
        if empty:
            self.leader = self.state = None
        if self.leader is not None:
            self.ends = self.timeline.now + self.leader.ttl_s
        self.changed()

    def slow(self, slow_s: float) -> None:
        """From now on an answer takes up to so much longer."""
        self.slow_s = slow_s

    def cut(self, place: str, *, again: bool = False) -> None:
        """From now on a place does not reach it; `again`: it does."""
        if again:
            self.unreachable.discard(place)
        else:
            self.unreachable.add(place)

    def depose(self) -> None:
        """An operator deletes the leader's key."""
        self.leader = None
        if not self.down:
            self.changed()

    def hears(self, place: str) -> bool:
        """Whether anything passes between the store and that place, in both directions."""
        blocked = self.ether.is_blocked(place, PLACE) or self.ether.is_blocked(PLACE, place)
        return not (self.down or blocked or place in self.unreachable)

    def changed(self) -> None:
        """Tell those who watch; and see when the lease that there is now is over."""
        watching, self.watching = self.watching, []
        for store in watching:
            store.answer(self.leads())
        if self.look() is not None:
            self.timeline.at(self.ends, self._maybe_over)

    def _maybe_over(self) -> None:
        if not self.down and self.leader is not None and self.look() is None:
            self.changed()

    def leads(self) -> StoreSeen:
        """Who leads, as it is said to those who ask."""
        leader = self.look()
        return Vacant() if leader is None else Leads(endpoint=leader.endpoint, term=leader.term, life=leader.life)


class SimStore:
    """One agent's hands in the store."""

    def __init__(self, keys: Keys, host: SimHost, place: str) -> None:
        self.keys = keys
        self.host = host
        self.place = place
        self.asked = 0
        self.closed = False
        self.lease = 0
        """Term of the key that is bound to our lease; 0: none."""

    def perform(self, action: Action) -> None:
        """See `agent.leader.build.Store`."""
        keys, asked_at = self.keys, self.host.now()
        delay_s = keys.ether.delay() + keys.rng.uniform(0.0, keys.slow_s)
        is_answered = not isinstance(action, Resign)  # what was asked before that may still be
        self.asked += is_answered
        number = self.asked
        keys.timeline.after(delay_s, lambda: self._arrived(action, asked_at, number))
        if is_answered:
            patience_s = WATCH_S + TIMEOUT_S if isinstance(action, Await) else TIMEOUT_S
            keys.timeline.after(patience_s, lambda: self._give_up(number))

    def close(self, last: Iterable[Action]) -> None:
        """See `agent.leader.build.Store`."""
        for action in last:
            self.perform(action)
        self.closed = True

    def answer(self, seen: StoreSeen | None) -> None:
        """What the store says to the last thing asked, after a while, if it comes through."""
        number = self.asked
        if seen is not None:
            self.keys.timeline.after(self.keys.ether.delay(), lambda: self._heard(seen, number))

    def _heard(self, seen: StoreSeen, number: int) -> None:
        if number == self.asked and not self.closed and self.keys.hears(self.place):
            self.asked += 1  # so that its time-out finds nothing to end
            self.host.see(seen)

    def _give_up(self, number: int) -> None:
        if number == self.asked and not self.closed:
            self.asked += 1
            self.host.see(StoreTrouble(reason="timed out"))

    def _arrived(self, action: Action, asked_at: float, number: int) -> None:
        if not self.keys.hears(self.place):
            return
        seen = self._done(action, asked_at)
        if number == self.asked:
            self.answer(seen)

    # --- at the store ---------------------------------------------------------------------------------------------------

    def _done(self, action: Action, asked_at: float) -> StoreSeen | None:
        keys = self.keys
        match action:
            case Campaign():
                return self._campaign(action, asked_at)
            case Await(term=term):
                leader = keys.look()
                if leader is None or leader.term != term:
                    return keys.leads()
                keys.watching.append(self)
                keys.timeline.after(WATCH_S, self._seen_nothing)
                return None
            case Keep(term=term):
                if not self._is_ours(term):
                    return Deposed(term=term, reason="our lease in the store ran out")
                self._renew()
                return Kept(term=term, asked_at=asked_at)
            case Persist(term=term, past=past):
                if not self._is_ours(term):
                    return Deposed(term=term, reason="our key in the store was deleted")
                keys.state = past
                return Persisted(term=term, past=past)
            case Resign(term=term, past=past, forget=forget):
                if self._is_ours(term):
                    keys.leader, keys.state = None, None if forget else past or keys.state
                    keys.changed()
                return None
        raise AssertionError(f"a store cannot do {action!r}")

    def _campaign(self, wish: Campaign, asked_at: float) -> StoreSeen:
        keys, leader = self.keys, self.keys.look()
        if leader is not None and leader.term != self.lease:
            return keys.leads()
        life = wish.life if leader is None else leader.life
        past = inherited(keys.state, life=life, fresh_life=wish.fresh_life)
        if leader is None:
            keys.revision += 1
            self.lease = keys.revision
            leader = Leader(endpoint=wish.endpoint, life=past.life, term=keys.revision, ttl_s=wish.ttl_s)
            keys.leader = leader
        self._renew()
        keys.changed()
        return Won(term=leader.term, past=past, asked_at=asked_at, ttl_s=wish.ttl_s)

    def _is_ours(self, term: int) -> bool:
        leader = self.keys.look()
        return leader is not None and leader.term == term == self.lease

    def _renew(self) -> None:
        keys = self.keys
        assert keys.leader is not None
        keys.ends = keys.timeline.now + keys.leader.ttl_s
        keys.timeline.at(keys.ends, keys._maybe_over)

    def _seen_nothing(self) -> None:
        if self in self.keys.watching:
            self.keys.watching.remove(self)
            self.answer(self.keys.leads())

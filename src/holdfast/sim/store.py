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
from holdfast.rendezvous.election import store_election as election
from holdfast.sim.network import Ether
from holdfast.sim.timeline import Timeline
from holdfast.sim.world import SimHost

PLACE = "the store"  # It is on a host of its own, which can be cut off like others.

TIMEOUT_S = 1.0
"""After so long without an answer a client gives up (`integrations.etcd.client`: some seconds)."""

WATCH_S = 5.0  # A watch that has seen nothing answers that nothing has changed.


class Leader(Value):
    """Who leads: the key that goes with its lease."""

    hands: SimStore
    endpoint: str
    life: str
    term: int
    ttl_s: float


class Keys:
    """What the store knows, and how it is."""

    def __init__(self, timeline: Timeline, rng: random.Random, ether: Ether) -> None:
        self.timeline, self.rng, self.ether = timeline, rng, ether
        self.leader: Leader | None = None
        self.ends = 0.0  # When the leader's lease is over, in true time.
        self.state: Past | None = None
        self.revision = 0
        self.down = False
        self.slow_s = 0.0  # Takes up to so much longer than usual.
        self.unreachable: set[str] = set()
        """Places that the store does not hear, nor they it, though they reach each other."""
        self.watching: list[SimStore] = []

    # --- what happens to it ---------------------------------------------------------------------------------------------

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
        self._changed()

    def slow(self, slow_s: float) -> None:
        """From now on an answer takes up to so much longer."""
        self.slow_s = slow_s

    def cut(self, place: str) -> None:
        """From now on a place does not reach it."""
        self.unreachable.add(place)

    def heal(self, place: str) -> None:
        """It does again."""
        self.unreachable.discard(place)

    def depose(self) -> None:
        """An operator deletes the leader's key."""
        self.leader = None
        if not self.down:
            self._changed()

    # --- what it is asked for -------------------------------------------------------------------------------------------

    def hears(self, place: str) -> bool:
        """Whether anything passes between the store and that place, in both directions."""
        return not (self.down or self.ether.are_apart(place, PLACE) or place in self.unreachable)

    def done(self, hands: SimStore, action: Action, asked_at: float) -> election.StoreSeen | None:
        """Do what was asked for at `asked_at` by the asker's clock. None: there is no answer, or none yet."""
        match action:
            case election.Campaign():
                return self._campaign(hands, action, asked_at)
            case election.Await(term=term):
                leader = self._look()
                if leader is None or leader.term != term:
                    return self._leads()
                self.watching.append(hands)
                self.timeline.after(WATCH_S, lambda: self._seen_nothing(hands))
                return None
            case election.Keep(term=term):
                if not self._is_of(hands, term):
                    return election.Deposed(term=term, reason="our lease in the store ran out")
                self._renew()
                return election.Kept(term=term, asked_at=asked_at)
            case election.Persist(term=term, past=past):
                if not self._is_of(hands, term):
                    return election.Deposed(term=term, reason="our key in the store was deleted")
                self.state = past
                return election.Persisted(term=term, past=past)
            case election.Resign(term=term, past=past, forget=forget):
                if self._is_of(hands, term):
                    self.leader, self.state = None, None if forget else past or self.state
                    self._changed()
                return None
        raise AssertionError(f"a store cannot do {action!r}")

    def _campaign(self, hands: SimStore, wish: election.Campaign, asked_at: float) -> election.StoreSeen:
        leader = self._look()
        if leader is not None and leader.hands is not hands:
            return self._leads()
        life = wish.life if leader is None else leader.life
        past = election.inherited(self.state, life=life, fresh_life=wish.fresh_life)
        if leader is None:
            self.revision += 1
            leader = Leader(
                hands=hands, endpoint=wish.endpoint, life=past.life, term=self.revision, ttl_s=wish.ttl_s
            )
            self.leader = leader
        self._renew()
        self._changed()
        return election.Won(term=leader.term, past=past, asked_at=asked_at, ttl_s=wish.ttl_s)

    def _look(self) -> Leader | None:
        if self.leader is not None and self.timeline.now >= self.ends:
            self.leader = None
        return self.leader

    def _is_of(self, hands: SimStore, term: int) -> bool:
        leader = self._look()
        return leader is not None and leader.hands is hands and leader.term == term

    def _renew(self) -> None:
        assert self.leader is not None
        self.ends = self.timeline.now + self.leader.ttl_s
        self.timeline.at(self.ends, self._maybe_over)

    def _maybe_over(self) -> None:
        if not self.down and self.leader is not None and self._look() is None:
            self._changed()

    def _changed(self) -> None:
        """Tell those who watch; and see when the lease that there is now is over."""
        watching, self.watching = self.watching, []
        for hands in watching:
            hands.answer(self._leads())
        if self._look() is not None:
            self.timeline.at(self.ends, self._maybe_over)

    def _seen_nothing(self, hands: SimStore) -> None:
        if hands in self.watching:
            self.watching.remove(hands)
            hands.answer(self._leads())

    def _leads(self) -> election.StoreSeen:
        """Who leads, as it is said to those who ask."""
        leader = self._look()
        if leader is None:
            return election.Vacant()
        return election.Leads(endpoint=leader.endpoint, term=leader.term, life=leader.life)


class SimStore:
    """One agent's hands in the store."""

    def __init__(self, keys: Keys, host: SimHost, place: str) -> None:
        self.keys, self.host, self.place = keys, host, place
        self.asked = 0
        self.closed = False

    def perform(self, action: Action) -> None:
        keys, asked_at = self.keys, self.host.now()
        delay_s = keys.ether.delay() + keys.rng.uniform(0.0, keys.slow_s)
        is_answered = not isinstance(action, election.Resign)  # what was asked before that may still be
        self.asked += is_answered
        number = self.asked
        keys.timeline.after(delay_s, lambda: self._arrived(action, asked_at, number))
        if is_answered:
            patience_s = WATCH_S + TIMEOUT_S if isinstance(action, election.Await) else TIMEOUT_S
            keys.timeline.after(patience_s, lambda: self._heard(election.StoreTrouble(reason="timed out"), number))

    def close(self, last: Iterable[Action]) -> None:
        for action in last:
            self.perform(action)
        self.closed = True

    def answer(self, seen: election.StoreSeen) -> None:
        """What the store says to the last thing asked, after a while, if it comes through."""
        number = self.asked
        self.keys.timeline.after(
            self.keys.ether.delay(), lambda: self._heard(seen, number) if self.keys.hears(self.place) else None
        )

    def _heard(self, seen: election.StoreSeen, number: int) -> None:
        if number == self.asked and not self.closed:
            self.asked += 1  # so that its time-out finds nothing to end
            self.host.see(seen)

    def _arrived(self, action: Action, asked_at: float, number: int) -> None:
        if self.keys.hears(self.place):
            seen = self.keys.done(self, action, asked_at)
            if seen is not None and number == self.asked:
                self.answer(seen)

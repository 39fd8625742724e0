"""Who leads, where an outside store decides it? The machine of one candidate; every agent of the job is one.

               Won                                  the lease ran out · Deposed
    asking ───────────▶ leading ───────────────────────────────────────────────────▶ asking
      │ ▲
      │ └── Vacant ─── following ◀─┐ the link broke: Await
      └──── Leads ────▶   │        │
                          └────────┘

The leader's agent runs the round machine (`rendezvous.coordinator.machine`); the store only says which agent that is, and keeps
what its successor must know (`Past`). So the store's load does not grow with the job: one lease is renewed, one small value is
written per round, and a follower asks only while its link to the leader is broken.

A leader counts its lease from when it *asked* for the last renewal that was granted, so it steps down before the store
can let anybody else win, whatever the clocks say. What it writes is compared with its term: a leader that was asleep
changes nothing.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action, Observation, Say
from holdfast.core.wire.messages import Past

STORE_FAILOVER_S = 2.0
"""How much longer than a member's lease the leader's is: a store of several members that loses its own leader elects another
within its election timeout, 1 to 2 s by etcd's defaults, and the job should not notice."""

RENEWALS = 5
"""Renewals per lease. Four may be lost."""

FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 2.0
"""Pause after the store did not answer; doubles."""

CONNECT_S = 1.0
"""Time for the first link to a new leader, before the store is asked whether it still leads."""

STEP_S, LONGEST_STEP_S = 0.01, 2.0
"""Each group rank campaigns so much later than the one before it when the leader is gone: thousands need not ask at once for
what one will get."""


def inherited(past: Past | None, *, life: str, fresh_life: str) -> Past:
    """What a new leader that belongs to `life` (empty: to none yet) starts from, given what the store has.

    A job that ended is history for whoever was not in it: the same name begins anew.
    """
    if past is None or (past.report is not None and past.life != life):
        return Past(life=life or fresh_life)
    return past


# --- what the store says --------------------------------------------------------------------------------------------------


class StoreSeen(Observation):
    """Base of all that comes from the store."""


class Won(StoreSeen):
    """We lead, since the store's revision `term`; the lease was asked for at `asked_at`, on our clock."""

    term: int
    past: Past
    asked_at: float
    ttl_s: float


class Leads(StoreSeen):
    """Another leads."""

    endpoint: str
    term: int
    life: str


class Vacant(StoreSeen):
    """Nobody leads (any more)."""


class Kept(StoreSeen):
    """The lease has been renewed; that was asked for at `asked_at`."""

    term: int
    asked_at: float


class Persisted(StoreSeen):
    """The store has this."""

    term: int
    past: Past


class Deposed(StoreSeen):
    """Our lease or our key is gone: somebody took it away, or it ran out."""

    term: int
    reason: str


class StoreTrouble(StoreSeen):
    """The last thing asked for could not be done. `final`: trying again cannot help."""

    reason: str
    final: bool = False
    hint: str = ""


# --- what the store is asked for: one thing at a time, each answered by exactly one of the above ----------------------------


class Campaign(Action):
    """Become the leader if there is none: answered by `Won` or `Leads`."""

    endpoint: str
    life: str
    fresh_life: str
    ttl_s: float


class Await(Action):
    """Wait for the end of that leader's term: `Vacant`, or `Leads`, which after a while may name the same one again."""

    term: int


class Keep(Action):
    """Renew the lease: `Kept` or `Deposed`."""

    term: int


class Persist(Action):
    """Write down what a successor must know: `Persisted`, or `Deposed` if we are not the leader."""

    term: int
    past: Past


class Resign(Action):
    """Let others lead, at once; not answered. `past`: what they must know. `forget`: the job is over and everyone knows."""

    term: int
    past: Past | None = None
    forget: bool = False


# --- what the node is told ------------------------------------------------------------------------------------------------


class Lead(Action):
    """Be the coordinator from now on."""

    past: Past
    reason: str = ""
    """What became of the one before."""


class StepDown(Action):
    """Be it no longer, from this moment."""

    reason: str


class Follow(Action):
    """The coordinator is there."""

    endpoint: str


class GiveUp(Action):
    """There is no way to take part."""

    reason: str
    hint: str


class Election:
    """The machine."""

    def __init__(self, endpoint: str, *, store: str, fresh_life: str, ttl_s: float, now: float) -> None:
        self.endpoint = endpoint
        """Where we would serve."""
        self.store = store
        """What people call the store: `etcd at host:2379`."""
        self.fresh_life = fresh_life
        self.ttl_s = ttl_s
        self.role = "asking"
        """asking · following · leading"""
        self.life = ""
        """The run of the job that we belong to. Empty: none yet."""
        self.belongs = False
        """The run of the job that has a leader has taken us in, as a member or a spare. Else we may be of the next one."""
        self.rank = 0
        """Our last group rank: lower ones campaign earlier."""
        self.term = 0
        self.leader = ""
        """Endpoint of the leader that we follow."""
        self.linked = False
        self.busy = False
        """Something was asked for and has not been answered."""
        self.ask_at = now
        self.lead_ends = NEVER
        self.wanted: Past | None = None
        """What is to be written down and has not been."""
        self.retry_s = FIRST_RETRY_S
        self.trouble = ""

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`."""
        out: list[Action] = []
        if self.role == "leading" and now >= self.lead_ends:
            trouble = f" ({self.trouble})" if self.trouble else ""
            out += self._step_down(f"{self.store} has not renewed our lease for {self.ttl_s:g} s{trouble}", now)
        if isinstance(seen, StoreSeen):
            self.busy = False
            out += self._store_said(seen, now)
        return out + self._ask(now)

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        ends = self.lead_ends if self.role == "leading" else NEVER
        return ends if self.busy else min(ends, self._ask_at())

    def link_is(self, up: bool, now: float) -> list[Action]:
        """Our member's link to the leader came up, or broke."""
        self.linked = up
        if not up and not self.trouble and self.ask_at != NEVER:
            self.ask_at = now
        return self._ask(now)

    def write(self, past: Past, now: float) -> list[Action]:
        """Have the store remember this, as soon as it can."""
        self.wanted = past
        return self._ask(now)

    def will(self, past: Past | None, *, forget: bool) -> list[Action]:
        """What is left to do for an agent that ends."""
        return [Resign(term=self.term, past=past, forget=forget)] if self.role == "leading" else []

    def _store_said(self, seen: StoreSeen, now: float) -> list[Action]:
        if isinstance(seen, StoreTrouble):
            return self._in_trouble(seen, now)
        out: list[Action] = []
        if self.trouble:
            out.append(Say(text=f"{self.store} answers again", level="warning"))
        self.trouble, self.retry_s = "", FIRST_RETRY_S
        match seen:
            case Won(term=term, past=past, asked_at=asked_at, ttl_s=ttl_s) if now < asked_at + ttl_s:
                self.role, self.term, self.life, self.ttl_s = "leading", term, past.life, ttl_s
                self.belongs = True
                self.lead_ends, self.ask_at, self.wanted = asked_at + ttl_s, asked_at + ttl_s / RENEWALS, None
                out.append(Lead(past=past))
            case Won(term=term):
                self.ask_at = now
                out.append(Resign(term=term))
            case Leads(endpoint=endpoint, term=term, life=life) if self.role != "leading":
                news = (endpoint, term) != (self.leader, self.term)
                self.role, self.leader, self.term, self.life = "following", endpoint, term, life
                self.ask_at = now + CONNECT_S if news else now
                out += [Follow(endpoint=endpoint)] if news else []
            case Vacant() if self.role != "leading":
                self.role, self.ask_at = "asking", now + min(self.rank * STEP_S, LONGEST_STEP_S)
            case Kept(term=term, asked_at=asked_at) if self._in_office(term):
                self.lead_ends = max(self.lead_ends, asked_at + self.ttl_s)
                self.ask_at = now + self.ttl_s / RENEWALS
            case Persisted(term=term, past=past) if self._in_office(term):
                self.wanted = None if self.wanted == past else self.wanted
            case Deposed(term=term, reason=reason) if self._in_office(term):
                out += self._step_down(reason, now)
        return out

    def _in_trouble(self, seen: StoreTrouble, now: float) -> list[Action]:
        if seen.final and self.role == "asking":  # whoever has a leader, or is one, goes on while that lasts
            self.ask_at = NEVER
            return [GiveUp(reason=seen.reason, hint=seen.hint)]
        fresh = not self.trouble
        self.trouble = seen.reason
        self.ask_at, self.retry_s = now + self.retry_s, min(LONGEST_RETRY_S, 2 * self.retry_s)
        if self.role == "leading":
            self.ask_at = min(self.ask_at, now + self.ttl_s / RENEWALS)
        return [Say(text=f"{self.store} does not answer: {seen.reason}; trying again", level="warning")] if fresh else []

    def _in_office(self, term: int) -> bool:
        return self.role == "leading" and term == self.term

    def _step_down(self, reason: str, now: float) -> list[Action]:
        # The lease may live on in the store a little: it is given back, if the store can be reached.
        resign = Resign(term=self.term)
        self.role, self.leader, self.lead_ends, self.wanted, self.ask_at = "asking", "", NEVER, None, now
        return [StepDown(reason=reason), resign]

    def _ask_at(self) -> float:
        if self.role == "leading" and self.wanted is not None and not self.trouble:
            return -NEVER
        return NEVER if self.role == "following" and self.linked else self.ask_at

    def _ask(self, now: float) -> list[Action]:
        if self.busy or now < self._ask_at():
            return []
        self.busy = True
        if self.role == "asking":
            life = self.life if self.belongs else ""
            return [Campaign(endpoint=self.endpoint, life=life, fresh_life=self.fresh_life, ttl_s=self.ttl_s)]
        if self.role == "following":
            return [Await(term=self.term)]
        if now >= self.ask_at or self.wanted is None:
            return [Keep(term=self.term)]
        return [Persist(term=self.term, past=self.wanted)]

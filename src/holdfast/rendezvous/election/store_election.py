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
can let anybody else win, by any clock. What it writes is compared with its term: a leader that was asleep
changes nothing.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.core.machine import NEVER, Action, Observation, Say
from holdfast.core.value import Value, replace
from holdfast.core.wire.messages import Past
from holdfast.rendezvous.election.messages import Follow, GiveUp, Lead, MemberLink, Reported, StepDown

STORE_FAILOVER_S = 2.0
"""Seconds by which the leader's lease is longer than a member's lease. A store with several members that loses its own leader
elects another within its election timeout (etcd's default: 1 to 2 s), and the job should not notice."""

RENEWALS = 5  # Renewals per lease. Four may be lost.

FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 2.0  # Pause after the store did not answer; doubles.

CONNECT_S = 1.0  # Seconds for the first link to a new leader, before the node asks the store whether that leader still leads.

STEP_S, LONGEST_STEP_S = 0.01, 2.0
"""Delay between the campaigns of consecutive group ranks when the leader is gone: thousands of nodes need not ask at once for
what one will get."""


def inherited(past: Past | None, *, life: str, fresh_life: str) -> Past:
    """What a new leader that belongs to `life` (empty: to none yet) starts from, given what the store has.

    For a node that was not in a job that ended, the same name begins anew.
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


# --- what the node reports, besides `MemberLink` --------------------------------------------------------------------------


class Ranked(Reported):
    """The run of the job that has a leader has taken this node in, as a member or a spare."""

    group_rank: int | None  # None: as before.


class PastChanged(Reported):
    """The store must remember this, as soon as it can."""

    past: Past


class Role(StrEnum):
    """Where a candidate stands."""

    ASKING = "asking"
    FOLLOWING = "following"
    LEADING = "leading"


class State(Value):
    """All that a candidate knows."""

    role: Role = Role.ASKING
    life: str = ""  # The run of the job that this node belongs to. Empty: none yet.
    belongs: bool = False
    """The run of the job that has a leader has taken this node in. Else it may be of the next one."""
    rank: int = 0  # Its last group rank: lower ones campaign earlier.
    term: int = 0
    leader: str = ""  # Endpoint of the leader that it follows.
    linked: bool = False
    busy: bool = False  # A question to the store has no answer yet.
    ask_at: float
    ttl_s: float
    lead_ends: float = NEVER
    wanted: Past | None = None  # What the store must have and has not confirmed.
    retry_s: float = FIRST_RETRY_S
    trouble: str = ""

    @property
    def asks_at(self) -> float:
        """When the store is due to be asked."""
        if self.role is Role.LEADING and self.wanted is not None and not self.trouble:
            return -NEVER
        return NEVER if self.role is Role.FOLLOWING and self.linked else self.ask_at


Step = tuple[State, list[Action]]


class Election:
    """The machine."""

    def __init__(self, endpoint: str, *, store: str, fresh_life: str, ttl_s: float, now: float) -> None:
        self.endpoint = endpoint  # Where this node would serve.
        self.store = store  # What people call the store: `etcd at host:2379`.
        self.fresh_life = fresh_life
        self.state = State(ask_at=now, ttl_s=ttl_s)

    @property
    def life(self) -> str:
        """The run of the job that this node belongs to. Empty: none yet."""
        return self.state.life

    @property
    def term(self) -> int:
        """The term of the leader, as far as it is known."""
        return self.state.term

    def observe(self, seen: Observation, now: float) -> list[Action]:
        if isinstance(seen, Ranked):
            self.state = _ranked(self.state, seen.group_rank)
            return []  # before the lease is looked at: the store must not be asked yet
        out: list[Action] = []
        if not isinstance(seen, Reported):
            out += self._step(self._lease_over(self.state, now))
        out += self._step(self._seen(self.state, seen, now))
        return out + self._step(self._ask(self.state, now))

    def deadline(self) -> float:
        state = self.state
        ends = state.lead_ends if state.role is Role.LEADING else NEVER
        return ends if state.busy else min(ends, state.asks_at)

    def will(self, past: Past | None, *, forget: bool) -> list[Action]:
        """What is left to do for an agent that ends."""
        leads = self.state.role is Role.LEADING
        return [Resign(term=self.state.term, past=past, forget=forget)] if leads else []

    def _step(self, step: Step) -> list[Action]:
        self.state, out = step
        return out

    def _seen(self, state: State, seen: Observation, now: float) -> Step:
        match seen:
            case PastChanged(past=past):
                return replace(state, wanted=past), []
            case MemberLink(up=up):
                asks = not up and not state.trouble and state.ask_at != NEVER
                return replace(state, linked=up, ask_at=now if asks else state.ask_at), []
            case StoreTrouble():
                return self._in_trouble(replace(state, busy=False), seen, now)
            case StoreSeen():
                again = [Say(text=f"{self.store} answers again", level="warning")] if state.trouble else []
                state, out = _answered(replace(state, busy=False, trouble="", retry_s=FIRST_RETRY_S), seen, now)
                return state, [*again, *out]
        return state, []

    def _in_trouble(self, state: State, seen: StoreTrouble, now: float) -> Step:
        if seen.final and state.role is Role.ASKING:  # a node that has a leader, or leads, goes on while that lasts
            return replace(state, ask_at=NEVER), [GiveUp(reason=seen.reason, hint=seen.hint)]
        ask_at = now + state.retry_s
        if state.role is Role.LEADING:
            ask_at = min(ask_at, now + state.ttl_s / RENEWALS)
        text = f"{self.store} does not answer: {seen.reason}; trying again"
        said: list[Action] = [] if state.trouble else [Say(text=text, level="warning")]
        return replace(state, trouble=seen.reason, ask_at=ask_at, retry_s=min(LONGEST_RETRY_S, 2 * state.retry_s)), said

    def _lease_over(self, state: State, now: float) -> Step:
        if state.role is not Role.LEADING or now < state.lead_ends:
            return state, []
        trouble = f" ({state.trouble})" if state.trouble else ""
        return _stepped_down(state, f"{self.store} has not renewed our lease for {state.ttl_s:g} s{trouble}", now)

    def _ask(self, state: State, now: float) -> Step:
        if state.busy or now < state.asks_at:
            return state, []
        return replace(state, busy=True), [self._question(state, now)]

    def _question(self, state: State, now: float) -> Action:
        if state.role is Role.ASKING:
            life = state.life if state.belongs else ""
            return Campaign(endpoint=self.endpoint, life=life, fresh_life=self.fresh_life, ttl_s=state.ttl_s)
        if state.role is Role.FOLLOWING:
            return Await(term=state.term)
        if now >= state.ask_at or state.wanted is None:
            return Keep(term=state.term)
        return Persist(term=state.term, past=state.wanted)


def _answered(state: State, seen: StoreSeen, now: float) -> Step:
    """The table: what the store says where, and what follows."""
    match state.role, seen:
        case _, Won() if now < seen.asked_at + seen.ttl_s:
            return _won(state, seen), [Lead(past=seen.past)]
        case _, Won(term=term):  # by an answer that took longer than the lease
            return replace(state, ask_at=now), [Resign(term=term)]
        case (Role.ASKING | Role.FOLLOWING), Leads():
            return _following(state, seen, now)
        case (Role.ASKING | Role.FOLLOWING), Vacant():
            return replace(state, role=Role.ASKING, ask_at=now + min(state.rank * STEP_S, LONGEST_STEP_S)), []
        case Role.LEADING, Kept(term=term, asked_at=asked_at) if term == state.term:
            ends = max(state.lead_ends, asked_at + state.ttl_s)
            return replace(state, lead_ends=ends, ask_at=now + state.ttl_s / RENEWALS), []
        case Role.LEADING, Persisted(term=term, past=past) if term == state.term:
            return replace(state, wanted=None if state.wanted == past else state.wanted), []
        case Role.LEADING, Deposed(term=term, reason=reason) if term == state.term:
            return _stepped_down(state, reason, now)
    return state, []  # an answer that is about an earlier term


def _ranked(state: State, rank: int | None) -> State:
    rank = state.rank if rank is None else rank
    return state if state.belongs and rank == state.rank else replace(state, belongs=True, rank=rank)


def _won(state: State, won: Won) -> State:
    return replace(
        state,
        role=Role.LEADING,
        term=won.term,
        life=won.past.life,
        belongs=True,
        linked=False,
        ttl_s=won.ttl_s,
        lead_ends=won.asked_at + won.ttl_s,
        ask_at=won.asked_at + won.ttl_s / RENEWALS,
        wanted=None,
    )


def _following(state: State, leads: Leads, now: float) -> Step:
    is_news = (leads.endpoint, leads.term) != (state.leader, state.term)
    state = replace(state, role=Role.FOLLOWING, leader=leads.endpoint, term=leads.term, life=leads.life)
    if not is_news:
        return replace(state, ask_at=now), []
    return replace(state, ask_at=now + CONNECT_S, linked=False), [Follow(endpoint=leads.endpoint)]


def _stepped_down(state: State, reason: str, now: float) -> Step:
    # The lease may live on in the store a little: it is given back, if the store can be reached.
    resign = Resign(term=state.term)
    state = replace(state, role=Role.ASKING, leader="", lead_ends=NEVER, wanted=None, ask_at=now)
    return state, [StepDown(reason=reason), resign]

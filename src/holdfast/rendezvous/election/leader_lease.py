"""How long the coordinator may lead: while at least half of the voters have promised not to elect another (are *loyal*).

    member       Renewed heard ─────────────── promise_s ───────────────▶ may vote
    coordinator      └─ Renew, with the mark ──▶ loyal until mark + promise_s

A `Renewed` carries a mark, the coordinator's own time; the next `Renew` brings it back. A node that hears a `Renewed` supports
nobody else for `promise_s`; the coordinator counts the same time from the mark, which is earlier. So a majority can be free
to vote only when less than half are loyal: the mandate is over before another can be elected, by any clock. And
no lease is granted beyond the mandate's end, so at an election's end every lease of the old coordinator is over.

An *electorate* is the set of seats at one time. When it changes, the older one has a say too, in elections and in the mandate,
until half of it hold a roster that names the newer: from then on it can elect nobody (Raft's joint consensus).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from holdfast.core.machine import NEVER
from holdfast.core.value import replace
from holdfast.core.wire.messages import Electorate, Past, Renewed, Roster
from holdfast.rendezvous.lease import RENEW_S

SMALL, FEW = 64, 7
"""Up to so many electors all are told to each, in the order of succession; of more, only the first few."""

TERM = 1 << 20  # Rosters of one term are counted from term * TERM: those of a later term are newer.

LOOK_S = 0.05  # How often, at most, everybody's loyalty is counted.


def promise_of(lease_s: float) -> float:
    """How long a member keeps to its coordinator: a lease, and two renewals, so that a mark that is on its way for that long
    still covers every lease that is granted meanwhile."""
    return lease_s + 2 * min(lease_s / 3, RENEW_S)


def is_version_of(term: int, version: int) -> bool:
    """Whether a roster of that version may have been drawn up by that term."""
    return 0 <= version < (term + 1) * TERM


class Body:
    """One electorate, as the coordinator knows it."""

    def __init__(self, id: int, size: int, members: Iterable[str], *, witness: bool, claimed: bool = False) -> None:
        self.id = id
        self.size = size
        self.members = set(members)  # Endpoints; of one that elected us, those who have said so.
        self.witness = witness
        self.claimed = claimed  # The witness is ours.

    def claim(self, id: int) -> None:
        """The witness is ours, in that electorate."""
        self.claimed = self.claimed or self.id == id

    @property
    def needed(self) -> int:
        """Who must be loyal. Without a witness a tie is the coordinator's: while it lives it alone decides."""
        return (self.size + 1) // 2 if not self.witness else self.size // 2 + 1

    @property
    def line(self) -> tuple[str, ...]:
        """All of it, where they are few and known. The order of succession is the roster's."""
        return tuple(sorted(self.members)) if len(self.members) == self.size <= SMALL else ()

    def is_of(self, line: tuple[str, ...]) -> bool:
        """Whether these are all of it."""
        return self.size == len(line) and self.members == set(line)


class Mandate:
    """The coordinator's side of succession."""

    def __init__(
        self,
        endpoint: str,
        *,
        term: int,
        lease_s: float,
        witness: bool = False,
        version: int = 0,
        bodies: Iterable[Body] = (),
        loyal: Mapping[str, float] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.term = term
        self.lease_s = lease_s
        self.promise_s = promise_of(lease_s)
        self.notice_s = lease_s * 2 / 3
        self.with_witness = witness
        self.version = max(version, term * TERM)
        self.issued = False  # There is a roster of ours.
        self.bodies = list(bodies)  # Electorates with a say, the newest first.
        unheard = dict.fromkeys((one for body in self.bodies for one in body.members), -NEVER)
        self.until = {**unheard, **(loyal or {})}  # Endpoint → end of its loyalty. Who is not here has a say in nothing.
        self.holds: dict[str, int] = {}  # Endpoint → version of the roster that it holds.
        self.drawn: dict[tuple[bool, ...], Roster] = {}
        """The last roster for those who have a say in the same electorates: thousands are told one and the same."""
        self.line: tuple[str, ...] = ()
        self.wanted: tuple[str, ...] | None = None  # The next electorate, while the last one is not settled.
        self.settle_at = -NEVER
        self.counted, self.counted_at = NEVER if not self.bodies else -NEVER, -NEVER
        self.wanted_at = -NEVER  # When it was last looked for who wants the witness.

    # --- what members say -----------------------------------------------------------------------------------------------

    def joined(self, endpoint: str, roster: int, elector_of: Iterable[int]) -> None:
        """A member said `Join`."""
        if not endpoint or endpoint == self.endpoint:
            return
        roster = roster if is_version_of(self.term, roster) else 0
        self.holds[endpoint] = roster  # an elector that was started again holds none, whatever its earlier life held
        if roster:
            self.until.setdefault(endpoint, -NEVER)
            self.version = max(self.version, roster)
        for body in self.bodies:
            if body.id in elector_of:
                body.members.add(endpoint)

    def renewed(self, endpoint: str, mark: float, roster: int, now: float) -> None:
        """A member said `Renew`. A mark from the future is none that we gave, and counts for nothing."""
        if 0 < mark <= now:
            self.until[endpoint] = max(self.until.get(endpoint, -NEVER), mark + self.promise_s)
        if roster and is_version_of(self.term, roster):
            self.holds[endpoint] = max(roster, self.holds.get(endpoint, 0))
        if (len(self.bodies) > 1 or self.wanted is not None) and now >= self.settle_at:
            self.settle_at = now + LOOK_S
            self._settle(now)

    def answer(self, said: Renewed, endpoint: str, past: Callable[[float], Past], now: float) -> Renewed | None:
        """What to say instead of `said`: with our `terms`, and the mark. None: nothing."""
        terms = self.terms(said.lease_s, endpoint, past, now)
        return None if terms is None else replace(said, lease_s=terms[0], mark=now, roster=terms[1])

    def terms(
        self, lease_s: float, endpoint: str, past: Callable[[float], Past], now: float
    ) -> tuple[float, Roster | None] | None:
        """A lease within the mandate, of `lease_s` at most, and the roster if it is news to that member. None: there is no
        mandate any more."""
        lease_s = min(lease_s, self.ends(now, at_least=now + lease_s) - now)
        if lease_s <= 0:
            return None
        news = self.issued and endpoint and self.holds.get(endpoint, 0) < self.version
        return lease_s, self._roster(endpoint, past(now)) if news else None

    # --- who has a say --------------------------------------------------------------------------------------------------

    def change(self, line: tuple[str, ...], now: float) -> None:
        """These have a seat now, in the order of succession; or something else has changed that a successor must know."""
        self.wanted = line
        self._settle(now)

    def waive(self) -> None:
        """Lead without a mandate: the job is over, or the user would rather risk two sides than none."""
        self.bodies, self.counted = [], NEVER

    def claimed(self, id: int) -> None:
        """The witness is ours, in that electorate."""
        for body in self.bodies:
            body.claim(id)
        self.counted = -NEVER

    def is_ample(self, now: float) -> bool:
        """It lasts for longer than a Renew that is late once takes: time for another, and for the witness."""
        return self.counted >= now + self.notice_s

    def wants_witness(self, now: float) -> int:
        """The electorate in which we shall need the witness soon; 0: none."""
        if self.ends(now, at_least=now + self.notice_s) >= now + self.notice_s or now < self.wanted_at + LOOK_S:
            return 0
        self.wanted_at = now
        unsure = (body for body in self.bodies if body.witness and not body.claimed)
        return next((body.id for body in unsure if self._ends(body) < now + self.notice_s), 0)

    def missing(self, id: int, now: float) -> list[str]:
        """Who of that electorate may soon be loyal no more."""
        members = {one for body in self.bodies if body.id == id for one in body.members}
        return sorted(one for one in members if self._loyal(one) < now + self.notice_s)

    def _settle(self, now: float) -> None:
        """Forget electorates that can elect nobody any more; draw up the next."""
        if len(self.bodies) > 1:
            newest = self.bodies[0]
            left = [body for body in self.bodies[1:] if self._holders(body, newest.id) < body.needed]
            if len(left) + 1 < len(self.bodies):
                self.bodies, self.counted = [newest, *left], -NEVER
                self.version += 1
        if self.wanted is None or (len(self.bodies) > 1 and self.issued):
            return
        line, version = self.wanted, self.version + 1
        if not self.bodies or not self.bodies[0].is_of(line) or self.bodies[0].claimed:
            body = Body(version, len(line), line, witness=self.with_witness and len(line) % 2 == 0)
            for one in line:
                self.until.setdefault(one, now + self.promise_s)  # nobody votes by a roster sooner: see `Succession._adopt`
            if self._ends(body) < now + self.lease_s:
                return  # a node that has just come back has not said yet that it is loyal
            self.bodies, self.counted = [body, *self.bodies], -NEVER
        self.line, self.wanted, self.version, self.issued = line, None, version, True
        if len(self.bodies) > 1:
            self._settle(now)

    def _holders(self, body: Body, id: int) -> int:
        return body.claimed + sum(self.holds.get(one, 0) >= id for one in body.members)

    def _roster(self, endpoint: str, past: Past) -> Roster:
        mine = tuple(endpoint in body.members for body in self.bodies)
        drawn = self.drawn.get(mine)
        if drawn is not None and drawn.version == self.version and drawn.past is past:
            return drawn
        says = [
            Electorate(id=body.id, size=body.size, mine=is_mine, witness=body.witness, line=body.line)
            for body, is_mine in zip(self.bodies, mine, strict=True)
        ]
        few = self.line if len(self.line) <= SMALL else self.line[:FEW]
        self.drawn[mine] = Roster(
            version=self.version,
            term=self.term,
            promise_s=self.promise_s,
            line=few,
            electorates=tuple(says),
            past=past,
        )
        return self.drawn[mine]

    # --- its end --------------------------------------------------------------------------------------------------------

    def ends(self, now: float, *, at_least: float = -NEVER) -> float:
        """When the mandate is over, as far as is known; counted anew only if what was found before is not enough."""
        if self.counted <= now or (self.counted < at_least and now >= self.counted_at + LOOK_S):
            self._release_witness(now)
            self.counted, self.counted_at = min(map(self._ends, self.bodies), default=NEVER), now
        return self.counted

    def is_over(self, now: float) -> bool:
        """Whether others may elect another leader."""
        return min(map(self._ends, self.bodies), default=NEVER) <= now

    def _ends(self, body: Body) -> float:
        loyal = sorted((self._loyal(one) for one in body.members), reverse=True)
        if body.claimed:
            loyal.insert(0, NEVER)
        return loyal[body.needed - 1] if len(loyal) >= body.needed else -NEVER

    def _loyal(self, endpoint: str) -> float:
        return NEVER if endpoint == self.endpoint else self.until.get(endpoint, NEVER)

    def _release_witness(self, now: float) -> None:
        """A witness that was needed for a moment only is to be free for others again: the electorate is drawn up anew."""
        if not self.issued or len(self.bodies) != 1 or not self.bodies[0].claimed or self.wanted is not None:
            return
        if all(self._loyal(one) >= now + self.lease_s for one in self.bodies[0].members):
            self.change(self.line, now)

    def silent(self, now: float) -> list[str]:
        """Endpoints of those that had a say, and have not been loyal for a promise."""
        long_ago = now - self.promise_s
        return [one for one, until in self.until.items() if until < long_ago and ":" in one and one != self.endpoint][:SMALL]

    def heard_of(self, now: float) -> tuple[int, int]:
        """How many are loyal of the electorate that ends the mandate first, and how many there are: for a person."""
        if not self.bodies:
            return 0, 0
        lacking = min(self.bodies, key=self._ends)
        return sum(self._loyal(one) > now for one in lacking.members), lacking.size

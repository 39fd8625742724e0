"""Who leads, where the nodes have only each other? The machine of one node; every node of an embedded job is one.

    following ──no Renewed for a lease──▶ seeking ──a majority's votes──▶ leading ──the mandate is over──▶ seeking
        ▲                                   │  ▲
        └──── Leads: somebody else ─────────┘  └─ each goes down the line that it holds, and asks

The sibling of `rendezvous.election.store_election`: there a store elects, here those who had a seat do. Who has lost the
coordinator goes down the line of its roster and says `Seek` to one after the other. Whoever leads, or has a leader, answers
`Leads`. Whoever is in the line, is free itself and has the support of a majority answers `Propose`, and with a majority's
`Vote`s it leads. A node votes once in a term, for nobody whose roster is older than its own, and not while a promise binds it
(`rendezvous.election.leader_lease`).

The agent at the job's endpoint begins as the coordinator, since somebody must. If whoever comes first has a roster, the job
was there before: then it is a node as any other, the first in line.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action, Observation, Say, Tick
from holdfast.core.value import replace
from holdfast.core.wire.links import Arrived, LinkDown, LinkUp, Transmit
from holdfast.core.wire.messages import Finish, Leads, Past, Propose, Roster, Seek, Vote
from holdfast.rendezvous.election.ballot import Ballot
from holdfast.rendezvous.election.leader_lease import TERM, Body, Mandate
from holdfast.rendezvous.election.peer_dialer import WAIT_S, Dial
from holdfast.rendezvous.election.roster import adopted, aged, comes_before
from holdfast.rendezvous.election.store_election import Follow, GiveUp, Lead, StepDown
from holdfast.rendezvous.election.witness_claims import Claimed, Claims
from holdfast.rendezvous.lease import FENCE_S

TYPE_CHECKING = False
if TYPE_CHECKING:

    from collections.abc import Mapping

    from holdfast.core.job.report import JobReport
    from holdfast.core.wire.messages import Electorate

STAND_S = 1.0
"""How long to wait at one's own place in the line for the others to come."""

PROPOSE_S = 1.0
"""How long a proposal waits for its votes."""

KNOCK_S = 0.5
"""How often a successor looks whether somebody began anew at the job's endpoint."""

ELDER_S = 3.0
"""How long, at least, an agent at the endpoint, where another of this job was cut short, waits for a successor's knock before
its first round: a few knocks. It waits as long as that other's leases may last, too."""

YIELD_S = 30.0
"""How long an agent at the endpoint that found an older job leaves the lead to that, if it hears no more of it."""

GONE_S = 60.0
"""How long everybody in the line must have refused to be called until a node takes the job to be over. A host that starts again
answers nothing for a while, which counts anew; then its agent has this long to come back, at the endpoint."""

GONE_SPARE_S = 10.0
"""The same for a spare: a job that comes back can do without it, sooner than a spare without its job."""

OF_HALF = "let a third party decide: --witness DIR, which all nodes share; or risk two sides: --on-split continue"
"""What helps where one half is left: one of two nodes, above all."""

OF_MORE = (
    "it joins the others as soon as it reaches one; if they are dead, start the agent at the job's endpoint again; to go on"
    " without them, at the risk of two sides: --on-split continue"
)
"""What helps where fewer than half are left."""


class Succession:
    """The machine."""

    def __init__(
        self,
        endpoint: str,
        *,
        origin: str,
        founder: bool,
        lease_s: float,
        fresh_life: str,
        witness: bool = False,
        goes_on: bool = False,
        known_round: int = 0,
        ended: Mapping[str, JobReport] | None = None,
        now: float,
    ) -> None:
        self.endpoint = endpoint
        """Where others reach us, and we would serve. Empty: nowhere."""
        self.origin = origin
        """The job's endpoint, which everybody knows."""
        self.founder = founder
        self.lease_s = lease_s
        self.life = fresh_life
        self.goes_on = goes_on
        """A side without a majority goes on all the same (--on-split continue)."""
        self.known_round = known_round
        """The last round of an agent of this job that was on this host before us, and has not seen the job's end; 0: none."""
        self.ended = ended or {}
        """How earlier runs of the job have ended, by their lives, as far as this host knows."""
        self.began_at = now
        self.founding = False
        """We lead since nobody else did, and have formed no round yet."""
        self.term = 0
        """The latest in which we have led, followed or voted."""
        self.leader = origin
        self.roster: Roster | None = None
        self.roster_at = now
        self.mandate: Mandate | None = None
        self.over = False
        """We lead, and the job has ended."""
        self.free_at = -NEVER
        """End of our promise."""
        self.seek_at = NEVER
        """When to begin to seek."""
        self.renewed_at = -NEVER
        self.lead_at = NEVER
        """When to take the lead back up that was left to an older job."""
        self.ballot = Ballot(endpoint)
        self.votes: set[str] = set()
        self.proposed_at, self.proposed_until = -NEVER, -NEVER
        self.claims = Claims(has_witness=witness)
        self.look_at = NEVER
        """When something that we wait for is due, apart from the links."""
        # the one link of our own, and where in the line it goes
        self.dial = Dial()
        self.place = 1
        self.met_elder = False
        self.said_free = False
        self.complained = False
        self.refused: dict[str, float] = {}
        """Since when those in the line have refused every call: their agents are gone."""
        # the face of `rendezvous.election.store_election.Election` that a node needs
        self.rank = 0
        self.linked = False
        self.is_spare = False
        """This node waits for a place."""

    # --- the machine's face ---------------------------------------------------------------------------------------------

    def begin(self, now: float) -> list[Action]:
        """Lead, if we are at the endpoint; follow whoever is."""
        return self._found(now) if self.founder else [Follow(endpoint=self.origin)]

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`. Links that are not ours, and messages of members, are ignored."""
        out: list[Action] = []
        if self.mandate is not None and self.mandate.ends(now) <= now:
            out += self._mandate_over(now)
        if isinstance(seen, Tick):
            return out + self._due(now)  # before everything that a leader hears, which is thousands of words a second
        match seen:
            case LinkUp(link=link) if self.dial.uses(link):
                self.dial.answered(now)
                self.refused.clear()
                self.said_free = False
                self.met_elder |= self._is_elder(self.dial.to)
                out += self._speak(now)
            case LinkDown(link=link, refused=refused) if self.dial.uses(link):
                if refused:
                    self.refused.setdefault(self.dial.to, now)
                else:
                    self.refused.pop(self.dial.to, None)
                self.dial.broke(now + KNOCK_S * (self.mandate is not None))
            case LinkDown(link=link):
                self.ballot.went(link)
            case Arrived(link=link, message=Leads() as leads) if link == self.dial.link:
                out += self.told(leads, now)
            case Arrived(link=link, message=Propose() as proposed) if link == self.dial.link:
                out += self._asked_to_vote(proposed, now)
            case Arrived(link=link, message=Seek() as seek):
                out += self._sought(seek, link, now)
            case Arrived(message=Vote() as vote):
                out += self._voted(vote, now)
            case Claimed():
                out += self._claimed(seen, now)
        return out + self._due(now)

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        if self.mandate is not None:
            dial_at = self.dial.due_at if self._knocks else NEVER
            return min(self.mandate.counted, dial_at, self.look_at)
        if self.roster is None:
            return self.lead_at
        return min(max(self.seek_at, self.dial.due_at), self.look_at)

    def at_ease(self, now: float) -> bool:
        """We lead, and to answer a renewal is all that there is to do."""
        if self.mandate is None or self.founding or now >= self.deadline():
            return False
        return not self.claims.may_ask(now) or self.mandate.is_ample(now)

    def link_is(self, up: bool, now: float) -> list[Action]:
        """Our member's link to the leader came up, or broke."""
        self.linked = up
        return []

    def _due(self, now: float) -> list[Action]:
        if now >= self.look_at:
            self.look_at = NEVER
        if self.mandate is not None:
            return self._knock(now) + self._ask_witness_to_stay(now)
        if self.roster is None:
            return self._found(now) if now >= self.lead_at else []
        return (self._go_down(now) if now >= self.seek_at else []) + self._stand(now)

    # --- leading ----------------------------------------------------------------------------------------------------------

    def _found(self, now: float) -> list[Action]:
        self.founding, self.leader, self.lead_at = True, self.endpoint, NEVER
        self.mandate = Mandate(self.endpoint, term=self.term, lease_s=self.lease_s, witness=self.claims.has_witness)
        if not self.known_round:
            return [Lead(past=Past(life=self.life))]
        elder_s = max(ELDER_S, self.lease_s + FENCE_S)
        waits = f"an agent of this job was here before and did not see its end: {elder_s:g} s for its nodes, should they go on"
        return [Say(text=waits), Lead(past=Past(life=self.life, fence_s=elder_s))]

    def write(self, line: tuple[str, ...], now: float) -> None:
        """A round of ours has formed, or who has a seat has changed: `line` is theirs, in the order of succession."""
        assert self.mandate is not None
        self.founding = False
        self.mandate.change(line, now)

    def knocked(self, roster: int, life: str, now: float) -> list[Action]:
        """Somebody came to us as to the coordinator, and holds a roster of that version, of that run. Empty: it has not said of
        which one."""
        if not (roster and self.founding) or self._end_of(life) is not None:
            return []
        if not life and self.ended and not self.known_round:
            return []  # the last run here is over: we do not step down for a node of it, and its Join will say what it is of
        self.lead_at = now + YIELD_S
        return self._step_down("this job was there before, and its nodes choose who leads it", now)

    def _step_down(self, reason: str, now: float) -> list[Action]:
        self.mandate, self.founding, self.leader = None, False, ""
        self.free_at = self.seek_at = self.dial.next_at = now
        self.ballot.clear()
        return [StepDown(reason=reason), *self.dial.hang_up(now)]

    def make_way(self, reason: str, now: float) -> list[Action]:
        """Lead no longer, and do not seek to: this agent is about to end."""
        stepped_down = self._step_down(reason, now)
        self.forget()
        return stepped_down

    def _mandate_over(self, now: float) -> list[Action]:
        assert self.mandate is not None
        loyal, all_ = self.mandate.heard_of(now)
        lost = f"only {loyal} of {all_} nodes answer"
        if self.goes_on:
            self.mandate.waive()  # until somebody comes or goes
            risk = "going on all the same (--on-split continue); if the others live, and do the same, the job runs twice"
            return [Say(text=f"{lost}: {risk}", level="warning")]
        return self._step_down(f"{lost}, and the others may go on without them", now)

    def _knock(self, now: float) -> list[Action]:
        """Whoever begins anew at the job's endpoint is to hear of us before it has gathered enough to form a round."""
        if not self._knocks or now < self.dial.due_at:
            return []
        if self.dial.to:
            self.dial.next_at = now + KNOCK_S
            return self.dial.hang_up(now)
        return self.dial.call(self.origin, now)

    @property
    def _knocks(self) -> bool:
        return self.endpoint != self.origin and not self.over  # else whoever begins there is the job's next run

    def _ask_witness_to_stay(self, now: float) -> list[Action]:
        assert self.mandate is not None
        if not self.claims.may_ask(now):
            return []
        if id := self.mandate.wants_witness(now):
            return self.claims.ask(self.life, id, self.endpoint, self.mandate.missing(id, now))
        return []

    # --- following --------------------------------------------------------------------------------------------------------

    def renewed(self, roster: Roster | None, now: float) -> list[Action]:
        """Our member heard a `Renewed`, perhaps with a newer roster."""
        said: list[Action] = []
        if roster is not None and (
            self.roster is None or self._is_of_another_run(roster) or roster.version > self.roster.version
        ):
            self.roster, self.roster_at = roster, now
            self.term, self.life = max(self.term, roster.term), roster.past.life
            newest, *older = (one.size for one in roster.electorates)
            nodes = f"{newest} nodes{''.join(f', and the {size} of before,' for size in older)}"
            if len(roster.line) > 1:
                what = f"the {nodes} choose another, first of all {', '.join(roster.line[1:4])}"
                said = [Say(text=f"if the coordinator is lost, {what}", level="debug")]
        return said + self._bound(now)

    def _bound(self, now: float) -> list[Action]:
        """By what we have just heard we owe our support to whoever said it."""
        if self.leader in ("", self.endpoint):
            return []  # it was our own word, and binds nobody
        self.renewed_at = now
        if self.roster is None:
            return []
        self.free_at = max(self.free_at, now + self.roster.promise_s)
        self.seek_at = now + self.lease_s
        self.place, self.met_elder, self.complained = 1, False, False
        self.refused.clear()
        return self.dial.hang_up(now)

    def told(self, leads: Leads, now: float) -> list[Action]:
        """Somebody says who leads."""
        if self.mandate is not None:
            outdone = self.founding or (leads.term, leads.endpoint) > (self.term, self.endpoint)
            if leads.endpoint == self.endpoint or not outdone:
                return []
            return [*self._step_down(f"{leads.endpoint} leads it", now), *self._follow(leads, now)]
        if leads.term < self.term or leads.endpoint in (self.endpoint, self.leader):
            return []
        return self._follow(leads, now)

    def taken_in(self, life: str) -> None:
        """Our coordinator has said which run of the job it is."""
        if self.roster is not None and self.roster.past.life != life:
            self.forget()

    def forget(self) -> None:
        """What we hold is of another run of the job."""
        self.roster = None
        self.ballot.clear()

    def _follow(self, leads: Leads, now: float) -> list[Action]:
        if leads.life != self.life:
            self.forget()  # another job by the same name, which had begun unawares; who has a say in it has none here
        self.leader, self.term, self.lead_at = leads.endpoint, max(self.term, leads.term), NEVER
        self.seek_at, self.place = now + self.lease_s, 0
        return [*self.dial.hang_up(now), Follow(endpoint=leads.endpoint)]

    def tell(self, link: int) -> list[Action]:
        """Tell whoever is looking for the coordinator where it is, if we know."""
        leader = self.endpoint if self.mandate is not None else self.leader if self.linked else ""
        return [Transmit(link=link, message=Leads(endpoint=leader, term=self.term, life=self.life))] if leader else []

    # --- seeking ----------------------------------------------------------------------------------------------------------

    def _go_down(self, now: float) -> list[Action]:
        """Go down the line, from one to the next, and begin again at its end."""
        assert self.roster is not None
        if now < self.dial.due_at:
            return []
        if self.dial.to:
            self.refused.pop(self.dial.to, None)
            return self.dial.hang_up(now) + self._go_down(now)
        if self.place >= len(self.roster.line):
            self.place = 0
            return self._round_made(now) or self._go_down(now)
        endpoint = self.roster.line[self.place]
        self.place += 1
        if endpoint == self.endpoint:
            self.dial.next_at = now + STAND_S
            return []
        return self.dial.call(endpoint, now)

    def _speak(self, now: float) -> list[Action]:
        """Say to whoever we are linked to what we want of it."""
        if self.mandate is not None:
            leads = Leads(endpoint=self.endpoint, term=self.term, life=self.life)
            return self.dial.say(Seek(node=self.endpoint, term=self.term, leads=leads)) if self._knocks else []
        assert self.roster is not None
        self.said_free = now >= self.free_at
        if not self.said_free:
            self.look_at = min(self.look_at, self.free_at)
            self.dial.until = max(self.dial.until, self.free_at + WAIT_S)
        roster = replace(self.roster, past=aged(self.roster.past, now - self.roster_at))
        return self.dial.say(Seek(node=self.endpoint, term=self.term, roster=roster, free=self.said_free))

    def _round_made(self, now: float) -> list[Action]:
        """We have been down the whole line."""
        assert self.roster is not None
        free, elder, self.met_elder = now >= self.free_at, self.met_elder, False
        if not free:
            self.dial.next_at = now + STAND_S
            return []
        if self.goes_on and not elder and self._is_in_line:
            return self._win(now, alone=True)
        if self._all_are_gone(now):
            gone = "the agents of all other nodes are gone: the job is over; how it ended is not known here"
            gone += " (most likely this node, a spare, was cut off as it ended)" if self.is_spare else ""
            return [GiveUp(reason=gone, hint="the other nodes' agents have printed how, and `holdfast report` tells it there")]
        if self.complained:
            return []
        self.complained = True
        return [Say(text=self._trouble(), level="error")]

    def _all_are_gone(self, now: float) -> bool:
        assert self.roster is not None
        others = [endpoint for endpoint in self.roster.line if endpoint != self.endpoint]
        gone_s = GONE_SPARE_S if self.is_spare else GONE_S
        return bool(others) and all(self.refused.get(endpoint, now) <= now - gone_s for endpoint in others)

    def _trouble(self) -> str:
        """Why nobody leads, and what would help."""
        assert self.roster is not None
        largest = self.roster.largest
        what = f"the coordinator at {self.leader or self.roster.line[0]} is lost, or cut off from this node"
        if largest.size == 2 and not largest.witness:
            stays = "the other of two nodes cannot know which, so its ranks stay stopped"
            return f"{what}; {stays}\n  hint: {OF_HALF}"
        here, lacking = self.ballot.most_short(self.roster)
        late = len(self.ballot.willing) - here
        more = f" ({late} more here came too late to have a say)" if late else ""
        short = f"{here} of {lacking.size} nodes are here, and {lacking.majority} could go on{more}: the ranks stay stopped"
        return f"{what}; {short}\n  hint: {OF_HALF if 2 * here == lacking.size and not lacking.witness else OF_MORE}"

    # --- voting -----------------------------------------------------------------------------------------------------------

    def _asked_to_vote(self, proposed: Propose, now: float) -> list[Action]:
        assert self.roster is not None or self.mandate is not None
        if self.mandate is not None or self.roster is None or proposed.roster < self.roster.version:
            return []
        if proposed.term <= self.term or now < max(self.free_at, self.proposed_until):
            return []
        self.term, self.free_at, self.dial.until = proposed.term, now + self.roster.promise_s, now + WAIT_S
        return self.dial.say(Vote(node=self.endpoint, term=proposed.term, mark=proposed.mark))

    def _sought(self, seek: Seek, link: int, now: float) -> list[Action]:
        if seek.leads is not None:
            return self.told(seek.leads, now) or (self.tell(link) if self.mandate is not None else [])
        out: list[Action] = []
        if seek.roster is not None:
            if (report := self._end_of(seek.roster.past.life)) is not None:
                return [Transmit(link=link, message=Finish(report=report))]
            out += self.knocked(seek.roster.version, seek.roster.past.life, now)
            if self.mandate is None:
                self._adopt(seek.roster, now)
        if not self._is_of_another_run(seek.roster):
            self.ballot.came(seek, link)  # who has a say in another run has none in ours, though both count from one
        self.refused.clear()
        return out if self.mandate is None and self.leader in (seek.node, "") else out + self.tell(link)

    def _adopt(self, roster: Roster, now: float) -> None:
        """Take over a newer roster from one that would support us: what it says of itself does not hold for us."""
        if self.roster is not None and (self._is_of_another_run(roster) or self.roster.version >= roster.version):
            return
        if self.roster is None and roster.past.round < self.known_round:
            return  # by then others had a say: our earlier life had told them, and let go of these
        if self.roster is None:
            # We may have promised something as an elector under our endpoint's name in an earlier life, or by a `Renewed` that
            # brought us none. And the coordinator counts on whoever it has not heard of for a promise from when it drew the
            # roster up: whoever has it from there seeks a lease later at the earliest, and we have it from that one.
            promised_at = max(self.began_at, self.renewed_at, now - self.lease_s)
            self.free_at = max(self.free_at, promised_at + roster.promise_s)
            self.seek_at, self.place = max(now, self.renewed_at + self.lease_s), 0
        self.roster, self.roster_at = adopted(roster, self.endpoint, self.roster), now
        self.life = roster.past.life
        self.look_at = min(self.look_at, self.free_at)

    def _stand(self, now: float) -> list[Action]:
        """Propose ourselves if a majority would have us."""
        if self.dial.up and not self.said_free and now >= self.free_at:
            self.dial.until = now + WAIT_S
            return self._speak(now) + self._stand(now)
        if not self._is_in_line or now < self.seek_at or (self.dial.up and self._is_elder(self.dial.to)):
            return []
        if now < (free_at := max(self.free_at, self.proposed_until)):
            self.look_at = min(self.look_at, free_at) if self.ballot.seeks else self.look_at
            return []
        assert self.roster is not None
        self.ballot.roster = self.roster
        if short := self.ballot.short(self.ballot.willing):
            return self._ask_witness_to_lead(short, now)
        self.term = 1 + max(self.term, self.ballot.term)
        self.votes, self.proposed_at, self.proposed_until = {self.endpoint}, now, now + PROPOSE_S
        if not self.ballot.short(self.votes):
            return self._win(now)
        propose = Propose(term=self.term, mark=now, roster=self.roster.version)
        self.look_at = min(self.look_at, self.proposed_until)
        return [Transmit(link=link, message=propose) for link in self.ballot.links.values()]

    def _voted(self, vote: Vote, now: float) -> list[Action]:
        if vote.term != self.term or now >= self.proposed_until or vote.mark != self.proposed_at or self.mandate is not None:
            return []
        self.votes.add(vote.node)
        return [] if self.ballot.short(self.votes) else self._win(now)

    def _end_of(self, life: str) -> JobReport | None:
        """How that run has ended. None: it has not, as far as we know; one that goes on with us has not, whoever says so."""
        return None if life == self.life else self.ended.get(life)

    def _is_of_another_run(self, roster: Roster | None) -> bool:
        """Than ours. Where either is none, nobody can tell."""
        return self.roster is not None and roster is not None and roster.past.life != self.roster.past.life

    @property
    def _is_in_line(self) -> bool:
        return self.roster is not None and self.endpoint in self.roster.line

    def _is_elder(self, endpoint: str) -> bool:
        return self.roster is not None and comes_before(self.roster, endpoint, self.endpoint)

    def _win(self, now: float, *, alone: bool = False) -> list[Action]:
        assert self.roster is not None
        before, roster = self.leader or self.roster.line[0], self.roster
        self.term += alone
        voters = self.ballot.willing if alone else self.votes
        loyal = {} if alone else dict.fromkeys(voters - {self.endpoint}, self.proposed_at + roster.promise_s)
        bodies = [
            Body(one.id, one.size, self.ballot.of(one, voters), witness=one.witness, claimed=one.id in self.ballot.claims)
            for one in (() if alone else roster.electorates)
        ]
        self.mandate = Mandate(
            self.endpoint,
            term=self.term,
            lease_s=self.lease_s,
            witness=self.claims.has_witness,
            version=max(roster.version, self.term * TERM),
            bodies=bodies,
            loyal=loyal,
        )
        self.leader, self.proposed_until, self.lead_at = self.endpoint, -NEVER, NEVER
        past = replace(aged(roster.past, now - self.roster_at), fence_s=FENCE_S + alone * self.lease_s)
        links = list(self.ballot.seeks)
        self.ballot.clear()
        self.dial.next_at = now
        votes = f"with the votes of {len(voters)} of {roster.electorates[0].size} nodes"
        votes += " and the witness's" if any(body.claimed for body in bodies) else ""
        how = "without a majority (--on-split continue)" if alone else votes
        lost = f"the coordinator at {before} was lost"
        told = f"{lost}: this agent leads the job now, {how}; new nodes can join at {self.endpoint}"
        leads = Leads(endpoint=self.endpoint, term=self.term, life=self.life)
        return [
            *self.dial.hang_up(now),
            Lead(past=past, reason=lost),
            Say(text=told, level="warning"),
            *(Transmit(link=link, message=leads) for link in links),
        ]

    # --- the witness ------------------------------------------------------------------------------------------------------

    def _ask_witness_to_lead(self, short: list[Electorate], now: float) -> list[Action]:
        """Where one vote more would do, ask for it."""
        if not self.claims.may_ask(now) or not self.ballot.lacks_the_witness(short):
            return []
        assert self.roster is not None
        newest = short[0].id == self.roster.electorates[0].id
        missing = (one for one in self.roster.line if newest and one not in self.ballot.willing)
        return self.claims.ask(self.life, short[0].id, self.endpoint, missing)

    def _claimed(self, answer: Claimed, now: float) -> list[Action]:
        said = self.claims.answered(answer, now)
        if not answer.granted:
            self.look_at = min(self.look_at, self.claims.ask_at)
            return said
        self.ballot.claims.add(answer.id)
        if self.mandate is not None:
            self.mandate.claimed(answer.id)
        return said

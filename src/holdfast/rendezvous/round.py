"""Who takes part? The one machine that decides it for a job, wherever it runs.

      Join ≥ min, all expected back, or last call over
    ┌───────────┐ ───────────────────────────────────▶ ┌─────────┐   all succeeded    ┌────────┐  all stopped  ┌───────┐
    │ gathering │                                      │ running │ ─────────────────▶ │ ending │ ────────────▶ │ ended │
    └───────────┘ ◀─────────────────────────────────── └─────────┘   policy: stop     └────────┘               └───────┘
      a worker failed and the policy restarts · a node was lost, left, joined or was excluded

Where the policy lets a round carry on without some of its nodes, whatever leaves enough of them is no reason for another.

A round is one agreement on members and ranks. Its number also fences: whatever names an older round is late news. A new
round forms only when every member of the last one has said that its workers are gone, or is lost and must have stopped
them itself (`rendezvous.lease`). Members are judged by how long *this* machine has not heard from them, on its own
monotonic clock; nobody's wall clock is compared.
"""

from __future__ import annotations

from holdfast.core.events import (
    Decided,
    Event,
    FailureSeen,
    NodeExcluded,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeReadmitted,
    StragglerSeen,
)
from holdfast.core.failure import Failure, describe
from holdfast.core.machine import NEVER, Action, Observation, Record, Say, Tick
from holdfast.core.messages import (
    Assigned,
    Exclude,
    Failed,
    Finish,
    HangFound,
    Join,
    Leave,
    LookAround,
    Message,
    Noted,
    Pace,
    Paced,
    Positions,
    Readmit,
    Renew,
    Renewed,
    Requested,
    Stop,
    StopJob,
    Stopped,
    Succeeded,
    Waiting,
)
from holdfast.core.policy import Decision
from holdfast.core.report import JobReport
from holdfast.core.value import replace
from holdfast.rendezvous.exclusion import CHARS, Excluded
from holdfast.rendezvous.failures import Failures
from holdfast.rendezvous.gathering import Gathering, named
from holdfast.rendezvous.lease import FENCE_S
from holdfast.rendezvous.pace import Paces, described
from holdfast.rendezvous.rules import Heard, HostLeaves, Tell, Unlinked
from holdfast.rendezvous.seats import Seats

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.core.messages import Exclusion
    from holdfast.core.policy import Policy
    from holdfast.rendezvous.inquiry import Inquiry
    from holdfast.rendezvous.placement import Placement
    from holdfast.rendezvous.rules import Rules
    from holdfast.rendezvous.seats import Seat

SMALL = 64
"""Up to so many nodes everybody is told everybody's name; beyond, only group rank 0 (a table for all is O(N²) bytes)."""


class Rendezvous:
    """The machine. `policy` judges failures; everything else is decided here."""

    def __init__(self, rules: Rules, policy: Policy, *, now: float, now_unix: float) -> None:
        self.rules = rules
        self.policy = policy
        self.phase = "gathering"
        self.round = 0
        self.restarts = 0
        self.attempt = 0
        """Restarts before the round that runs, or ran last."""
        self.excluded = Excluded(back_after_s=rules.readmit_after_s)
        self.seats = Seats(rules, self.excluded)
        self.gathering = Gathering(rules, self.seats, now=now)
        self.paces = Paces()
        self.failures = Failures()
        self.inquiry: Inquiry | None = None
        """Which of the round's ranks is to blame for a hang. None: nobody has told of one."""
        self.condemned = "", 0
        """(node, local rank) of one that is to blame, though its limit has not told. Empty: there is none."""
        self.started_at, self.started_at_unix = now, now_unix
        self.formed_at = now
        self.ended_at = NEVER
        self.why = "first round"
        self.outcome, self.exit_code = "", 1
        """Of a job that does not succeed."""
        self.is_restart = False
        """The next round is one that the budget paid for."""
        self.has_lost_some = False
        """The running round carries on without some of its nodes, or may."""
        self.borne_with: tuple[str, Failure] | None = None
        """The first failure that it has carried on without, with its node's name."""
        self.report: JobReport | None = None
        self.age_s = 0.0
        """How long the job ran under other coordinators."""

    def resume(
        self,
        *,
        round: int,
        restarts: int,
        members: int = 0,
        largest: int = 0,
        fence_s: float = 0.0,
        age_s: float = 0.0,
        excluded: Iterable[Exclusion] = (),
        longest_s: Mapping[str, float] | None = None,
        report: JobReport | None = None,
        now: float,
    ) -> None:
        """Take over from a coordinator whose last round had `members` nodes. Their workers may live until they say otherwise,
        or until the leases that it may have given a moment ago are over."""
        self.round, self.restarts, self.age_s = round, restarts, age_s
        self.seats.largest = largest
        self.why = "the coordinator has changed" if round else self.why
        self.gathering.wait_until(now + fence_s)
        self.gathering.awaited, self.gathering.awaited_until = members, now + self.rules.lease_s + FENCE_S
        self.excluded.resume(excluded, now)
        self.paces.know(longest_s or {}, now)
        if report is not None:
            self.phase, self.outcome, self.report, self.ended_at = "ended", report.outcome, report, now

    # --- the machine's face ---------------------------------------------------------------------------------------------

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`."""
        actions: list[Action] = []
        match seen:
            case Heard(message=message, here=here):
                actions += self._hear(message, here, now)
                if isinstance(message, Renew) and not self.gathering.unsure:
                    return actions  # thousands a second, and nothing becomes possible by them
            case Unlinked(node=node) if node in self.seats:
                self.seats[node].linked = False  # it may come back within its lease
            case HostLeaves(reason=reason):
                actions += self._end("stopped", reason, now)
            case Tick():
                # Only then: a driver that was held up shows first what has come meanwhile, and a Tick last.
                actions += self._expire(now) + self._forgive(now)
        return actions + self._advance(now)

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        if self.phase == "ended":
            return NEVER
        ends = min(self.excluded.deadline(), self.seats.look_at)
        if self.inquiry is not None:
            ends = min(ends, self.inquiry.until)
        return min(self.gathering.opens_at(self.round), ends) if self.phase == "gathering" else ends

    # --- what members say -----------------------------------------------------------------------------------------------

    def _hear(self, message: Message, here: bool, now: float) -> list[Action]:
        node = getattr(message, "node", "")
        if self.report is not None:
            heeds = not (isinstance(message, Leave) or self._is_of_the_next_run(message, node))
            return [Tell(node=node, message=Finish(report=self.report))] if heeds else []
        if not here:
            self.seats.look_at = min(self.seats.look_at, now + self.rules.lease_s)
        seat = self.seats.get(node)
        if seat is not None:
            seat.heard_at, seat.linked = now, True
        elif max(getattr(message, "round", 0), getattr(message, "known_round", 0)) > self.round:
            # It was a member under an earlier life of the coordinator; others may still hold a lease from that.
            self.gathering.wait_until(self.started_at + self.rules.lease_s + FENCE_S)
        match message:
            case Renew(sent_at=sent_at) if seat is not None:
                # A Stop may have gone down with its link. Said twice it does no harm; said never, we would wait for ever.
                again = [seat.stop] if seat.stop is not None and seat.state in ("stopping", "stopped") else []
                answers = [Renewed(lease_s=self.rules.lease_s, sent_at=sent_at), *again]
                return [Tell(node=node, message=answer) for answer in answers]
            case Join():
                return self._joined(message, seat, here, now)
            case StopJob(reason=reason):
                return self._end("stopped", reason, now)
            case Exclude() | Readmit():
                return self._operator(message, now)
            case _ if seat is None:
                return [Tell(node=node, message=_stranger(message))]
            case HangFound() if message.round == self.round and seat.state == "running":
                return self._inquire(seat, message, now)
            case Positions(round=number, positions=positions) if self.inquiry is not None and number == self.inquiry.round:
                self.inquiry.hear(node, positions)
            case Failed(round=number, failure=failure):
                return self._failed(seat, number, failure, now)
            case Pace(round=number) if number == self.round and self.phase == "running":
                return self._paced(seat, message, now)
            case Requested():
                return self._requested(seat, message, now)
            case Succeeded(round=number) if number == self.round and seat.state == "running" and not seat.is_impaired:
                return self._succeeded(seat, now)
            case Stopped(round=number, failures=failures):
                self.failures.keep(number, node, failures, now)
                if seat.state == "leaving":
                    return self._remove(seat, NodeLeft(name=seat.name, reason="its workers have been stopped"))
                if number == self.round and seat.state in ("running", "stopping", "succeeded"):
                    return self._stopped(seat, now)
            case Leave(reason=reason) if seat.state != "leaving":
                return self._leaves(seat, reason, now)
        return []

    def _is_of_the_next_run(self, message: Message, node: str) -> bool:
        """It knows nothing of this one, nor this one of it: to be told how this one ended would end that one. It goes on
        looking, and finds its own coordinator, or nobody."""
        knows = any(getattr(message, what, 0) for what in ("round", "known_round", "roster"))
        return bool(self.seats.known) and node not in self.seats.known and not knows

    def _joined(self, join: Join, seat: Seat | None, here: bool, now: float) -> list[Action]:
        if refusal := self.seats.refusal(join):
            return [Tell(node=join.node, message=refusal)]
        self.paces.joined(join.longest_s, now)
        if self.gathering.awaited and join.round == self.round:
            self.gathering.back.add(join.node)
        if seat is None:
            seat = self.seats.add(join, here=here, now=now)
            actions = [self._record(NodeJoined(name=join.name)), *self._of_itself(join, now)]
            if self.phase == "running":
                actions += self._newcomer(seat, now)
            return actions
        if seat.assigned is not None and join.round < seat.assigned.round:
            again = [seat.assigned, *([seat.stop] if seat.stop else [])]
            return [Tell(node=join.node, message=message) for message in again]
        took_part = self.phase == "running" and seat.state != "ready"
        self.seats.know(seat, join)
        seat.state, seat.is_impaired = "ready", False
        said = self._of_itself(join, now)
        if not took_part:
            return said
        if seat.stop is None:
            said += self._without(_by_itself(seat), now)
        return said + (self._newcomer(seat, now) if self.phase == "running" else [])

    def _stopped(self, seat: Seat, now: float) -> list[Action]:
        """All its workers have ended. Where nothing had gone wrong, and nobody had told it to, the round is another now."""
        takes_part = self.phase == "running" and seat.state == "running" and not seat.is_impaired
        seat.state = "stopped"
        return self._without(_by_itself(seat), now) if takes_part and seat.stop is None else []

    def _newcomer(self, seat: Seat, now: float) -> list[Action]:
        why = self.seats.no_place_yet(seat, self.round)
        if not why and self.policy.carries_on:
            why = "nobody is restarted for a newcomer (min-healthy)"
        if not why:
            return self._regroup("rejoin", f"{seat.name} joined", now)
        said = Say(text=f"{seat.name} waits as a spare: {why}")
        return [said, Tell(node=seat.join.node, message=Waiting(round=self.round, reason=why))]

    # --- what goes wrong, and what goes on ------------------------------------------------------------------------------

    def _failed(self, seat: Seat, number: int, failure: Failure, now: float) -> list[Action]:
        self.failures.keep(number, seat.join.node, (failure,), now)
        if number != self.round or self.phase != "running":
            return []
        if failure.cause == "hung" and self.inquiry is not None:
            self._impair(seat)
            self.inquiry.held.append((seat.join.node, failure))
            return []  # until it is known whether it is to blame
        if seat.state != "running" or seat.is_impaired:
            return []
        self._impair(seat)
        return self._weigh(seat.name, failure, now)

    def _impair(self, seat: Seat) -> None:
        seat.is_impaired = True
        if not self.policy.carries_on:
            seat.state = "stopping"  # it does so without being told

    def _weigh(self, name: str, failure: Failure, now: float) -> list[Action]:
        """Decide about a failure of a worker of the node `name`: the round's first, unless others were borne with."""
        verdict = self.policy.judge(self.seats.health, describe(failure))
        if verdict.then != "restart":
            self.borne_with = self.borne_with or (name, failure)
            return self._as_it_is(verdict, now)
        if broken := [other.name for other in self.seats.members if not other.linked]:
            # A peer that dies breaks its links before others notice its silence. No restart is spent on the consequence.
            why = f"{describe(failure)}, right after the link to {named(broken)} broke: taken for a consequence of that"
            return self._regroup("rejoin", why, now)
        return self._blame(*self.borne_with or (name, failure), verdict.reason, now)

    def _without(self, why: str, now: float) -> list[Action]:
        """A member takes no part in the running round any more, through no fault of its workers."""
        verdict = self.policy.judge(self.seats.health, why)
        if verdict.then != "restart":
            return self._as_it_is(verdict, now)
        if self.borne_with:
            return self._blame(*self.borne_with, verdict.reason, now)
        return self._regroup("rejoin", _joined(why, verdict.reason), now)

    def _as_it_is(self, verdict: Decision, now: float) -> list[Action]:
        """The running round carries on without some, or is over."""
        if verdict.then == "finish":
            return self._end("succeeded", verdict.reason, now)
        self.has_lost_some, self.condemned = True, ("", 0)
        decided = Decided(decision="carry-on", reason=verdict.reason, restarts_left=self.policy.restarts_left(now))
        return [self._record(decided), Say(text=verdict.reason, level="warning")]

    def _blame(self, name: str, failure: Failure, more: str, now: float) -> list[Action]:
        """All restart because of that worker of the node `name`, or the job ends. `more`: what else there is to say."""
        decision = self.policy.consider(failure, uptime_s=now - self.formed_at, now=now)
        out = decision.exclude and failure.node == name and self._is_replaceable(name)
        excluded = self._exclude(name, decision.exclude, "failures", now) if out else []
        why = f"{decision.reason}, without {name}" if out else decision.reason
        return excluded + self._follow(replace(decision, reason=_joined(why, more)), now)

    def _follow(self, decision: Decision, now: float) -> list[Action]:
        if decision.then != "restart":
            self.exit_code = decision.exit_code
            return self._end("failed", decision.reason, now)
        self.restarts += 1
        self.is_restart = True
        self.gathering.wait_until(now + decision.delay_s)  # a fence may still stand, of a node lost while others carried on
        return self._regroup("restart", decision.reason, now, delay_s=decision.delay_s, left=decision.restarts_left)

    def _succeeded(self, seat: Seat, now: float) -> list[Action]:
        seat.state = "succeeded"
        health = self.seats.health
        if not self.has_lost_some or health.healthy or health.succeeded == health.size:
            return []
        return self._without(f"{seat.name} is the last to have done its part", now)

    def _requested(self, seat: Seat, asked: Requested, now: float) -> list[Action]:
        """A worker's wish. Whatever becomes of its round meanwhile, it stands; but one restart fulfils all that ask for one."""
        who = f"rank {asked.rank} on {seat.name}"
        match asked.kind:
            case "stop":
                return self._end("stopped", f"{who} asked to stop the job: {asked.reason}", now)
            case "restart" if asked.round == self.round and self.phase == "running":
                what = f"{who} asked for a restart: {asked.reason}"
                return self._follow(self.policy.consider_request(what, uptime_s=now - self.formed_at, now=now), now)
            case "exclude" if not self.excluded.why(seat.name):
                what = f"{who} asked to exclude its node: {asked.reason}"
                if needed := self._lacking(seat.name):
                    why = f"{what}; not done, since the job cannot go on without it: {needed}"
                    return self._as_it_is(Decision(then="carry-on", reason=why), now)
                return self._exclude(seat.name, asked.reason, "script", now) + self._dismiss(seat.name, what, now)
        return []

    # --- a rank that hangs ----------------------------------------------------------------------------------------------

    def _inquire(self, seat: Seat, found: HangFound, now: float) -> list[Action]:
        """Have every node look at its ranks, before any of them is stopped."""
        from holdfast.rendezvous.inquiry import ANSWER_S, Inquiry

        if self.inquiry is not None or self.phase != "running":
            return []
        nodes = [node for node, other in self.seats.items() if other.state == "running"]
        self.inquiry = Inquiry(self.round, nodes, until=now + found.within_s + ANSWER_S)
        look = LookAround(round=self.round, reason=f"rank {found.rank} on {seat.name} hung: {found.reason}")
        return [Tell(node=node, message=look) for node in nodes if node != seat.join.node]

    def _judge(self, inquiry: Inquiry, now: float) -> list[Action]:
        """Decide about a hang whose culprit is known by now, as far as it can be."""
        from holdfast.rendezvous.inquiry import blamed, unreported

        self.inquiry = None
        if not inquiry.held:
            return []  # whoever found it has gone, or thought better of it
        blame = inquiry.blame()
        node, failure = inquiry.held[0]
        actions: list[Action] = []
        if blame is not None and (seat := self.seats.get(blame.node)) is not None:
            position, reported = blame.position, {known.rank: known for _, known in inquiry.held}
            own = reported.get(position.rank) or unreported(
                position,
                node=seat.name,
                role=seat.join.role,
                round=self.round,
                attempt=self.attempt,
                now_unix=self._unix(now),
            )
            node, failure = blame.node, blamed(own, blame)
            self.condemned, seat.is_impaired = (node, position.local_rank), True
            # It hung before those that waited for it exceeded their limits.
            self.failures.put_first(self.round, node, failure, by_s=position.quiet_s or 0.0)
            actions.append(self._record(FailureSeen(failure=failure)))
        return actions + self._weigh(self.seats[node].name if node in self.seats else failure.node, failure, now)

    def _leaves(self, seat: Seat, reason: str, now: float) -> list[Action]:
        if not seat.has_workers:
            return self._remove(seat, NodeLeft(name=seat.name, reason=reason))
        took_part, seat.state = self._takes_part(seat), "leaving"
        return self._without(f"{seat.name} left: {reason}", now) if took_part else []

    def _takes_part(self, seat: Seat) -> bool:
        """Whether the running round is another without that node."""
        return self.phase == "running" and seat.state == "running" and not seat.is_impaired

    # --- nodes that must not take part ----------------------------------------------------------------------------------

    def _operator(self, asked: Exclude | Readmit, now: float) -> list[Action]:
        """What an operator asked for, and the answer to it."""
        name, before = asked.name, self.excluded.why(asked.name)
        actions: list[Action] = []
        if isinstance(asked, Readmit):
            ok, text = bool(before), f"{name} may take part again" if before else f"{name} is not excluded"
            actions = self._readmit(name, asked.reason, now) if before else []
        elif before:
            ok, text = True, f"{name} is excluded already: {before}"
        elif needed := self._is_needed(name):
            ok, text = False, f"{name} is not excluded, since the job cannot go on without it: {needed}"
        else:
            here = any(seat.name == name for seat in self.seats.values())
            actions = self._exclude(name, asked.reason, "operator", now)
            actions += (dismissed := self._dismiss(name, f"{name} is excluded: {asked.reason}", now))
            stays = "the others carry on without it" if self.phase == "running" else "the ranks are restarted without it"
            then = stays if dismissed else "it takes part in no later round"
            unseen = f"no node {name} is here now; it is excluded if it comes"
            ok, text = True, f"{name} is excluded: {then}" if here else unseen
        return [*actions, Tell(node=asked.node, message=Noted(ask=asked.ask, ok=ok, text=text))]

    def _dismiss(self, name: str, why: str, now: float) -> list[Action]:
        """Stop an excluded node's part in the running round: alone, where the others may carry on, else with all. Where some
        have done their part already, it is left to do its own."""
        members = self.seats.members
        mine = [seat for seat in members if seat.name == name and seat.state == "running"]
        if self.phase != "running" or not mine or any(seat.state == "succeeded" for seat in members):
            return []
        for seat in mine:
            seat.state, seat.stop = "stopping", Stop(round=self.round, reason=why, rejoin=True)
        without = self._without(why, now)
        alone = [Tell(node=seat.join.node, message=seat.stop) for seat in mine if seat.stop and self.phase == "running"]
        return without + alone

    def _of_itself(self, join: Join, now: float) -> list[Action]:
        """A node knows best whether it is fit; but what others have against it stands."""
        by, why = self.excluded.by(join.name), self.excluded.why(join.name)
        if join.unhealthy and (not by or (by == "itself" and why != join.unhealthy)):
            return self._exclude(join.name, join.unhealthy, "itself", now)
        return [] if join.unhealthy or by != "itself" else self._readmit(join.name, "it says that it is fit again", now)

    def _exclude(self, name: str, reason: str, by: str, now: float) -> list[Action]:
        self.excluded.add(name, reason, by, now)
        return [self._record(NodeExcluded(name=name, reason=self.excluded.why(name), by=by))]

    def _readmit(self, name: str, reason: str, now: float) -> list[Action]:
        self.excluded.remove(name)
        self.policy.pardon(name)
        actions: list[Action] = [self._record(NodeReadmitted(name=name, reason=reason))]
        for seat in list(self.seats.values()):
            if seat.name == name and seat.state == "ready" and self.phase == "running":
                actions += self._newcomer(seat, now)
        return actions

    def _forgive(self, now: float) -> list[Action]:
        """Those whose time is up may come back."""
        after = f"it was excluded {self.rules.readmit_after_s:g} s ago"
        return [action for name in self.excluded.over(now) for action in self._readmit(name, after, now)]

    def _paced(self, seat: Seat, pace: Pace, now: float) -> list[Action]:
        """How a node gets on. A slow one is left out, if that was asked for, and if a spare can take its place."""
        actions: list[Action] = []
        if job := self.paces.heard(seat.name, pace, now):
            actions.append(Tell(node=seat.join.node, message=Paced(round=self.round, longest_s=job)))
        if busy_s := self.paces.busy(pace, now):
            paced = Paced(round=self.round, longest_s=self.paces.longest_s, busy_s=busy_s)
            actions += [Tell(node=one.join.node, message=paced) for one in self.seats.members if one is not seat]
        slow = {seat.name: pace.straggler[:CHARS]} if pace.straggler else {}
        for event in self.paces.compare(now):
            actions.append(self._record(event))
            if isinstance(event, StragglerSeen):
                slow[event.name] = described(event)
                actions.append(Say(text=f"straggler: {event.name}: {slow[event.name]}", level="warning"))
        for name, why in slow.items() if self.rules.on_straggler == "exclude" else ():
            runs = self.phase == "running" and any(member.name == name for member in self.seats.members)
            if runs and not self.seats.tally.of("succeeded") and self._is_replaceable(name):
                actions += self._exclude(name, why, "slowness", now)
                actions += self._dismiss(name, f"{name} is excluded: {why}", now)
        return actions

    def _is_needed(self, name: str) -> str:
        """Why the running round's nodes and the spares do not suffice without that one. Empty: they do."""
        if self.phase != "running" or not any(member.name == name for member in self.seats.members):
            return ""
        return self._lacking(name)

    def _lacking(self, name: str) -> str:
        """Why no round could be made without that node. Empty: one could."""
        left = self.seats.place_without(name, self.round)
        return "" if left.active else left.reason

    def _is_replaceable(self, name: str) -> bool:
        """Whether the job would be as large without that node as it is now."""
        left = self.seats.place_without(name, self.round)
        return len(left.active) >= len(self.seats.members)

    # --- members that are not heard from --------------------------------------------------------------------------------

    def _expire(self, now: float) -> list[Action]:
        if self.phase == "ended" or now < self.seats.look_at:
            return []
        actions: list[Action] = []
        for seat in list(self.seats.values()):
            if now >= self.seats.lease_ends(seat):
                silent = f"not heard from for {now - seat.heard_at:.1f} s (lease {self.rules.lease_s:g} s)"
                actions += self._lose(seat, silent, now)
        self.seats.look_at = min(map(self.seats.lease_ends, self.seats.values()), default=NEVER)
        return actions

    def _lose(self, seat: Seat, reason: str, now: float) -> list[Action]:
        if seat.has_workers:
            self.gathering.wait_until(now + FENCE_S)
        if seat.state == "leaving":
            return self._remove(seat, NodeLeft(name=seat.name, reason=f"it had said so, and was {reason}"))
        needed = self._takes_part(seat)
        actions = self._remove(seat, NodeLost(name=seat.name, reason=reason, silent_s=now - seat.heard_at))
        self.seats.lost.append(seat.name)
        lost = Failure(node=seat.name, rank=-1, at_unix=self._unix(now), cause="node_lost", message=reason, round=self.round)
        if seat.state in ("running", "stopping"):
            # Since it was last heard: whoever failed after that may have failed because of it.
            self.failures.keep(self.round, seat.join.node, (lost,), seat.heard_at)
        return actions + (self._without(describe(lost), now) if needed else [])

    def _remove(self, seat: Seat, event: Event) -> list[Action]:
        self.seats.remove(seat)
        return [self._record(event)]

    # --- from one phase to the next -------------------------------------------------------------------------------------

    def _regroup(self, decision: str, why: str, now: float, *, delay_s: float = 0.0, left: int | None = None) -> list[Action]:
        """Stop the running round; the next one forms when all its members are ready again."""
        left = self.policy.restarts_left(now) if left is None else left
        actions: list[Action] = [self._record(Decided(decision=decision, reason=why, delay_s=delay_s, restarts_left=left))]
        self.phase, self.why, self.inquiry = "gathering", why, None
        self.gathering.begin(now)
        return actions + self._stop_all(why, rejoin=True)

    def _end(self, outcome: str, why: str, now: float) -> list[Action]:
        if self.phase in ("ending", "ended"):
            return []
        self.phase, self.outcome, self.why, self.inquiry = "ending", outcome, why, None
        decided = Decided(
            decision="finish" if outcome == "succeeded" else "stop",
            reason=why,
            restarts_left=self.policy.restarts_left(now),
        )
        return [self._record(decided), *self._stop_all(why, rejoin=False)]

    def _stop_all(self, why: str, *, rejoin: bool) -> list[Action]:
        actions: list[Action] = []
        stop = Stop(round=self.round, reason=why, rejoin=rejoin)
        (hung, local_rank), self.condemned = self.condemned, ("", 0)
        for node, seat in self.seats.items():
            unaware = seat.state == "stopped" and seat.stop is None  # done with stopping before this was decided: it waits
            if seat.state in ("running", "stopping") or unaware or (seat.state == "succeeded" != self.outcome):
                seat.state = "stopped" if unaware else "stopping"
                seat.stop = replace(stop, hung=local_rank) if node == hung else stop
                self.seats.look_at = min(self.seats.look_at, self.seats.lease_ends(seat))  # who had succeeded needed none
                actions.append(Tell(node=node, message=seat.stop))
        return actions

    def _advance(self, now: float) -> list[Action]:
        """Whatever has become possible."""
        if self.inquiry is not None and self.inquiry.is_over(now):
            return self._judge(self.inquiry, now) + self._advance(now)
        if self.phase == "gathering":
            return self._gathered(now)
        if self.phase == "running" and self.seats.tally.of("ready", "succeeded") == len(self.seats):
            if self.seats.tally.of("succeeded"):
                return self._end("succeeded", "every worker exited with 0", now) + self._advance(now)
            return self._end("failed", "every node is gone", now) + self._advance(now)
        if self.phase == "ending" and not self.seats.tally.of("running", "stopping", "leaving"):
            return self._finish(now)
        return []

    def _gathered(self, now: float) -> list[Action]:
        gathering = self.gathering
        gathering.look(now)
        if gathering.is_short:
            if names := gathering.forgivable(now):
                return self._relent(names) + self._gathered(now)
            if now >= gathering.gives_up_at:
                return self._end("failed", gathering.too_few(self.round, now), now) + self._advance(now)
            return gathering.notice(now)
        placement = gathering.placed(self.round, now)
        if placement is None:
            return []
        if not placement.active:
            return self._gathered(now)
        return self._in_vain(now) or self._form(placement, now)

    def _in_vain(self, now: float) -> list[Action]:
        """How the job ends that another restart would not bring any further. Nothing: it may."""
        reached = max((seat.join.reached for seat in self.seats.values() if seat.join.reached is not None), default=None)
        decision = self.policy.stalled(reached, restarting=self.is_restart)
        if decision is None:
            return []
        self.restarts -= 1
        return self._follow(decision, now) + self._advance(now)

    def _relent(self, names: list[str]) -> list[Action]:
        """A node that has failed often is better than none: without it nobody could go on."""
        for name in names:
            self.excluded.remove(name)  # what it did is still known, and the next spare will have its place
        return [self._record(NodeReadmitted(name=name, reason="too few nodes are left without it")) for name in names]

    def _form(self, placement: Placement, now: float) -> list[Action]:
        places = placement.active
        chief = self.seats[places[0].node].join
        addr, port = self.rules.master_addr or chief.addr, self.rules.master_port or chief.master_port
        world_size = sum(self.seats[given.node].join.nproc for given in places)
        names = tuple(self.seats[given.node].name for given in places)
        self.round = self.seats.newest_round(self.seats.ready, self.round) + 1  # no number may come twice
        self.phase, self.formed_at, self.attempt, self.gathering.awaited = "running", now, self.restarts, 0
        self.is_restart, self.has_lost_some, self.borne_with = False, False, None
        self.seats.size, self.seats.done_and_gone = len(places), 0
        self.seats.largest = max(self.seats.largest, len(places))
        self.paces.begin_round()
        longest_s = self.paces.longest_s
        actions: list[Action] = []
        for given in places:
            seat = self.seats[given.node]
            seat.state, seat.place, seat.stop, seat.is_impaired = "running", given, None, False
            seat.assigned = Assigned(
                round=self.round,
                restart_count=self.restarts,
                group_rank=given.group_rank,
                group_world_size=len(places),
                base_rank=given.base_rank,
                world_size=world_size,
                role_base_rank=given.role_base_rank,
                role_world_size=given.role_world_size,
                master_addr=addr,
                master_port=port,
                nodes=names if given.group_rank == 0 or len(names) <= SMALL else (),
                reason=self.why,
                longest_s=longest_s,
                carries_on=self.policy.carries_on,
            )
            actions.append(Tell(node=given.node, message=seat.assigned))
        for spare in placement.spares:
            actions.append(Tell(node=spare.node, message=Waiting(round=self.round, reason=spare.why)))
        return actions

    def _finish(self, now: float) -> list[Action]:
        self.phase, self.ended_at = "ended", now
        well = self.outcome == "succeeded" and not self.has_lost_some
        failures = () if well else self.failures.in_order(self.round)
        nodes = tuple(seat.name for seat in self.seats.values() if seat.place is not None)
        self.report = JobReport(
            job=self.rules.job,
            outcome=self.outcome,
            exit_code=0 if self.outcome == "succeeded" else self.exit_code,
            failures=failures[:SMALL],
            failures_left_out=max(0, len(failures) - SMALL),
            restarts_used=self.restarts,
            max_restarts=self.rules.max_restarts,
            rounds=self.round,
            started_at_unix=self.started_at_unix - self.age_s,
            ended_at_unix=self._unix(now),
            reason=self.why,
            nodes=nodes[:SMALL],
            nodes_left_out=max(0, len(nodes) - SMALL),
        )
        finish = Finish(report=self.report)
        return [Tell(node=node, message=finish) for node in self.seats]

    def _record(self, event: Event) -> Record:
        return Record(event=event, life=(self.round, self.attempt))

    def _unix(self, now: float) -> float:
        return self.started_at_unix + now - self.started_at


def _by_itself(seat: Seat) -> str:
    return f"{seat.name} stopped its workers by itself"


def _stranger(message: Message) -> Message:
    """Answer to a node that has no seat: it has been lost, or we are another life of the coordinator. It may come back."""
    reason = "the coordinator does not know this node (any more): it was not heard from for too long, or the coordinator is new"
    return Stop(round=getattr(message, "round", 0), reason=reason, rejoin=True)


def _joined(reason: str, more: str) -> str:
    return f"{reason}; {more}" if more else reason

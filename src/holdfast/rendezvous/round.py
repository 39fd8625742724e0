"""Who takes part? The one machine that decides it for a job, wherever it runs.

      Join ≥ min, all expected back, or last call over
    ┌───────────┐ ───────────────────────────────────▶ ┌─────────┐   all succeeded    ┌────────┐  all stopped  ┌───────┐
    │ gathering │                                      │ running │ ─────────────────▶ │ ending │ ────────────▶ │ ended │
    └───────────┘ ◀─────────────────────────────────── └─────────┘   policy: stop     └────────┘               └───────┘
      a worker failed and the policy restarts · a node was lost, left, joined or was excluded

A round is one agreement on members and ranks. Its number also fences: whatever names an older round is late news. A new
round forms only when every member of the last one has said that its workers are gone, or is lost and must have stopped
them itself (`rendezvous.lease`). Members are judged by how long *this* machine has not heard from them, on its own
monotonic clock; nobody's wall clock is compared.
"""

from __future__ import annotations

from holdfast.core.events import Decided, Event, NodeExcluded, NodeJoined, NodeLeft, NodeLost, NodeReadmitted
from holdfast.core.failure import Failure, describe
from holdfast.core.machine import NEVER, Action, Observation, Record, Say, Tick
from holdfast.core.messages import (
    Assigned,
    Exclude,
    Exclusion,
    Failed,
    Finish,
    Join,
    Leave,
    Message,
    Noted,
    Readmit,
    Refused,
    Renew,
    Renewed,
    Stop,
    StopJob,
    Stopped,
    Succeeded,
    Waiting,
)
from holdfast.core.report import JobReport
from holdfast.core.value import Value
from holdfast.rendezvous.exclusion import Excluded
from holdfast.rendezvous.lease import FENCE_S
from holdfast.rendezvous.placement import SHOWN, Candidate, Place, Placement, PlacementRules, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.core.messages import Exclusion
    from holdfast.core.policy import Policy

SMALL = 64
"""Up to so many nodes everybody is told everybody's name; beyond, only group rank 0 (a table for all is O(N²) bytes).
The report at the end names so many nodes, and failures."""


NOTICE_S, NOTICE_AGAIN_S = 5.0, 60.0
"""When to say that nodes are missing, first and then again: soon enough for whoever watches, seldom enough for a log."""


class Rules(Value):
    """What a rendezvous is to keep to."""

    job: str
    min_nodes: int
    max_nodes: int
    join_timeout_s: float = 600.0
    """Seconds to wait for `min_nodes`. torchrun: 600 (join_timeout)."""
    last_call_s: float = 30.0
    """Seconds to wait for more than `min_nodes` in the first round. torchrun: 30 (last_call_timeout)."""
    lease_s: float = NEVER
    """A member not heard from for so long is lost. NEVER: it shares our process."""
    grow: str = "at-once"
    """What a node does that comes while the job could be larger: at-once (all restart with it) · next-failure (it takes part
    when they restart anyway) · never (it only takes the place of another: no round is larger than the largest before)."""
    ranks_given: bool = False
    """Each node brings its group rank (static): exactly `max_nodes` of them, 0 to max-1."""
    master_addr: str = ""
    """MASTER_ADDR given by the user. Empty: that of the node of group rank 0."""
    master_port: int | None = None
    """MASTER_PORT given by the user. None: the one that the node of group rank 0 holds, a fresh one each round."""
    max_restarts: int = 0
    readmit_after_s: float = NEVER
    """Seconds after which an excluded node may take part again. NEVER: when somebody readmits it."""
    segment: int | None = None
    node_unit: int = 1
    replacement_group_size: int = 0
    """As in `PlacementRules`."""

    def placement(self, unhealthy_groups: Iterable[str] = (), most: int = 0) -> PlacementRules:
        """What its placements are to keep to. `most`: no more nodes than that, though max_nodes are allowed; 0: as many."""
        return PlacementRules(
            min_nodes=self.min_nodes,
            max_nodes=min(self.max_nodes, most or self.max_nodes),
            segment=self.segment,
            unit=self.node_unit,
            group_size=self.replacement_group_size,
            unhealthy_groups=frozenset(unhealthy_groups),
        )


class Heard(Observation):
    """A member said something."""

    message: Message
    here: bool = False
    """It shares our process: if it is gone, so are we."""


class Unlinked(Observation):
    """The link to a member broke. It may come back within its lease."""

    node: str


class HostLeaves(Observation):
    """The agent that hosts this machine goes before the end: the job cannot go on."""

    reason: str


class Tell(Action):
    """Say something to one member."""

    node: str
    message: Message


class Tally:
    """How many seats are in which state: kept up, so that nobody has to count thousands after each message."""

    def __init__(self) -> None:
        self.seats: dict[str, int] = {}
        self.changes = 0
        """How often the seats that are ready have become others."""

    def moved(self, before: str, after: str) -> None:
        """A seat's state was `before` and is `after`; empty: there was, or is, no seat."""
        self.seats[before] = self.seats.get(before, 0) - 1
        self.seats[after] = self.seats.get(after, 0) + 1
        self.changes += (before == "ready") != (after == "ready")

    def of(self, *states: str) -> int:
        """Seats in any of these states."""
        return sum(self.seats.get(state, 0) for state in states)


class Seat:
    """What is known of one member."""

    def __init__(self, join: Join, arrival: int, now: float, tally: Tally) -> None:
        self.join = join
        self.arrival = arrival
        self.heard_at = now
        self.linked = True
        self.here = False
        self.tally = tally
        self._state = ""
        self.state = "ready"
        self.place: Place | None = None
        self.assigned: Assigned | None = None
        self.stop: Stop | None = None
        """The last answers, to be said again when a link broke and may have swallowed them."""

    @property
    def name(self) -> str:
        return self.join.name

    @property
    def state(self) -> str:
        """ready (for the next round) · running · succeeded · stopping · stopped (not ready yet) · leaving"""
        return self._state

    @state.setter
    def state(self, state: str) -> None:
        self.tally.moved(self._state, state)
        self._state = state

    @property
    def has_workers(self) -> bool:
        """Whether workers of its last round may be alive."""
        return self.state in ("running", "stopping", "leaving")

    def candidate(self, last_round: int, excluded: str) -> Candidate:
        """As placement sees it. A rank in an older round than the last is nobody's any more."""
        number, rank = self.join.round, self.join.group_rank  # where we did not assign it, another coordinator did
        if self.assigned is not None and self.assigned.round >= number:
            number, rank = self.assigned.round, self.assigned.group_rank
        return Candidate(
            node=self.join.node,
            name=self.name,
            nproc=self.join.nproc,
            role=self.join.role,
            arrival=self.arrival,
            wanted_rank=self.join.wanted_rank,
            previous_rank=rank if number == last_round else None,
            domain=self.join.domain,
            switches=self.join.switches,
            group=self.join.group,
            group_size=self.join.group_size,
            excluded=excluded,
        )


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
        self.seats: dict[str, Seat] = {}
        self.tally = Tally()
        self.of_rank: dict[int | None, dict[str, Seat]] = {}
        """Where ranks are given: who brought which. Two have one only while the first one's link is broken."""
        self.look_at = NEVER
        """No lease is over before then. They are only ever renewed, so it is enough to look at them all at that time."""
        self.arrivals = 0
        self.failures: dict[tuple[int, str, int], tuple[float, Failure]] = {}
        """By (round, node, local rank): since when it must have been so on *our* clock, which orders causes."""
        self.started_at, self.started_at_unix = now, now_unix
        self.gathering_since = now
        self.notice_at = now + NOTICE_S
        self.quorum_since = NEVER
        self.not_before = now
        self.formed_at = now
        self.ended_at = NEVER
        self.why = "first round"
        self.outcome = ""
        self.report: JobReport | None = None
        self.lost_names: list[str] = []
        self.largest = 0
        """Nodes of the largest round so far; 0: there was none, as far as we know."""
        self.unplaced_at = -1
        self.unplaced_why = ""
        """Why no round can be made of the nodes that were ready at that count of `tally.changes`. They are not asked again
        before one comes or goes."""
        self.unsure: list[Seat] = []
        """They would have a place, but their links are broken: they come back, or are lost, before a round forms."""
        self.age_s = 0.0
        """How long the job ran under other coordinators."""
        self.awaited, self.awaited_until = 0, NEVER
        """So many members of our predecessor's last round are expected back until then."""
        self.back: set[str] = set()
        self.excluded = Excluded(back_after_s=rules.readmit_after_s)

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
        report: JobReport | None = None,
        now: float,
    ) -> None:
        """Take over from a coordinator whose last round had `members` nodes. Their workers may live until they say otherwise,
        or until the leases that it may have given a moment ago are over."""
        self.round, self.restarts, self.age_s = round, restarts, age_s
        self.largest = largest
        self.why = "the coordinator has changed" if round else self.why
        self.not_before = max(self.not_before, now + fence_s)
        self.awaited, self.awaited_until = members, now + self.rules.lease_s + FENCE_S
        self.excluded.resume(excluded, now)
        if report is not None:
            self.phase, self.outcome, self.report, self.ended_at = "ended", report.outcome, report, now

    # --- the machine's face ---------------------------------------------------------------------------------------------

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`."""
        actions: list[Action] = []
        match seen:
            case Heard(message=message, here=here):
                actions += self._hear(message, here, now)
                if isinstance(message, Renew) and not self.unsure:
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
        ends = min(self.excluded.deadline(), self.look_at)
        return min(self._opens_at(), ends) if self.phase == "gathering" else ends

    def _opens_at(self) -> float:
        """When the passing of time alone lets a round form or fail."""
        if self._is_short():
            return min(self.gathering_since + self.rules.join_timeout_s, self.notice_at)
        if self.unsure or not self._all_ready:
            return NEVER
        if len(self.back) < self.awaited and self.phase == "gathering":
            return max(self.not_before, self.awaited_until)
        last_call = self.round == 0 and self._fit_count() < self._most
        return max(self.not_before, self.quorum_since + self.rules.last_call_s if last_call else self.not_before)

    # --- what members say -----------------------------------------------------------------------------------------------

    def _hear(self, message: Message, here: bool, now: float) -> list[Action]:
        node = getattr(message, "node", "")
        if self.report is not None:
            return [] if isinstance(message, Leave) else [Tell(node=node, message=Finish(report=self.report))]
        if not here:
            self.look_at = min(self.look_at, now + self.rules.lease_s)
        seat = self.seats.get(node)
        if seat is not None:
            seat.heard_at, seat.linked = now, True
        elif max(getattr(message, "round", 0), getattr(message, "known_round", 0)) > self.round:
            # It was a member under an earlier life of the coordinator; others may still hold a lease from that.
            self.not_before = max(self.not_before, self.started_at + self.rules.lease_s + FENCE_S)
        match message:
            case Join():
                return self._joined(message, seat, here, now)
            case StopJob(reason=reason):
                return self._end("stopped", reason, now)
            case Exclude() | Readmit():
                return self._operator(message, now)
            case _ if seat is None:
                return [Tell(node=node, message=_stranger(message))]
            case Renew(sent_at=sent_at):
                # A Stop may have gone down with its link. Said twice it does no harm; said never, we would wait for ever.
                again = [seat.stop] if seat.stop is not None and seat.state in ("stopping", "stopped") else []
                answers = [Renewed(lease_s=self.rules.lease_s, sent_at=sent_at), *again]
                return [Tell(node=node, message=answer) for answer in answers]
            case Failed(round=number, failure=failure):
                return self._failed(seat, number, failure, now)
            case Succeeded(round=number) if number == self.round and seat.state == "running":
                seat.state = "succeeded"
            case Stopped(round=number, failures=failures):
                self._keep(node, number, failures, now)
                if seat.state == "leaving":
                    return self._remove(seat, [NodeLeft(name=seat.name, reason="its workers have been stopped")])
                if number == self.round and seat.state in ("running", "stopping", "succeeded"):
                    seat.state = "stopped"
            case Leave(reason=reason) if seat.state != "leaving":
                return self._leaves(seat, reason, now)
        return []

    def _joined(self, join: Join, seat: Seat | None, here: bool, now: float) -> list[Action]:
        if refusal := self._refusal(join):
            return [Tell(node=join.node, message=refusal)]
        if self.awaited and join.round == self.round:
            self.back.add(join.node)
        if seat is None:
            seat = self.seats[join.node] = Seat(join, self.arrivals, now, self.tally)
            self.arrivals += 1
            seat.here = here
            self._know(seat, join)
            actions = [self._record(NodeJoined(name=join.name)), *self._of_itself(join, now)]
            if self.phase == "running":
                actions += self._newcomer(seat, now)
            return actions
        if seat.assigned is not None and join.round < seat.assigned.round:
            again = [seat.assigned, *([seat.stop] if seat.stop else [])]
            return [Tell(node=join.node, message=message) for message in again]
        by_itself = self.phase == "running" and seat.state != "ready"
        self._know(seat, join)
        seat.state = "ready"
        said = self._of_itself(join, now)
        if by_itself:
            return said + self._regroup("rejoin", f"{seat.name} stopped its workers by itself", now)
        return said

    def _know(self, seat: Seat, join: Join) -> None:
        """Keep what a node said of itself."""
        if self.rules.ranks_given:
            self.of_rank.get(seat.join.wanted_rank, {}).pop(join.node, None)
            self.of_rank.setdefault(join.wanted_rank, {})[join.node] = seat
        seat.join = join

    def _refusal(self, join: Join) -> Refused | None:
        if not self.rules.ranks_given:
            return None
        rank = join.wanted_rank
        if rank is None or not 0 <= rank < self.rules.max_nodes:
            return Refused(
                reason=f"node rank {rank} is not within 0 to {self.rules.max_nodes - 1}",
                hint="give each node its own --node-rank",
            )
        for other in self.of_rank.get(rank, {}).values():
            # One whose link is broken may be gone, and this one its successor: it waits for the other's lease.
            if other.join.node != join.node and other.linked:
                return Refused(
                    reason=f"node rank {rank} is already taken by {other.name}", hint="give each node its own --node-rank"
                )
        return None

    def _newcomer(self, seat: Seat, now: float) -> list[Action]:
        why = self._no_place_yet(seat)
        if not why:
            return self._regroup("rejoin", f"{seat.name} joined", now)
        return [Say(text=f"{seat.name} waits as a spare: {why}"), Tell(node=seat.join.node, message=self._waits(why))]

    def _no_place_yet(self, seat: Seat) -> str:
        """Why the running round goes on without it. Empty: it would gain from that node, now."""
        members = self._members()
        if why := self.excluded.why(seat.name):
            return f"excluded: {why}"
        if len(members) >= self._most:
            return f"the job has its {self._most} nodes"
        if self.rules.grow != "at-once":
            return f"the job takes in more nodes only when it restarts anyway (--grow {self.rules.grow})"
        if any(member.state == "succeeded" for member in members):
            return "some nodes have finished their part already"
        together = self._place(list(self.seats.values()))
        if len(together.active) > len(members):
            return ""
        # To restart for it would gain nothing.
        return {spare.node: spare.why for spare in together.spares}.get(seat.join.node, "it completes no segment or unit")

    def _failed(self, seat: Seat, number: int, failure: Failure, now: float) -> list[Action]:
        self._keep(seat.join.node, number, (failure,), now)
        if number != self.round or self.phase != "running":
            return []
        seat.state = "stopping"
        if broken := [other.name for other in self._members() if not other.linked]:
            # A peer that dies breaks its links before others notice its silence. No restart is spent on the consequence.
            why = f"{describe(failure)}, right after the link to {named(broken)} broke: taken for a consequence of that"
            return self._regroup("rejoin", why, now)
        decision = self.policy.consider(failure, uptime_s=now - self.formed_at, now=now)
        if not decision.restart:
            return self._end("failed", decision.reason, now)
        self.restarts += 1
        self.not_before = now + decision.delay_s
        actions, why = [], decision.reason
        if decision.exclude and failure.node == seat.name and self._is_replaceable(seat.name):
            actions, why = self._exclude(seat.name, decision.exclude, "failures", now), f"{why}, without {seat.name}"
        return actions + self._regroup("restart", why, now, delay_s=decision.delay_s, left=decision.restarts_left)

    def _keep(self, node: str, number: int, failures: tuple[Failure, ...], since: float) -> None:
        for failure in failures:
            key = (number, node, failure.local_rank)
            first, _ = self.failures.get(key, (since, failure))
            self.failures[key] = first, failure

    def _leaves(self, seat: Seat, reason: str, now: float) -> list[Action]:
        if not seat.has_workers:
            return self._remove(seat, [NodeLeft(name=seat.name, reason=reason)])
        seat.state = "leaving"
        if self.phase == "running":
            return self._regroup("rejoin", f"{seat.name} left: {reason}", now)
        return []

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
            runs = self.phase == "running" and any(member.name == name for member in self._members())
            here = any(seat.name == name for seat in self.seats.values())
            actions = self._exclude(name, asked.reason, "operator", now)
            again = runs and not any(member.state == "succeeded" for member in self._members())
            actions += self._regroup("rejoin", f"{name} is excluded: {asked.reason}", now) if again else []
            then = "the ranks are restarted without it" if again else "it takes part in no later round"
            unseen = f"no node {name} is here now; it is excluded if it comes"
            ok, text = True, f"{name} is excluded: {then}" if here else unseen
        return [*actions, Tell(node=asked.node, message=Noted(ask=asked.ask, ok=ok, text=text))]

    def _of_itself(self, join: Join, now: float) -> list[Action]:
        """A node knows best whether it is fit; but what others have against it stands."""
        by, why = self.excluded.by(join.name), self.excluded.why(join.name)
        if join.unhealthy and (not by or (by == "itself" and why != join.unhealthy)):
            return self._exclude(join.name, join.unhealthy, "itself", now)
        return [] if join.unhealthy or by != "itself" else self._readmit(join.name, "it says that it is fit again", now)

    def _exclude(self, name: str, reason: str, by: str, now: float) -> list[Action]:
        self.excluded.add(name, reason, by, now)
        self.unplaced_at = -1
        return [self._record(NodeExcluded(name=name, reason=self.excluded.why(name), by=by))]

    def _readmit(self, name: str, reason: str, now: float) -> list[Action]:
        self.excluded.remove(name)
        self.policy.pardon(name)
        self.unplaced_at = -1
        actions: list[Action] = [self._record(NodeReadmitted(name=name, reason=reason))]
        for seat in list(self.seats.values()):
            if seat.name == name and seat.state == "ready" and self.phase == "running":
                actions += self._newcomer(seat, now)
        return actions

    def _forgive(self, now: float) -> list[Action]:
        """Those whose time is up may come back."""
        after = f"it was excluded {self.rules.readmit_after_s:g} s ago"
        return [action for name in self.excluded.over(now) for action in self._readmit(name, after, now)]

    def _relent(self, now: float) -> list[Action]:
        """A node that has failed often is better than none: without it nobody could go on."""
        awaited = len(self.back) < self.awaited and now < self.awaited_until
        if awaited or not self.excluded or not self._all_ready:
            return []
        ready = self._ready()
        names = [seat.name for seat in ready if self.excluded.by(seat.name) == "failures"]
        if not names or len(self._fit(ready)) + len(names) < self.rules.min_nodes:
            return []
        self.unplaced_at = -1
        for name in names:
            self.excluded.remove(name)  # what it did is still known, and the next spare will have its place
        return [self._record(NodeReadmitted(name=name, reason="too few nodes are left without it")) for name in names]

    def _is_needed(self, name: str) -> str:
        """Why the running round's nodes and the spares do not suffice without that one. Empty: they do."""
        members = self._members()
        if self.phase != "running" or not any(member.name == name for member in members):
            return ""
        left = self._place(self._staying(), without=name)
        return "" if left.active else left.reason

    def _is_replaceable(self, name: str) -> bool:
        """Whether the job would be as large without that node as it is now."""
        left = self._place(self._staying(), without=name)
        return len(left.active) >= len(self._members())

    # --- members that are not heard from --------------------------------------------------------------------------------

    def _lease_ends(self, seat: Seat) -> float:
        """NEVER: one that shares our process, or has done its part and has nothing left to lose."""
        return NEVER if seat.here or seat.state == "succeeded" else seat.heard_at + self.rules.lease_s

    def _expire(self, now: float) -> list[Action]:
        if self.phase == "ended" or now < self.look_at:
            return []
        actions: list[Action] = []
        for seat in list(self.seats.values()):
            if now >= self._lease_ends(seat):
                silent = f"not heard from for {now - seat.heard_at:.1f} s (lease {self.rules.lease_s:g} s)"
                actions += self._lose(seat, silent, now)
        self.look_at = min(map(self._lease_ends, self.seats.values()), default=NEVER)
        return actions

    def _lose(self, seat: Seat, reason: str, now: float) -> list[Action]:
        if seat.has_workers:
            self.not_before = max(self.not_before, now + FENCE_S)
        if seat.state == "leaving":
            return self._remove(seat, [NodeLeft(name=seat.name, reason=f"it had said so, and was {reason}")])
        needed = self.phase == "running" and seat.state == "running"
        actions = self._remove(seat, [NodeLost(name=seat.name, reason=reason, silent_s=now - seat.heard_at)])
        self.lost_names.append(seat.name)
        lost = Failure(node=seat.name, rank=-1, at_unix=self._unix(now), cause="node_lost", message=reason, round=self.round)
        if seat.state in ("running", "stopping"):
            # Since it was last heard: whoever failed after that may have failed because of it.
            self._keep(seat.join.node, self.round, (lost,), seat.heard_at)
        return actions + (self._regroup("rejoin", describe(lost), now) if needed else [])

    def _remove(self, seat: Seat, events: list[Event]) -> list[Action]:
        del self.seats[seat.join.node]
        self.tally.moved(seat.state, "")
        self.of_rank.get(seat.join.wanted_rank, {}).pop(seat.join.node, None)
        return [self._record(event) for event in events]

    # --- from one phase to the next -------------------------------------------------------------------------------------

    def _regroup(self, decision: str, why: str, now: float, *, delay_s: float = 0.0, left: int | None = None) -> list[Action]:
        """Stop the running round; the next one forms when all its members are ready again."""
        left = self.policy.restarts_left(now) if left is None else left
        actions: list[Action] = [self._record(Decided(decision=decision, reason=why, delay_s=delay_s, restarts_left=left))]
        self.phase, self.why, self.gathering_since, self.quorum_since = "gathering", why, now, NEVER
        self.notice_at = now + NOTICE_S
        return actions + self._stop_all(why, rejoin=True)

    def _end(self, outcome: str, why: str, now: float) -> list[Action]:
        if self.phase in ("ending", "ended"):
            return []
        self.phase, self.outcome, self.why = "ending", outcome, why
        decided = Decided(
            decision="finish" if outcome == "succeeded" else "stop",
            reason=why,
            restarts_left=self.policy.restarts_left(now),
        )
        return [self._record(decided), *self._stop_all(why, rejoin=False)]

    def _stop_all(self, why: str, *, rejoin: bool) -> list[Action]:
        actions: list[Action] = []
        stop = Stop(round=self.round, reason=why, rejoin=rejoin)
        for node, seat in self.seats.items():
            if seat.state in ("running", "stopping", "succeeded"):
                seat.state = "succeeded" if self.outcome == "succeeded" else "stopping"
                if seat.state == "stopping":
                    seat.stop = stop
                    self.look_at = min(self.look_at, self._lease_ends(seat))  # who had succeeded needed none
                    actions.append(Tell(node=node, message=stop))
        return actions

    def _advance(self, now: float) -> list[Action]:
        """Whatever has become possible."""
        if self.phase == "gathering":
            return self._gathered(now)
        if self.phase == "running" and self.tally.of("ready", "succeeded") == len(self.seats):
            if self.tally.of("succeeded"):
                return self._end("succeeded", "every worker exited with 0", now) + self._advance(now)
            return self._end("failed", "every node is gone", now) + self._advance(now)
        if self.phase == "ending" and not self.tally.of("running", "stopping", "leaving"):
            return self._finish(now)
        return []

    def _gathered(self, now: float) -> list[Action]:
        if any(seat.linked or seat.join.node not in self.seats for seat in self.unsure):
            self.unsure = []
        self.quorum_since = min(self.quorum_since, now) if self._fit_count() >= self.rules.min_nodes else NEVER
        if self._is_short():
            if relented := self._relent(now):
                return relented + self._gathered(now)
            if now >= self.gathering_since + self.rules.join_timeout_s:
                return self._end("failed", self._too_few(now), now) + self._advance(now)
            return self._notice(now)
        if now < self._opens_at():
            return []
        ready = self._ready()
        placement = self._place(ready)
        # Whoever died while it waited would be in a round that cannot work. It costs a lease at most to be sure.
        self.unsure = [seat for given in placement.active if not (seat := self.seats[given.node]).linked]
        if self.unsure:
            return []
        if placement.active:
            return self._form(placement, ready, now)
        self.unplaced_at, self.unplaced_why = self.tally.changes, placement.reason
        return self._gathered(now)

    def _is_short(self) -> bool:
        """Too few nodes, or none can be placed."""
        return self._fit_count() < self.rules.min_nodes or self.unplaced_at == self.tally.changes

    def _notice(self, now: float) -> list[Action]:
        """From time to time, say for whom everybody waits."""
        if now < self.notice_at:
            return []
        self.notice_at = now + NOTICE_AGAIN_S
        ready = self._ready()
        fit = self._fit(ready)
        here = named([seat.name for seat in fit]) or "none"
        left_s = self.gathering_since + self.rules.join_timeout_s - now
        state = f"{len(fit)} of {self.rules.min_nodes} are ready ({here})" + "".join(self._left_out(ready))
        if len(fit) >= self.rules.min_nodes:
            state = self.unplaced_why
        text = f"waiting for nodes: {state}; giving up in {left_s:.0f} s"
        return [Say(text=text, level="warning")]

    def _too_few(self, now: float) -> str:
        ready = self._ready()
        nodes, here = {seat.join.node for seat in ready}, [seat.name for seat in self._fit(ready)]
        busy = [seat.name for node, seat in self.seats.items() if node not in nodes]
        back = set(here)
        lost = [name for name in dict.fromkeys(self.lost_names) if name not in back]
        said = [f" ({named(here)})" if here else ""]
        said += [f"; {what}: {named(names)}" for what, names in (("still stopping", busy), ("lost before", lost)) if names]
        said += self._left_out(ready)
        if len(here) >= self.rules.min_nodes:
            waited = f"after {now - self.gathering_since:.0f} s"
            return f"round {self.round + 1} could not be placed {waited}: {self.unplaced_why}{''.join(said[1:])}"
        return (
            f"round {self.round + 1} had {len(here)} of {self.rules.min_nodes} nodes{said[0]} "
            f"after {now - self.gathering_since:.0f} s{''.join(said[1:])}. "
            f"Start the missing nodes, or allow fewer: --nnodes {max(1, len(here))}:{self.rules.max_nodes}"
        )

    def _form(self, placement: Placement, ready: list[Seat], now: float) -> list[Action]:
        places, self.unplaced_at = placement.active, -1
        chief = self.seats[places[0].node].join
        addr, port = self.rules.master_addr or chief.addr, self.rules.master_port or chief.master_port
        world_size = sum(self.seats[given.node].join.nproc for given in places)
        names = tuple(self.seats[given.node].name for given in places)
        self.round = self._last_round(ready) + 1  # no number may come twice
        self.phase, self.formed_at, self.awaited, self.attempt = "running", now, 0, self.restarts
        self.largest = max(self.largest, len(places))
        actions: list[Action] = []
        for given in places:
            seat = self.seats[given.node]
            seat.state, seat.place, seat.stop = "running", given, None
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
            )
            actions.append(Tell(node=given.node, message=seat.assigned))
        return actions + [Tell(node=spare.node, message=self._waits(spare.why)) for spare in placement.spares]

    def _finish(self, now: float) -> list[Action]:
        self.phase, self.ended_at = "ended", now
        last = [kept for (number, _, _), kept in self.failures.items() if number == self.round]
        failures = () if self.outcome == "succeeded" else _causes_first(last)
        nodes = tuple(seat.name for seat in self.seats.values() if seat.place is not None)
        self.report = JobReport(
            job=self.rules.job,
            outcome=self.outcome,
            exit_code=0 if self.outcome == "succeeded" else 1,
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

    # --- small questions ------------------------------------------------------------------------------------------------

    @property
    def _most(self) -> int:
        """Nodes that a round may have."""
        return self.largest if self.rules.grow == "never" and self.largest else self.rules.max_nodes

    def _place(self, seats: list[Seat], *, without: str = "") -> Placement:
        """Who of these would take part, now; if one of them could not."""
        why = {seat.join.node: self.excluded.why(seat.name) for seat in seats} if self.excluded else {}
        grouped = [(seat.join.group, seat) for seat in seats if seat.join.group is not None]
        ill = {group for group, seat in grouped if seat.name == without or why.get(seat.join.node)}
        rules = self.rules.placement(ill if len({group for group, _ in grouped}) > 1 else (), self._most)
        there = [seat for seat in seats if seat.name != without]
        last = self._last_round(seats)
        return place([seat.candidate(last, why.get(seat.join.node, "")) for seat in there], rules)

    def _last_round(self, seats: list[Seat]) -> int:
        """The newest that we or these have known: members may remember an earlier life of the coordinator."""
        return max(self.round, *(max(seat.join.round, seat.join.known_round) for seat in seats), 0)

    def _waits(self, why: str) -> Waiting:
        return Waiting(round=self.round, reason=why)

    @property
    def _all_ready(self) -> bool:
        return self.tally.of("ready") == len(self.seats)

    def _fit_count(self) -> int:
        """How many are ready and may take part. They are looked at one by one only if they may be enough, and where that
        matters: two may have brought the same rank, or some are excluded."""
        count = self.tally.of("ready")
        if count < self.rules.min_nodes or not (self.rules.ranks_given or self.excluded):
            return count
        return len(self._fit(self._ready()))

    def _staying(self) -> list[Seat]:
        return [seat for seat in self.seats.values() if seat.state != "leaving"]

    def _fit(self, seats: list[Seat]) -> list[Seat]:
        """Those of them that may take part."""
        return [seat for seat in seats if not self.excluded.why(seat.name)] if self.excluded else seats

    def _left_out(self, seats: list[Seat]) -> list[str]:
        names = [f"{seat.name} ({why})" for seat in seats if (why := self.excluded.why(seat.name))]
        return [f"; excluded: {named(names)}"] if names else []

    def _ready(self) -> list[Seat]:
        ready = [seat for seat in self.seats.values() if seat.state == "ready"]
        if not self.rules.ranks_given:
            return ready
        by_rank: dict[int | None, Seat] = {}
        for seat in ready:
            by_rank.setdefault(seat.join.wanted_rank, seat)
        return list(by_rank.values())

    def _members(self) -> list[Seat]:
        """Seats of the round that runs."""
        return [seat for seat in self.seats.values() if seat.state != "ready"]

    def _record(self, event: Event) -> Record:
        return Record(event=event, life=(self.round, self.attempt))

    def _unix(self, now: float) -> float:
        return self.started_at_unix + now - self.started_at


def _stranger(message: Message) -> Message:
    """Answer to a node that has no seat: it has been lost, or we are another life of the coordinator. It may come back."""
    reason = "the coordinator does not know this node (any more): it was not heard from for too long, or the coordinator is new"
    return Stop(round=getattr(message, "round", 0), reason=reason, rejoin=True)


def named(names: list[str]) -> str:
    """Names for a person, and for messages that go to everybody: the first few, and how many more."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _causes_first(failures: list[tuple[float, Failure]]) -> tuple[Failure, ...]:
    """By our own clock, not by many nodes' timestamps; those that we stopped ourselves last."""
    return tuple(failure for _, failure in sorted(failures, key=lambda kept: (kept[1].innocent, kept[0])))

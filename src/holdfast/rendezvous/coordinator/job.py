"""What does the coordinator know of its job? One state, which `rendezvous.coordinator.machine` leads from phase to phase.

Each part of it is a value of its own: the members' seats, who is excluded, what is waited for, what has failed. Functions that
are given the job ask these, and change them by methods that say what happens. Nothing in here holds a reference to the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from holdfast.core.job.events import Event, ExcludedBy, NodeExcluded
from holdfast.core.job.failure import Cause, Failure
from holdfast.core.job.policy import Policy  # a protocol, which types alone need
from holdfast.core.job.report import JobReport, Outcome
from holdfast.core.machine import NEVER, Action, Record
from holdfast.core.value import Value, replace
from holdfast.core.wire.messages import IMPORTS_CHARS, Imports, Past, ToImport
from holdfast.rendezvous.clocks import Clocks
from holdfast.rendezvous.coordinator.exclusion import Excluded
from holdfast.rendezvous.coordinator.gathering import Checkpoints, Gathering
from holdfast.rendezvous.coordinator.hang_blame import Inquiry
from holdfast.rendezvous.coordinator.membership import Seat, Seats, SeatState
from holdfast.rendezvous.coordinator.pace import Paces
from holdfast.rendezvous.coordinator.pending_requests import MembersDemands, PendingRequests
from holdfast.rendezvous.lease import FENCE_S, granted
from holdfast.rendezvous.placement.placement import Place
from holdfast.rendezvous.rules import Rules, Tell


class KnownImports:
    """What the job's script imports. The node of group rank 0 says so once it trains; nodes that wait are told, for their warm
    spares. The latest word counts, as long as it says more. A node that is told that it waits joins again (`Join.known_round`),
    and so does one whose link was broken: then it is told, or told again."""

    def __init__(self, seats: Seats) -> None:
        self.seats = seats
        self.latest: ToImport | None = None

    def heard(self, said: Imports) -> list[Action]:
        """A node that trains has told."""
        known = self.latest.modules if self.latest is not None and self.latest.python == said.python else ()
        if len(said.modules) <= len(known) or sum(map(len, said.modules)) > IMPORTS_CHARS:
            return []
        self.latest = ToImport(python=said.python, modules=said.modules)
        return [action for seat in self.seats.values() if seat.state is SeatState.READY for action in self.tell(seat)]

    def tell(self, seat: Seat) -> list[Action]:
        """To a node that waits, if it can use it."""
        if self.latest is None or seat.join.warm != self.latest.python:
            return []
        return [Tell(node=seat.join.node, message=self.latest)]


class Failures:
    """What has failed in the running round, and what is told of older ones meanwhile; our own clock says what came first."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str, int], tuple[float, Failure]] = {}
        """By (round, node, local rank): since when it must have been so on *our* clock, which orders causes."""
        self._exited: dict[tuple[int, str, int], Failure] = {}
        """By the same: workers that had exited with 0 while others of their round trained, as the failures that this may be."""
        self.borne: tuple[str, Failure] | None = None
        """The first failure that the running round has carried on without, with its node's name."""

    def __len__(self) -> int:
        return len(self._kept)

    def count(self, round: int, node: str) -> int:
        """Of how many workers of that node it is known."""
        return sum(key[:2] == (round, node) for key in self._kept)

    def keep(self, round: int, node: str, failures: Iterable[Failure], since: float) -> None:
        """Note them, or what more is known of them by now."""
        for failure in failures:
            key = (round, node, failure.local_rank)
            first, before = self._kept.get(key, (since, failure))
            if before.cause == Cause.HUNG:  # its end is ours, and it may be that only we know of its guilt
                known = {field: getattr(before, field) for field in ("cause", "message", "at_unix", "stacks_path", "undecided")}
                failure = replace(failure, **known)
            self._kept[key] = first, failure

    def put_first(self, round: int, node: str, failure: Failure, *, by_s: float) -> None:
        """It happened `by_s` seconds before all others of that round, though it was heard of later."""
        first = min(since for (number, _, _), (since, _) in self._kept.items() if number == round)
        self._kept[round, node, failure.local_rank] = first - by_s, failure

    def note_exits(self, node: str, exits: Iterable[Failure]) -> None:
        """These workers have exited with 0. It is no failure unless another's follows from it (`first_exit`)."""
        self._exited |= {(one.round, node, one.local_rank): one for one in exits}

    def first_exit(self, round: int) -> tuple[str, Failure] | None:
        """(node, failure) of the worker of that round that exited first with 0. None: none has."""
        those = [(node, one) for (number, node, _), one in self._exited.items() if number == round]
        return min(those, key=lambda one: (one[1].at_unix, one[1].rank), default=None)

    def bear(self, name: str, failure: Failure) -> None:
        """The round carries on without that worker of the node `name`."""
        self.borne = self.borne or (name, failure)

    def begin_round(self, number: int) -> None:
        """Nobody asks for those of older rounds any more: their evidence is in each node's record."""
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] >= number}
        self._exited = {key: kept for key, kept in self._exited.items() if key[0] >= number}
        self.borne = None

    def in_order(self, round: int) -> tuple[Failure, ...]:
        """Those of a round, the first one first, those that followed from another's end and those that we stopped last."""
        return tuple(failure for _, failure in self.told(round))

    def told(self, round: int) -> list[tuple[str, Failure]]:
        """The same, each with the node that has told it."""
        kept = [(node, kept) for (number, node, _), kept in self._kept.items() if number == round]
        kept.sort(key=lambda one: (*one[1][1].distance, one[1][0]))
        return [(node, failure) for node, (_, failure) in kept]


class Doubt(Value):
    """A failure that follows from another rank's end: nothing is decided before that is known, for a moment at most."""

    round: int
    failure: Failure
    until: float


class Phase(StrEnum):
    """Where a job is."""

    GATHERING = "gathering"  # No round runs; one forms when enough nodes are ready.
    RUNNING = "running"
    ENDING = "ending"  # The outcome is known; the workers of some nodes may still live.
    ENDED = "ended"


class Job:
    """All that is known of it. `policy` judges failures."""

    def __init__(self, rules: Rules, policy: Policy, *, life: str = "", now: float, now_unix: float) -> None:
        self.rules = rules
        self.policy = policy
        self.life = life  # Names this run of the job: its members remember it.
        self.logs_at = ""  # Where this coordinator's node takes the lines of all ranks. Empty: it takes none.
        self.phase = Phase.GATHERING
        self.round = 0
        self.restarts = 0
        self.attempt = 0  # Restarts before the round that runs, or ran last.
        self.granted_s = granted(rules.lease_s)  # The lease that a member is given.
        self.excluded = Excluded(back_after_s=rules.readmit_after_s)
        self.seats = Seats(rules, self.excluded)
        self.gathering = Gathering(rules, self.seats, now=now)
        self.checkpoints = Checkpoints()
        self.paces = Paces()
        self.clocks = Clocks(self.seats)
        self.imports = KnownImports(self.seats)
        self.requests = PendingRequests(self.seats)
        self.demands = MembersDemands()
        self.failures = Failures()
        self._inquiry: Inquiry | None = None
        self._doubt: Doubt | None = None
        self.started_at, self.started_at_unix = now, now_unix
        self.ahead_unix = now_unix - now
        """What the wall clock shows, less what the monotonic one does. It may be set meanwhile, and is compared only."""
        self.formed_at = now
        self.ended_at = NEVER
        self.why = "first round"  # Why the next round forms, or how the job ends.
        self.outcome, self.exit_code = Outcome.FAILED, 1
        self.is_restart = False  # The next round is one that the budget paid for.
        self.has_lost_some = False  # The running round carries on without some of its nodes, or may.
        self.report: JobReport | None = None
        self.age_s = 0.0  # How long the job ran under other coordinators.

    def resume(self, past: Past, *, logs_at: str = "", why: str = "", now: float) -> None:
        """Take over from a coordinator whose last round had `past.members` nodes. Their workers may live until they say
        otherwise, or until the leases that it may have given a moment ago are over."""
        self.round, self.restarts, self.age_s = past.round, past.restarts, past.age_s
        self.life, self.logs_at = past.life or self.life, logs_at or self.logs_at
        self.why = why or ("the coordinator has changed" if past.round else self.why)
        self.seats.resume(past.largest)
        self.gathering.wait_until(now + past.fence_s)
        self.gathering.expect_back(past.members, until=now + self.rules.lease_s + FENCE_S)
        self.excluded.resume(past.excluded, now)
        self.paces.know(past.longest_s, now)
        self.paces.calculated(past.calculated_s, past.round)
        if past.report is not None:
            self.outcome = past.report.outcome
            self.over(past.report, now)

    def take_logs_at(self, address: str) -> None:
        """This coordinator's node takes the lines of all ranks there."""
        self.logs_at = address

    def set_clock(self, ahead_unix: float) -> None:
        """What the wall clock shows now, less what the monotonic one does."""
        self.ahead_unix = ahead_unix

    # --- from phase to phase --------------------------------------------------------------------------------------------

    def regroup(self, why: str, now: float) -> None:
        """The running round is over; the next forms when its members are ready again."""
        self.phase, self.why = Phase.GATHERING, why
        self.gathering.begin(now)

    def spend_restart(self, pause_s: float, now: float) -> None:
        """The budget pays for the next round, which does not form before the pause is over."""
        self.restarts += 1
        self.is_restart = True
        # A fence may still stand, of a node lost while others carried on.
        self.gathering.wait_until(now + pause_s)

    def take_back_restart(self) -> None:
        """It would be in vain."""
        self.restarts -= 1

    def begin_round(self, number: int, places: tuple[Place, ...], now: float) -> None:
        """A round of these nodes runs."""
        self.phase, self.round, self.formed_at, self.attempt = Phase.RUNNING, number, now, self.restarts
        self.is_restart, self.has_lost_some = False, False
        self.gathering.expect_back(0)
        self.seats.begin_round(places)
        self.paces.begin_round()
        self.failures.begin_round(number)
        self.checkpoints = Checkpoints()

    def carry_on(self) -> None:
        """The round does without some of its nodes, or may."""
        self.has_lost_some = True

    def begin_ending(self, outcome: Outcome, why: str, exit_code: int) -> None:
        """The job ends when the workers of all have stopped; every agent ends with that code, unless the job succeeds."""
        self.phase, self.outcome, self.why, self.exit_code = Phase.ENDING, outcome, why, exit_code

    def over(self, report: JobReport, now: float) -> None:
        self.phase, self.report, self.ended_at = Phase.ENDED, report, now

    # --- a rank that hangs ----------------------------------------------------------------------------------------------

    @property
    def inquiry(self) -> Inquiry | None:
        """Which of the round's ranks is to blame for a hang. None: nobody has told of one, or that round is over."""
        asked = self._inquiry
        return asked if asked is not None and asked.round == self.round and self.phase is Phase.RUNNING else None

    def open_inquiry(self, inquiry: Inquiry) -> None:
        """Nodes have been asked."""
        self._inquiry = inquiry

    def close_inquiry(self) -> None:
        """It has been answered."""
        self._inquiry = None

    # --- a rank that failed of another's end ----------------------------------------------------------------------------

    @property
    def doubt(self) -> Doubt | None:
        """The first failure heard of, which follows from another that is not known yet. None: nothing is waited for."""
        doubt = self._doubt
        return doubt if doubt is not None and doubt.round == self.round and self.phase is Phase.RUNNING else None

    def open_doubt(self, doubt: Doubt) -> None:
        """Another failure must have come before."""
        self._doubt = doubt

    def close_doubt(self) -> None:
        """It is known, or is waited for no more."""
        self._doubt = None

    # --- what all parts of it say ---------------------------------------------------------------------------------------

    def exclude(self, name: str, reason: str, by: ExcludedBy, now: float) -> Record:
        """Remember it. Its ranks run until it is dismissed."""
        self.excluded.add(name, reason, by, now)
        return self.record(NodeExcluded(name=name, reason=self.excluded.why(name), by=by))

    def record(self, event: Event) -> Record:
        """`event`, as one of the life that runs, or ran last."""
        return Record(event=event, life=(self.round, self.attempt))

    def unix(self, now: float) -> float:
        """`now` as the time of day."""
        return self.started_at_unix + now - self.started_at

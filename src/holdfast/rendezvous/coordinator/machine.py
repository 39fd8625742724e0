"""Who takes part? The one machine that decides it for a job, wherever it runs.

      Join ≥ min, all expected back, or last call over
    ┌───────────┐ ───────────────────────────────────▶ ┌─────────┐   all succeeded    ┌────────┐  all stopped  ┌───────┐
    │ gathering │                                      │ running │ ─────────────────▶ │ ending │ ────────────▶ │ ended │
    └───────────┘ ◀─────────────────────────────────── └─────────┘   policy: stop     └────────┘               └───────┘
      a worker failed and the policy restarts · a node was lost, left, joined or was excluded

Where the policy lets a round carry on without some of its nodes, it does so while enough are left.

A round is one agreement on members and ranks. Its number also fences: a message that names an older round is late. A new
round forms only when every member of the last one has said that its workers are gone, or is lost and must have stopped
them itself (`rendezvous.lease`). Members are judged by how long *this* machine has not heard from them, on its own
monotonic clock; nobody's wall clock is compared.

What is known stands in `rendezvous.coordinator.job`. Here is the table of what may be seen in which phase, and what becomes
possible by it; each of its lines calls a function that is given the job, in a module named after the situation.
"""

from __future__ import annotations

from holdfast.core.job.events import LimitsCalculated
from holdfast.core.job.report import Outcome
from holdfast.core.machine import NEVER, Action, Observation, Tick
from holdfast.core.wire import messages as wire
from holdfast.core.wire.demands import IMPORTS
from holdfast.rendezvous.coordinator import member_messages
from holdfast.rendezvous.coordinator.admission import forgive, leave_out_wanted, relent, saved
from holdfast.rendezvous.coordinator.belief import believed
from holdfast.rendezvous.coordinator.failure_handling import close, failed, inquire, settle_doubt
from holdfast.rendezvous.coordinator.job import Job, Phase
from holdfast.rendezvous.coordinator.membership import Seat, SeatState
from holdfast.rendezvous.coordinator.requests import requested
from holdfast.rendezvous.coordinator.rounds import carry_out, end, finish, form
from holdfast.rendezvous.rules import Heard, HostLeaves, Unlinked


class Rendezvous(Job):
    """The machine: what is known of a job, and what leads from one phase to the next."""

    def observe(self, seen: Observation, now: float) -> list[Action]:
        match self.phase, seen:
            case Phase.ENDED, Heard(message=message):
                return member_messages.after_the_end(self, message)
            case _, Heard(message=wire.Renew() as renew) if renew.node in self.seats:
                actions = member_messages.renews(self, self.seats[renew.node], renew, now)
                if not self.gathering.unsure:
                    return actions  # thousands a second, and nothing becomes possible by them
            case _, Heard(message=message, here=here):
                actions = self._hear(message, here, now)
            case _, Unlinked(node=node):
                self.seats.unlinked(node)
                actions = []
            case _, HostLeaves(reason=reason):
                actions = end(self, Outcome.STOPPED, reason, now)
            case Phase.RUNNING, Tick():
                # Only then: a driver that was held up shows first what has come meanwhile, and a Tick last.
                actions = member_messages.expire(self, now) + forgive(self, now)
                if self.phase is Phase.RUNNING and self.checkpoints.is_due(now):
                    actions += saved(self, now)
            case Phase.GATHERING | Phase.ENDING, Tick():
                actions = member_messages.expire(self, now) + forgive(self, now)
            case _:
                return []
        return actions + self._advance(now)

    def _hear(self, message: wire.Message, here: bool, now: float) -> list[Action]:
        """A node has spoken; `here`: it shares our process."""
        heard = believed(self, message)
        member_messages.spoke(self, heard or message, now)
        if heard is None:
            return []
        message = heard
        match message:
            case wire.Join():
                return member_messages.joined(self, message, here, now)
            case wire.Request() if message.needs_no_seat or message.node in self.seats:
                return requested(self, message, now)
            case wire.Reply():
                return self.requests.replied(message)
        seat = self.seats.get(getattr(message, "node", ""))
        if seat is None:
            return member_messages.stranger(message)
        return self._hear_member(seat, message, now)

    def _hear_member(self, seat: Seat, message: wire.Message, now: float) -> list[Action]:
        """A member has spoken of its workers."""
        is_of_this_round = getattr(message, "round", self.round) == self.round
        match seat.state, message:
            case SeatState.LEAVING, wire.Leave():
                return []
            case _, wire.Leave(reason=reason):
                return member_messages.leaves(self, seat, reason, now)
            case _, wire.Stopped():
                return member_messages.stopped(self, seat, message, now)
            case _, wire.Failed():
                return failed(self, seat, message, now)
            case _, wire.Calculated(round=number, limits_s=limits_s) if is_of_this_round:
                news = self.paces.calculated(limits_s, number)
                return [self.record(LimitsCalculated(limits_s=limits_s))] if news else []
            case SeatState.RUNNING, wire.Imports(node=node) if seat.is_first and self.demands.admit(node, IMPORTS, now):
                return self.imports.heard(message)
            case SeatState.RUNNING, wire.Saving() if is_of_this_round:
                self.checkpoints.heard(message, now)
            case SeatState.RUNNING, wire.Succeeded() if is_of_this_round and not seat.is_impaired:
                return member_messages.succeeded(self, seat, message, now)
            case _, wire.Pace() | wire.Positions() | wire.HangFound() if is_of_this_round and self.phase is Phase.RUNNING:
                return self._hear_of_progress(seat, message, now)
        return []

    def _hear_of_progress(self, seat: Seat, message: wire.Message, now: float) -> list[Action]:
        """A member has said how the ranks of the running round get on."""
        match seat.state, message:
            case _, wire.Pace():
                return member_messages.paced(self, seat, message, now)
            case _, wire.Positions(node=node, positions=positions) if self.inquiry is not None:
                self.inquiry.hear(node, positions)
            case SeatState.RUNNING, wire.HangFound():
                return inquire(self, seat, message, now)
        return []

    def deadline(self) -> float:
        if self.phase is Phase.ENDED:
            return NEVER
        ends = self.seats.look_at
        if self.excluded:
            ends = min(ends, self.excluded.deadline())
        for waits in (self.inquiry, self.doubt):
            ends = ends if waits is None else min(ends, waits.until)
        if self.phase is Phase.RUNNING:
            return min(ends, self.checkpoints.due_at)
        if self.phase is not Phase.GATHERING:
            return ends
        notice_at = self.gathering.notice_at if self.gathering.is_last_call(self.round) else NEVER
        return min(self.gathering.opens_at(self.round), notice_at, ends)

    # --- from one phase to the next -------------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Action]:
        """Do what has become possible."""
        if (inquiry := self.inquiry) is not None and inquiry.is_over(now):
            return close(self, inquiry, now) + self._advance(now)
        if settled := settle_doubt(self, now):
            return settled + self._advance(now)
        tally = self.seats.tally
        match self.phase:
            case Phase.GATHERING:
                return self._gathered(now)
            case Phase.RUNNING if tally.of(SeatState.READY, SeatState.SUCCEEDED) == len(self.seats):
                if tally.of(SeatState.SUCCEEDED):
                    return end(self, Outcome.SUCCEEDED, "every worker exited with 0", now) + self._advance(now)
                return end(self, Outcome.FAILED, "every node is gone", now) + self._advance(now)
            case Phase.ENDING if not self.seats.has_workers:
                return finish(self, now)
        return []

    def _gathered(self, now: float) -> list[Action]:
        gathering = self.gathering
        gathering.look(now)
        if gathering.is_short:
            if names := gathering.forgivable(now):
                return relent(self, names) + self._gathered(now)
            if now >= gathering.gives_up_at:
                return end(self, Outcome.FAILED, gathering.too_few(self.round, now), now) + self._advance(now)
            return gathering.notice(self.round, now)
        placement = gathering.placed(self.round, now)
        if placement is None:
            return gathering.notice(self.round, now) if gathering.is_last_call(self.round) else []
        if left_out := leave_out_wanted(self, now):
            return left_out + self._gathered(now)
        if not placement.active:
            return self._gathered(now)
        return self._in_vain(now) or form(self, placement, now)

    def _in_vain(self, now: float) -> list[Action]:
        """How the job ends that another restart would not bring any further. Nothing: it may."""
        reached = max((seat.join.reached for seat in self.seats.values() if seat.join.reached is not None), default=None)
        failures = self.failures.in_order(self.round)
        decision = self.policy.stalled(reached, restarting=self.is_restart, failures=failures)
        if decision is None:
            return []
        self.take_back_restart()
        return carry_out(self, decision, now) + self._advance(now)

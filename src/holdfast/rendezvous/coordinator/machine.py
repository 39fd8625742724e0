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

Here are the phases, and what leads from one to the next. What members say is heard in `rendezvous.coordinator.member_messages`.
Who may take part is for `rendezvous.coordinator.exclusion` to say, what a failure or a loss means for the running round for
`rendezvous.coordinator.failure_handling`; they ask for another phase by `carry_out` and `end`.
"""

from __future__ import annotations

from holdfast.core.job.events import Decided, Event, NodeReadmitted
from holdfast.core.job.policy import Verdict
from holdfast.core.job.report import JobReport, Outcome
from holdfast.core.machine import NEVER, Action, Observation, Record, Say, Tick
from holdfast.core.value import replace
from holdfast.core.wire.messages import Assigned, Finish, Renew, Stop, Waiting
from holdfast.rendezvous.coordinator.exclusion import Admission, Excluded
from holdfast.rendezvous.coordinator.gathering import Gathering
from holdfast.rendezvous.coordinator.growth import Growth
from holdfast.rendezvous.coordinator.member_messages import Hearing
from holdfast.rendezvous.coordinator.membership import Seats
from holdfast.rendezvous.coordinator.pace import Paces
from holdfast.rendezvous.lease import FENCE_S
from holdfast.rendezvous.rules import Heard, HostLeaves, Tell, Unlinked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.core.job.policy import Decision, Policy
    from holdfast.core.wire.messages import Exclusion
    from holdfast.rendezvous.coordinator.failure_handling import Judge
    from holdfast.rendezvous.coordinator.hang_blame import Inquiry
    from holdfast.rendezvous.placement.placement import Place, Placement
    from holdfast.rendezvous.rules import Rules

SMALL = 64
"""Up to so many nodes everybody is told everybody's name; beyond, only group rank 0 (a table for all is O(N²) bytes)."""


class Rendezvous:
    """The machine. `policy` judges failures; everything else is decided here."""

    def __init__(self, rules: Rules, policy: Policy, *, life: str = "", now: float, now_unix: float) -> None:
        self.rules = rules
        self.life = life
        """Names this run of the job: its members remember it."""
        self.logs_at = ""
        """Where this coordinator's node takes the lines of all ranks. Empty: it takes none."""
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
        self.hearing = Hearing(self)
        self.admission = Admission(self)
        self.growth = Growth()
        self._judge: Judge | None = None
        """None: nothing has gone wrong so far."""
        self.started_at, self.started_at_unix = now, now_unix
        self.ahead_unix = now_unix - now
        """What the wall clock shows, less what the monotonic one does. It may be set meanwhile, and is compared only."""
        self.formed_at = now
        self.ended_at = NEVER
        self.why = "first round"
        self.outcome, self.exit_code = Outcome.FAILED, 1
        """Unless it ends otherwise."""
        self.is_restart = False
        """The next round is one that the budget paid for."""
        self.has_lost_some = False
        """The running round carries on without some of its nodes, or may."""
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
        calculated_s: Mapping[str, float] | None = None,
        report: JobReport | None = None,
        life: str = "",
        logs_at: str = "",
        why: str = "",
        now: float,
    ) -> None:
        """Take over from a coordinator whose last round had `members` nodes. Their workers may live until they say otherwise,
        or until the leases that it may have given a moment ago are over."""
        self.round, self.restarts, self.age_s = round, restarts, age_s
        self.seats.largest = largest
        self.life, self.logs_at = life or self.life, logs_at or self.logs_at
        self.why = why or ("the coordinator has changed" if round else self.why)
        self.gathering.wait_until(now + fence_s)
        self.gathering.awaited, self.gathering.awaited_until = members, now + self.rules.lease_s + FENCE_S
        self.excluded.resume(excluded, now)
        self.paces.know(longest_s or {}, now)
        self.paces.calculated(calculated_s or {}, round)
        if report is not None:
            self.phase, self.outcome, self.report, self.ended_at = "ended", report.outcome, report, now

    @property
    def judge(self) -> Judge:
        """Made when it is needed for the first time: no job's start waits for what may never go wrong."""
        if self._judge is None:
            from holdfast.rendezvous.coordinator.failure_handling import Judge

            self._judge = Judge(self)
        return self._judge

    @property
    def inquiry(self) -> Inquiry | None:
        """Which of the round's ranks is to blame for a hang. None: nobody has told of one."""
        return None if self._judge is None else self._judge.inquiry

    # --- the machine's face ---------------------------------------------------------------------------------------------

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`."""
        actions: list[Action] = []
        match seen:
            case Heard(message=message, here=here):
                actions += self.hearing.hear(message, here, now)
                if isinstance(message, Renew) and not self.gathering.unsure:
                    return actions  # thousands a second, and nothing becomes possible by them
            case Unlinked(node=node) if node in self.seats:
                self.seats.unlinked(self.seats[node])
            case HostLeaves(reason=reason):
                actions += self.end(Outcome.STOPPED, reason, now)
            case Tick():
                # Only then: a driver that was held up shows first what has come meanwhile, and a Tick last.
                actions += self.hearing.expire(now) + self.admission.forgive(now)
                if self.phase == "running" and self.growth.is_due(now):
                    actions += self.admission.saved(now)
        return actions + self._advance(now)

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        if self.phase == "ended":
            return NEVER
        ends = min(self.excluded.deadline(), self.seats.look_at)
        if (inquiry := self.inquiry) is not None:
            ends = min(ends, inquiry.until)
        if self.phase == "running":
            return min(ends, self.growth.due_at)
        return min(self.gathering.opens_at(self.round), ends) if self.phase == "gathering" else ends

    # --- from one phase to the next -------------------------------------------------------------------------------------

    def carry_out(self, decision: Decision, now: float, *, hung: tuple[str, int] | None = None) -> list[Action]:
        """Do what was decided about the running round. `hung`: (node, local rank) of one that is to blame for a hang, though
        its limit has not told. None: there is none."""
        match decision.then:
            case Verdict.CARRY_ON:
                self.has_lost_some = True
                left = self.policy.restarts_left(now)
                decided = Decided(decision=Verdict.CARRY_ON, reason=decision.reason, restarts_left=left)
                return [self.record(decided), Say(text=decision.reason, level="warning")]
            case Verdict.FINISH:
                return self.end(Outcome.SUCCEEDED, decision.reason, now, hung=hung)
            case Verdict.REJOIN:
                return self._regroup(Verdict.REJOIN, decision.reason, now, hung=hung)
            case Verdict.RESTART:
                self.restarts += 1
                self.is_restart = True
                # A fence may still stand, of a node lost while others carried on.
                self.gathering.wait_until(now + decision.delay_s)
                delay_s, left = decision.delay_s, decision.restarts_left
                return self._regroup(Verdict.RESTART, decision.reason, now, delay_s=delay_s, left=left, hung=hung)
        self.exit_code = decision.exit_code
        return self.end(Outcome.FAILED, decision.reason, now, hung=hung)

    def end(self, outcome: Outcome, why: str, now: float, *, hung: tuple[str, int] | None = None) -> list[Action]:
        """The job ends: as soon as the workers of all have stopped."""
        if self.phase in ("ending", "ended"):
            return []
        self.phase, self.outcome, self.why = "ending", outcome, why
        decided = Decided(
            decision=Verdict.FINISH if outcome == Outcome.SUCCEEDED else Verdict.STOP,
            reason=why,
            restarts_left=self.policy.restarts_left(now),
        )
        return [self.record(decided), *self._stop_all(why, rejoin=False, hung=hung)]

    def _regroup(
        self,
        decision: Verdict,
        why: str,
        now: float,
        *,
        delay_s: float = 0.0,
        left: int | None = None,
        hung: tuple[str, int] | None = None,
    ) -> list[Action]:
        """Stop the running round; the next one forms when all its members are ready again."""
        left = self.policy.restarts_left(now) if left is None else left
        actions: list[Action] = [self.record(Decided(decision=decision, reason=why, delay_s=delay_s, restarts_left=left))]
        self.phase, self.why = "gathering", why
        self.gathering.begin(now)
        return actions + self._stop_all(why, rejoin=True, hung=hung)

    def _stop_all(self, why: str, *, rejoin: bool, hung: tuple[str, int] | None) -> list[Action]:
        actions: list[Action] = []
        all_ran = self.seats.tally.of("running") == self.seats.size
        stop = Stop(round=self.round, reason=why, rejoin=rejoin, regrouped=rejoin and all_ran and not self.is_restart)
        for node, seat in self.seats.items():
            unaware = seat.state == "stopped" and seat.stop is None  # done with stopping before this was decided: it waits
            if seat.state in ("running", "stopping") or unaware or (seat.state == "succeeded" != self.outcome):
                seat.state = "stopped" if unaware else "stopping"
                seat.stop = replace(stop, hung=hung[1]) if hung is not None and node == hung[0] else stop
                self.seats.look_at = min(self.seats.look_at, self.seats.lease_ends(seat))  # who had succeeded needed none
                actions.append(Tell(node=node, message=seat.stop))
        return actions

    def _advance(self, now: float) -> list[Action]:
        """Whatever has become possible."""
        if (inquiry := self.inquiry) is not None and inquiry.is_over(now):
            return self.judge.close(inquiry, now) + self._advance(now)
        if self.phase == "gathering":
            return self._gathered(now)
        if self.phase == "running" and self.seats.tally.of("ready", "succeeded") == len(self.seats):
            if self.seats.tally.of("succeeded"):
                return self.end(Outcome.SUCCEEDED, "every worker exited with 0", now) + self._advance(now)
            return self.end(Outcome.FAILED, "every node is gone", now) + self._advance(now)
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
                return self.end(Outcome.FAILED, gathering.too_few(self.round, now), now) + self._advance(now)
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
        failures = self._judge.failures.in_order(self.round) if self._judge is not None else ()
        decision = self.policy.stalled(reached, restarting=self.is_restart, failures=failures)
        if decision is None:
            return []
        self.restarts -= 1
        return self.carry_out(decision, now) + self._advance(now)

    def _relent(self, names: list[str]) -> list[Action]:
        """A node that has failed often is better than none: without it nobody could go on."""
        for name in names:
            self.excluded.remove(name)  # what it did is still known, and the next spare will have its place
        return [self.record(NodeReadmitted(name=name, reason="too few nodes are left without it")) for name in names]

    def _form(self, placement: Placement, now: float) -> list[Action]:
        places = placement.active
        chief = self.seats[places[0].node].join
        addr, port = self.rules.master_addr or chief.addr, self.rules.master_port or chief.master_port
        world_size = sum(self.seats[given.node].join.nproc for given in places)
        names = tuple(self.seats[given.node].name for given in places)
        self.round = self.seats.newest_round(self.seats.ready, self.round) + 1  # no number may come twice
        self.phase, self.formed_at, self.attempt, self.gathering.awaited = "running", now, self.restarts, 0
        self.is_restart, self.has_lost_some = False, False
        self.seats.size, self.seats.done_and_gone = len(places), 0
        self.seats.largest = max(self.seats.largest, len(places))
        self.paces.begin_round()
        self.growth = Growth()
        if self._judge is not None:
            self._judge.begin_round()
        longest_s = self.paces.longest_s
        stash, to_fetch = self.seats.stash(places, world_size) or (None, {})
        partners = self._partners(places)
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
                calculated_s=self.paces.calculated_s,
                carries_on=self.policy.carries_on,
                life=self.life,
                stash=stash,
                stash_from=to_fetch.get(given.base_rank, ""),
                stash_partner=partners.get(given.node, ""),
                logs_at=self.logs_at,
            )
            actions.append(Tell(node=given.node, message=seat.assigned))
        for spare in placement.spares:
            actions.append(Tell(node=spare.node, message=Waiting(round=self.round, reason=spare.why, life=self.life)))
        return actions

    def _partners(self, places: Iterable[Place]) -> dict[str, str]:
        """By node: where its ranks' states are kept as well."""
        joins = [self.seats[given.node].join for given in places]
        if not any(join.stash_at for join in joins):
            return {}  # as in most jobs
        from holdfast.rendezvous.placement.partners import partners

        found = partners([(join.stash_at, join.domain) for join in joins])
        return {join.node: partner for join, partner in zip(joins, found)}

    def _finish(self, now: float) -> list[Action]:
        self.phase, self.ended_at = "ended", now
        well = self.outcome == Outcome.SUCCEEDED and not self.has_lost_some
        failures = () if well or self._judge is None else self._judge.failures.in_order(self.round)
        nodes = tuple(seat.name for seat in self.seats.values() if seat.place is not None)
        self.report = JobReport(
            job=self.rules.job,
            outcome=self.outcome,
            exit_code=0 if self.outcome == Outcome.SUCCEEDED else self.exit_code,
            failures=failures[:SMALL],
            failures_left_out=max(0, len(failures) - SMALL),
            restarts_used=self.restarts,
            max_restarts=self.rules.max_restarts,
            rounds=self.round,
            started_at_unix=self.started_at_unix - self.age_s,
            ended_at_unix=self.unix(now),
            reason=self.why,
            nodes=nodes[:SMALL],
            nodes_left_out=max(0, len(nodes) - SMALL),
            life=self.life,
        )
        finish = Finish(report=self.report)
        return [Tell(node=node, message=finish) for node in self.seats]

    # --- what all parts of it say ---------------------------------------------------------------------------------------

    def record(self, event: Event) -> Record:
        """`event`, as one of the life that runs, or ran last."""
        return Record(event=event, life=(self.round, self.attempt))

    def unix(self, now: float) -> float:
        """`now` as the time of day."""
        return self.started_at_unix + now - self.started_at

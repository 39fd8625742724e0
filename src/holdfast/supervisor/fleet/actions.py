"""What is done about a trouble, and what came of it?

A trouble becomes a `Case`, the policy's choice about it a `Deed`: written down before anything is done, and again when its
outcome is known. What does not help within its time is followed by the policy's next choice.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action, Say
from holdfast.core.value import replace
from holdfast.core.wire.fleet import Deed, Heard, Swap, Trouble
from holdfast.supervisor.fleet.messages import Keep, Tell
from holdfast.supervisor.fleet.node import SUSPECT, UNFIT, FleetNode
from holdfast.supervisor.fleet.policies.case import Case, Choice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.supervisor.fleet.job import FleetJob
    from holdfast.supervisor.fleet.machine import Fleet


class Open:
    """A deed of which it is not known yet what came of it."""

    def __init__(self, case: Case, round: int, until: float, act_at: float) -> None:
        self.case, self.round, self.until = case, round, until
        self.act_at = act_at
        """When it is to be done; NEVER: it has been."""


class Acts:
    """What is under way, but for swaps."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.policy = fleet, fleet.policy
        self.nodes, self.jobs, self.ledger = fleet.nodes, fleet.jobs, fleet.ledger
        self.queues, self.swaps = fleet.queues, fleet.swaps
        self.open: dict[str, Open] = {}
        """By the deed's id."""

    # --- from a trouble to a deed -----------------------------------------------------------------------------------------

    def trouble(self, node: FleetNode, trouble: Trouble, now: float) -> list[Action]:
        """A node has told of one."""
        if now < self.fleet.settled_at:
            self.fleet.early[trouble.node, trouble.number] = trouble
            return []
        heard = Tell(node=trouble.node, message=Heard(number=trouble.number))
        if not node.is_new(trouble.node, trouble.number):
            return [heard]
        report = node.reports.get(trouble.node)
        if trouble.xid or trouble.kind == "device":
            state = node.device(trouble.device or "?", trouble.xid, trouble.what, self.fleet.unix(now))
            if state == UNFIT and node.standing == "fit":
                node.hold(SUSPECT, trouble.what, "device")
        elif trouble.kind == "unfit":
            node.hold(UNFIT, trouble.what, "itself")
        kept: list[Action] = [Keep(table="nodes", key=node.name, value=node.kept())]
        case = self.case(trouble.kind, node.name, report.job if report is not None else "", trouble.what)
        case = replace(case, handled=trouble.handled, round=trouble.round, xid=trouble.xid, device=trouble.device)
        return kept + self.consider(case, now) + self.fleet.keep(node) + [heard]

    def case(self, trouble: str, node: str, job_name: str, what: str) -> Case:
        """What a policy has to know of it."""
        job = self.jobs.get(job_name)
        if job is None:
            return Case(trouble=trouble, node=node, job="", what=what)
        taken = {node, *self.swaps.promised}
        waiting = self.nodes if job.is_watched else job.spares
        may_have = [name for name in waiting if name not in taken]
        spares = tuple(name for name in may_have if self.nodes[name].spares_for(job_name, is_watched=job.is_watched))
        size = len(job.ranked) + (node not in job.ranked)
        case = Case(trouble=trouble, node=node, job=job_name, what=what, spares=spares, nodes=size, least=job.least)
        is_out = job.is_running and any(one.job == job_name and not one.ranks for one in self.nodes[node].reports.values())
        return replace(case, limits=job.limits, goes_on=is_out and trouble in ("device", "unfit", "operator"))

    def consider(self, case: Case, now: float) -> list[Action]:
        """What is to be done about it? Nothing more, where the node has been taken out, or is on its way."""
        node = self.nodes[case.node]
        if self.swaps.of(case.node) is not None or (node.standing == UNFIT and node.by != "itself"):
            return []
        before = self.ledger.about(node=case.node, job=case.job)
        return self.decided(case, self.policy.decide(case, before, self.fleet.unix(now)), now)

    def decided(self, case: Case, choice: Choice, now: float) -> list[Action]:
        """Write down what was decided, by the policy or by an operator, and do it."""
        deed = self.deed(case, choice, now)
        said = Say(text=f"{case.node or case.job}: {choice.act}: {choice.reason}", level="warning")
        return [*self.ledger.write(deed), said, *self._do(deed, case, choice, now)]

    def deed(self, case: Case, choice: Choice, now: float) -> Deed:
        """The record of it, to be written."""
        return Deed(
            id=self.ledger.fresh_id(),
            at_unix=self.fleet.unix(now),
            node=case.node,
            job=case.job,
            trouble=case.trouble,
            seen=case.what,
            policy=self.policy.name,
            act=choice.act,
            reason=choice.reason,
        )

    def _do(self, deed: Deed, case: Case, choice: Choice, now: float) -> list[Action]:
        round = self.jobs[case.job].round if case.job in self.jobs else 0
        if case.trouble == "lost" and case.round:
            round = case.round  # its job may be in another by now, without it
        elif case.goes_on:
            round -= 1  # the one that runs is without it
        match choice.act:
            case "none":
                return self.ledger.close(deed.id, "nothing was to be done", self.fleet.unix(now))
            case "swap" | "shrink":
                spare = case.spares[0] if choice.act == "swap" and case.spares and not case.goes_on else ""
                swap = Swap(
                    id=deed.id,
                    node=case.node,
                    job=case.job,
                    reason=case.what,
                    spare=spare,
                    round=round,
                    replaces=len(case.spares) < 2,
                )
                by = "operator" if case.trouble == "operator" else "policy"
                return self.swaps.begin(swap, by, now)
            case "restart-workers" if case.handled:
                # By the time that it is heard of they may have done it: another node's news of the next round was faster.
                until = now + self.policy.patience_s(case)
                self.open[deed.id] = Open(case, case.round or round, until, NEVER)
                noted = self.ledger.note(deed.id, "left to the job's own agents")
                return noted + self.fleet.job_spoke(self.jobs[case.job], now)
        act_at = now + choice.delay_s
        waits = self.open[deed.id] = Open(case, round, act_at + self.policy.patience_s(case), act_at)
        return self._order_for(deed.id, waits, now) if not choice.delay_s else []

    def _order_for(self, id: str, waits: Open, now: float) -> list[Action]:
        """Tell the job's agents what was decided about it."""
        waits.act_at = NEVER
        deed, job = self.ledger.deeds[id], self.jobs[waits.case.job]
        verb = "stop" if deed.act == "stop" else "restart"
        if job.round > waits.round and verb == "restart":
            return self._close(id, f"round {job.round} runs already", now)
        speakers = [one for one in job.speakers(but="") if self.fleet.is_linked(one)]
        if not speakers:
            return self.failed(id, "no agent of the job is heard", now)
        # Only where ranks run there is something to restart, which the coordinator's node need not be one of.
        speaker = next((one for one in speakers if verb == "stop" or job.reports[one].ranks), speakers[0])
        order = self.fleet.order(f"{id}.{verb}", verb, deed.reason, round=waits.round)
        return self.queues.push(self.fleet.told(speaker, order), now)

    def deadline(self) -> float:
        """When to call `due`."""
        return min((min(one.until, one.act_at) for one in self.open.values()), default=NEVER)

    def due(self, now: float) -> list[Action]:
        """What the passing of time has brought."""
        actions: list[Action] = []
        for id, waits in list(self.open.items()):
            if now >= waits.act_at:
                actions += self._order_for(id, waits, now)
            elif now >= waits.until:
                patience_s = self.policy.patience_s(waits.case)
                actions += self.failed(id, f"no other round ran within {patience_s:g} s", now)
        return actions

    # --- what came of it ------------------------------------------------------------------------------------------------

    def look(self, job: FleetJob, now: float) -> list[Action]:
        """Something new is known of a job: does it answer what is waited for?"""
        actions: list[Action] = []
        for id, waits in list(self.open.items()):
            if waits.case.job != job.name or waits.act_at != NEVER:
                continue
            if job.is_running and job.round > waits.round:
                actions += self._close(id, f"round {job.round} runs", now)
            elif not job.reports or (job.outcome and not job.is_running):
                actions += self._close(id, f"the job ended{job.outcome and f': {job.outcome}'}", now)
        return actions

    def answered(self, id: str, verb: str, ok: bool, text: str, now: float) -> list[Action]:
        """What came of an order or a call for it."""
        actions = self.ledger.note(id, f"{verb}: {text}")
        if not ok and id in self.open:
            return actions + self.failed(id, text, now)
        if id in self.ledger.deeds and id not in self.open:
            actions += self.ledger.close(id, text, self.fleet.unix(now))
        return actions

    def failed(self, id: str, text: str, now: float) -> list[Action]:
        """What was done for a deed has not helped: what else is there?"""
        waits, deed = self.open.pop(id, None), self.ledger.deeds[id]
        actions = self.ledger.close(id, f"in vain: {text}", self.fleet.unix(now))
        if deed.trouble == "operator":
            return actions
        case = self.case(deed.trouble, deed.node, deed.job, deed.seen)
        if waits is not None:  # what it was about; who waits may have been promised to another node meanwhile
            case = replace(waits.case, spares=case.spares, nodes=case.nodes)
        return actions + self.consider(replace(case, in_vain=(*case.in_vain, deed.act)), now)

    def _close(self, id: str, outcome: str, now: float) -> list[Action]:
        del self.open[id]
        return self.ledger.close(id, outcome, self.fleet.unix(now))

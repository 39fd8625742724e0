"""What may an operator ask of the fleet, and what is he told? Each wish is a deed, in the record of all."""

from __future__ import annotations

from holdfast.core.value import replace
from holdfast.supervisor.fleet.messages import Call, Reply
from holdfast.supervisor.fleet.node import DRAINING, UNFIT
from holdfast.supervisor.fleet.policies.case import Case, Choice
from holdfast.supervisor.fleet.queues import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.job.injection import Injection
    from holdfast.core.machine import Action
    from holdfast.supervisor.fleet.machine import Fleet


class Wishes:
    """Those of operators. Each call returns what to tell him, and what is done; nothing is done: it was refused."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.acts = fleet, fleet.acts
        self.nodes, self.jobs, self.ledger = fleet.nodes, fleet.jobs, fleet.ledger
        self.queues, self.swaps = fleet.queues, fleet.swaps

    def drain(self, name: str, reason: str, now: float) -> tuple[str, list[Action]]:
        """Take a node out of its job and of the scheduler's hands. What an operator is told, and what is done."""
        node, self.fleet.at_unix = self.nodes.get(name), self.fleet.unix(now)
        if node is None:
            return f"no node {name} has ever been heard of", []
        if node.standing in (DRAINING, UNFIT):
            return f"{name} is {node.standing} already: {node.reason}", []
        if now < self.fleet.settled_at:
            return self._too_early(), []
        worked = sorted({report.job for report in node.reports.values() if report.job})
        actions = self.acts.consider(self.acts.case("operator", name, worked[0] if worked else "", reason), now)
        told = f"{name} is {node.state}: `holdfast why {name}` tells what comes of it"
        return told, self.fleet.noted(actions + self.fleet.keep(node))

    def uncordon(self, name: str, reason: str, now: float) -> tuple[str, list[Action]]:
        """Let a node be used again. As `drain`."""
        node, self.fleet.at_unix = self.nodes.get(name), self.fleet.unix(now)
        if node is None:
            return f"no node {name} has ever been heard of", []
        if node.standing == "fit":
            return f"nothing is held against {name}", []
        for swap in [swap for swap in self.swaps.by_id.values() if swap.node == name]:
            return f"{name} is just being drained ({swap.step}): wait for the end of it", []
        node.pardon(reason, self.fleet.at_unix)
        case = Case(trouble="operator", node=name, job="", what=reason)
        deed = self.acts.deed(case, Choice(act="uncordon", reason="an operator wants it"), now)
        own = node.reason  # what it holds against itself is not the operator's to forgive
        actions = [*self.ledger.write(deed), *self.fleet.keep(node, "" if own else reason)]
        call = Call(task=f"{deed.id}.uncordon", verb="uncordon", target=name, reason=reason)
        actions += self.queues.push(Task(id=call.task, host=f"orchestrator {name}", action=call), now)
        for index, job in enumerate(self.jobs.values()):
            if speaker := next((one for one in job.speakers(but="") if self.fleet.is_linked(one)), ""):
                order = self.fleet.order(f"{deed.id}.{index}.readmit", "readmit", reason, target=name)
                actions += self.queues.push(self.fleet.told(speaker, order), now)
        once = f", once it no longer finds itself unfit: {own}" if own else ""
        return f"{name} may be used again{once}", self.fleet.noted(actions)

    def order_job(self, act: str, name: str, reason: str, now: float) -> tuple[str, list[Action]]:
        """`restart` all ranks of a job, or `stop` it. As `drain`. Its policy is not asked, nor are its budgets spent."""
        job, self.fleet.at_unix = self.jobs.get(name), self.fleet.unix(now)
        if job is None:
            return f"no job {name} has ever been heard of", []
        if now < self.fleet.settled_at:
            return self._too_early(), []
        if not any(map(self.fleet.is_linked, job.reports)):
            ended = f"it {job.outcome}" if job.outcome else "it has ended, or cannot reach the supervisor"
            return f"no agent of job {name} is heard: {ended}", []
        if any(one.case.job == name and self.ledger.deeds[id].act == act for id, one in self.acts.open.items()):
            return f"job {name}: an operator has asked for a {act} already, and it is not over", []
        case = Case(trouble="operator", node="", job=name, what="an operator asked for it")
        actions = self.acts.decided(case, Choice(act=act, reason=reason), now)
        return f"job {name} was told to {act}: `holdfast why {name}` tells what comes of it", self.fleet.noted(actions)

    def inject(self, name: str, wanted: Injection, job: str, now: float) -> tuple[str, str, list[Action]]:
        """Have a fault played on a node, for practice. The deed, what an operator is told if there is none, and what is done; a
        `Reply` follows."""
        node, self.fleet.at_unix = self.nodes.get(name), self.fleet.unix(now)
        reports = node.reports if node is not None else {}
        linked = {one: said.job for one, said in reports.items() if self.fleet.is_linked(one) and said.job.startswith(job)}
        if len(linked) != 1:
            several = f"{name} works for {', '.join(sorted(linked.values()))}: say which is meant (--job)"
            of = f" of job {job}" if job else ""
            return "", several if linked else f"no agent{of} is heard on {name}", []
        ((reporter, worked),) = linked.items()
        what = f"{wanted.fault}, for practice, as {wanted.by or 'an operator'} asked for"
        case = Case(trouble="operator", node=name, job=worked, what=what)
        deed = self.acts.deed(case, Choice(act="inject", reason="what follows is not the hardware's doing"), now)
        order = self.fleet.order(f"{deed.id}.inject", "inject", deed.seen, target=name)
        told = self.fleet.told(reporter, replace(order, injection=wanted))
        actions = [*self.ledger.write(deed), *self.queues.push(told, now)]
        return deed.id, "", self.fleet.noted(actions)

    def _too_early(self) -> str:
        wait_s = self.fleet.lease_s
        return f"the supervisor has just started, and does not know yet who is there: ask again in {wait_s:g} s"

    def injected(self, id: str, ok: bool, text: str, now: float) -> list[Action]:
        """What its agent has made of that."""
        outcome = text.split("\n")[0] if ok else f"refused: {text}"
        return [*self.ledger.close(id, outcome, self.fleet.unix(now)), Reply(deed=id, ok=ok, text=text)]

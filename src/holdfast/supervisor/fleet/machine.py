"""Who is there, and whom does it concern? The supervisor's machine, over its nodes, jobs, acts, swaps, wishes and queues.

Reporters push what changes; nobody is polled. What they tell goes to the job and to those whom it concerns: `acts` decide about
troubles, `swaps` take nodes out, `wishes` are those of operators. Whatever is asked of a host waits in that host's own queue.
What must outlive the supervisor are `Keep` actions, performed in order with the others; with what was kept, and the next
generation number, another life of it goes on.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action, Observation, Say, Tick
from holdfast.core.value import Value, replace
from holdfast.core.wire.fleet import (
    Alive,
    Bye,
    Deed,
    Did,
    FleetMessage,
    Heard,
    Heed,
    JobKept,
    NodeKept,
    Order,
    Standing,
    Swap,
    Trouble,
)
from holdfast.supervisor.fleet.action_log import Ledger
from holdfast.supervisor.fleet.actions import Acts
from holdfast.supervisor.fleet.job import FleetJob
from holdfast.supervisor.fleet.messages import Called, Keep, Said, Tell, Unlinked
from holdfast.supervisor.fleet.node import DRAINING, UNFIT, FleetNode
from holdfast.supervisor.fleet.node_swap import Swaps
from holdfast.supervisor.fleet.operator_actions import Wishes
from holdfast.supervisor.fleet.policies.case import Case
from holdfast.supervisor.fleet.queues import Queues, Task
from holdfast.supervisor.versions import Changes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.supervisor.fleet.policies import Policy

JUDGED_S = 30.0
"""How long to wait for the word of a job's coordinator about a node that the supervisor does not hear: longer than it takes to
find another coordinator."""


class Kept(Value):
    """What was kept by earlier lives."""

    nodes: tuple[NodeKept, ...] = ()
    jobs: tuple[JobKept, ...] = ()
    swaps: tuple[Swap, ...] = ()
    deeds: tuple[Deed, ...] = ()


class Fleet:
    """See the module's text."""

    def __init__(
        self, policy: Policy, *, generation: int, lease_s: float, now: float, now_unix: float, kept: Kept | None = None
    ) -> None:
        kept = kept or Kept()
        self.policy, self.generation, self.lease_s = policy, generation, lease_s
        self._unix_ahead = now_unix - now
        self.at_unix = now_unix
        """The time of day of what is being done."""
        self.nodes = {node.name: FleetNode.of(node) for node in kept.nodes}
        self.jobs = {job.name: FleetJob.of(job) for job in kept.jobs}
        self.reporters: dict[str, str] = {}
        """Reporter → name of its node, of those that were heard in this life."""
        self.leases: dict[str, float] = {}
        """Node → when its lease ends; the earliest first, since all are equally long."""
        self.missed: dict[str, tuple[Case, float]] = {}
        """Nodes that are lost to us, and of which their job has not said so yet; until when its word is waited for."""
        self.ledger = Ledger(generation, kept.deeds)
        self.changes = Changes(generation)
        """Of nodes, jobs, swaps and deeds, as they are shown."""
        self.queues = Queues()
        self.swaps = Swaps(self)
        self.acts = Acts(self)
        self.wishes = Wishes(self)
        self.awake_at = now
        """When it was last shown anything."""
        self.settled_at = now + lease_s
        """By then whoever lives has come to this life of the supervisor. Before, it does not know who is there."""
        self.early: dict[tuple[str, int], Trouble] = {}
        """What was said before that. It is not answered yet, so that the next life is told it, if this one does not last."""
        for name in [node.name for node in kept.nodes if node.state == "fit"]:
            self.leases[name] = self.nodes[name].until = self.settled_at
        for swap in kept.swaps:
            self.nodes.setdefault(swap.node, FleetNode(swap.node))
            self.swaps.resume(swap, now)

    def begin(self, now: float) -> list[Action]:
        """Go on with what was under way."""
        actions: list[Action] = []
        for deed in list(self.ledger.deeds.values()):
            if not deed.outcome and deed.id not in self.swaps.by_id:
                actions += self.ledger.close(deed.id, "not known: the supervisor was restarted meanwhile", self.unix(now))
        for id in list(self.swaps.by_id):
            actions += self.swaps.advance(id, now)
        return self.noted(actions)

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`."""
        self.at_unix = self.unix(now)
        pardoned = self._excuse_the_silence(now)
        match seen:
            case Said(message=message):
                return self.noted(self._said(message, now))
            case Unlinked(node=reporter):
                if name := self.reporters.get(reporter):
                    self.nodes[name].linked.discard(reporter)
                    self.changes.mark("nodes", name)
                return []
            case Called(task=task, ok=ok, text=text):
                return self.noted(self._answered(task, ok, text, now))
            case Tick():
                return [] if pardoned else self.noted(self._late(now))
        raise AssertionError(f"a fleet is never shown {seen!r}")

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        lease = next(iter(self.leases.values()), NEVER)
        settled = self.settled_at if self.early else NEVER
        judged = min((until for _, until in self.missed.values()), default=NEVER)
        return min(lease, settled, judged, self.acts.deadline(), self.queues.deadline(), self.swaps.deadline())

    def unix(self, now: float) -> float:
        """The time of day."""
        return now + self._unix_ahead

    def is_linked(self, reporter: str) -> bool:
        """Whether something can be said to it."""
        name = self.reporters.get(reporter)
        return name is not None and reporter in self.nodes[name].linked and not self.nodes[name].is_lost

    # --- what reporters say ---------------------------------------------------------------------------------------------

    def _said(self, message: FleetMessage, now: float) -> list[Action]:
        reporter = str(getattr(message, "node", ""))
        if isinstance(message, Standing):
            return self._stands(message, now)
        name = self.reporters.get(reporter)
        if name is None:  # it was succeeded, by what was long on its way: it says anew how it stands, when it is told this
            again = Tell(node=reporter, message=Heed(lease_s=self.lease_s, generation=self.generation))
            return [again] if isinstance(message, Alive) else []
        node = self.nodes[name]
        back: list[Action] = []
        if self._here(node, reporter, now):
            again = Tell(node=reporter, message=Heed(lease_s=self.lease_s, generation=self.generation))
            back = [*self.keep(node, "it is heard again"), again]
        match message:
            case Alive():
                return back
            case Trouble():
                return back + self.acts.trouble(node, message, now)
            case Did(order=order, ok=ok, text=text) if self._may_answer(reporter, order):
                return back + self._answered(order, ok, text, now)
            case Did():
                return back
            case Bye():
                return back + self._bye(node, reporter, now)
        raise AssertionError(f"no reporter says {message!r}")

    def _may_answer(self, reporter: str, order: str) -> bool:
        """Whether it, or another agent of its job, was given that order. What others are told, the orchestrator among them, is
        not for it to answer."""
        told = self.queues.asked(order)
        return isinstance(told, Tell) and (told.node == reporter or self._job_of(told.node) == self._job_of(reporter) != "")

    def _job_of(self, reporter: str) -> str:
        node = self.nodes.get(self.reporters.get(reporter, ""))
        report = node.reports.get(reporter) if node is not None else None
        return report.job if report is not None else ""

    def _stands(self, report: Standing, now: float) -> list[Action]:
        node = self.nodes.setdefault(report.name, FleetNode(report.name))
        actions: list[Action] = []
        is_new = report.node not in self.reporters
        if is_new:
            self._succeed(node, report)
        was_linked = self.is_linked(report.node)
        self.reporters[report.node] = report.name
        if not was_linked:
            actions.append(Tell(node=report.node, message=Heed(lease_s=self.lease_s, generation=self.generation)))
            actions += self.queues.again(report.name)
        was_lost = self._here(node, report.node, now)
        node.hear(report, self.unix(now))
        self.changes.mark("nodes", node.name)
        actions += self.keep(node, "it is heard again" if was_lost else "")
        if report.job:
            job = self.jobs.setdefault(report.job, FleetJob(report.job))
            self.changes.mark("jobs", job.name)
            if job.hear(report, self.unix(now)):
                actions.append(Keep(table="jobs", key=job.name, value=job.kept()))
            actions += self.job_spoke(job, now)
            actions += self._keep_out(node, report, is_new, now)
        actions.append(Tell(node=report.node, message=Heard(number=report.number)))
        return actions

    def _succeed(self, node: FleetNode, report: Standing) -> None:
        """A node has one agent in a job: those before it are gone, whether somebody has said so or not."""
        for old in [old for old, said in node.reports.items() if said.job == report.job]:
            del node.reports[old]
            node.linked.discard(old)
            self.reporters.pop(old, None)
            if report.job in self.jobs:
                self.jobs[report.job].gone(old)

    def _here(self, node: FleetNode, reporter: str, now: float) -> bool:
        """A node is heard. Whether it was lost."""
        was_lost = node.is_lost
        if was_lost or reporter not in node.linked:
            self.changes.mark("nodes", node.name)
        node.linked.add(reporter)
        node.alive(now + self.lease_s)
        self.leases.pop(node.name, None)
        self.leases[node.name] = node.until
        self.missed.pop(node.name, None)
        return was_lost

    def _bye(self, node: FleetNode, reporter: str, now: float) -> list[Action]:
        report = node.reports.get(reporter)
        node.bye(reporter)
        del self.reporters[reporter]
        self.changes.mark("nodes", node.name)
        if node.until == NEVER:
            self.leases.pop(node.name, None)
        actions = self.keep(node)
        if report is not None and report.job in self.jobs:
            self.jobs[report.job].gone(reporter)
            self.changes.mark("jobs", report.job)
            actions += self.job_spoke(self.jobs[report.job], now)
        return actions

    def job_spoke(self, job: FleetJob, now: float) -> list[Action]:
        """Something new is known of a job: does it answer what we wait for?"""
        actions = self.swaps.look(job.name, now) if self.swaps.by_id else []
        actions += self.acts.look(job, now)
        for name, (case, _) in list(self.missed.items()):
            if case.job == job.name and job.members is not None and name not in job.members:
                actions += self._miss(name, now)
        return actions

    def _keep_out(self, node: FleetNode, report: Standing, is_new: bool, now: float) -> list[Action]:
        """A node that must not be used has come with a new agent: its job has to know."""
        job = self.jobs[report.job]
        kept_out = node.standing in (UNFIT, DRAINING) and node.by != "itself"
        if not is_new or not kept_out or report.state == "ended" or self.swaps.of(node.name) is not None:
            return []
        order = self.order(f"{report.node}.exclude", "exclude", node.reason, target=node.name)
        speaker = next((one for one in job.speakers(but=node.name) if self.is_linked(one)), report.node)
        return self.queues.push(self.told(speaker, order), now)

    # --- what came of what was asked ------------------------------------------------------------------------------------

    def _answered(self, task: str, ok: bool, text: str, now: float) -> list[Action]:
        awaited, actions = self.queues.done(task, now)
        if not awaited:
            return actions
        id, _, verb = task.rpartition(".")
        if id in self.swaps.by_id:
            return actions + self.swaps.answered(id, verb, ok, text, now)
        if verb == "inject":
            return actions + self.wishes.injected(id, ok, text, now)
        return actions + self.acts.answered(id, verb, ok, text, now)

    # --- time -----------------------------------------------------------------------------------------------------------

    def _excuse_the_silence(self, now: float) -> bool:
        """If this process has not run for a while (stopped, a machine that slept), what others said meanwhile is still to be
        heard: nobody is lost for that. One that is merely busy hears others, and whom it does not hear is lost."""
        awake_at, self.awake_at = self.awake_at, now
        if now - max(awake_at, next(iter(self.leases.values()), NEVER)) < self.lease_s / 2:
            return False
        for name in self.leases:
            self.leases[name] = self.nodes[name].until = now + self.lease_s
        return True

    def _late(self, now: float) -> list[Action]:
        actions: list[Action] = []
        early, self.early = (self.early, {}) if now >= self.settled_at else ({}, self.early)
        for (reporter, _), trouble in early.items():
            if known := self.reporters.get(reporter):
                actions += self.acts.trouble(self.nodes[known], trouble, now)
        for name in self._silent(now):
            actions += self._lost(name, now)
        late, begun = self.queues.expire(now)
        actions += begun
        for task in late:
            id, _, verb = task.rpartition(".")
            if id in self.swaps.by_id:
                actions += self.swaps.late(id, verb, now)
            elif id in self.acts.open:
                actions += self.acts.failed(id, "it was not answered in time", now)
            elif verb == "inject":
                actions += self.wishes.injected(id, False, "its agent has not answered", now)
        actions += self.swaps.due(now) + self.acts.due(now)
        for name in [name for name, (_, until) in self.missed.items() if now >= until]:
            actions += self._miss(name, now)
        return actions

    def _silent(self, now: float) -> list[str]:
        silent: list[str] = []
        for name, until in self.leases.items():
            if now < until:
                break
            silent.append(name)
        return silent

    def _lost(self, name: str, now: float) -> list[Action]:
        """A node is not heard any more. Whether its job hears it is the job's to say."""
        del self.leases[name]
        node = self.nodes[name]
        what = f"{name} was not heard for {self.lease_s:g} s"
        worked = sorted({(report.job, report.round) for report in node.reports.values() if report.ranks and report.job})
        cases = [replace(self.acts.case("lost", name, job, what), round=round) for job, round in worked]
        for reporter, report in node.reports.items():
            if report.job in self.jobs:
                self.jobs[report.job].gone(reporter)
                self.changes.mark("jobs", report.job)
        node.silent()
        actions = self.keep(node, what)
        for case in cases[:1]:
            job = self.jobs[case.job]
            self.missed[name] = case, now + JUDGED_S
            if not job.reports or job.is_watched or (job.members is not None and name not in job.members):
                actions += self._miss(name, now)
        return actions

    def _miss(self, name: str, now: float) -> list[Action]:
        """It is lost to its job too; or nobody can say that it is not."""
        case, _ = self.missed.pop(name)
        job = self.jobs[case.job]
        if job.members is not None and name in job.members:
            return [Say(text=f"{name}: its job hears it, so nothing is done: only its link to the supervisor is broken")]
        fresh = self.acts.case("lost", name, case.job, case.what)
        goes_on = job.is_running and job.round > case.round > 0
        return self.acts.consider(replace(fresh, round=case.round, goes_on=goes_on), now)

    # --- small things ---------------------------------------------------------------------------------------------------

    def order(self, id: str, verb: str, reason: str, *, target: str = "", round: int = 0) -> Order:
        """An order of this life of the supervisor."""
        reason = reason[:400]
        return Order(order=id, generation=self.generation, verb=verb, target=target, round=round, reason=reason)

    def keep(self, node: FleetNode, why: str = "") -> list[Action]:
        """Write a node down, if it is not as it was written down last."""
        return [Keep(table="nodes", key=node.name, value=node.kept())] if node.changed(self.at_unix, why) else []

    def noted(self, actions: list[Action]) -> list[Action]:
        """What is kept is what others are shown, but for what only reports tell."""
        for action in actions:
            if isinstance(action, Keep):
                gone = action.value is None and action.table == "deeds"
                (self.changes.forget if gone else self.changes.mark)(action.table, action.key)
        return actions

    def told(self, reporter: str, order: Order) -> Task:
        return Task(id=order.order, host=self.reporters.get(reporter, reporter), action=Tell(node=reporter, message=order))

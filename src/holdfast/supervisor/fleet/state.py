"""What does the supervisor know? The fleet's state: nodes, jobs, reporters, and what is under way.

The functions of the other modules take it, change it by its tables and methods, and return the actions to perform.
"""

from __future__ import annotations

from math import ceil

from holdfast.core.machine import NEVER, Action, Say
from holdfast.core.value import Value, replace
from holdfast.core.wire.fleet import Deed, Heed, Hour, JobKept, NodeKept, NodeState, Order, Swap, SwapStep, Trouble
from holdfast.supervisor.change_log import ChangeLog
from holdfast.supervisor.fleet.action_log import ActionLog
from holdfast.supervisor.fleet.job import FleetJob
from holdfast.supervisor.fleet.messages import Call, CallVerb, Keep, Need, Tell
from holdfast.supervisor.fleet.node import FleetNode
from holdfast.supervisor.fleet.numbers import Numbers
from holdfast.supervisor.fleet.policies.case import Case, Policy, Standby
from holdfast.supervisor.fleet.queues import Queues, Task


class RepairRules(Value):
    """What the operator allows of repairs."""

    labels: dict[str, str] = {}  # noqa: RUF012
    """Act that is allowed → the label by which the node's cloud does it. Empty: the host's daemon does."""
    per_hour: int = 0
    """So many may begin in an hour, over the fleet."""
    probation_s: float = 0.0


class Gives(Value):
    """What is known of how the orchestrator gives nodes."""

    within_s: float | None = None
    """As the operator says. None: he does not."""
    evicts: bool = False
    """As `Standby.evicts`."""


class FleetRules(Value):
    """What one life of the supervisor goes by."""

    policy: Policy
    generation: int
    """Number of this life."""
    lease_s: float
    """A node that is silent for so long is lost."""
    ahead_unix: float
    """The time of day, less monotonic time."""
    repair: RepairRules = RepairRules()
    gives: Gives = Gives()


class Kept(Value):
    """What earlier lives have stored."""

    nodes: tuple[NodeKept, ...] = ()
    jobs: tuple[JobKept, ...] = ()
    swaps: tuple[Swap, ...] = ()
    deeds: tuple[Deed, ...] = ()
    hours: tuple[Hour, ...] = ()


class Missing(Value):
    """A node that the supervisor does not hear, and of which its job has not said whether it does."""

    case: Case
    until: float
    """When to act without the job's word."""


class OpenDeed(Value):
    """A restart or stop whose outcome is not known yet."""

    case: Case
    round: int
    """A newer one is the outcome."""
    until: float
    act_at: float
    """When to order it; NEVER: it was ordered."""
    tried: tuple[str, ...] = ()
    """Reporters that were given the order, the last one last."""


class OpenSwap(Value):
    """A swap that is under way, and what this life of the supervisor knows of it."""

    swap: Swap
    until: float
    """When the takeover is given up."""
    tried: tuple[str, ...] = ()
    """Reporters that were asked in vain."""
    tries: int = 0
    """How often all of them were."""
    look_at: float = NEVER
    """When to look again."""
    ask_at: float = 0.0
    """When the scheduler may be asked again for another node."""
    exclude_at: float = 0.0
    """When the job may be asked again to do without the node."""
    is_settled: bool = False
    """A round without the node has run for long enough that all its nodes have reported."""


class Leases:
    """Until when each node or reporter counts. All leases are equally long, so the first in the table ends first."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    @property
    def first(self) -> float:
        return next(iter(self._until.values()), NEVER)

    def renew(self, node: str, until: float) -> None:
        self._until.pop(node, None)
        self._until[node] = until

    def __contains__(self, node: str) -> bool:
        return node in self._until

    def extend(self, until: float) -> None:
        self._until = dict.fromkeys(self._until, until)

    def end(self, node: str) -> None:
        self._until.pop(node, None)

    def over(self, now: float) -> list[str]:
        over: list[str] = []
        for node, until in self._until.items():
            if now < until:
                break
            over.append(node)
        return over


NODES, JOBS = 1 << 14, 1 << 14
"""Names that are remembered beside those that are here."""

ABSENT, ABSENT_BYTES = 1 << 13, 64 << 20
"""Reporters without a link whose reports are kept, and about how many bytes of these."""

EARLY = 64
"""Troubles of one reporter that may wait: it keeps no more itself."""

LEFT = 1 << 10
"""Troubles of reporters that have left meanwhile."""


LEAST_REPLACEMENTS = 3
"""So many have to have been seen before it counts how long they took."""


class Once:
    """A line that is said once in a life of the supervisor: what it warns of may come without end, under ever new names."""

    def __init__(self) -> None:
        self._is_said = False

    def said(self, text: str) -> list[Action]:
        said, self._is_said = self._is_said, True
        return [] if said else [Say(text=text, level="warning")]


class Most:
    """So many names there may be until it is looked which can be forgotten. `most`: at first."""

    def __init__(self, most: int) -> None:
        self.most = self._look_at = most

    def is_exceeded(self, count: int) -> bool:
        return count > self._look_at

    def looked(self, left: int) -> None:
        """So many cannot be forgotten, or are few enough: look again when there are clearly more."""
        self._look_at = max(self.most, left + left // 8)


class Absent:
    """Reporters whose links are gone, the longest gone first, and what their reports weigh."""

    def __init__(self) -> None:
        self._weights: dict[str, int] = {}
        self._held = 0

    def add(self, reporter: str, weight: int) -> None:
        self.remove(reporter)
        self._weights[reporter] = weight
        self._held += weight

    def remove(self, reporter: str) -> None:
        self._held -= self._weights.pop(reporter, 0)

    def over(self) -> list[str]:
        """Those that are too many, or too heavy: they are absent no more."""
        over: list[str] = []
        while len(self._weights) > ABSENT or self._held > ABSENT_BYTES:
            over.append(next(iter(self._weights)))
            self.remove(over[-1])
        return over


class FleetState:
    def __init__(self, rules: FleetRules, kept: Kept, now: float) -> None:
        self.rules = rules
        self.nodes = {node.name: FleetNode(node.name, node) for node in kept.nodes}
        self.jobs = {job.name: FleetJob(job.name, self.unix(now), job) for job in kept.jobs}
        self.reporters: dict[str, str] = {}
        """Reporter → name of its node, of those that were heard in this life."""
        self.leases, self.unlinked = Leases(), Leases()
        """By node; and by reporter, of those whose link is gone, or was: for so long they count."""
        self.missing: dict[str, Missing] = {}
        """By node."""
        self.numbers = Numbers(kept.hours, now)
        self.action_log = ActionLog(rules.generation, kept.deeds)
        self.open_deeds: dict[str, OpenDeed] = {}
        """By the deed's id."""
        self.open_swaps = {swap.id: open_swap(swap, now) for swap in kept.swaps}
        """By the deed's id."""
        self.repairs = {node.name: now + rules.lease_s for node in kept.nodes if node.repair is not None}
        """Node that is being repaired → when to look at it again."""
        self.asked: dict[str, int] = {}
        """Deed → number of the operator's request that its outcome answers."""
        self.absent = Absent()
        self.most_nodes, self.most_jobs = Most(NODES), Most(JOBS)
        self.noise, self.crowd = Once(), Once()
        """Of nodes that report too much; of names that are too many."""
        self.early: dict[str, dict[int, tuple[Trouble, Case]]] = {}
        """By reporter: troubles that came before `settled_at`, and what was known of their job then. They are not answered yet:
        the next life hears them if this one ends."""
        self.left: list[tuple[Trouble, Case]] = []
        """Those whose reporter has said goodbye since."""
        self.changes = ChangeLog(rules.generation)
        """Versions of nodes, jobs, swaps and deeds, as they are shown."""
        self.queues = Queues()
        self.awake_at = now
        """When this process last observed anything."""
        self.settled_at = now + rules.lease_s
        """By then every live reporter has connected. Before, the supervisor does not know who is present."""
        for name in [node.name for node in kept.nodes if node.state == NodeState.FIT]:
            self.leases.renew(name, self.settled_at)
        for swap in kept.swaps:
            self.nodes.setdefault(swap.node, FleetNode(swap.node))

    def unix(self, now: float) -> float:
        return now + self.rules.ahead_unix

    def is_settled(self, now: float) -> bool:
        return now >= self.settled_at

    def reporter_node(self, reporter: str) -> FleetNode | None:
        """The node of a reporter. None: it was not heard in this life, or was succeeded by another."""
        name = self.reporters.get(reporter)
        return self.nodes[name] if name is not None else None

    def job_of(self, reporter: str) -> str:
        """The job that a reporter works for. Empty: none."""
        node = self.reporter_node(reporter)
        report = node.reports.get(reporter) if node is not None else None
        return report.job if report is not None else ""

    def is_linked(self, reporter: str) -> bool:
        """Whether a message would reach a reporter."""
        node = self.reporter_node(reporter)
        return node is not None and reporter in node.linked and not node.is_lost

    def is_heard(self, name: str) -> bool:
        """Whether a node has a live link."""
        node = self.nodes.get(name)
        return node is not None and bool(node.linked) and not node.is_lost

    def swap_of(self, node: str) -> Swap | None:
        return next((one.swap for one in self.open_swaps.values() if one.swap.node == node), None)

    def spares(self, job: FleetJob, node: str = "") -> list[str]:
        """Nodes that may take a node's place in the job, or anybody's: nothing is held against them, and nobody has them."""
        taken = {node, *self.promised}
        waiting = [name for name in (self.nodes if job.is_watched else job.spares) if name not in taken]
        fit = [name for name in waiting if self.nodes[name].spares_for(job.name, is_watched=job.is_watched)]
        return sorted(fit, key=lambda name: name in self.repairs)  # those on probation last

    @property
    def promised(self) -> set[str]:
        """Spares that are to take over somewhere."""
        return {one.swap.spare for one in self.open_swaps.values() if one.swap.spare}

    def standby(self) -> Standby | None:
        """The node that the orchestrator would give: as the operator says, else as long as the last ones took at the most."""
        gives = self.rules.gives
        if gives.within_s is not None:
            return Standby(within_s=gives.within_s, by="as the operator has said", evicts=gives.evicts)
        took = self.action_log.replacements()
        if len(took) < LEAST_REPLACEMENTS:
            return None
        by = f"as long as the longest of the last {len(took)} took"
        return Standby(within_s=float(ceil(max(took))), by=by, evicts=gives.evicts)

    def deadline(self) -> float:
        waits = [self.leases.first, self.unlinked.first, self.queues.deadline(), self.numbers.deadline(self.jobs.values())]
        waits += [self.settled_at] if self.early or self.left else []
        waits += [one.until for one in self.missing.values()]
        waits += [min(one.until, one.act_at) for one in self.open_deeds.values()]
        waits += [min(one.until, one.look_at) for one in self.open_swaps.values()]
        waits += self.repairs.values()
        return min(waits)

    def wake(self, now: float) -> float:
        """Note that this process runs; when it did last."""
        awake_at, self.awake_at = self.awake_at, now
        return awake_at

    def take_early(self) -> list[Trouble]:
        """The troubles that came too early, once."""
        early, self.early = self.early, {}
        return [trouble for those in early.values() for trouble, _ in those.values()]

    def take_left(self) -> list[tuple[Trouble, Case]]:
        """Those whose reporters have left, once."""
        left, self.left = self.left, []
        return left

    def keep(self, node: FleetNode, now: float, why: str = "") -> list[Action]:
        """Store a node, if it has changed since it was stored last."""
        return [self.kept(node)] if node.changed(self.unix(now), why) else []

    def kept(self, node: FleetNode) -> Action:
        return Keep(table="nodes", key=node.name, value=node.kept())

    def count(self, now: float) -> list[Action]:
        """Add up what has become of the jobs since the last time, and store it."""
        if now < self.numbers.due_at:
            return []
        touched = self.numbers.look(self.jobs.values(), self.unix(now), now)
        return [*(Keep(table="jobs", key=job.name, value=job.kept()) for job in touched), *self.numbers.keep()]

    def plan(self, swap: Swap, now: float) -> Action:
        """Store a swap that begins, or its next step."""
        known = self.open_swaps.get(swap.id)
        self.open_swaps[swap.id] = replace(known, swap=swap) if known is not None else open_swap(swap, now)
        self.changes.mark("jobs", swap.job)
        return Keep(table="swaps", key=swap.id, value=swap)

    def strike(self, swap: Swap) -> Action:
        del self.open_swaps[swap.id]
        self.changes.mark("jobs", swap.job)
        return Keep(table="swaps", key=swap.id, value=None)

    def heed(self, reporter: str) -> Tell:
        """Tell a reporter that it is known, and by what lease."""
        return Tell(node=reporter, message=Heed(lease_s=self.rules.lease_s, generation=self.rules.generation))

    def order(self, id: str, verb: str, reason: str, *, target: str = "", round: int = 0) -> Order:
        """An order of this life of the supervisor."""
        reason = reason[:400]
        return Order(order=id, generation=self.rules.generation, verb=verb, target=target, round=round, reason=reason)

    def send(self, reporter: str, order: Order, now: float) -> list[Action]:
        """Queue an order for the reporter's node."""
        host = self.reporters.get(reporter, reporter)
        return self.queues.push(Task(id=order.order, host=host, action=Tell(node=reporter, message=order)), now)

    def call(self, id: str, verb: CallVerb, node: str, need: Need, now: float, tries: int = 0) -> list[Action]:
        """Queue a call of the orchestrator about a node. `tries`: it is another one than before, and no repetition."""
        call = Call(task=f"{id}.{verb}{tries or ''}", verb=verb, target=node, need=need)
        return self.queues.push(Task(id=call.task, host=f"orchestrator {node}", action=call), now)

    def close(self, id: str, outcome: str, now: float) -> list[Action]:
        """Record a deed's outcome. The first one stands."""
        return self.action_log.close(id, outcome, self.unix(now))


TAKEOVER_S = 300.0
"""How long a round without the node may take to run: a new node's start is among what it may have to wait for."""


def open_swap(swap: Swap, now: float) -> OpenSwap:
    """A swap that begins, or goes on in another life of the supervisor."""
    return OpenSwap(swap=swap, until=NEVER if swap.step == SwapStep.AWAIT else now + TAKEOVER_S)

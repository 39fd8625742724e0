"""How is a node taken out of its job, exactly once, whoever dies meanwhile?

    exclude ──▶ drain ──▶ replace ──▶ watch ──▶ over
    its job     the scheduler         a round without it runs
                gives it no more work; another is asked for, if none waits

Each step is written down before it is begun, and each can be done twice to the same end: an order and a call have ids made of
the swap's. So a supervisor that comes back does the step that was begun again, and goes on from there. The order to exclude is
said to one agent of the job after the other, the sick node's own last, until one has answered: none of them is waited for
longer than its deadline.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action
from holdfast.core.value import replace
from holdfast.core.wire.fleet import Order, Swap
from holdfast.supervisor.fleet.messages import Call, Keep, Tell
from holdfast.supervisor.fleet.node import DRAINING, SUSPECT, UNFIT
from holdfast.supervisor.fleet.queues import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.supervisor.fleet.machine import Fleet

STEPS = ("exclude", "drain", "replace", "watch")

RETRY_S, TRIES = 5.0, 12
"""When every agent of the job has been asked in vain, they are asked again after RETRY_S, TRIES times in all."""

TAKEOVER_S = 300.0
"""How long a round without the node may take to run: a new node's start is among what it may have to wait for."""

REPORTS_S = 5.0
"""Within so much of each other the nodes of a round say that their ranks run."""


class Progress:
    """What this life of the supervisor knows of a swap."""

    def __init__(self, begun_at: float) -> None:
        self.tried: list[str] = []
        """Reporters that have been asked in vain."""
        self.tries = 0
        self.wake_at = NEVER
        """When to look again."""
        self.until = begun_at + TAKEOVER_S
        self.is_settled = False
        """A round without the node has been running for REPORTS_S: whoever has ranks in it has said so."""


class Swaps:
    """All that are under way."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.by_id: dict[str, Swap] = {}
        self.progress: dict[str, Progress] = {}

    def of(self, node: str) -> Swap | None:
        """The one about that node."""
        return next((swap for swap in self.by_id.values() if swap.node == node), None)

    @property
    def promised(self) -> set[str]:
        """Spares that are to take over somewhere."""
        return {swap.spare for swap in self.by_id.values() if swap.spare}

    def begin(self, swap: Swap, by: str, now: float) -> list[Action]:
        """Take a node out. What is to be done is written down before anything is."""
        node = self.fleet.nodes[swap.node]
        node.hold(DRAINING, swap.reason, by)
        self.by_id[swap.id], self.progress[swap.id] = swap, Progress(now)
        kept: list[Action] = [Keep(table="swaps", key=swap.id, value=swap)]
        return kept + self.fleet.keep(node, swap.reason) + self.advance(swap.id, now)

    def resume(self, swap: Swap, now: float) -> None:
        """It was under way when another life of the supervisor ended."""
        self.by_id[swap.id], self.progress[swap.id] = swap, Progress(now)

    def deadline(self) -> float:
        """When to call `due`."""
        return min((min(one.wake_at, one.until) for one in self.progress.values()), default=NEVER)

    def due(self, now: float) -> list[Action]:
        """What the passing of time has brought."""
        actions: list[Action] = []
        for id, progress in list(self.progress.items()):
            if now >= progress.until and self.by_id[id].step == "watch":
                actions += self._over(id, "the job has not gone on without it in time", now)
            elif now >= progress.wake_at or now >= progress.until:
                progress.is_settled = self.by_id[id].step == "watch" and now >= progress.wake_at
                progress.wake_at, progress.until = NEVER, max(progress.until, now + RETRY_S)
                actions += self.advance(id, now)
        return actions

    def look(self, job: str, now: float) -> list[Action]:
        """A reporter of that job has said something new."""
        ids = [id for id, swap in self.by_id.items() if swap.job == job and swap.step in ("exclude", "watch")]
        return [action for id in ids for action in self.advance(id, now)]

    # --- its steps ------------------------------------------------------------------------------------------------------

    def advance(self, id: str, now: float) -> list[Action]:
        """Begin the step that it is at, or go on from it. Called again, it begins nothing twice."""
        swap = self.by_id[id]
        if f"{id}.{swap.step}" in self.fleet.queues:
            return []
        match swap.step:
            case "exclude":
                return self._exclude(swap, now)
            case "drain" | "replace":
                call = Call(task=f"{id}.{swap.step}", verb=swap.step, target=swap.node, reason=swap.reason)
                return self.fleet.queues.push(Task(id=call.task, host=f"orchestrator {swap.node}", action=call), now)
        return self._watch(swap, now)

    def answered(self, id: str, verb: str, ok: bool, text: str, now: float) -> list[Action]:
        """What came of the step that was begun."""
        swap = self.by_id.get(id)
        if swap is None or swap.step != verb:
            return []
        if verb == "exclude" and not ok:
            return self._refused(swap, text, now)
        return self.fleet.ledger.note(id, f"{verb}: {text}") + self._go_on(swap, now)

    def late(self, id: str, verb: str, now: float) -> list[Action]:
        """Nobody has answered in time."""
        swap, progress = self.by_id.get(id), self.progress.get(id)
        if swap is None or progress is None or swap.step != verb:
            return []
        if verb == "exclude":
            noted = self.fleet.ledger.note(id, f"exclude: {self._name(progress.tried[-1])} has not answered")
            return noted + self.advance(id, now)
        return self.fleet.ledger.note(id, f"{verb}: the orchestrator has not answered") + self._go_on(swap, now)

    def _go_on(self, swap: Swap, now: float) -> list[Action]:
        then = STEPS[STEPS.index(swap.step) + 1]
        if then == "replace" and not swap.replaces:
            then = "watch"
        self.by_id[swap.id] = swap = replace(swap, step=then)
        kept: list[Action] = [Keep(table="swaps", key=swap.id, value=swap)]
        return kept + self.advance(swap.id, now)

    def _exclude(self, swap: Swap, now: float) -> list[Action]:
        progress, job = self.progress[swap.id], self.fleet.jobs.get(swap.job)
        if not swap.job or (now >= self.fleet.settled_at and (job is None or not job.reports)):
            return self._go_on(swap, now)
        if job is not None and job.is_watched:
            why = "exclude: its launcher takes no orders from us; whoever gives it nodes is told"
            return self.fleet.ledger.note(swap.id, why) + self._go_on(swap, now)
        left = (one for one in (job.speakers(but=swap.node) if job else ()) if one not in progress.tried)
        if speaker := next(filter(self.fleet.is_linked, left), ""):
            progress.tried.append(speaker)
            order = self.fleet.order(f"{swap.id}.exclude", "exclude", swap.reason, target=swap.node)
            return self.fleet.queues.push(_told(speaker, self._name(speaker), order), now)
        progress.tries += any(map(self.fleet.is_linked, progress.tried))
        if progress.tries >= TRIES:
            return self._refused(swap, "no agent of its job has answered", now)
        progress.tried, progress.wake_at = [], now + RETRY_S
        return []

    def _watch(self, swap: Swap, now: float) -> list[Action]:
        job = self.fleet.jobs.get(swap.job)
        if not swap.job:
            return self._over(swap.id, "no job ran there", now)
        if job is None or not job.reports:
            return self._over(swap.id, "its job has ended", now) if now >= self.fleet.settled_at else []
        with_ranks = job.ranked
        if job.round <= swap.round or not job.is_running or swap.node in with_ranks:
            return []
        if swap.spare and swap.spare not in with_ranks:
            progress = self.progress[swap.id]
            progress.wake_at = min(progress.wake_at, now + REPORTS_S)
            if not progress.is_settled:
                return []
        size = "1 node" if len(with_ranks) == 1 else f"{len(with_ranks)} nodes"
        took = f"{swap.spare} has taken over" if swap.spare in with_ranks else f"the job goes on with {size}"
        return self._over(swap.id, f"{took} in round {job.round}", now)

    def _refused(self, swap: Swap, text: str, now: float) -> list[Action]:
        """The job cannot go on without it, says its coordinator; or nobody says anything."""
        self._forget(swap)
        node = self.fleet.nodes[swap.node]
        node.hold(SUSPECT, f"{swap.reason}; it still has its place in {swap.job}: {text}", node.by)
        struck: list[Action] = [Keep(table="swaps", key=swap.id, value=None)]
        return struck + self.fleet.keep(node) + self.fleet.acts.failed(swap.id, text, now)

    def _over(self, id: str, outcome: str, now: float) -> list[Action]:
        swap = self.by_id[id]
        self._forget(swap)
        node = self.fleet.nodes[swap.node]
        if node.standing == DRAINING:  # else an operator has let it back meanwhile
            node.hold(UNFIT, swap.reason, node.by)
        struck: list[Action] = [Keep(table="swaps", key=id, value=None)]
        return struck + self.fleet.keep(node, outcome) + self.fleet.ledger.close(id, outcome, self.fleet.unix(now))

    def _forget(self, swap: Swap) -> None:
        del self.by_id[swap.id], self.progress[swap.id]

    def _name(self, reporter: str) -> str:
        return self.fleet.reporters.get(reporter, reporter)


def _told(reporter: str, host: str, order: Order) -> Task:
    return Task(id=order.order, host=host, action=Tell(node=reporter, message=order))

"""Which states does a node of the fleet have, and its swap, and what leads from one to another? A walk of the machine finds it.

Begins with a job on two nodes, and shows the machine everything that may be said or happen about one of them, again and again,
until no new state comes up. States are told apart by what is known of that node, its swap and its job. `fleet.py` draws them.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator

from holdfast.core.machine import NEVER, Observation, Tick
from holdfast.core.value import Value
from holdfast.core.wire.fleet import (
    Alive,
    Bye,
    Did,
    NodeState,
    RankSaid,
    ReporterState,
    Standing,
    SwapStep,
    Trouble,
    TroubleKind,
)
from holdfast.supervisor.fleet.machine import Fleet
from holdfast.supervisor.fleet.messages import Asked, Call, Called, Said, Tell, Unlinked, Wish
from holdfast.supervisor.fleet.policies.default import Default
from holdfast.supervisor.fleet.state import FleetState

IT, OTHER, JOB = "a", "b", "train"
LEASE_S = 400.0
"""Longer than anything else that is waited for, so that few signs of life are needed."""
SWAP = "no swap"
"""The state of a swap that is not under way."""


class Step(Value):
    """One thing that may happen in one state, and what it leads to: the same state, often."""

    machine: str
    """node · swap"""
    before: str
    event: str
    after: str


Story = tuple[str, list[tuple[Observation, float]], float]
"""What happens, in words; the observations, each with its time; and the time afterwards."""


def walk() -> set[Step]:
    """Every step that there is."""
    first = Fleet(Default(), generation=1, lease_s=LEASE_S, now=0.0, now_unix=0.0)
    now = 0.5
    for seen in (_stands(first.state, OTHER, ranks=1), _stands(first.state, IT, ranks=1)):
        first.observe(seen, now)
    for at, seen in _keep_alive(first.state, now, LEASE_S + 1.0, {IT, OTHER}):
        first.observe(seen, at)
    seen_before, left, steps = {_state(first.state)}, deque([(first, LEASE_S + 1.0)]), set[Step]()
    while left:
        fleet, now = left.popleft()
        kept = pickle.dumps(fleet)  # several times as fast as a deep copy
        for text, shown, then in _everything(fleet.state, now):
            after: Fleet = pickle.loads(kept)
            for seen, at in shown:
                after.observe(seen, at)
            steps.add(Step(machine="node", before=_node(fleet.state), event=text, after=_node(after.state)))
            steps.add(Step(machine="swap", before=_swap(fleet.state), event=text, after=_swap(after.state)))
            if (state := _state(after.state)) not in seen_before:
                seen_before.add(state)
                left.append((after, then))
    return steps


def _everything(fleet: FleetState, now: float) -> Iterator[Story]:
    """What may happen next."""
    node, known = fleet.nodes[IT], f"{IT}-1" in fleet.reporters
    yield "its agent reports ranks", [(_stands(fleet, IT, ranks=1), now)], now
    yield "its agent reports no ranks", [(_stands(fleet, IT), now)], now
    yield "its agent finds it unfit", [(_stands(fleet, IT, unfit="its fan"), now)], now
    yield "the job runs its next round elsewhere", [(_stands(fleet, OTHER, ranks=1, round=fleet.jobs[JOB].round + 1), now)], now
    if fleet.jobs[JOB].least == 1:
        yield "the job needs all its nodes", [(_stands(fleet, OTHER, ranks=1, least=2), now)], now
    yield "an operator drains it", [(Asked(ask=1, wish=Wish.DRAIN, node=IT, reason="told to"), now)], now
    yield "an operator uncordons it", [(Asked(ask=1, wish=Wish.UNCORDON, node=IT, reason="told to"), now)], now
    if known:
        yield "its agent says goodbye", [(Said(message=Bye(node=f"{IT}-1", reason="done")), now)], now
        for text, trouble in TROUBLES.items():
            numbered = Trouble(node=f"{IT}-1", number=_number(fleet), round=fleet.jobs[JOB].round, **trouble)
            yield text, [(Said(message=numbered), now)], now
    if node.linked:
        yield "its link breaks", [(Unlinked(node=f"{IT}-1"), now)], now
    if node.linked and not node.is_lost:
        shown = [(seen, at) for at, seen in _keep_alive(fleet, now, now + LEASE_S, {OTHER})]
        yield "it is silent for a lease", [*shown, (Tick(), now + LEASE_S)], now + LEASE_S
    for ok, text in ((True, "a request for it is done"), (False, "a request for it is refused")):
        if answers := list(_answers(fleet, ok)):
            yield text, [(seen, now) for seen in answers], now
    if (until := _due(fleet)) != NEVER:
        heard = {IT, OTHER} if node.linked and not node.is_lost else {OTHER}
        shown = [(seen, at) for at, seen in _keep_alive(fleet, now, until, heard)]
        yield "an awaited answer does not come in time", [*shown, (Tick(), max(now, until))], max(now, until)


TROUBLES: dict[str, dict[str, object]] = {
    "a rank fails on it": {"kind": TroubleKind.WORKER, "what": "exit code 1"},
    "a device of it needs watching": {"kind": TroubleKind.DEVICE, "what": "Xid 92", "xid": 92, "device": "0"},
    "a device of it is broken": {"kind": TroubleKind.DEVICE, "what": "Xid 79", "xid": 79, "device": "0"},
    "its checks find it unfit": {"kind": TroubleKind.UNFIT, "what": "its fan"},
}


def _stands(fleet: FleetState, node: str, *, ranks: int = 0, unfit: str = "", round: int = 0, least: int = 0) -> Said:
    job = fleet.jobs.get(JOB)
    return Said(
        message=Standing(
            node=f"{node}-1",
            number=_number(fleet),
            name=node,
            job=JOB,
            life="1",
            state=ReporterState.RUNNING if ranks else ReporterState.JOINING,
            round=round or (job.round if job is not None and job.round else 1),
            ranks=(RankSaid(rank=0, local_rank=0, state="running"),) * ranks,
            members=(IT, OTHER) if node == OTHER else None,
            unfit=unfit,
            least=least or (job.least if job is not None else 1),
        )
    )


def _number(fleet: FleetState) -> int:
    """One that no trouble had before."""
    return max(fleet.nodes[IT].heard.values(), default=0) + 1 if IT in fleet.nodes else 1


def _keep_alive(fleet: FleetState, now: float, until: float, nodes: set[str]) -> Iterator[tuple[float, Observation]]:
    """Signs of life of these, often enough."""
    while (now := now + LEASE_S / 4) < until:
        for node in sorted(nodes):
            yield now, Said(message=Alive(node=f"{node}-1"))


def _answers(fleet: FleetState, ok: bool) -> Iterator[Observation]:
    """To what is asked of the scheduler, or of the job's agents, just now."""
    for queue in fleet.queues.by_host.values():
        match queue[0].action:
            case Tell(node=reporter, message=order):
                yield Said(message=Did(node=reporter, order=order.order, ok=ok, text="done" if ok else "no"))
            case Call(task=task):
                yield Called(task=task, ok=ok, text="done" if ok else "no")


def _due(fleet: FleetState) -> float:
    """When something other than a lease is over."""
    waits = [fleet.queues.deadline(), *(one.until for one in fleet.missing.values())]
    waits += [min(one.until, one.act_at) for one in fleet.open_deeds.values()]
    return min([*waits, *(min(one.until, one.look_at) for one in fleet.open_swaps.values())])


def _node(fleet: FleetState) -> str:
    return str(fleet.nodes[IT].state)


def _swap(fleet: FleetState) -> str:
    swap = fleet.swap_of(IT)
    return str(swap.step) if swap is not None else SWAP


def _state(fleet: FleetState) -> tuple[object, ...]:
    node, swap = fleet.nodes[IT], fleet.swap_of(IT)
    behind = swap is not None and fleet.jobs[JOB].round > swap.round
    deeds, least = bool(fleet.open_deeds), fleet.jobs[JOB].least
    return node.state, node.standing, node.by, bool(node.linked), _swap(fleet), behind, deeds, least


STATES, SWAPS = tuple(NodeState), (SWAP, *SwapStep)

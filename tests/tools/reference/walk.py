"""Which states does the rendezvous have, and what leads from one to the other? Found by walking the machine itself.

Begins with an empty rendezvous of one to two nodes and shows it everything that may be said or happen there, again and again,
until no new state comes up; states are told apart by phase and by what is known of each seat. `rounds.py` draws it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from holdfast.core.job.events import Decided, NodeLeft, NodeLost
from holdfast.core.job.failure import Failure
from holdfast.core.machine import NEVER, Action, Observation, Record, Tick
from holdfast.core.value import Value
from holdfast.core.wire.messages import Failed, Join, Leave, Message, Request, RequestKind, Stopped, Succeeded
from holdfast.recovery.policy import RestartOnFailure
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.rules import Heard, HostLeaves, Rules

NODES = ("a", "b")
RULES = Rules(job="job", min_nodes=1, max_nodes=len(NODES), lease_s=3.0)
MAX_RESTARTS = 1
HEEDED, IGNORED = "heeded", "ignored"
"""What comes of an event in a phase: something, in one of its states at least; or nothing in any."""
WAITED = "what was waited for is over: the last call, a pause, the fence of a lost node"


class Step(Value):
    """One thing that happens in one state, and what it leads to."""

    machine: str
    """phase (of the rendezvous) · seat (of a node in it) · seen (in a phase: something comes of it, or nothing)"""
    before: str
    event: str
    after: str


class Watched(Rendezvous):
    """A rendezvous that notes every phase it passes through, also within one observation."""

    phases: list[str]

    def __setattr__(self, name: str, value: object) -> None:
        if name == "phase":
            self.__dict__.setdefault("phases", []).append(value)
        object.__setattr__(self, name, value)


def walk() -> set[Step]:
    """Every step that there is."""
    first = Watched(RULES, RestartOnFailure(max_restarts=MAX_RESTARTS), now=0.0, now_unix=0.0)
    seen, left, steps = {_state(first)}, [(first, 0.0)], set[Step]()
    while left:
        machine, now = left.pop()
        for node, text, what, at in _everything(machine, now):
            after = copy.deepcopy(machine)
            after.phases = [after.phase]
            actions = after.observe(what, at)
            steps.update(_steps(machine, node, text, actions, after))
            is_heeded = bool(actions) or _state(after) != _state(machine)
            heeded = HEEDED if is_heeded else IGNORED
            steps.add(Step(machine="seen", before=machine.phase, event=_in_general(text), after=heeded))
            if (state := _state(after)) not in seen:
                seen.add(state)
                left.append((after, at))
    return steps


def _in_general(text: str) -> str:
    return text.replace("IT", "a node")


def _everything(machine: Watched, now: float) -> Iterator[tuple[str, str, Observation, float]]:
    """What may be seen next: the node that it is about, in words with `IT` for that, as an observation, and when."""
    for node in NODES:
        for text, message in _messages(node, machine):
            yield node, text, Heard(message=message), now
    yield "", "an operator stops the job", Heard(message=Request(node="a", kind=RequestKind.STOP, reason="told to")), now
    yield "", "the coordinator's agent ends", HostLeaves(reason="told to"), now
    if machine.deadline() != NEVER:
        yield "", "time passes", Tick(), max(now, machine.deadline())
    if machine.phase == "gathering":
        yield "", "time passes", Tick(), max(now, machine.gathering.gives_up_at)


def _messages(node: str, machine: Watched) -> Iterator[tuple[str, Message]]:
    number, seat = machine.round, machine.seats.get(node)
    if seat is None or seat.state in ("stopped", "running"):
        text = "IT joins" if seat is None else "IT joins again, without workers"
        yield text, Join(node=node, name=node, addr=node, master_port=1, nproc=1, role="default", round=number)
    if seat is None:
        return
    yield "IT leaves", Leave(node=node, round=number, reason="told to")
    if node == NODES[-1]:  # one will do
        yield "IT is excluded", Request(node="a", kind=RequestKind.EXCLUDE, target=node, ask=1, reason="told to")
        yield "IT is readmitted", Request(node="a", kind=RequestKind.READMIT, target=node, ask=1, reason="told to")
    if seat.state in ("running", "stopping", "leaving", "succeeded"):
        yield "IT has no workers left", Stopped(node=node, round=number)
    if seat.state == "running":
        failure = Failure(node=node, rank=0, local_rank=0, at_unix=0.0, exitcode=1)
        yield "IT has a worker that failed", Failed(node=node, round=number, failure=failure)
        yield "IT has workers that all exited with 0", Succeeded(node=node, round=number)
        for kind, wish in (("exclude", "to leave its node out"), ("restart", "a restart"), ("stop", "the job stopped")):
            asked = Request(node=node, round=number, kind=RequestKind(kind), rank=0, reason="told to")
            yield f"IT has a worker that wants {wish}", asked


def _steps(before: Watched, about: str, text: str, actions: list[Action], after: Watched) -> Iterator[Step]:
    events = [action.event for action in actions if isinstance(action, Record)]
    decided = [event.decision for event in events if isinstance(event, Decided)]
    lost = [event.name for event in events if isinstance(event, (NodeLost, NodeLeft))] if text == "time passes" else []
    if text == "time passes":
        about = "".join(lost[:1])
        late = before.phase == "gathering" and "stop" in decided
        text = "too few came within the join timeout" if late else "IT is lost: its lease is over" if lost else WAITED
    elif text in ("IT has a worker that failed", "IT has a worker that wants a restart") and decided:
        text += "; the policy restarts" if "stop" not in decided else "; the policy ends the job"
    for one, two in zip(after.phases, after.phases[1:]):
        if one != two:
            yield Step(machine="phase", before=one, event=text.replace("IT", "a node"), after=two)
    for node in NODES:
        old, new = (machine.seats[node].state if node in machine.seats else "no seat" for machine in (before, after))
        if old != new:
            mine = node == about or node in lost
            said = "it is lost: its lease is over" if node in lost else text.replace("IT", "it" if mine else "another")
            yield Step(machine="seat", before=old, event=said, after=new)


def _state(machine: Watched) -> tuple[object, ...]:
    seats = tuple((seat.join.node, seat.state) for _, seat in sorted(machine.seats.items()))
    return machine.phase, min(machine.round, 1), machine.outcome, machine.restarts, seats, tuple(machine.excluded)

"""What does docs/reference/succession.md say, and the diagram in docs/explanation/succession.md?

Found by walking the machine: three kinds of node are shown everything that they may see, again and again, until no new state
comes up. States are told apart by the role and by what decides there: the roster, the promise, the call, supporters, votes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator

from holdfast.core.job.report import JobReport
from holdfast.core.machine import NEVER, Observation, Tick
from holdfast.core.value import Value, fields_of, replace
from holdfast.core.wire.links import Arrived, LinkDown, LinkUp
from holdfast.core.wire.messages import Electorate, Finish, Leads, Past, Propose, Roster, Seek, Vote
from holdfast.rendezvous.election.leader_lease import promise_of
from holdfast.rendezvous.election.messages import MemberLink, Reported
from holdfast.rendezvous.election.succession import Succession
from holdfast.rendezvous.election.succession_state import (
    AgentLeaves,
    JobEnded,
    Knocked,
    LeaderNamed,
    LeaseRenewed,
    Role,
    Seated,
    ServesOrigin,
    Setup,
    SpareOrNot,
    State,
    TakenIn,
)
from holdfast.rendezvous.election.witness_claims import Claimed

LEASE_S = 3.0
LINE = ("a", "b", "c")
ENDED = JobReport(job="j", outcome="succeeded", exit_code=0, started_at_unix=0.0, ended_at_unix=1.0, reason="done", life="L")
GUEST, OTHER_GUEST = 1 << 20, (1 << 20) + 1
ROLES = tuple(Role)

HEAD = """\
# Succession: roles and transitions

<!-- Made by `make reference`. Do not edit. -->

[Succession](../explanation/succession.md) explains the words. A program walks the machine for this page: it feeds every
possible event to every state, until no new state comes up.

## The roles of one node

| role | meaning |
|---|---|
| founding | The node leads because no other node did, and no round has formed yet. |
| leading | The node leads. |
| ended | The node leads, and the job has ended. |
| yielding | The node founded, met an older run of the job, and leaves the lead to that run for a while. |
| following | The node hears a leader, or cannot seek one because it has no roster. |
| seeking | The node has heard no leader for a lease, and asks the nodes in its roster's line. |

"""

SEEN = """
## Events in each role

`–`: the event is ignored, or cannot happen. `stays`: it has an effect, and the role stays. `→`: it may lead to that role, if
the condition holds (a majority, a newer roster, a later term).

"""


class Step(Value):
    """One thing seen in one role, and what it leads to."""

    before: Role
    event: str
    after: Role
    heeded: bool
    """Something was done, or is known since."""


def walk() -> set[Step]:
    """Every step that there is."""
    steps, known = set[Step](), set[object]()
    left = [(machine, 0.0) for machine in _beginnings()]
    while left:
        machine, now = left.pop()
        for event, seen, at in _everything(machine, now):
            before = machine if isinstance(seen, Tick) else _settled(machine, at)
            after = _copied(before)
            did = after.observe(seen, at)
            heeded = bool(did) or _knows(after) != _knows(before)
            if isinstance(seen, Reported):
                after.observe(Tick(), at)  # with which the node begins its next observation
            steps.add(Step(before=before.state.role, event=event, after=after.state.role, heeded=heeded))
            if (state := _state(after, at)) not in known:
                known.add(state)
                left.append((after, at))
    return steps


def page(steps: Iterable[Step]) -> str:
    """The whole page."""
    steps = sorted(steps, key=lambda step: (step.before, step.after, step.event))
    return "".join([HEAD, diagram(steps), "\n", _arrows(steps), SEEN, _table(steps)])


def diagram(steps: Iterable[Step]) -> str:
    """The roles, for a renderer of Mermaid: the arrows are those that the walk found."""
    lines = [f"    {before} --> {after}: {_reasons(before, after)}" for before, after in _found(steps)]
    begins = ["    [*] --> founding: it serves the job's endpoint", "    [*] --> following"]
    return "\n".join(["```mermaid", "stateDiagram-v2", *begins, *lines, "```", ""])


def _reasons(before: Role, after: Role) -> str:
    """The walk finds the arrows; what they mean is put in a few words here."""
    return {
        (Role.FOUNDING, Role.LEADING): "its first round has formed",
        (Role.FOUNDING, Role.YIELDING): "a node of an older run comes",
        (Role.FOUNDING, Role.SEEKING): "a node of an older run brings a roster",
        (Role.FOUNDING, Role.FOLLOWING): "another leads, or this agent leaves",
        (Role.YIELDING, Role.FOUNDING): "the older run is silent",
        (Role.YIELDING, Role.FOLLOWING): "another leads",
        (Role.YIELDING, Role.SEEKING): "a node of an older run brings a roster",
        (Role.FOLLOWING, Role.SEEKING): "no leader was heard for a lease",
        (Role.FOLLOWING, Role.LEADING): "late votes arrive",
        (Role.SEEKING, Role.FOLLOWING): "a leader is heard, or named",
        (Role.SEEKING, Role.LEADING): "a majority's votes",
        (Role.LEADING, Role.SEEKING): "the mandate is over",
        (Role.LEADING, Role.FOLLOWING): "another leads in a later term<br>or this agent leaves",
        (Role.LEADING, Role.ENDED): "the job has ended",
        (Role.ENDED, Role.FOLLOWING): "another leads in a later term<br>or this agent leaves",
    }[before, after]


def _arrows(steps: Iterable[Step]) -> str:
    rows = [f"| {before} | {after} | {' · '.join(events)} |\n" for (before, after), events in _found(steps).items()]
    return "| from | to | when |\n|---|---|---|\n" + "".join(rows)


def _found(steps: Iterable[Step]) -> dict[tuple[Role, Role], list[str]]:
    found: dict[tuple[Role, Role], list[str]] = {}
    for step in sorted(steps, key=lambda step: (step.before, step.after, step.event)):
        if step.before is not step.after:
            found.setdefault((step.before, step.after), []).append(step.event)
    return found


def _table(steps: Iterable[Step]) -> str:
    cells: dict[str, dict[Role, set[str]]] = {}
    for step in steps:
        said = f"→ {step.after}" if step.after is not step.before else "stays" if step.heeded else ""
        cells.setdefault(step.event, {}).setdefault(step.before, set()).add(said)
    head = f"| what is seen | {' | '.join(ROLES)} |\n|---|{'---|' * len(ROLES)}\n"
    return head + "".join(
        f"| {event} | {' | '.join(', '.join(sorted(row.get(role, set()) - {''})) or '–' for role in ROLES)} |\n"
        for event, row in sorted(cells.items())
    )


# --- what is walked -------------------------------------------------------------------------------------------------------


def _beginnings() -> Iterator[Succession]:
    for endpoint, goes_on, witness in (("a", False, False), ("b", False, False), ("b", True, False), ("b", False, True)):
        setup = Setup(endpoint=endpoint, origin="a", lease_s=LEASE_S, began_at=0.0, goes_on=goes_on, witness=witness)
        machine = Succession(setup, founder=endpoint == "a", fresh_life="fresh")
        machine.begin(0.0)
        yield machine


def _everything(machine: Succession, now: float) -> Iterator[tuple[str, Observation, float]]:
    """What may be seen next: in words, as an observation, and when."""
    state = machine.state
    ends = (state.free_at, state.proposal.until, NEVER if state.mandate is None else state.mandate.counted)
    for at in {max(now, time) for time in (machine.deadline(), *ends) if time != NEVER}:
        yield _by_time(state, at), Tick(), at
    yield from ((event, seen, now) for event, seen in _reports(state))
    yield from ((event, seen, now) for event, seen in _said(state, now))


def _copied(machine: Succession) -> Succession:
    after, state = copy.copy(machine), machine.state
    after.state = replace(state, ballot=copy.deepcopy(state.ballot), mandate=copy.deepcopy(state.mandate))
    return after


def _settled(machine: Succession, now: float) -> Succession:
    """As it is once nothing is due: a node shows its machine a Tick before anything else."""
    after = _copied(machine)
    for _ in range(len(LINE) + 1):
        before = _knows(after)
        after.observe(Tick(), now)
        if _knows(after) == before:
            break
    return after


def _knows(machine: Succession) -> object:
    """All that it knows, in a form that can be compared."""
    state = machine.state
    mandate = None if state.mandate is None else (state.mandate.line, state.mandate.counted, len(state.mandate.bodies))
    return fields_of(state) | {"ballot": vars(state.ballot), "mandate": mandate}


def _by_time(state: State, at: float) -> str:
    if state.mandate is not None and copy.deepcopy(state.mandate).ends(at) <= at:
        return "the mandate is over: too few are loyal"
    if state.role is Role.YIELDING and at >= state.lead_at:
        return "the older run has been silent for a while"
    if state.role is Role.FOLLOWING and state.roster is not None and at >= state.seek_at:
        return "no leader was heard for a lease"
    return "time passes: a call, a promise, a proposal or a pause is over"


def _reports(state: State) -> Iterator[tuple[str, Observation]]:
    """What the node reports."""
    yield "a `Renewed` from the leader", LeaseRenewed()
    yield "a `Renewed` with a newer roster", LeaseRenewed(roster=_roster(state, newer=True))
    yield "the member hears who leads", LeaderNamed(leads=_leads(state, later=True))
    yield "the coordinator says which run it leads", TakenIn(life="another")
    yield "the member's link comes up or breaks", MemberLink(up=not state.linked)
    yield "the node becomes a spare, or stops being one", SpareOrNot(is_spare=not state.is_spare)
    if not state.leads:
        return
    yield "a member of an older run calls this node as its coordinator", Knocked(roster=5, life="older")
    yield "a round has formed, or its seats have changed", Seated(line=(state.setup.endpoint, "c"))
    yield "the job has ended", JobEnded()
    yield "nobody serves the job's endpoint, and it is here", ServesOrigin()
    yield "this agent leaves, and others go on", AgentLeaves(reason="excluded")


def _said(state: State, now: float) -> Iterator[tuple[str, Observation]]:
    """What comes over links, and the witness's answer."""
    if state.dial.to:
        yield "the called node answers", LinkUp(link=state.dial.link, ours=True)
        yield "the called node cannot be reached, or hangs up", LinkDown(link=state.dial.link, reason="", refused=True)
        leads = _leads(state, later=True)
        yield "`Leads`: another leads, in a later term", Arrived(link=state.dial.link, message=leads)
        yield "`Finish`: the called node says how the run ended", Arrived(link=state.dial.link, message=Finish(report=ENDED))
        propose = Propose(term=state.term + 1, mark=now, roster=9)
        yield "`Propose`: the called node asks for a vote", Arrived(link=state.dial.link, message=propose)
    for later, event in ((True, "in a later term"), (False, "in an earlier term")):
        knock = Seek(node="c", term=0, leads=_leads(state, later=later))
        yield f"`Seek` of a node that leads, {event}", Arrived(link=GUEST, message=knock)
    held = _roster(state, newer=False)
    yield "`Seek` of a node that would vote", Arrived(link=GUEST, message=Seek(node="c", term=0, roster=held, free=True))
    yield "`Seek` of a node whose promise binds it", Arrived(link=OTHER_GUEST, message=Seek(node="a", term=0, roster=held))
    yield "a node that sought a leader hangs up", LinkDown(link=GUEST, reason="")
    vote = Vote(node="c", term=state.term, mark=state.proposal.at)
    yield "`Vote` for this node's proposal", Arrived(link=GUEST, message=vote)
    if state.claims.asking:
        for granted, event in ((True, "speaks for this node"), (False, "speaks for another")):
            yield f"the witness {event}", Claimed(id=_roster(state, newer=False).version, granted=granted, reason="b has it")


def _roster(state: State, *, newer: bool) -> Roster:
    """As the node holds it; else, or `newer`, one of three nodes, or of two where a witness decides."""
    if state.roster is not None and not newer:
        return state.roster
    line = LINE[:2] if state.setup.witness else LINE
    newest = Electorate(id=5, size=len(line), mine=True, witness=state.setup.witness)
    return Roster(
        version=5, term=state.term, promise_s=promise_of(LEASE_S), line=line, electorates=(newest,), past=Past(life="older")
    )


def _leads(state: State, *, later: bool) -> Leads:
    return Leads(endpoint="c", term=state.term + 1 if later else state.term - 1, life=state.life)


def _state(machine: Succession, now: float) -> tuple[object, ...]:
    """What tells states apart: times only by whether they have come."""
    it = machine.state
    has_end = it.mandate is not None and copy.deepcopy(it.mandate).ends(now) != NEVER
    return (
        *(it.setup.endpoint, it.setup.goes_on, it.setup.witness, it.role, it.roster is not None, has_end),
        *(bool(it.dial.to), it.dial.up, now >= it.free_at, now < it.proposal.until),
        *(len(it.ballot.links), len(it.ballot.claims), it.claims.asking),
    )

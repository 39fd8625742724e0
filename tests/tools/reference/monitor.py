"""What may be seen in which phase of a monitor, and what follows? Found by walking `monitor.machine`.

Begins with a monitor without ranks, once with given limits and once with learned ones, and shows it everything that can happen
until no new state comes up. The page is docs/reference/monitor.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.machine import NEVER, Observation, Tick
from holdfast.core.page.signs import Signs
from holdfast.core.value import Value, replace
from holdfast.monitor.machine import step
from holdfast.monitor.messages import (
    FaultPlayed,
    GpusSeen,
    PaceHeard,
    RankGone,
    RankMeasured,
    RankSeen,
    RanksMeasured,
    RankStarted,
    RoundBegan,
)
from holdfast.monitor.state import Phase, State, with_rank, with_stillness

HEAD = """\
# A monitor: phases and observations

<!-- Made by `make reference`. Do not edit. -->

One machine, `Monitor`, decides whether a node's ranks make progress. A program walks the machine for this page: it feeds every
possible event to every state, until no new state comes up.

## The phases

"""

TABLE = """

## Events in each phase

A name: the phase that follows. `hangs`: a rank is found to hang. `✓`: it acts or learns, and the phase stays. `·`: nothing
follows. Empty: it cannot happen.

"""

RANKS = 2
GIVEN_S = 10.0
GIVEN = FaultTolerance(rank_heartbeat_timeout=GIVEN_S, start_limit=GIVEN_S)
LEARNS = FaultTolerance(still_limit=100.0)
MEASURED = (Phase.SUSPECTING, Phase.ASKING, Phase.STILL)


class Step(Value):
    """One thing that happens in one phase, and what it leads to."""

    before: Phase
    event: str
    after: Phase
    acts: bool
    hangs: bool


def walk() -> set[Step]:
    """Every step that there is."""
    left = [(State(ft=ft, node="a"), 0.0) for ft in (GIVEN, LEARNS)]
    known, steps = {_key(state) for state, _ in left}, set[Step]()
    while left:
        state, now = left.pop()
        for event, before, observation, at in _everything(state, now):
            after, actions = step(before, observation, at)
            hangs = any(type(action).__name__ == "Overdue" for action in actions)
            acts = bool(actions) or after != before
            steps.add(Step(before=state.phase, event=event, after=after.phase, acts=acts, hangs=hangs))
            if (key := _key(after)) not in known:
                known.add(key)
                left.append((after, at))
    return steps


def page(steps: Iterable[Step]) -> str:
    """The whole page."""
    found: dict[str, dict[Phase, set[str]]] = {}
    for one in steps:
        told = {one.after.value} if one.after is not one.before else {"✓"} if one.acts and not one.hangs else set()
        told |= {"hangs"} if one.hangs else set()
        found.setdefault(one.event, {}).setdefault(one.before, set()).update(told or {"·"})
    cells = ((event, [_cell(told.get(phase, set())) for phase in Phase]) for event, told in sorted(found.items()))
    rows = [f"| {event} | {' | '.join(row)} |" for event, row in cells]
    head = [f"| seen | {' | '.join(Phase)} |", "|---" * (len(Phase) + 1) + "|"]
    return HEAD + diagram(steps) + TABLE + "\n".join([*head, *rows, ""])


def diagram(steps: Iterable[Step]) -> str:
    """The phases, for a renderer of Mermaid."""
    names = {phase: phase.name.lower() for phase in Phase}
    arrows = sorted({(names[one.before], names[one.after]) for one in steps if one.before is not one.after})
    lines = [f"    {before} --> {after}" for before, after in arrows]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> no_ranks", *lines, "```"])


def _cell(told: set[str]) -> str:
    return " / ".join(sorted(told - {"·"} if len(told) > 1 else told))


def _everything(state: State, now: float) -> Iterator[tuple[str, State, Observation, float]]:
    """What may happen next: in words, the state that it happens in, the observation, and when."""
    yield "a round begins", state, RoundBegan(job_s={}), now
    if missing := set(range(RANKS)) - state.ranks.keys():
        i = min(missing)
        yield "a rank starts", state, RankStarted(local_rank=i, rank=i, started_at=now), now
    for i, rank in state.ranks.items():
        beat = Signs(first_beat_at=now, beat_at=now, beats=rank.glimpse.beats + 1)
        yield "a rank has beaten", state, RankSeen(local_rank=i, signs=beat), now
        nothing_new = "a rank that seemed to hang has shown nothing new" if rank.doubted else "a rank has shown nothing new"
        yield nothing_new, state, RankSeen(local_rank=i, signs=rank.glimpse.signs), now
        yield "a rank is gone", state, RankGone(local_rank=i), now
        late = now + GIVEN_S
        awake = with_rank(replace(state, glance_at=late, measure_at=late), replace(rank, look_at=late))
        yield nothing_new, awake, RankSeen(local_rank=i, signs=rank.glimpse.signs), late
    yield "a fault that was played is over", state, FaultPlayed(), now
    yield "another node works in silence", state, PaceHeard(job_s={}, busy_s=1.0), now
    if state.phase in MEASURED:
        yield "the ranks are found at work", state, _measured(state, "R"), now
        yield "a rank has been stopped since it is suspected", _rested(state, now), _measured(state, "T"), now
        yield "all ranks have stood still for as long as they must", _rested(state, now), _measured(state, "S"), now
        yield (
            "all ranks have stood still, but another node works",
            _waiting(_rested(state, now), now),
            _measured(state, "S"),
            now,
        )
    if state.phase in (Phase.ASKING, Phase.WATCHING):
        yield "a GPU works", state, GpusSeen(busy=True), now
        yield "no GPU works", _rested(state, now), GpusSeen(busy=False), now
    if state.deadline() != NEVER:
        yield "time passes", state, Tick(), max(now, state.deadline())
        yield "time has passed in which the agent was stopped", state, Tick(), max(now, state.deadline()) + 100.0


def _measured(state: State, letter: str) -> RanksMeasured:
    ranks = (RankMeasured(local_rank=i, cpu_s=0.0, io_bytes=0, state=letter) for i in state.ranks)
    return RanksMeasured(ranks=tuple(ranks))


def _rested(state: State, now: float) -> State:
    """As if all ranks had been found still, and stopped, long ago."""
    last = RankMeasured(local_rank=0, cpu_s=0.0, io_bytes=0, state="S")
    ranks = state.ranks.items()
    rested = {i: replace(one.stillness, last=last, base=last, looked_at=now, since=-1e6, stuck_since=-1e6) for i, one in ranks}
    return with_stillness(state, rested)


def _waiting(state: State, now: float) -> State:
    return replace(state, waits_until=now + 1.0)


def _key(state: State) -> tuple[object, ...]:
    """What tells states apart: times only by whether there are any."""
    ranks = sorted(
        (
            rank.suspected is not None,
            "" if rank.doubted is None else "still" if rank.doubted.how else "late",
            bool(rank.overdue),
            rank.glimpse.beats > 0,
            rank.stillness.last is not None,
        )
        for rank in state.ranks.values()
    )
    return state.ft is GIVEN, state.phase, tuple(ranks), state.measure_at != NEVER

"""What may be seen in which phase of a machine whose step is a function of its state? The walk, the diagram and the table.

Each machine's page brings its first states, all that can happen in one, and what tells two states apart.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TypeVar

from holdfast.core.machine import Action, Observation
from holdfast.core.value import Value

S = TypeVar("S", bound=Value)
Seen = tuple[str, Observation, float]
"""What happens, in words; as an observation; and when."""

TABLE = """

## Events in each {of}

A name: the {of} that follows. `✓`: it acts, and the {of} stays. `·`: nothing follows. Empty: it cannot happen.

"""


class Step(Value):
    """One thing that happens in one phase, and what it leads to."""

    before: StrEnum
    event: str
    after: StrEnum
    acts: bool


def walked(
    first: Iterable[S],
    everything: Callable[[S, float], Iterator[Seen]],
    step: Callable[[S, Observation, float], tuple[S, list[Action]]],
    phase: Callable[[S], StrEnum],
    key: Callable[[S], Hashable],
) -> set[Step]:
    """Every step that there is: each state is shown everything, until no new one comes up."""
    left = [(state, 0.0) for state in first]
    known, steps = {key(state) for state, _ in left}, set[Step]()
    while left:
        state, now = left.pop()
        for event, observation, at in everything(state, now):
            after, actions = step(state, observation, at)
            acts = bool(actions) or after != state
            steps.add(Step(before=phase(state), event=event, after=phase(after), acts=acts))
            if key(after) not in known:
                known.add(key(after))
                left.append((after, at))
    return steps


def drawn(steps: Iterable[Step], *, begins: StrEnum, ends: StrEnum | None = None) -> str:
    """The phases, for a renderer of Mermaid."""
    arrows = sorted({(one.before, one.after) for one in steps if one.before is not one.after})
    lines = [f"    {before} --> {after}" for before, after in arrows]
    last = [f"    {ends} --> [*]"] if ends is not None else []
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {begins}", *lines, *last, "```"])


def table(steps: Iterable[Step], phases: Sequence[StrEnum], *, of: str = "phase") -> str:
    """What follows, by what is seen and in which phase."""
    found: dict[str, dict[StrEnum, set[str]]] = {}
    for one in sorted(steps, key=lambda one: (one.event, one.after)):
        told = one.after.value if one.after is not one.before else "✓" if one.acts else "·"
        found.setdefault(one.event, {}).setdefault(one.before, set()).add(told)
    cells = ((event, [_cell(told.get(phase, set())) for phase in phases]) for event, told in found.items())
    rows = [f"| {event} | {' | '.join(row)} |" for event, row in cells]
    head = [f"| seen | {' | '.join(phases)} |", "|---" * (len(phases) + 1) + "|"]
    return TABLE.format(of=of) + "\n".join([*head, *rows, ""])


def _cell(told: set[str]) -> str:
    return " / ".join(sorted(told - {"·"} if len(told) > 1 else told))

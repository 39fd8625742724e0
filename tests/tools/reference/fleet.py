"""What does docs/reference/fleet.md say? States and steps come from a walk of the supervisor's machine (`fleet_walk.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tools.reference.fleet_walk import STATES, SWAP, SWAPS, Step

HEAD = """\
# The fleet: states of a node and of its swap

<!-- Made by `make reference`. Do not edit. -->

[The supervisor](../explanation/supervisor.md) explains its decisions. This page shows what its machine does with one node of
a job on two nodes. A program walks the machine: it feeds every possible event to every state, until no new state comes up.
The policy is `default`, and no spare waits.

## A node

"""

NODES = """
The table shows which event can happen in which state, and the state that follows. Several states: the result depends on what
else the supervisor knows. `-`: the event cannot happen in that state.

"""

SWAP_HEAD = """
## A node that is taken out

"""


def page(steps: Iterable[Step]) -> str:
    """The whole page."""
    steps = sorted(steps, key=lambda step: (step.event, step.before, step.after))
    node, swap = ([step for step in steps if step.machine == machine] for machine in ("node", "swap"))
    parts = [HEAD, diagram(node, STATES), NODES, _table(node, STATES), SWAP_HEAD, diagram(swap, SWAPS), "\n", _arrows(swap)]
    return "".join(parts)


def diagram(steps: Iterable[Step], states: Sequence[str]) -> str:
    """The states and what leads from one to another, for a renderer of Mermaid."""
    arrows = sorted({(states.index(step.before), states.index(step.after)) for step in steps if step.before != step.after})
    lines = [f"    {_id(states[before])} --> {_id(states[after])}" for before, after in arrows]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


def _id(state: str) -> str:
    return "[*]" if state == SWAP else state


def _table(steps: Sequence[Step], states: Sequence[str]) -> str:
    rows = [f"| | {' | '.join(states)} |", "|---|" + "---|" * len(states)]
    for event in dict.fromkeys(step.event for step in steps):
        cells = []
        for state in states:
            after = sorted({step.after for step in steps if step.event == event and step.before == state}, key=states.index)
            cells.append(", ".join(after) or "-")
        rows.append(f"| {event} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _arrows(steps: Sequence[Step]) -> str:
    found: dict[tuple[str, str], list[str]] = {}
    for step in steps:
        if step.before != step.after:
            found.setdefault((step.before, step.after), []).append(step.event)
    order = sorted(found.items(), key=lambda item: (SWAPS.index(item[0][0]), SWAPS.index(item[0][1])))
    rows = [f"| {before} | {after} | {' · '.join(events)} |" for (before, after), events in order]
    return "\n".join(["| from | to | when |", "|---|---|---|", *rows]) + "\n"

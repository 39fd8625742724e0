"""What does docs/reference/rounds.md say, and the diagram in docs/explanation/rounds.md?

States and steps come from a walk of the machine (`walk.py`), timeouts from the constants that hold them and the texts beside
those.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import pairwise
from types import ModuleType

from holdfast.agent import agent
from holdfast.agent.group import hang_response
from holdfast.core.config import torchrun_options
from holdfast.core.config.flags import ALL_FLAGS
from holdfast.recovery import policy
from holdfast.rendezvous import lease, member, rules
from holdfast.rendezvous.coordinator import gathering, hang_blame
from holdfast.rendezvous.coordinator.job import Phase
from holdfast.rendezvous.election import store_election
from holdfast.runtime.process import guardian
from tools.reference.source import tree
from tools.reference.walk import HEEDED, IGNORED, Step

HEAD = """\
# Rounds: states and timeouts

<!-- Made by `make reference`. Do not edit. -->

[Rounds: how nodes agree](../explanation/rounds.md) explains the words. A program walks the machine for this page: it feeds
every possible event to every state, until no new state comes up.

## The rendezvous

One event can lead through several phases at once: an ending job without workers ends at once.
"""

SEATS = """
## A node's seat in the round

`ready`: it waits for a round, or is a spare. `stopped`: its workers are gone, and it has not asked for another round yet.
"Another" is another node of the job.
"""

SEEN = """
## Events in each phase

●: the event has an effect in at least one state of the phase. ○: it has no effect. Empty: it cannot happen there. Late
messages of an older round never have an effect.
"""

TIMEOUTS = """
## Timeouts, and where they come from

Settings first; the others are fixed.

| what | seconds | meaning |
|---|---|---|
"""

SETTINGS = ("lease", "restart_period", "readmit_after", "backoff", "shutdown_timeout")
"""Flags that are lengths of time in the life of a round."""

FIXED = (lease, member, gathering, store_election, policy, hang_blame, hang_response, torchrun_options, guardian, agent)


def page(steps: Iterable[Step]) -> str:
    """The whole page."""
    steps = sorted(steps, key=lambda step: (step.before, step.after, step.event))
    parts = [HEAD, diagram(steps), _table("phase", steps), SEATS, _table("seat", steps), SEEN, _seen(steps), TIMEOUTS]
    rows = [*_settings(), *(row for module in FIXED for row in _constants(module))]
    return "\n".join(parts) + "".join(f"| {what} | {value} | {text} |\n" for what, value, text in rows)


def diagram(steps: Iterable[Step]) -> str:
    """The phases, for a renderer of Mermaid. The walk finds the arrows; what they mean is put in a few words here."""
    arrows = sorted({(step.before, step.after) for step in steps if step.machine == "phase"})
    lines = [f"    {before} --> {after}: {_reasons(before, after)}" for before, after in arrows]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> gathering", *lines, "    ended --> [*]", "```"])


def _reasons(before: str, after: str) -> str:
    return {
        ("gathering", "running"): "enough are ready, and nobody is waited for",
        ("gathering", "ending"): "too few came in time, or a stop",
        ("running", "gathering"): "a failure, and the policy restarts<br>a node came, left, was lost, excluded or readmitted",
        ("running", "ending"): "every worker exited with 0<br>a failure, and the policy ends it<br>a stop, or nobody is left",
        ("ending", "ended"): "no worker is left",
    }[before, after]


def _table(machine: str, steps: Iterable[Step]) -> str:
    found: dict[tuple[str, str], list[str]] = {}
    for step in steps:
        if step.machine == machine:
            found.setdefault((step.before, step.after), []).append(step.event)
    rows = [f"| {before} | {after} | {' · '.join(events)} |" for (before, after), events in found.items()]
    return "\n".join(["", "| from | to | when |", "|---|---|---|", *rows])


def _seen(steps: Iterable[Step]) -> str:
    found = {(step.event, step.before, step.after) for step in steps if step.machine == "seen"}
    phases = [str(phase) for phase in Phase]

    def mark(event: str, phase: str) -> str:
        return "●" if (event, phase, HEEDED) in found else "○" if (event, phase, IGNORED) in found else ""

    events = sorted({event for event, _, _ in found})
    rows = [f"| {event} | {' | '.join(mark(event, phase) for phase in phases)} |" for event in events]
    return "\n".join(["", f"| what is seen | {' | '.join(phases)} |", "|---|" + "---|" * len(phases), *rows])


def _settings() -> Iterator[tuple[str, str, str]]:
    flags = {flag.dest: flag for flag in ALL_FLAGS}
    for dest in SETTINGS:
        yield f"`{flags[dest].name}`", flags[dest].default or "-", flags[dest].help
    for field, key in (("join_timeout_s", "join_timeout"), ("last_call_s", "last_call_timeout")):
        yield f"`--rdzv-conf {key}=`", *next(row[1:] for row in _fields(rules, "Rules") if row[0] == field)


def _constants(module: ModuleType) -> Iterator[tuple[str, str, str]]:
    """Those whose names end with _S, each with its value and its text."""
    body = tree(module).body
    for node, after in pairwise(body):
        if isinstance(node, ast.Assign) and (text := _text(after)):
            names = [name.id for name in ast.walk(node.targets[0]) if isinstance(name, ast.Name)]
            if all(name.endswith("_S") for name in names):
                values = ", ".join(f"{getattr(module, name):g}" for name in names)
                where = module.__name__.removeprefix("holdfast.").replace(".", "/")
                yield f"{', '.join(f'`{name}`' for name in names)} in `{where}.py`", values, text


def _fields(module: ModuleType, name: str) -> Iterator[tuple[str, str, str]]:
    owner = next(node for node in tree(module).body if isinstance(node, ast.ClassDef) and node.name == name)
    for node, after in pairwise(owner.body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Constant):
            yield node.target.id, f"{node.value.value:g}" if isinstance(node.value.value, float) else "-", _text(after)


def _text(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split()).replace("|", "\\|")
    return ""

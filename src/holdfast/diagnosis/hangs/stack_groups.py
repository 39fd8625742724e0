"""Where were all ranks, and which of them was somewhere else? Groups stacks of faulthandler and py-spy; pure.

Two stacks are the same when their frames are, by file and function. Line numbers, addresses and the folder of a package say
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.core.config.grammar import ranges
from holdfast.core.job.finding import Action, Class, Finding, Quote
from holdfast.core.page.stack_text import Frame, main_thread, waits, where
from holdfast.core.value import Value

KEPT = "see its stacks and log: what kept it?"
BRANCH = "look for a branch that not all ranks take"
NETWORK = "look at the links' error counters, and run it with NCCL_DEBUG=INFO"
"""What to do about a rank that did not come, about one that called something else, and where all came."""

FEW = 0.25
"""At most this share of the ranks is an outlier."""

ALIKE = 12
"""Innermost frames that are compared: below, ranks may have come there by different ways."""


class Group(Value):
    """Ranks that are in one place."""

    ranks: tuple[int, ...]
    where: str
    waits: bool | None
    """Whether they wait for others there, in a collective. None: not known."""
    stack: tuple[str, ...]
    """`load (data.py:88)`, the innermost first."""


def grouped(stacks: Mapping[int, str]) -> list[Group]:
    """Ranks by where their main threads are, the largest group first. `stacks`: of each rank, as it was written."""
    found: dict[tuple[str, ...], list[tuple[int, Sequence[Frame]]]] = {}
    for rank, text in sorted(stacks.items()):
        frames = main_thread(text)
        if frames:
            found.setdefault(_key(frames), []).append((rank, frames))
    groups = [
        Group(
            ranks=tuple(rank for rank, _ in those), where=where(those[0][1]), waits=waits(those[0][1]),
            stack=tuple(frame.shown for frame in those[0][1]),
        )
        for those in found.values()
    ]  # fmt: skip
    return sorted(groups, key=lambda group: (-len(group.ranks), group.ranks))


def outlier(stacks: Mapping[int, str]) -> Finding | None:
    """The few that are not where all others wait. None: all are in one place, or nothing tells who is out of place."""
    groups = grouped(stacks)
    total = sum(len(group.ranks) for group in groups)
    waiting = [group for group in groups if group.waits]
    others = [group for group in groups if not group.waits]
    odd = [rank for group in others for rank in group.ranks]
    if waiting and odd and len(odd) <= max(1, FEW * total):
        return _found(others[0], odd, waiting[0], 0.8, "while the others wait for it")
    if len(groups) > 1 and len(groups[-1].ranks) <= max(1, FEW * total) and len(groups[0].ranks) > total / 2:
        return _found(groups[-1], list(groups[-1].ranks), groups[0], 0.6, "while the others are elsewhere")
    return None


def _found(odd: Group, ranks: list[int], most: Group, confidence: float, why: str) -> Finding:
    verb = "are" if len(ranks) > 1 else "is"
    return Finding(
        kind=Class.UNKNOWN, rule="stack-outlier", confidence=confidence, rank=min(ranks), action=Action.RESTART,
        sentence=f"{named(ranks)} {verb} in {odd.where}, {why} in {most.where}; see what keeps it there",
        advice="see what keeps it there",
        evidence=(
            *(Quote(text=frame, source="stack", rank=odd.ranks[0]) for frame in odd.stack[:6]),
            Quote(text=f"ranks {ranges(most.ranks)}: {most.where}", source="stacks"),
        ),
    )  # fmt: skip


def told(groups: Sequence[Group]) -> list[str]:
    """Each group in one line."""
    return [f"{named(group.ranks)}: {group.where}" for group in groups]


def named(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-2,5`"""
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}"


def _key(frames: Sequence[Frame]) -> tuple[str, ...]:
    return tuple(f"{'/'.join(frame.file.split('/')[-2:])}:{frame.function}" for frame in frames[:ALIKE])

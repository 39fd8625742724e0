"""Where were all ranks, and which of them was somewhere else? Groups stacks of faulthandler and py-spy; pure.

Two stacks are the same when their frames are, by file and function. Line numbers, addresses and the folder of a package say
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.core.config.grammar import ranges
from holdfast.core.job.finding import Class, Finding, Quote
from holdfast.core.page.stack_text import Frame, main_thread, waits, where
from holdfast.core.value import Value
from holdfast.diagnosis.hangs.suspects import are_few, blame

ALIKE = 12  # Innermost frames that are compared: below, ranks may have come there by different ways.


class Group(Value):
    """Ranks that are in one place."""

    ranks: tuple[int, ...]
    where: str
    waits: bool | None  # Whether they wait for others there, in a collective. None: not known.
    stack: tuple[str, ...]  # `load (data.py:88)`, the innermost first.


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
    odd = sorted(rank for group in others for rank in group.ranks)
    if waiting and are_few(odd, total):
        return _found(others[0], odd, waiting[0], 0.8, "while the others wait for it")
    if len(groups) > 1 and are_few(groups[-1].ranks, total) and len(groups[0].ranks) > total / 2:
        return _found(groups[-1], groups[-1].ranks, groups[0], 0.6, "while the others are elsewhere")
    return None


def _found(odd: Group, ranks: Sequence[int], most: Group, confidence: float, why: str) -> Finding:
    says = f"{'are' if len(ranks) > 1 else 'is'} in {odd.where}, {why} in {most.where}"
    quotes = [Quote(text=frame, source="stack", rank=odd.ranks[0]) for frame in odd.stack[:6]]
    quotes.append(Quote(text=f"ranks {ranges(most.ranks)}: {most.where}", source="stacks"))
    return blame("stack-outlier", Class.UNKNOWN, confidence, ranks, says, "see what keeps it there", quotes)


def _key(frames: Sequence[Frame]) -> tuple[str, ...]:
    return tuple(f"{'/'.join(frame.file.split('/')[-2:])}:{frame.function}" for frame in frames[:ALIKE])

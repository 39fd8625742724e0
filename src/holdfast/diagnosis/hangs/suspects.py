"""How is it told that the others waited for a rank? Words and limits that stacks, collectives and complaints share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.config.grammar import ranges
from holdfast.core.job.finding import Action, Class, Finding, Quote

KEPT = "see its stacks and log: what kept it?"
BRANCH = "look for a branch that not all ranks take"
NETWORK = "look at the links' error counters, and run it with NCCL_DEBUG=INFO"
"""What to do about a rank that did not come, about one that called something else, and where all came."""

FEW = 0.25
"""At most this share of the ranks may be those that are waited for; where there are more, nothing tells who is."""


def are_few(ranks: Sequence[int], total: int) -> bool:
    """Whether there are some, and so few of `total` that they may be those that are waited for."""
    return 0 < len(ranks) <= max(1, int(total * FEW))


def named(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-2,5`"""
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}"


def blame(
    rule: str,
    kind: Class,
    confidence: float,
    ranks: Sequence[int],
    says: str,
    advice: str,
    quotes: Iterable[Quote],
    *,
    node: str = "",
    effects: Iterable[str] = (),
) -> Finding:
    """The finding that `ranks`, in order, did what it `says`; without ranks it says itself who did."""
    who = f"{named(ranks)} " if ranks else ""
    return Finding(
        kind=kind, rule=rule, confidence=confidence, rank=ranks[0] if ranks else None, node=node,
        action=Action.STOP if kind == Class.USER_CODE else Action.RESTART,
        sentence=f"{who}{says}; {advice}", advice=advice, evidence=tuple(quotes), effects=tuple(effects),
    )  # fmt: skip

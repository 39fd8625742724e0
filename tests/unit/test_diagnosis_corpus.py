# ruff: noqa: E501
"""Logs of failed jobs, with the cause in each: how many causes, and culprits, are found?"""

from __future__ import annotations

from pathlib import Path

import failure_causes
import failure_causes_held_out
import pytest
from failure_logs import Case, make

from holdfast.core.finding import Finding
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.gather import gather
from holdfast.diagnosis.rule import load

PARTS = {"tuned": failure_causes.CAUSES, "held out": failure_causes_held_out.CAUSES}
SEEDS = 2
"""Logs for each cause: every one another layout, size and place of its cause."""


def cases(part: str, folder: Path) -> list[tuple[Case, Finding]]:
    """Make the logs, and look at them."""
    rules, found = load(), []
    offset = 0 if part == "tuned" else 5000
    for number, cause in enumerate(PARTS[part]):
        for turn in range(SEEDS):
            seed = offset + number * SEEDS + turn
            case = make(seed, cause, folder / str(seed))
            found.append((case, attribute(gather(case.paths, rules))))
    return found


def score(found: list[tuple[Case, Finding]]) -> tuple[float, float, list[str]]:
    """(share of classes that are right, share of culprits, what is wrong)."""
    kinds = [case.kind == finding.kind for case, finding in found]
    ranks = [case.rank == finding.rank and (not case.node or not finding.node or case.node == finding.node) for case, finding in found]
    wrong = [
        f"{case.name}: {finding.kind} rank {finding.rank} {finding.node} by {finding.rule}, not {case.kind} rank {case.rank} {case.node}"
        for (case, finding), kind, rank in zip(found, kinds, ranks) if not (kind and rank)
    ]  # fmt: skip
    return sum(kinds) / len(found), sum(ranks) / len(found), wrong


def test_there_are_enough_logs_of_every_class() -> None:
    assert sum(map(len, PARTS.values())) * SEEDS >= 150


@pytest.mark.parametrize("part", PARTS)
def test_causes_and_culprits_are_found(part: str, tmp_path: Path) -> None:
    kinds, ranks, wrong = score(cases(part, tmp_path))
    told = f"{part}: {kinds:.1%} of classes, {ranks:.1%} of culprits\n" + "\n".join(wrong)
    assert kinds >= 0.95 and ranks >= 0.95, told

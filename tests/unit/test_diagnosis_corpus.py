# ruff: noqa: E501
"""Logs of failed jobs, with the cause in each: how many causes, and culprits, are found?"""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.logs import (
    failure_causes,
    failure_causes_blind,
    failure_causes_from_threads,
    failure_causes_held_out,
    failure_causes_unknown,
)
from kit.logs.failure_logs import LAYOUTS, Case, make

from holdfast.core.job.finding import Finding
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.gather import gather
from holdfast.diagnosis.logs.scan import Scanner
from holdfast.diagnosis.rule import load

PARTS = {
    "tuned": failure_causes.CAUSES, "held out": failure_causes_held_out.CAUSES, "once blind": failure_causes_blind.CAUSES,
    "once unknown": failure_causes_unknown.CAUSES, "from threads": failure_causes_from_threads.CAUSES,
}  # fmt: skip
MORE_LAYOUTS = {"from threads": failure_causes_from_threads.LAYOUTS}
GOAL = 0.95
SEEDS = 2
"""Logs for each cause: every one another layout, size and place of its cause."""


def cases(part: str, turn: int, folder: Path) -> list[tuple[Case, Finding]]:
    """Make one log for each cause, and look at it."""
    rules, found = load(), []
    offset = 5000 * (part != "tuned")
    for number, cause in enumerate(PARTS[part]):
        seed = offset + number * SEEDS + turn
        case = make(seed, cause, folder / str(seed), MORE_LAYOUTS.get(part, LAYOUTS))
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
@pytest.mark.parametrize("turn", range(SEEDS))
def test_causes_and_culprits_are_found(turn: int, part: str, tmp_path: Path) -> None:
    kinds, ranks, wrong = score(cases(part, turn, tmp_path))
    told = f"{part}: {kinds:.1%} of classes, {ranks:.1%} of culprits\n" + "\n".join(wrong)
    assert min(kinds, ranks) >= GOAL, told


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_what_a_script_s_own_line_could_say_nobody_has_said(prefix: str) -> None:
    """A traceback shows the line that raised: with all the words of messages that did not come."""
    lines = (
        "Traceback (most recent call last):",
        '  File "/srv/job/main.py", line 10, in <module>',
        '    raise RuntimeError(said or "CUDA error: uncorrectable ECC error encountered")',
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    )
    log = Scanner(load()).text("\n".join(prefix + line for line in lines))
    assert [one.rule.name for one in log.sightings.values()] == ["torch-cuda-oom"]

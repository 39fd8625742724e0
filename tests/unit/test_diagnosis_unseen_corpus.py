"""The form of the corpus that no rule has seen: enough of it, of many kinds, each with its source and a label."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.logs.failure_causes_unseen import ADVICE, CLASSES, FAULTS, FOLDER, FRESH, PLAYED, Failure, failures

FAILURES = failures()


def test_there_are_enough_failures_of_enough_kinds() -> None:
    assert len(FAILURES) >= 140
    assert len({one.kind for one in FAILURES}) >= 70
    assert sum(one.several for one in FAILURES) >= 70


def test_every_class_and_advice_is_among_them() -> None:
    assert {one.classes[0] for one in FAILURES} == CLASSES
    assert {one.advice[0] for one in FAILURES} == ADVICE


def _has_source(one: Failure) -> bool:
    if one.folder == PLAYED:
        return (PLAYED / one.source.partition(",")[0]).is_file()
    return one.source.startswith(("https://", "http://"))


@pytest.mark.parametrize("folder", [FOLDER, FRESH, PLAYED], ids=["unseen", "fresh", "played"])
def test_each_has_a_source_and_a_label(folder: Path) -> None:
    wrong = [
        one.name for one in failures(folder)
        if not _has_source(one) or not (one.framework and one.transport and one.why)
        or not set(one.classes) <= CLASSES or not set(one.advice) <= ADVICE or one.fault not in FAULTS
        or not (one.classes and one.advice) or not (one.ranks or one.nobody)
    ]  # fmt: skip
    assert not wrong


@pytest.mark.parametrize("folder", [FOLDER, FRESH, PLAYED], ids=["unseen", "fresh", "played"])
def test_each_has_a_log_and_each_log_its_entry(folder: Path) -> None:
    those = failures(folder)
    assert sorted(one.path for one in those) == sorted((folder / "logs").iterdir())
    assert not [one.name for one in those if len(one.path.read_text(encoding="utf-8").splitlines()) < 1]

"""A benchmark's peer that does not come back costs its row a sample, a bounded number of tries, and no other row."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType, ModuleType]]:
    """The modules harness, run and warm, which import one another by their bare names."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import harness
    import run
    import warm

    yield harness, run, warm
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def test_a_peer_that_never_comes_back_is_given_up_and_the_note_says_so(benchmarks) -> None:
    harness, _, warm = benchmarks
    tried: list[str] = []

    def measure(contender: str) -> float:
        tried.append(contender)
        if contender == "torchrun":
            raise RuntimeError("2 of 2 workers have not noted 'reduced' within 30 s")
        return 60.0

    row = warm.compared(harness.Bench(contenders=["holdfast", "torchrun"]), "two agents", 3, 20, measure)
    assert row.samples["holdfast"] == [60.0] * 3 and "torchrun" not in row.samples
    assert tried.count("torchrun") == warm.MOST_VAIN
    assert f"torchrun's ranks did not meet again in {warm.MOST_VAIN} of {warm.MOST_VAIN} tries" in row.note
    assert row.met is None


def test_a_peer_that_comes_back_now_and_then_is_measured_by_those_tries(benchmarks) -> None:
    harness, _, warm = benchmarks
    others = iter([None, 4000.0, 5000.0, None, 6000.0])

    def measure(contender: str) -> float:
        took = 60.0 if contender != "torchrun" else next(others)
        if took is None:
            raise RuntimeError("not back")
        return took

    row = warm.compared(harness.Bench(contenders=["holdfast", "torchrun"]), "two agents", 3, 20, measure)
    assert row.samples["torchrun"] == [4000.0, 5000.0, 6000.0] and row.met
    assert "torchrun's ranks did not meet again in 2 of 5 tries" in row.note


def test_what_was_measured_before_a_failure_stays(benchmarks) -> None:
    harness, run, _ = benchmarks

    def half(bench: object) -> Iterator[object]:
        yield harness.Row("one", "ms", {"holdfast": [1.0]})
        raise RuntimeError("the second one could not be measured")

    run.ALL["half"] = ModuleType("half")
    run.ALL["half"].run = half
    rows, failed = run.measured(harness.Bench(), ["half"])
    assert [row.what for row in rows] == ["one"] and failed == ["half"]

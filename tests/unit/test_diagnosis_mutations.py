"""A log tells the same behind whatever columns a collector puts before its lines, and in whatever order writers are mixed.

Here some logs of the corpus; `make diagnosis` plays all of them.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kit.logs import mutations
from kit.logs.failure_logs import LAYOUTS, make
from test_diagnosis_corpus import MORE_LAYOUTS, PARTS

from holdfast.core.job.finding import Finding
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.gather import gather
from holdfast.diagnosis.logs.frame import learn
from holdfast.diagnosis.logs.prefix import Speaker
from holdfast.diagnosis.logs.scan import Scanner
from holdfast.diagnosis.rule import load

RULES = load()
CHOSEN = [(part, number) for part in PARTS for number in range(1, len(PARTS[part]), 55)]


def found(folder: Path) -> tuple[Finding, str]:
    finding = attribute(gather([str(folder)], RULES))
    return finding, f"{finding.kind} of rank {finding.rank}"


@pytest.mark.parametrize(("part", "number"), CHOSEN)
def test_no_collector_s_columns_change_what_is_found(part: str, number: int, tmp_path: Path) -> None:
    make(7 * number, PARTS[part][number], tmp_path / "plain", MORE_LAYOUTS.get(part, LAYOUTS))
    files, expected = mutations.read(tmp_path / "plain"), found(tmp_path / "plain")[1]
    for name in mutations.PREFIXES:
        mutations.write(tmp_path / name, mutations.prefixed(name, files))
        finding, said = found(tmp_path / name)
        assert said == expected, f"behind {name} it is {said} ({finding.sentence})"


@pytest.mark.parametrize(("part", "number"), CHOSEN)
def test_writers_whose_lines_change_places_are_told_apart(part: str, number: int, tmp_path: Path) -> None:
    make(7 * number, PARTS[part][number], tmp_path / "plain", MORE_LAYOUTS.get(part, LAYOUTS))
    mixed = mutations.interleaved("swapped", mutations.read(tmp_path / "plain"), random.Random(number))
    mutations.write(tmp_path / "mixed", mixed)
    assert found(tmp_path / "mixed")[1] == found(tmp_path / "plain")[1]


def pods(*names: str, inner: str = "") -> list[str]:
    """Lines of several kinds of each of these pods, each with what stands before it within."""
    told = ["loading shard", "ready", "building the index", "step one done", "saving", "ValueError: no such preset"]
    return [f"{name} trainer {inner.format(n=at)}{text}" for text in told for at, name in enumerate(names)]


def whose(lines: list[str]) -> dict[str, int | None]:
    """Each writer's rank, as the last of its lines has it."""
    frame = learn(lines, Speaker())
    return {line.split()[0]: frame.split(line, Speaker())[0].rank for line in lines}


def test_a_pod_s_number_is_its_rank_only_where_nothing_else_is_said() -> None:
    assert whose(pods("job-worker-0", "job-worker-1")) == {"job-worker-0": 0, "job-worker-1": 1}
    assert whose(pods("job-master-0", "job-worker-0")) == {"job-master-0": 0, "job-worker-0": 1}, "as PyTorchJob counts"
    several = [*pods("job-worker-0", "job-worker-1"), *(f"job-worker-1 trainer [rank{n}]: ready" for n in range(8, 16))]
    assert whose(several)["job-worker-1"] is None or learn(several, Speaker()).ordinal is None
    assert set(whose([line.replace(" ", ": ", 1) for line in pods("gpu-node-6", "gpu-node-7")]).values()) == {None}, "hosts"
    lines = pods("job-worker-0", "job-worker-1")
    assert learn([*lines, "job-worker-1 trainer [default3]: ready"], Speaker()).ordinal is None


def test_a_column_that_stands_for_a_rank_is_known_by_what_its_lines_say() -> None:
    lines = [*pods("alpha-x", "beta-y"), "alpha-x trainer [rank5]: hello", "beta-y trainer [rank2]: hello"]
    frame = learn(lines, Speaker())
    assert frame.split("alpha-x trainer ValueError: no such preset", Speaker())[0].rank == 5


def test_old_torch_names_a_rank_behind_its_file_and_line() -> None:
    told = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE)"
    log = Scanner(RULES).text(f"\x1b[31m[E ProcessGroupNCCL.cpp:475] [Rank 7] {told}\x1b[0m")
    assert [(one.rank, one.seq) for one in log.sightings.values()] == [(7, 4)]


def test_ordinary_text_has_no_columns() -> None:
    lines = [f"iteration {n} | loss 2.1 | part {'abcdefghijk'[n]}" for n in range(10)]
    assert learn([*lines, "Traceback (most recent call last):", "KeyError: 'x'"], Speaker()).columns == ()

"""Do the rows of `tools/mutations.py` fit the source, and does `tools/mutate.py` say rightly what came of them?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.imports import SRC
from tools.changed import Graph
from tools.mutate import (
    EVERYDAY,
    MUTATIONS,
    ROWS_TEST,
    Result,
    Unclear,
    found_by,
    keep,
    known,
    mutated,
    nearest,
    stages,
    verdict,
)
from tools.mutations import Mutation

ROW = Mutation("the sum is a difference", "sums.py", "a + b", "a - b")
PACKAGES = "rendezvous recovery agent monitor supervisor diagnosis health runtime client telemetry".split()


@pytest.mark.parametrize("row", MUTATIONS, ids=[row.name for row in MUTATIONS])
def test_a_row_s_text_stands_in_its_file_once(row: Mutation) -> None:
    text = (SRC / "holdfast" / row.file).read_text()
    assert mutated(text, row) != text


def test_there_are_twenty_each_called_by_a_name_of_its_own_in_all_that_decides() -> None:
    assert len(MUTATIONS) == len({row.name for row in MUTATIONS}) == 20
    assert {row.file.partition("/")[0] for row in MUTATIONS} == set(PACKAGES)


@pytest.mark.parametrize(("text", "times"), [("", 0), ("a + b\na + b", 2)])
def test_a_row_that_does_not_fit_is_told_loudly(text: str, times: int) -> None:
    with pytest.raises(Unclear, match=f"sums.py has this {times} times, not once"):
        mutated(text, ROW)


def test_a_mutation_is_python() -> None:
    with pytest.raises(SyntaxError):
        mutated("a + b", ROW._replace(new="a -"))


def result(name: str, by: str = "tests/unit/test_sums.py::test_one", commit: str = "c1") -> Result:
    return Result(name, commit, by, "nearest" if by else "", 1.0)


def test_what_is_kept_is_known_at_that_commit_and_the_newest_counts(tmp_path: Path) -> None:
    file = tmp_path / "results" / "mutations.jsonl"
    assert known(file, "c1") == {}
    for one in (result("a", by=""), result("b", commit="c0"), result("a")):
        keep(file, one)
    file.write_text(file.read_text() + json.dumps(["of another kind"]) + '\n{"name": "cut sho')
    assert known(file, "c1") == {"a": result("a")}


@pytest.mark.parametrize(("lost", "code"), [(0, 0), (1, 0), (2, 1)])
def test_one_may_survive_and_each_that_does_is_named(lost: int, code: int) -> None:
    rows = [ROW._replace(name=f"m{number}") for number in range(20)]
    results = {row.name: result(row.name, by="" if number < lost else "t") for number, row in enumerate(rows)}
    said, ended = verdict(results, rows)
    assert said.splitlines() == [f"{20 - lost} of 20 found", *(f"  not found: m{number}" for number in range(lost))]
    assert ended == code


def test_only_those_that_were_judged_are_counted() -> None:
    rows = [ROW._replace(name=name) for name in "abc"]
    assert verdict({"b": result("b")}, rows) == ("1 of 1 found", 0)


SUMMARY = """\
=========================== short test summary info ============================
FAILED tests/unit/test_sums.py::test_add[1 - 2] - assert 3 == -1
FAILED tests/unit/test_sums.py::test_other - boom
1 failed in 0.1s
"""


@pytest.mark.parametrize(
    ("output", "code", "by"),
    [
        ("2 passed", 0, ""),
        (SUMMARY, 1, "tests/unit/test_sums.py::test_add[1 - 2]"),
        (SUMMARY.replace("[1 - 2]", ""), 2, "tests/unit/test_sums.py::test_add"),
        ("ERROR tests/e2e/test_sums.py::test_add\n", 1, "tests/e2e/test_sums.py::test_add"),
        ("FAILED tests/unit/test_sums.py::test_add\n", 1, "tests/unit/test_sums.py::test_add"),
    ],
)
def test_the_first_test_that_failed_has_found_it(output: str, code: int, by: str) -> None:
    assert found_by(output, code) == by


@pytest.mark.parametrize(("output", "code"), [("error: unrecognized arguments", 4), ("interrupted", 2), ("no tests ran", 5)])
def test_where_no_test_has_failed_nothing_is_claimed(output: str, code: int) -> None:
    with pytest.raises(Unclear, match=f"(?s)ended with {code} .*{output}"):
        found_by(output, code)


def test_tests_that_are_named_like_the_file_come_before_those_that_are_nearer() -> None:
    tree = {
        "src/holdfast/agent/sums.py": "",
        "src/holdfast/agent/more.py": "from holdfast.agent import sums",
        "tests/unit/test_one.py": "from holdfast.agent import sums",
        "tests/unit/test_sums_and_more.py": "from holdfast.agent import more",
        "tests/e2e/test_sums.py": "from holdfast.agent import sums",
    }
    assert nearest(Graph(tree), "agent/sums.py") == ["tests/unit/test_sums_and_more.py", "tests/unit/test_one.py"]


def test_quick_tests_come_first_and_never_the_one_that_holds_the_rows_to_the_source() -> None:
    runs = stages(["tests/unit/test_sums.py"], EVERYDAY)
    assert list(runs) == ["nearest", "unit and sim", "the rest"]
    assert all(f"--ignore={ROWS_TEST}" in args and "--everyday" in args for args in runs.values())
    assert runs["nearest"][-1] == "tests/unit/test_sums.py" and runs["nearest"][-3:-1] == ("-n", "0")
    assert runs["unit and sim"][-2:] == ("tests/unit/", "tests/sim/")
    assert runs["the rest"][-3:] == ("tests", "--ignore=tests/unit/", "--ignore=tests/sim/")

"""Rows outlive the process that kept them, and a line that was cut short costs that line."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.supervisor.daemon.journal import Journal


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "journal.jsonl")


def rows_of(path: str) -> dict[str, object]:
    with closing(Journal(path)) as kept:
        return dict(kept.rows)


@given(story=st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.fixed_dictionaries({"n": st.integers()}))))
def test_what_was_kept_last_is_there_however_the_process_ended(story, tmp_path_factory):
    path, rows = str(tmp_path_factory.mktemp("journal") / "j"), {}
    with closing(Journal(path)) as kept:
        for key, row in story:
            kept.keep(key, row)
            rows.pop(key, None)
            rows |= {} if row is None else {key: row}
        assert rows_of(path) == rows, "while it is open: a SIGKILL closes nothing"


@pytest.mark.parametrize("rest", [b'["b", {"n"', b'["b"', b"\0\0\0\0", b"[1]", b'"b"', b"\xff\xfe"])
def test_a_last_line_that_was_cut_short_is_passed_over(path: str, rest: bytes) -> None:
    with closing(Journal(path)) as kept:
        kept.keep("a", {"n": 1})
    with open(path, "ab") as file:
        file.write(rest)
    assert rows_of(path) == {"a": {"n": 1}}


def test_it_does_not_grow_for_ever(path: str) -> None:
    with closing(Journal(path, slack_lines=10)) as kept:
        for number in range(1000):
            kept.keep("a", {"n": number})
    assert len(Path(path).read_text().splitlines()) <= 14 and rows_of(path) == {"a": {"n": 999}}


def test_only_its_owner_may_read_it(path: str) -> None:
    Journal(path).close()
    assert Path(path).stat().st_mode & 0o077 == 0

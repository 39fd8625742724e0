"""The twelve failures of docs/explanation/failure-screens.md: each fits one screen, and says what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit import ROOT
from tools.failure_screens import FAILURES, Failure, words


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.title)
def test_a_failure_takes_one_screen_that_says_what_happened(holdfast: Any, tmp_path: Path, failure: Failure) -> None:
    (tmp_path / "train.py").write_text(failure.script)
    done = holdfast("run", *words(failure), cwd=tmp_path, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode in (1, 2) and failure.says in done.stderr, done.stderr
    assert len((done.stdout + done.stderr).splitlines()) <= 25, done.stderr


def test_the_page_shows_them_all() -> None:
    page = (ROOT / "docs/explanation/failure-screens.md").read_text()
    assert [failure.title for failure in FAILURES if f". {failure.title}\n" not in page] == []
    assert all(failure.script in page for failure in FAILURES), "python tests/tools/failure_screens.py makes it anew"

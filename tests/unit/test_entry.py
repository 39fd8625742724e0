"""Command line and environment of a worker."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.workers import launch


def argv(**how: object) -> list[str]:
    defaults: dict[str, object] = {"interpreter": "PY", "script": "s", "args": ["a", "$local_rank"], "local_rank": 3}
    return launch.worker_argv(**(defaults | how))  # type: ignore[arg-type]


def test_command_lines_are_torchruns() -> None:
    assert argv() == ["PY", "-u", "s", "a", "3"]
    assert argv(module=True) == ["PY", "-u", "-m", "s", "a", "3"]
    assert argv(no_python=True) == ["s", "a", "3"]
    assert argv(run_path=True, no_python=True) == ["PY", launch.RUN_PATH, "s", "a", "3"]


def test_a_program_keeps_its_dollars_and_a_script_does_not() -> None:
    assert argv(script="x$$y", no_python=True)[0] == "x$$y"
    assert argv(script="x$$y")[2] == "x$y"


@given(st.text(alphabet="$${}local_rankLOCAL_RANK1ſıK é\n"))
def test_substitution_is_that_of_string_template(word: str) -> None:
    assert launch.substitute(word, 12) == string.Template(word).safe_substitute(local_rank=12)


@pytest.mark.parametrize(
    ("word", "becomes"),
    [("${local_rank}", "12"), ("$local_rank", "12"), ("$local_ranks",) * 2, ("$$local_rank", "$local_rank"), ("$", "$")],
)
def test_substitution_of_common_words(word: str, becomes: str) -> None:
    assert launch.substitute(word, 12) == becomes


@pytest.mark.parametrize(
    ("theirs", "becomes"),
    [
        ({}, {"PYTHONPATH": launch.BOOT_DIR}),
        ({"PYTHONPATH": ""}, {"PYTHONPATH": launch.BOOT_DIR, launch.USER_PYTHONPATH: ""}),
        ({"PYTHONPATH": "a:b"}, {"PYTHONPATH": f"{launch.BOOT_DIR}:a:b", launch.USER_PYTHONPATH: "a:b"}),
    ],
)
def test_the_bootstrap_comes_first_on_the_users_path(theirs: dict[str, str], becomes: dict[str, str]) -> None:
    assert launch.bootstrap_env({"X": "y"} | theirs, page_fd=9) == {"X": "y", launch.PAGE_FD: "9"} | becomes


def test_an_installation_that_pythonpath_cannot_name_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "BOOT_DIR", "/odd:place")
    assert launch.bootstrap_env({"X": "y"}, page_fd=9) == {"X": "y"}

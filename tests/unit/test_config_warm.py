"""How many warm spares a command line asks for."""

from __future__ import annotations

import pytest
from kit.stages.command_lines import config, error, told


@pytest.mark.parametrize(("text", "count"), [("auto", None), ("off", 0), ("0", 0), ("3", 3)])
def test_a_number_auto_or_off(text: str, count: int | None) -> None:
    assert config("--max-restarts", "3", "--warm-spares", text).warm_spares == count


def test_without_a_word_it_is_auto_where_the_job_may_restart() -> None:
    assert config("--max-restarts", "3").warm_spares is None
    assert config("--nnodes", "2", "--max-restarts", "0").warm_spares is None
    assert config("--max-restarts", "0").warm_spares == 0


@pytest.mark.parametrize("text", ["some", "-1", "1.5", ""])
def test_anything_else_is_refused_and_named(text: str) -> None:
    assert error(f"--warm-spares={text}").startswith(f"--warm-spares: {text!r} is neither a number, nor auto, nor off\n")


def test_more_than_there_can_be_workers_are_refused() -> None:
    assert "--warm-spares" in error("--warm-spares", "1000000")


def test_what_is_no_python_has_none_and_says_so() -> None:
    made = told("--no-python", "--warm-spares", "2")
    assert made.config.warm_spares == 0
    assert any("--warm-spares is ignored" in notice.text for notice in made.notices)

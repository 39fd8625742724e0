"""Whatever line torchrun reads, we read the same; what it refuses, we refuse. Against the installed torchrun itself."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli.run import parser
from holdfast.core.config.draft import gather
from holdfast.core.config.flags import ALL_FLAGS, FLAGS
from holdfast.core.errors import UsageError

pytestmark = pytest.mark.torch


def torchruns_parser() -> argparse.ArgumentParser:
    """The installed one. Not loaded as this file is collected: importing torch takes longer than most tests."""
    from torch.distributed import run

    return run.get_args_parser()


def test_the_table_is_the_installed_parsers():
    found = [(tuple(action.option_strings), action.dest) for action in torchruns_parser()._actions if action.option_strings]
    assert found[1:] == [(flag.names, flag.dest) for flag in FLAGS if flag.torchrun]


def test_the_defaults_are_the_installed_parsers(monkeypatch):
    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)
    theirs = vars(torchruns_parser().parse_args(["t.py"]))
    for dest, setting in gather({}, {}).items():
        if next(flag for flag in ALL_FLAGS if flag.dest == dest).torchrun:
            as_typed = "" if theirs[dest] == [] else theirs[dest]
            assert str(as_typed or "0") == str(setting.value or "0"), dest


@functools.cache
def reading_parser() -> argparse.ArgumentParser:
    """The installed parser, stopped short of converting and checking values: that is `core.resolve.resolve`'s part."""
    made = torchruns_parser()
    for action in made._actions:
        if action.option_strings:
            action.default, action.type, action.choices = argparse.SUPPRESS, None, None
    return made


def theirs(argv: list[str]) -> dict[str, object] | None:
    """torchrun's reading; None: refused."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            return vars(reading_parser().parse_args(argv))
        except SystemExit:
            return None


def ours(argv: list[str]) -> dict[str, object] | None:
    try:
        typed = parser.read(argv)
    except UsageError:
        return None
    if typed.help:
        return None
    return typed.given | {"training_script": typed.script, "training_script_args": list(typed.script_args)}


SPELLINGS = sorted(name for flag in FLAGS if flag.torchrun for name in flag.names)
PREFIXES = sorted({name[:length] for name in SPELLINGS for length in range(1, len(name) + 1)} - {"--monitor"})
"""Without the one prefix that is a flag of ours: no Python up to 3.11 lets torchrun take it, for it could be two spellings."""
VALUES = [
    "1",
    "2:4",
    "-1",
    "-x",
    "--",
    "",
    "a b",
    "spawn",
    "node",
    "k=v",
    "x,,y",
    "-3.5",
    "t.py",
    "--bogus",
    "-",
    "-m3",
    "-r3",
    "-mr2",
]
# `--role=--` is left out: argparse makes an empty list of it, on which torchrun dies later; we say that a value is missing.
WORDS = st.one_of(
    st.sampled_from(SPELLINGS),
    st.sampled_from(PREFIXES),
    st.sampled_from(VALUES),
    st.builds("{}={}".format, st.sampled_from(PREFIXES), st.sampled_from([value for value in VALUES if value != "--"])),
)  # fmt: skip


def assert_read_alike(argv: list[str]) -> None:
    """Both read it alike; or torchrun's argparse (3.11's does) took an argument of the script's for an ambiguous flag."""
    mine, other = ours(argv), theirs(argv)
    if other is None and mine is not None:
        arguments = mine["training_script_args"]
        before = argv[: len(argv) - len(arguments)]
        assert theirs(before) == mine | {"training_script_args": []}
        assert any(theirs([*before, argument]) is None for argument in arguments)
    else:
        assert mine == other


@settings(max_examples=600, deadline=None, derandomize=True)
@given(st.lists(WORDS, max_size=6))
def test_any_line_is_read_as_torchrun_reads_it(words):
    assert_read_alike([*words, "end.py", "--x"])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(WORDS, max_size=4))
def test_any_line_without_a_script_too(words):
    assert_read_alike(words)

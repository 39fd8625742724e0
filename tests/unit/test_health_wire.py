"""The health service's two messages, as Protocol Buffers have them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.health.wire import Request, Response

TEXT = st.text(st.characters(exclude_categories=("Cs",)))


def test_bytes_are_those_that_a_compiler_s_code_makes():
    assert Request(args=("--no-slurm", "é")).encode() == b"\x0a\x0a--no-slurm\x0a\x02\xc3\xa9"
    whole = Response(success=True, exit_code=300, output="{}", error="x")
    assert whole.encode() == b"\x08\x01\x10\xac\x02\x1a\x02{}\x22\x01x"
    assert Response().encode() == b"" and Response(exit_code=-1).encode() == b"\x10" + b"\xff" * 9 + b"\x01"


@given(st.lists(TEXT))
def test_a_request_comes_back_as_it_was(args):
    assert Request.decode(Request(args=tuple(args)).encode()) == Request(args=tuple(args))


@given(st.booleans(), st.integers(-(2**31), 2**31 - 1), TEXT, TEXT)
def test_an_answer_comes_back_as_it_was(success, exit_code, output, error):
    response = Response(success=success, exit_code=exit_code, output=output, error=error)
    assert Response.decode(response.encode()) == response


def test_fields_of_a_later_version_are_passed_over():
    later = b"\x2a\x03new" + b"\x30\x07" + b"\x39" + b"12345678" + b"\x45" + b"1234"
    assert Response.decode(later + Response(error="x").encode()) == Response(error="x")


@given(st.binary())
def test_what_is_no_message_is_a_value_error_and_nothing_else(data):
    with contextlib.suppress(ValueError):
        Response.decode(data)


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x08", b"\x0b", b"\xff" * 11, b"\x0a"])
def test_a_message_that_is_cut_short_is_told_apart(data):
    with pytest.raises(ValueError):
        Request.decode(data)

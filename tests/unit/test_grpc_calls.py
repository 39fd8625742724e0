"""What our side of a gRPC connection writes, and what it makes of what comes: bytes only, no socket."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import ProtocolError
from holdfast.runtime.net.grpc_calls import PREFACE, WINDOW, Calls, _literal

DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
PATH = "/supervisor_core_proto.HostService/Heartbeat"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    found = []
    while data:
        length = int.from_bytes(data[:3])
        kind, flags, stream = struct.unpack_from("!BBI", data, 3)
        found.append((kind, flags, stream, data[9 : 9 + length]))
        data = data[9 + length :]
    return found


def opened() -> Calls:
    calls = Calls("localhost:1", "2S")
    calls.out.clear()
    return calls


def ok(stream: int) -> bytes:
    """As every gRPC server answers: headers, one message, trailers."""
    return frame(HEADERS, 4, stream, b"\x88") + frame(DATA, 0, stream, bytes(5)) + frame(HEADERS, 5, stream, b"\x00")


def test_a_connection_begins_as_rfc_9113_has_it_and_asks_for_no_table_and_no_push() -> None:
    out = bytes(Calls("localhost:1").out)
    assert out.startswith(PREFACE)
    assert frames(out[len(PREFACE) :]) == [(SETTINGS, 0, 0, b"\x00\x01\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00")]


def test_a_call_is_headers_and_one_message_with_its_length_before_it() -> None:
    calls = opened()
    assert calls.call(PATH, b"abc") == 1
    (kind, flags, stream, block), body = frames(bytes(calls.out))
    assert (kind, flags, stream) == (HEADERS, 4, 1) and body == (DATA, 1, 1, b"\x00\x00\x00\x00\x03abc")
    assert b"\x00\x05:path" + bytes([len(PATH)]) + PATH.encode() in block
    assert b"\x02te\x08trailers" in block and b"\x0cgrpc-timeout\x022S" in block
    assert calls.call(PATH, b"") == 3, "streams of a client are odd"


def test_a_large_message_goes_in_several_frames() -> None:
    calls = opened()
    calls.call(PATH, bytes(40_000))
    bodies = [(flags, len(payload)) for kind, flags, _, payload in frames(bytes(calls.out)) if kind == DATA]
    assert bodies == [(0, 16_384), (0, 16_384), (1, 40_005 - 2 * 16_384)]


@pytest.mark.parametrize("length", [0, 126, 127, 254, 255, 300, 70_000])
def test_a_length_is_written_as_rfc_7541_has_it(length: int) -> None:
    data = _literal("x" * length)
    value, at = data[0], 1
    if value == 127:
        for shift in range(0, 28, 7):
            value += (data[at] & 127) << shift
            at += 1
            if data[at - 1] < 128:
                break
    assert value == length == len(data) - at


@given(st.lists(st.integers(1, 30), max_size=40))
def test_an_answer_in_pieces_of_any_size_is_one_answer(cuts: list[int]) -> None:
    calls = opened()
    calls.call(PATH, b"x")
    data, over = frame(SETTINGS, 0, 0) + ok(1) + frame(PING, 0, 0, b"12345678"), []
    for cut in cuts:
        over += calls.receive(data[:cut])
        data = data[cut:]
    assert over + calls.receive(data) == [(1, True)]
    answers = [(kind, flags) for kind, flags, *_ in frames(bytes(calls.out))]
    assert (SETTINGS, 1) in answers and (PING, 1) in answers


@pytest.mark.parametrize(
    "answer",
    [frame(HEADERS, 5, 1, b"\x88"), frame(RST, 0, 1, bytes(4)), frame(DATA, 0, 1, bytes(5)) + frame(RST, 0, 1, bytes(4))],
    ids=["trailers alone, as for an error", "reset", "reset in the middle"],
)
def test_a_call_that_failed_is_told_apart(answer: bytes) -> None:
    calls = opened()
    calls.call(PATH, b"x")
    assert calls.receive(answer) == [(1, False)]


def test_what_the_peer_has_sent_is_allowed_again_and_what_we_send_is_counted() -> None:
    calls = opened()
    calls.call(PATH, bytes(95))
    assert calls.window == WINDOW - 100
    calls.receive(ok(1) + frame(WINDOW_UPDATE, 0, 0, struct.pack("!I", 60)))
    assert calls.window == WINDOW - 40
    assert (WINDOW_UPDATE, 0, 0, struct.pack("!I", 5)) in frames(bytes(calls.out))


def test_another_connection_is_due_when_the_peer_leaves_or_takes_no_more() -> None:
    calls = opened()
    calls.receive(frame(GOAWAY, 0, 0, bytes(8)))
    assert calls.is_over
    full = opened()
    full.call(PATH, bytes(50_000))
    assert full.is_over


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_who_speaks_something_else_is_found_out(said: bytes) -> None:
    with pytest.raises(ProtocolError):
        opened().receive(said)


@given(st.binary(max_size=200))
def test_nothing_that_comes_is_more_than_a_protocol_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        opened().receive(data)

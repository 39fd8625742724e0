"""Frames and the handshake: any cutting of the bytes gives the same frames, and a stranger gets nowhere."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import ProtocolError
from holdfast.runtime.frames import FRAME_BYTES, HELLO_BYTES, Frames, Handshake, Identity, Turned, frame

PAYLOADS = st.lists(st.binary(max_size=300), max_size=10)


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[begin:end] for begin, end in pairwise(edges)]


def frames_in(chunks: list[bytes]) -> list[bytes]:
    frames, found = Frames(), []
    for chunk in chunks:
        frames.feed(chunk)
        while (payload := frames.next()) is not None:
            found.append(payload)
    return found


def shake(ours: Handshake, theirs: Handshake) -> None:
    """Carry frames between a member and a coordinator until neither has more to say."""
    to_member = theirs.opening()
    while to_member:
        to_server = [answer for payload in to_member for answer in ours.take(payload)]
        to_member = [answer for payload in to_server for answer in theirs.take(payload)]


def pair(member: Identity, server: Identity) -> tuple[Handshake, Handshake]:
    return Handshake(member, "aa", ours=True), Handshake(server, "bb", ours=False)


# --- frames -----------------------------------------------------------------------------------------------------------------


@given(PAYLOADS, st.lists(st.integers(0, 10_000), max_size=20))
def test_frames_come_out_as_they_went_in_however_the_bytes_were_cut(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(payload) for payload in payloads)
    assert frames_in(pieces(stream, cuts)) == payloads


def test_a_frame_that_is_not_whole_is_waited_for() -> None:
    frames = Frames()
    frames.feed(frame(b"abc")[:-1])
    assert frames.next() is None
    frames.feed(b"c")
    assert frames.next() == b"abc"


def test_a_stranger_cannot_announce_a_large_frame() -> None:
    frames = Frames()
    frames.feed((HELLO_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match="at most 4096"):
        frames.next()


def test_a_member_can_send_more_than_a_stranger_but_not_without_limit() -> None:
    frames = Frames()
    frames.limit = FRAME_BYTES
    frames.feed((FRAME_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(ProtocolError):
        frames.next()


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_garbage_is_frames_or_a_protocol_error(garbage: bytes, cuts: list[int]) -> None:
    with suppress(ProtocolError):
        frames_in(pieces(garbage, cuts))


# --- the handshake ----------------------------------------------------------------------------------------------------------


def test_two_of_one_job_with_one_token_find_together() -> None:
    member, server = pair(Identity("job", b"secret"), Identity("job", b"secret"))
    shake(member, server)
    assert member.done and server.done


def test_the_token_never_crosses_the_wire() -> None:
    member, server = pair(Identity("job", b"secret"), Identity("job", b"secret"))
    hello = server.opening()
    proof = member.take(hello[0])
    answer = server.take(proof[0])
    assert not any(b"secret" in payload for payload in (*hello, *proof, *answer))


def test_a_member_with_the_wrong_token_is_told_so() -> None:
    member, server = pair(Identity("job", b"guess"), Identity("job", b"secret"))
    with pytest.raises(Turned, match="wrong job token") as turned:
        shake(member, server)
    with pytest.raises(Turned, match="wrong job token"):
        member.take(turned.value.answer[0])
    assert not member.done and not server.done


def test_a_member_of_another_job_is_told_which_job_this_is() -> None:
    member, server = pair(Identity("other", b""), Identity("job", b""))
    with pytest.raises(Turned, match="this is job 'job', not 'other' \\(--rdzv-id\\)"):
        shake(member, server)


def test_a_coordinator_that_does_not_know_the_token_is_not_believed() -> None:
    member = Handshake(Identity("job", b"secret"), "aa", ours=True)
    member.take(json.dumps({"holdfast": 1, "nonce": "bb"}).encode())
    with pytest.raises(Turned, match="could not prove"):
        member.take(json.dumps({"proof": "0" * 64}).encode())


def test_a_proof_cannot_be_sent_back_to_its_maker() -> None:
    """A stranger that mirrors what it hears must not pass as the other side."""
    identity = Identity("job", b"secret")
    assert identity.proof("member", "x", "x") != identity.proof("coordinator", "x", "x")


def test_another_version_of_the_protocol_is_named() -> None:
    member = Handshake(Identity("job", b""), "aa", ours=True)
    with pytest.raises(Turned, match="version 2"):
        member.take(json.dumps({"holdfast": 2, "nonce": "bb"}).encode())


@given(st.binary(max_size=200), st.booleans())
def test_whatever_a_stranger_says_is_a_protocol_error(said: bytes, ours: bool) -> None:
    side = Handshake(Identity("job", b"secret"), "aa", ours=ours)
    with pytest.raises(ProtocolError):
        side.take(said)
        side.take(said)
    assert not side.done


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(("holdfast", "nonce", "proof", "job", "refused")), JSON), st.booleans())
def test_no_wellformed_lie_completes_a_handshake(said: dict[str, object], ours: bool) -> None:
    side = Handshake(Identity("job", b"secret"), "aa", ours=ours)
    with suppress(ProtocolError):
        side.take(json.dumps(said).encode())
        side.take(json.dumps(said).encode())
    assert not side.done

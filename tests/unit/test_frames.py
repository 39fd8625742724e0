"""Frames and the handshake: any cutting of the bytes gives the same frames, and a stranger gets nowhere."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import ProtocolError
from holdfast.runtime.net.frames import (
    FRAME_BYTES,
    HELLO_BYTES,
    JOB_CHARS,
    SEAL_BYTES,
    VERSION,
    Frames,
    Handshake,
    Identity,
    Seal,
    Turned,
    frame,
    refusal,
    stranger,
)

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


A, B, C = "aa" * 16, "bb" * 16, "cc" * 16


def shake(ours: Handshake, theirs: Handshake) -> list[bytes]:
    """Carry frames between a member and a coordinator until neither has more to say. Returns all that was said."""
    said = to_server = ours.opening()
    to_member = theirs.opening()
    said = [*to_server, *to_member]
    while to_member or to_server:
        for_server = [answer for payload in to_member for answer in ours.take(payload)]
        to_member = [answer for payload in to_server for answer in theirs.take(payload)]
        to_server = for_server
        said += [*to_server, *to_member]
    return said


def pair(member: Identity, server: Identity) -> tuple[Handshake, Handshake]:
    return Handshake(member, A, ours=True), Handshake(server, B, ours=False)


def hello(nonce: object = B, version: object = VERSION) -> bytes:
    return json.dumps({"holdfast": version, "nonce": nonce}).encode()


SECRET = Identity("job", b"secret")


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
    member, server = pair(SECRET, SECRET)
    shake(member, server)
    assert member.done and server.done


def test_the_token_never_crosses_the_wire() -> None:
    assert not any(b"secret" in payload for payload in shake(*pair(SECRET, SECRET)))


@pytest.mark.parametrize("letter", ["\u00e9", "\U0001f600", "\udcff"])
def test_any_run_id_is_proved(letter: str) -> None:
    """Also one of more bytes than a frame of the handshake, and one that no UTF-8 is: it is not sent."""
    identity = Identity(letter * JOB_CHARS, b"")
    said = shake(*pair(identity, identity))
    assert max(map(len, said)) < 200 and not any(letter.encode(errors="replace") in payload for payload in said)


@pytest.mark.parametrize("token", [b"", b"secret"])
def test_the_run_id_never_crosses_the_wire(token: bytes) -> None:
    job, other = Identity("a-run-id", token), Identity("another-id", token)
    assert not any(b"run-id" in payload for payload in shake(*pair(job, job)))
    with pytest.raises(Turned) as turned:
        shake(*pair(other, job))
    said = [turned.value.what.encode(), *turned.value.answer]
    assert not any(b"run-id" in payload or b"another-id" in payload for payload in said)


def test_a_member_with_the_wrong_token_is_told_so() -> None:
    member, server = pair(Identity("job", b"guess"), SECRET)
    with pytest.raises(Turned, match="wrong job token") as turned:
        shake(member, server)
    with pytest.raises(Turned, match="wrong job token"):
        member.take(turned.value.answer[0])
    assert not member.done and not server.done


@pytest.mark.parametrize("guess", [b"", b"secret ", b"secre"])
def test_no_token_and_nearly_the_token_are_wrong_tokens(guess: bytes) -> None:
    for ours, theirs in ((Identity("job", guess), SECRET), (SECRET, Identity("job", guess))):
        with pytest.raises(Turned):
            shake(*pair(ours, theirs))


@pytest.mark.parametrize("token", [b"", b"secret"])
def test_a_member_of_another_job_is_told_what_to_look_at(token: bytes) -> None:
    member, server = pair(Identity("other", token), Identity("job", token))
    with pytest.raises(Turned, match="another job \\(--rdzv-id\\)"):
        shake(member, server)


def test_a_coordinator_that_does_not_know_the_token_is_not_believed() -> None:
    member = Handshake(SECRET, A, ours=True)
    member.take(hello())
    with pytest.raises(Turned, match="could not prove"):
        member.take(json.dumps({"proof": "0" * 64}).encode())
    assert not member.done


def test_a_side_that_hears_itself_says_so() -> None:
    """A stranger that mirrors what it hears must not pass as the other side."""
    for ours in (True, False):
        side = Handshake(SECRET, A, ours=ours)
        with pytest.raises(ProtocolError, match="echoes our bytes"):
            side.take(side.opening()[0])


def test_a_member_s_proof_is_no_coordinator_s() -> None:
    """Not even when both are members: one that connects to an impostor gets its proof back, or another member's."""
    one, other = Handshake(SECRET, A, ours=True), Handshake(SECRET, B, ours=True)
    (proof_of_one,) = one.take(other.opening()[0])
    (proof_of_other,) = other.take(one.opening()[0])
    for side, proof in ((one, proof_of_one), (one, proof_of_other), (other, proof_of_one)):
        with pytest.raises(Turned, match="could not prove"):
            side.take(proof)


def test_a_coordinator_s_proof_is_no_member_s() -> None:
    """An impostor that has a coordinator connect to nobody, but plays two coordinators against each other, gets nowhere."""
    member, server = pair(SECRET, SECRET)
    said = shake(member, server)
    from_server = said[-1]
    again = Handshake(SECRET, B, ours=False)
    again.take(hello(A))
    with pytest.raises(ProtocolError):
        again.take(from_server)


def test_a_proof_that_was_overheard_is_of_no_use_later() -> None:
    member, server = pair(SECRET, SECRET)
    shown = [payload for payload in shake(member, server) if b"proof" in payload]
    later = Handshake(SECRET, C, ours=False)
    later.take(hello(A))
    with pytest.raises(Turned, match="wrong job token"):
        later.take(shown[0])


def test_what_is_proven_is_not_ambiguous() -> None:
    """Texts that join to the same bytes must not have the same proof."""
    macs = {
        Identity(job, b"x").mac("proof", "member", first, second)
        for job, first, second in (("a", "b", "c"), ("a\0b", "", "c"), ("a", "b\0c", ""), ("ab", "", "c"))
    }
    assert len(macs) == 4
    assert SECRET.mac("proof", "member", A, B) != SECRET.mac("proof", "coordinator", A, B)
    assert SECRET.mac("proof", "member", A, B) != SECRET.mac("seal", "member", A, B)


@pytest.mark.parametrize("version", [0, VERSION + 1, 10**4000])
def test_another_version_of_the_protocol_is_named_on_both_sides(version: int) -> None:
    member, server = pair(SECRET, SECRET)
    with pytest.raises(Turned, match=f"speaks version {str(version)[:20]} of the protocol, this agent {VERSION}: install"):
        member.take(hello(version=version))
    with pytest.raises(Turned, match=f"speaks version {str(version)[:20]} of .*, the coordinator {VERSION}") as turned:
        server.take(hello(version=version))
    assert len(turned.value.what) < 200
    with pytest.raises(Turned, match="install the same Holdfast on every node"):
        Handshake(SECRET, A, ours=True).take(turned.value.answer[0])


HOSTILE = [
    b"[" * 4000,
    b'{"holdfast":' * 400,
    b'{"holdfast": 1, "holdfast": 1, "nonce": "' + B.encode() + b'"}',
    b'{"holdfast": 1, "nonce": "\\ud800"}',
    b'{"holdfast": 1, "nonce": "' + b"\\ud800" * 32 + b'"}',
    b'{"holdfast": 1, "nonce": "' + b"A" * 32 + b'"}',
    b'{"holdfast": 1, "nonce": 7}',
    b'{"holdfast": 1}',
    b'{"holdfast": true, "nonce": "' + B.encode() + b'"}',
    b'{"holdfast": 1.0, "nonce": "' + B.encode() + b'"}',
    b'{"holdfast": NaN, "nonce": "' + B.encode() + b'"}',
    b'{"holdfast": Infinity}',
    b'{"holdfast": ' + b"9" * 4090 + b"}",
    b'{"holdfast": 1, "nonce": "\xff"}',
    b"\xff\xfe[\x00]\x00",
    b"",
    b"null",
]


@pytest.mark.parametrize("said", HOSTILE, ids=lambda said: repr(said[:30]))
@pytest.mark.parametrize("ours", [True, False])
def test_hostile_first_words_are_a_protocol_error(said: bytes, ours: bool) -> None:
    with pytest.raises(ProtocolError) as error:
        Handshake(SECRET, A, ours=ours).take(said)
    assert len(error.value.what) < 200


@pytest.mark.parametrize("proof", ["\ud800" * 64, "", "0" * 64, 7, None, ["x"], {}])
@pytest.mark.parametrize("ours", [True, False])
def test_hostile_proofs_are_a_protocol_error(proof: object, ours: bool) -> None:
    side = Handshake(SECRET, A, ours=ours)
    side.take(hello())
    with pytest.raises(ProtocolError):
        side.take(json.dumps({"proof": proof}).encode())
    assert not side.done


@given(st.binary(max_size=200), st.booleans())
def test_whatever_a_stranger_says_is_a_protocol_error(said: bytes, ours: bool) -> None:
    side = Handshake(SECRET, A, ours=ours)
    with pytest.raises(ProtocolError):
        side.take(said)
        side.take(said)
    assert not side.done


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20) | st.just(B),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
WORDS = st.dictionaries(st.sampled_from(("holdfast", "nonce", "proof", "job", "refused")), JSON)


@given(WORDS, WORDS, st.booleans(), st.booleans())
def test_no_wellformed_lie_completes_a_handshake(one: dict[str, Any], two: dict[str, Any], ours: bool, greet: bool) -> None:
    side = Handshake(SECRET, A, ours=ours)
    with suppress(ProtocolError):
        side.take(hello() if greet else json.dumps(one).encode())
        side.take(json.dumps(two).encode())
        side.take(json.dumps(two).encode())
    assert not side.done


def test_a_refusal_before_all_words_is_a_frame_that_a_member_understands() -> None:
    (said,) = frames_in([refusal("this job uses TLS")])
    with pytest.raises(Turned, match="this job uses TLS"):
        Handshake(SECRET, A, ours=True).take(said)


def test_known_strangers_are_named() -> None:
    assert "HTTP" in stranger(b"GET ") and "SSH" in stranger(b"SSH-") and stranger(frame(hello())[:4]) == ""


# --- seals ------------------------------------------------------------------------------------------------------------------


def sealed() -> tuple[Seal, Seal, Seal, Seal]:
    """What the member sends with, what it receives with, and the same of the coordinator."""
    member, server = pair(SECRET, SECRET)
    shake(member, server)
    return (*member.seals(), *server.seals())


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_what_one_side_seals_the_other_opens(payloads: list[bytes]) -> None:
    to_server, from_server, to_member, from_member = sealed()
    for payload in payloads:
        assert from_member.take(to_server.put(payload)) == payload
        assert from_server.take(to_member.put(payload)) == payload


@given(st.binary(max_size=20), st.data())
def test_a_frame_with_a_bit_changed_is_refused(payload: bytes, choice: st.DataObject) -> None:
    to_server, _, _, from_member = sealed()
    wire = bytearray(to_server.put(payload))
    wire[choice.draw(st.integers(0, len(wire) - 1))] ^= 1 << choice.draw(st.integers(0, 7))
    with pytest.raises(ProtocolError, match="seal"):
        from_member.take(bytes(wire))


def test_a_frame_repeated_left_out_or_sent_back_is_refused() -> None:
    to_server, from_server, _, from_member = sealed()
    first, second, third = (to_server.put(b"stop") for _ in range(3))
    assert from_member.take(first) == b"stop"
    for wrong, by in ((first, from_member), (third, sealed()[3]), (second, from_server), (b"", from_member)):
        with pytest.raises(ProtocolError, match="seal"):
            by.take(wrong)


def test_each_connection_has_keys_of_its_own() -> None:
    member, server = pair(SECRET, SECRET)
    shake(member, server)
    other, again = Handshake(SECRET, C, ours=True), Handshake(SECRET, B, ours=False)
    shake(other, again)
    with pytest.raises(ProtocolError):
        again.seals()[1].take(member.seals()[0].put(b"stop"))
    assert len(server.seals()[0].put(b"")) == SEAL_BYTES


def test_a_seal_is_the_keyed_blake2b_of_the_frame_s_number_and_its_bytes():
    seal, key = Seal(b"k" * 32), b"k" * 32
    for number, payload in enumerate((b"first", b"", b"x" * 1000)):
        mark = hashlib.blake2b(number.to_bytes(8, "big") + payload, key=key, digest_size=SEAL_BYTES).digest()
        assert seal.put(payload) == mark + payload

"""What can somebody do who reaches the port and does not know the token? Cost us one clear line, and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import socket

import pytest
from kit.network.security_peer import TOKEN, Peer

from holdfast.core.errors import ProtocolError
from holdfast.runtime.net.admission import UNPROVED
from holdfast.runtime.net.frames import VERSION, Turned, frame


def hello(**fields: object) -> bytes:
    return frame(json.dumps({"holdfast": VERSION, "nonce": "cd" * 16} | fields).encode())


STRANGE = {
    "HTTP": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "it speaks HTTP"),
    "TLS": (bytes.fromhex("16030100c8010000c40303") + bytes(200), "it speaks TLS, and this node does not"),
    "SSH": (b"SSH-2.0-OpenSSH_9.6\r\n", "it speaks SSH"),
    "4 GiB": (b"\xff\xff\xff\xff" + bytes(100), "it announced a frame of 4294967295 bytes (at most 4096 are allowed here)"),
    "binary": (frame(os.urandom(64)), "not a Holdfast agent: no JSON"),
    "deep": (frame(b"[" * 4000), "not a Holdfast agent: no JSON"),
    "huge number": (frame(b'{"holdfast":' + b"9" * 4050 + b"}"), "speaks version 99999999999999999999 of the protocol"),
    "NaN": (hello(holdfast=float("nan")), "not a Holdfast agent: no JSON"),
    "surrogates": (hello(nonce="\ud800" * 32), "not a Holdfast agent: no nonce"),
    "key twice": (frame(b'{"holdfast": 1, "holdfast": 1}'), "not a Holdfast agent: no JSON"),
    "old version": (hello(holdfast=0), f"speaks version 0 of the protocol, the coordinator {VERSION}: install the same"),
    "new version": (hello(holdfast=7), f"speaks version 7 of the protocol, the coordinator {VERSION}: install the same"),
    "no proof": (hello() + frame(b"{}"), "not a Holdfast agent: no proof"),
    "surrogate proof": (hello() + frame(b'{"proof": "\\ud800"}'), "wrong job token"),
    "another job": (hello() + frame(b'{"job": "\\u001b[2J\\n", "proof": ""}'), "or another job (--rdzv-id)"),
}


def test_each_stranger_gets_one_line_and_costs_the_job_nothing(job):
    job.begin()
    for _ in range(2):  # the second time nothing new is said
        for what, (data, _) in STRANGE.items():
            if what not in ("HTTP", "TLS", "SSH", "4 GiB"):
                continue
            peer = job.peer()
            peer.send(data)
            peer.until_closed()
    for what in ("HTTP", "TLS", "SSH", "4 GiB"):
        job.said(STRANGE[what][1])
    stderr = job.finish()
    assert all(stderr.count(STRANGE[what][1]) == 1 for what in ("HTTP", "TLS", "SSH"))
    assert "such connections came 4 times more" in stderr


@pytest.mark.parametrize("some", [sorted(STRANGE)[at : at + 4] for at in range(0, len(STRANGE), 4)], ids=", ".join)
def test_each_strange_word_is_named(job, some):
    job.begin()
    for what in some:
        peer = job.peer()
        peer.send(STRANGE[what][0])
        peer.until_closed()
        job.said(STRANGE[what][1])
    stderr = job.finish()
    assert stderr.count("turned away a connection from") == len(some)
    assert "\x1b" not in stderr


@pytest.mark.parametrize("env", [{}, None], ids=["without a token", "with a token"])
def test_whoever_guesses_the_run_id_is_not_told_it(job, env):
    job.begin(env=env)
    for guess in ("none", "secur", "another"):
        said = bytearray()
        peer = job.peer()
        hear = peer.hear
        peer.hear = lambda hear=hear, said=said: (said.extend(payload := hear()), payload)[1]
        with pytest.raises(Turned, match=r"another job \(--rdzv-id\)"):
            peer.prove(guess)
        assert said and b"secure" not in said + peer.until_closed()
    job.finish()


def test_a_flood_of_words_fills_no_log(job):
    job.begin()
    for count in range(300):
        peer = Peer(job.port)
        peer.send(hello(holdfast=1000 + count))
        peer.until_closed()
    lines = job.finish().splitlines()
    assert len(lines) < 12, lines
    assert any("such connections came 296 times more" in line for line in lines)


def test_more_silent_connections_than_are_held_keep_no_node_out(job):
    """Half-open connections, and a slow loris: the oldest go, and a member comes in among them."""
    job.begin(nnodes="1:2")
    idle = [socket.create_connection(("localhost", job.port), timeout=30) for _ in range(min(UNPROVED, _descriptors()) + 50)]
    try:
        for sock in idle[-40:]:
            with contextlib.suppress(ConnectionError):
                sock.sendall(b"\0")
        other = job.start_agent(name="b")
        job.running(1, 2)
        stderr = job.finish(rounds=2)
        assert other.wait().returncode == 0
        assert stderr.count("too many connections without proof at once") <= 2
    finally:
        for sock in idle:
            sock.close()


def _descriptors() -> int:
    import resource

    return min(UNPROVED, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)


def test_the_token_stays_with_the_agent(job):
    job.begin()
    assert job.running(0, 1) == ""
    job.finish()


def test_a_member_s_proof_cannot_be_relayed_into_a_session(job):
    """Somebody between a member and the coordinator hears the proof, and still cannot say a word of his own."""
    job.begin()
    peer = job.peer()
    peer.prove("secure", TOKEN)
    peer.send(frame(b'{"is":"Request","kind":"stop","node":"x","reason":"because I can"}'))
    peer.until_closed()
    job.said("hung up on")
    assert "a frame has a wrong seal" in job.finish()


def test_a_coordinator_shows_no_proof_to_who_has_none(job):
    job.begin()
    peer = job.peer()
    with pytest.raises(ProtocolError, match="wrong job token"):
        peer.prove("secure", "a guess")
    job.finish()

"""TLS by files: who is signed by the job's CA comes in, whoever is not is told why, and so are we."""

from __future__ import annotations

import datetime
import os
import signal
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from kit.certificates import Certificates

pytest.importorskip("trustme", reason="trustme is not installed: it makes the certificates")

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture
def ours(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "ours")


@pytest.fixture
def others(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "others")


def why_not(stranger: Any) -> str:
    """What an agent says that cannot come in: one line."""
    ended = stranger.wait()
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if "cannot take part" in line]
    return str(line)


def test_nodes_of_one_ca_make_one_job(job, ours):
    job.begin(*ours.flags("a"))
    other = job.start_agent(*ours.flags("b"), name="b")
    job.running(1, 2)
    stderr = job.finish(rounds=2)
    assert other.wait().returncode == 0
    assert "turned away" not in stderr and "no job token" not in stderr


def test_the_key_may_stand_in_the_certificate_s_file(job, ours, tmp_path):
    flags = ours.flags("a")
    both = tmp_path / "both.pem"
    both.write_text(Path(flags[1]).read_text() + Path(flags[3]).read_text())
    job.begin("--tls-cert", both, "--tls-ca", ours.ca_file)
    job.finish()


def test_files_that_are_replaced_while_a_job_runs_cost_it_nothing(job, ours):
    """They are read at the start; links that are made later, as those for states, go by what was read."""
    options = ("--max-restarts", 3, "--backoff", 0, "--stash-replicate")
    job.begin(*ours.flags("a"), *options)
    other = job.start_agent(*ours.flags("b"), *options, name="b")
    job.running(1, 2)
    for file in ours.folder.iterdir():
        file.write_text("no certificate any more")
    ranks = job.wait_until(lambda: [one for one in job.holdfast.events("WorkerStarted") if one["round"] == 2])
    os.kill(ranks[0]["pid"], signal.SIGKILL)
    job.running(0, 3)
    stderr = job.finish(rounds=3)
    assert other.wait().returncode == 0 and "turned away" not in stderr and "certificate" not in stderr


def test_whoever_cannot_come_in_gets_one_line_on_each_side(job, ours, others):
    """All at once: each tries for a while whether it is a job that has just ended which turns it away."""
    job.begin(*ours.flags("a"))
    strangers = {
        "it does not accept our certificate": job.start_agent(*others.flags("b")[:4], "--tls-ca", str(ours.ca_file), name="b"),
        "its certificate is not accepted": job.start_agent(*others.flags("c"), name="c"),
        "ours has expired": job.start_agent(*ours.flags("d", not_after=LONG_AGO), name="d"),
        "this job uses TLS: give --tls-cert": job.start_agent(name="e"),
    }
    for why, stranger in strangers.items():
        assert why in why_not(stranger)
    reasons = (
        "its certificate is not accepted: ",
        "it does not accept our certificate: its CA did not sign ours",
        "certificate has expired",
        "it does not use TLS, and this job does",
    )
    for reason in reasons:
        job.said(reason)
    assert job.finish().count("]: turned away a connection") == len(strangers)


def test_no_certificate_gets_a_line(job, ours):
    job.begin(*ours.flags("a"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(OSError), context.wrap_socket(socket.create_connection(("localhost", job.port))) as bare:
        bare.recv(100)
        bare.recv(100)
    job.said("it shows no certificate")
    job.finish()


def test_tls_against_none_gets_one_line_on_each_side(job, ours):
    job.begin()
    assert "the other side does not use TLS, and this node does" in why_not(job.start_agent(*ours.flags("b"), name="b"))
    job.said("it speaks TLS, and this node does not")
    assert job.finish().count("]: turned away a connection") == 1


def test_a_certificate_is_no_token(job, ours):
    job.begin(*ours.flags("a"))
    assert "wrong job token" in why_not(job.start_agent(*ours.flags("b"), name="b", env={"HOLDFAST_TOKEN": "another"}))
    job.finish()


def test_garbage_inside_and_instead_of_tls_costs_nothing(job, ours):
    job.begin(*ours.flags("a"))
    for garbage in (b"\x16\x03\x01" + bytes(500), b"\x16\xff\xff\xff\xff" * 100, b"GET / HTTP/1.0\r\n\r\n"):
        peer = job.peer()
        peer.send(garbage)
        peer.until_closed()
    job.said("TLS failed: wrong version number")
    job.said("it speaks HTTP")
    job.finish()


def test_what_comes_after_a_goodbye_in_the_middle_of_tls_s_handshake_is_not_kept(job, ours):
    """Without a certificate: nobody reads it any more, so each connection would hold all that is sent in ten seconds."""
    job.begin(*ours.flags("a"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(coming, going).do_handshake()
    goodbye = b"\x15\x03\x03\x00\x02\x01\x00"  # an alert: close_notify
    peer = job.peer()
    with pytest.raises(ConnectionError):
        for _ in range(256):
            peer.send(going.read() + goodbye * 9000)
    job.said("it has closed TLS")
    job.finish()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda flags, other: flags[:2], "TLS needs --tls-ca too"),
        (lambda flags, other: flags[4:], "TLS needs --tls-cert too"),
        (lambda flags, other: (*flags[:3], other[3], *flags[4:]), "cannot be used together: key values mismatch"),
        (lambda flags, other: (*flags[:5], "/nowhere.pem"), "--tls-ca: /nowhere.pem does not exist"),
        (lambda flags, other: (*flags[:5], flags[3]), "holds no certificate"),
    ],
    ids=["no CA", "no certificate", "another's key", "no file", "no certificate in it"],
)
def test_files_of_no_use_are_a_mistake_of_the_user_s(job, ours, others, change, message):
    ended = job.start_agent(*change(ours.flags("a"), others.flags("a"))).wait()
    assert ended.returncode == 2 and message in ended.stderr and "Traceback" not in ended.stderr


def test_an_encrypted_key_is_refused_and_nobody_is_asked(job, ours):
    flags = ours.flags("a")
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(Path(flags[3]).read_bytes(), None)
    kind = serialization.BestAvailableEncryption(b"pass")
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, kind)
    Path(flags[3]).write_bytes(pem)
    ended = job.start_agent(*flags).wait()
    assert ended.returncode == 2 and "the key is encrypted" in ended.stderr

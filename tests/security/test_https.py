"""The supervisor's HTTP API over TLS: a cookie crosses the network in it only, and files of no use are said at the start."""

from __future__ import annotations

import resource
import socket
import ssl
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from kit.ports import port_of

httpx = pytest.importorskip("httpx", reason="httpx is not installed: pip install httpx")
trustme = pytest.importorskip("trustme", reason="trustme is not installed: it makes the certificates")
pytest.importorskip("starlette", reason="the extra `supervisor` is not installed")

FILES = 1024  # That a process may open, as is usual.

TOKEN = "look-" + "x" * 20


class Files:
    """A certificate for localhost, its key, both in one, and the key of another certificate."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        own, other = self.ca.issue_cert("localhost"), self.ca.issue_cert("localhost")
        self.cert, self.key, self.both, self.other = (folder / name for name in ("own.pem", "own.key", "both.pem", "other.key"))
        own.cert_chain_pems[0].write_to_path(self.cert)
        own.private_key_pem.write_to_path(self.key)
        own.private_key_and_cert_chain_pem.write_to_path(self.both)
        other.private_key_pem.write_to_path(self.other)
        self.locked = folder / "locked.key"
        self.locked.write_bytes(_encrypted(own.private_key_pem.bytes()))


def _encrypted(key: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    known, how = form.load_pem_private_key(key, None), form.BestAvailableEncryption(b"a password")
    return known.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, how)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def serve(holdfast: Any, tmp_path: Path) -> Any:
    """`serve("--http-cert", …)`: the supervisor, and the port of its API."""

    def start(*flags: object) -> tuple[Any, int]:
        (tmp_path / "tokens").write_text(f"read {TOKEN}\n")
        where = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--state", tmp_path / "fleet")
        running = holdfast.start("supervisor", *where, "--http-token-file", tmp_path / "tokens", *flags)
        return running, port_of(running, "dashboard at")

    return start


@pytest.mark.parametrize("apart", [True, False], ids=["two files", "one file"])
def test_a_browser_that_knows_the_ca_is_answered_and_its_cookie_goes_over_tls_only(serve, files, apart):
    running, port = serve(*(("--http-cert", files.cert, "--http-key", files.key) if apart else ("--http-cert", files.both)))
    assert f"dashboard at https://127.0.0.1:{port}/" in running.stdout
    known = ssl.create_default_context(cadata=files.ca.cert_pem.bytes().decode())
    with httpx.Client(base_url=f"https://localhost:{port}", verify=known, timeout=60) as client:
        assert client.get("/api/fleet").status_code == 401
        answer = client.post("/login", data={"token": TOKEN})
        assert answer.status_code == 303
        assert {"Secure", "HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))
        assert client.get("/api/fleet").json()["nodes"] == []
        gone = client.post("/logout", json={})
        assert "Secure" in gone.headers["set-cookie"].split("; ") and client.get("/api/fleet").status_code == 401
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        httpx.get(f"https://localhost:{port}/healthz", verify=ssl.create_default_context())


def test_plain_http_at_that_port_is_told_nothing_and_ends_nothing(serve, files):
    running, port = serve("--http-cert", files.both)
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as link:
            link.sendall(f"GET /healthz HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
            heard = b""
            while piece := link.recv(1 << 16):
                heard += piece
        assert b"HTTP" not in heard
    known = ssl.create_default_context(cadata=files.ca.cert_pem.bytes().decode())
    assert httpx.get(f"https://localhost:{port}/healthz", verify=known, timeout=60).status_code == 200
    assert "Traceback" not in running.stderr and "is gone" not in running.stderr


@pytest.mark.parametrize("command", ["supervisor", "web"])
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (lambda files: ("--http-cert", "/nowhere.pem"), "--http-cert: /nowhere.pem does not exist"),
        (lambda files: ("--http-cert", files.cert, "--http-key", "/nowhere.key"), "--http-key: /nowhere.key does not exist"),
        (lambda files: ("--http-cert", files.cert, "--http-key", files.other), "cannot be used together: key values mismatch"),
        (lambda files: ("--http-cert", files.cert), "(which must hold the key too, without --http-key) cannot be used"),
        (lambda files: ("--http-cert", files.cert, "--http-key", files.locked), "--http-key: the key is encrypted"),
        (lambda files: ("--http-key", files.key), "--http-key needs --http-cert"),
    ],
    ids=["no certificate", "no key", "another's key", "no key in it", "encrypted", "key alone"],
)
def test_files_that_are_of_no_use_are_said_at_the_start(holdfast, files, tmp_path, command, flags, said):
    listen = ("--listen", "127.0.0.1:0") if command == "supervisor" else ()
    ended = holdfast.run(command, *listen, "--http", "127.0.0.1:0", "--state", tmp_path / "fleet", *flags(files))
    assert ended.returncode == 2 and said in ended.stderr and "Traceback" not in ended.stderr, ended.output


def test_connections_that_stop_within_tls_s_handshake_keep_nobody_out(serve, files):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    try:
        running, port = serve("--http-cert", files.both)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4 * FILES, hard), hard))
        trusting = ssl.create_default_context()
        files.ca.configure_trust(trusting)
        with ExitStack() as links:
            for number in range(FILES + 100):
                link = links.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                with suppress(ConnectionError):
                    link.sendall((b"", b"\x16\x03\x01\x02\x00")[number % 2])  # the beginning of a greeting
            for _ in range(3):
                assert httpx.get(f"https://localhost:{port}/healthz", verify=trusting, timeout=60).status_code == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "Traceback" not in running.stderr, running.stderr[-2000:]

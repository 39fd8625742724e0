"""A real etcd for tests: one member or several, on loopback, with data in a temporary folder."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest
from kit.ports import ports
from kit.waiting import wait_for

NEEDED = pytest.mark.skipif(
    shutil.which("etcd") is None or importlib.util.find_spec("etcd3gw") is None,
    reason="etcd or its client is not installed: apt-get install etcd-server, pip install etcd3gw",
)
"""The mark of tests that need both."""
PATIENCE_S = 30.0


class Etcd:
    """A cluster of `size` members. `heartbeat_ms` also sets how soon it elects a leader of its own: ten times that.

    `tls`: paths of a certificate for 127.0.0.1 and localhost, of its key, and of their CA; clients must have one of it too.
    """

    def __init__(
        self, folder: Path, size: int = 1, heartbeat_ms: int = 20, tls: tuple[Path, Path, Path] | None = None
    ) -> None:
        self.folder, self.heartbeat_ms, self.tls = folder, heartbeat_ms, tls
        self.clients, self.peers = ports(size), ports(size)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for member in range(size):
            self.start(member)
        self.wait_until_it_answers()

    @property
    def endpoints(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.clients)

    def start(self, member: int = 0) -> None:
        """Start a member; its data of earlier lives is still there."""
        client, peer = self._url(member), f"http://127.0.0.1:{self.peers[member]}"
        cluster = ",".join(f"m{i}=http://127.0.0.1:{port}" for i, port in enumerate(self.peers))
        command = ["etcd", "--name", f"m{member}", "--data-dir", str(self.folder / f"m{member}")]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster]
        command += ["--heartbeat-interval", str(self.heartbeat_ms), "--election-timeout", str(10 * self.heartbeat_ms)]
        if self.tls is not None:
            names = ("--cert-file", "--key-file", "--trusted-ca-file")
            command += ["--client-cert-auth", *(word for name, path in zip(names, self.tls) for word in (name, str(path)))]
        # Without the test's mark: it may serve several tests, and is ended by its own fixture.
        env = {name: value for name, value in os.environ.items() if name != "HOLDFAST_TEST_MARK"}
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"m{member}.log").open("ab") as log:
            self.processes[member] = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def kill(self, member: int = 0) -> None:
        """SIGKILL a member."""
        process = self.processes.pop(member)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End all members."""
        for member in list(self.processes):
            self.kill(member)

    def wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.ask("/kv/range", {"key": _text("x")})
                return
            except (OSError, urllib.error.HTTPError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def leader(self) -> int:
        """Which member leads etcd itself, once one does: on a busy machine they elect one again."""
        return int(wait_for(lambda: [member for member in self.processes if self._leads(member)], what="etcd's leader")[0])

    def _leads(self, member: int) -> bool:
        status = self.ask("/maintenance/status", {}, member)
        return bool(status.get("leader") == status["header"]["member_id"])

    def ask(self, path: str, what: dict[str, Any], member: int | None = None, token: str = "") -> dict[str, Any]:
        """An answer of a live member."""
        member = next(iter(self.processes)) if member is None else member
        request = urllib.request.Request(f"{self._url(member)}/v3{path}", json.dumps(what).encode())
        if token:
            request.add_header("Authorization", token)
        with urllib.request.urlopen(request, timeout=5, context=self._context()) as answer:
            return json.loads(answer.read())

    def _url(self, member: int) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.clients[member]}"

    def _context(self) -> ssl.SSLContext | None:
        if self.tls is None:
            return None
        context = ssl.create_default_context(cafile=str(self.tls[2]))
        context.load_cert_chain(self.tls[0], self.tls[1])
        return context

    def get(self, key: str) -> dict[str, Any] | None:
        """A key's entry, its value decoded from JSON. None: there is none."""
        found = self.ask("/kv/range", {"key": _text(key)}).get("kvs")
        return None if not found else {**found[0], "value": json.loads(b64decode(found[0]["value"]))}

    def compact(self) -> None:
        """Forget all history."""
        revision = self.ask("/kv/range", {"key": _text("x")})["header"]["revision"]
        self.ask("/kv/compaction", {"revision": revision, "physical": True})

    def demand_credentials(self, password: str) -> None:
        """From now on only `root` is let in."""
        self.ask("/auth/user/add", {"name": "root", "password": password})
        self.ask("/auth/user/grant", {"user": "root", "role": "root"})
        self.ask("/auth/enable", {})


def _text(text: str) -> str:
    return b64encode(text.encode()).decode()

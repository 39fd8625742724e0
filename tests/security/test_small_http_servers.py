"""What do strangers achieve at the health port and at the attribution service? A closed connection."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from kit.waiting import wait_for

from holdfast.diagnosis.rule import load, own_files
from holdfast.diagnosis.service import Service
from holdfast.runtime import http_server
from holdfast.runtime.http_server import BoundedHttpServer
from holdfast.telemetry.health_http import MOST_CLIENTS, HealthHttpServer

ESTABLISHED = b"\x01"
"""What TCP_INFO begins with for a connection that is made."""

ASKS = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
link = socket.socket()
link.connect(("127.0.0.1", int(sys.argv[1])))
link.sendall(b"GET /jobs HTTP/1.0\\r\\n\\r\\n")
print(link.recv(100).split()[1].decode())
"""


@pytest.fixture
def health() -> Iterator[HealthHttpServer]:
    server = HealthHttpServer(time.time, 0)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def attribution(tmp_path: Path) -> Iterator[Service]:
    service = Service(str(tmp_path), load(own_files()))
    thread = threading.Thread(target=service.serve)
    thread.start()
    yield service
    service.close()
    thread.join()


def is_well(port: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
        return bool(answer.status == 200)


def test_clients_that_send_no_request_keep_nobody_out_and_cost_few_threads(health: HealthHttpServer) -> None:
    with ExitStack() as links:
        for number in range(300):
            link = links.enter_context(socket.create_connection(("127.0.0.1", health.port), timeout=60))
            with suppress(ConnectionError):
                link.sendall(b"GET /" if number % 2 else b"")
        assert is_well(health.port)
        busy = lambda: sum("process_request" in thread.name for thread in threading.enumerate())
        wait_for(lambda: busy() <= MOST_CLIENTS)  # a thread ends a moment after its client's place is another's


def test_a_crowd_that_comes_at_once_waits_in_the_kernel_and_nobody_is_dropped_there() -> None:
    server = BoundedHttpServer(("127.0.0.1", 0), http_server.JsonHandler, most=MOST_CLIENTS)  # nobody serves it yet
    with server, ExitStack() as links:
        crowd = [links.enter_context(socket.socket()) for _ in range(100)]  # Linux may allow no more than 128
        for link in crowd:
            link.setblocking(False)
            link.connect_ex(server.server_address)  # on one host the kernel answers within the call
        assert all(link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == ESTABLISHED for link in crowd)


def test_a_request_that_drips_is_given_up(
    health: HealthHttpServer, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., Any]
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.3)
    with socket.create_connection(("127.0.0.1", health.port), timeout=60) as link:

        def drips() -> bool:
            try:
                link.sendall(b"x")
            except ConnectionError:
                return True
            return False

        wait_until(drips)


def told(service: Service, body: bytes) -> int:
    """The status of an answer."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as link:
        link.sendall(b"POST /logs HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        return int(link.recv(100).split()[1])


def test_who_may_ask_keeps_no_memory_by_long_words_and_is_answered_whatever_it_says(attribution: Service) -> None:
    """A node of the job, say. Of 10,000 logs the words are remembered."""
    words = dict.fromkeys(("user", "job_id", "cycle_id"), "x" * 15_000)
    path = f"{attribution.root}/{'y' * 3000}"
    for more in (words, {"user": ["x"] * 5000}, {"job_id": 7, "cycle_id": None}):
        assert told(attribution, json.dumps({"log_path": path, **more}).encode()) == 200
        assert len(json.dumps(attribution.listed())) < 5000
    assert attribution.listed()[0]["job_id"] == 7
    assert told(attribution, json.dumps({"log_path": f"{path}{path}"}).encode()) == 400
    assert told(attribution, b'{"log_path":' + b"[" * 60_000) == 400


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as another user")
def test_another_user_is_not_told_what_logs_there_are(attribution: Service) -> None:
    ask = lambda uid: (
        subprocess.run(
            [sys.executable, "-c", ASKS, str(attribution.port), str(uid)], capture_output=True, text=True, check=True
        ).stdout
    )
    assert (ask(os.geteuid()), ask(65534)) == ("200\n", "403\n")

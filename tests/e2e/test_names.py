"""Whoever looks for a name waits for nobody: the answer comes from the host's `wait`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from holdfast.core.wire.links import LinkDown
from holdfast.runtime.host import Host
from holdfast.runtime.net.names import Names


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host(lambda what: None)
    yield made
    made.close()


def test_an_address_is_its_own_answer(host: Host) -> None:
    said = Names(host).ask("127.0.0.1", 80, lambda found: [LinkDown(link=1, reason=str(found))])
    assert len(said) == 1 and "127.0.0.1" in str(said[0])


def test_a_name_in_ascii_needs_no_codec_and_one_that_is_too_long_is_merely_unknown() -> None:
    code = "import sys; from holdfast.runtime.net.addresses import is_here as here; print(here('x' * 70), here('127.0.0.1')); "
    code += "print('encodings.idna' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True", "False"], done.stderr


class NameServer:
    """Answers to names, not to addresses, once `answers` is set: that it cannot."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked: list[bytes] = []
        self.real = socket.getaddrinfo

    def look(self, name: bytes, port: int, **how: Any) -> Any:
        if how.get("flags"):
            return self.real(name, port, **how)
        self.asked.append(name)
        self.answers.wait(30)
        raise socket.gaierror(-3, "try again later")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> NameServer:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server.look)
    return server


def test_a_name_server_that_does_not_answer_holds_up_nobody(host: Host, slow: NameServer) -> None:
    names = Names(host)
    then = lambda found: [LinkDown(link=1, reason=str(found.strerror))]
    assert names.ask("node0.nowhere", 80, then) == names.ask("node0.nowhere", 80, then) == []
    slow.answers.set()
    seen: list[object] = []
    until = time.monotonic() + 30
    while not seen and time.monotonic() < until:
        seen += host.wait(until)
    assert seen == [LinkDown(link=1, reason="try again later")] * 2
    assert slow.asked == [b"node0.nowhere"], "one question for both"
    names.close()


def test_without_room_for_a_thread_there_is_no_address_for_now(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    names, then = Names(host), lambda found: [LinkDown(link=1, reason=str(found.strerror))]
    with monkeypatch.context() as none_left:
        none_left.setattr("_thread.start_new_thread", Mock(side_effect=RuntimeError("can't start new thread")))
        assert names.ask("localhost", 80, then) == [LinkDown(link=1, reason="can't start new thread")]
    assert names.ask("localhost", 80, lambda found: [LinkDown(link=2, reason=type(found).__name__)]) == []
    assert host.wait(host.now() + 30) == [LinkDown(link=2, reason="list")]
    names.close()


def test_an_answer_that_comes_too_late_is_nobody_s(host: Host, slow: NameServer, wait_until: Any) -> None:
    names, heard = Names(host), list[object]()
    names.ask("node0.nowhere", 80, lambda found: heard.append(found) or [])  # type: ignore[func-returns-value]
    wait_until(lambda: slow.asked)
    number = names.alarm
    names.close()
    names.close()
    another = os.eventfd(0, os.EFD_NONBLOCK)
    os.dup2(another, number)  # as the next file that is opened most likely has it
    slow.answers.set()
    wait_until(lambda: names.answers)
    with names.lock, pytest.raises(BlockingIOError):
        os.eventfd_read(number)
    assert host.wait(0.0) == [] and not heard
    for fd in {another, number}:
        os.close(fd)

"""Whoever looks for a name waits for nobody: the answer comes from the host's `wait`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from holdfast.core.links import LinkDown
from holdfast.runtime.host import Host
from holdfast.runtime.names import Names


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host(lambda what: None)
    yield made
    made.close()


def test_an_address_is_its_own_answer(host: Host) -> None:
    said = Names(host).ask("127.0.0.1", 80, lambda found: [LinkDown(link=1, reason=str(found))])
    assert len(said) == 1 and "127.0.0.1" in str(said[0])


def test_a_name_server_that_does_not_answer_holds_up_nobody(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, real, asked = threading.Event(), socket.getaddrinfo, []

    def slow(name: str, port: int, **how: object) -> object:
        if how.get("flags"):
            return real(name, port, **how)  # type: ignore[arg-type]
        asked.append(name)
        answers.wait(30)
        raise socket.gaierror(-3, "try again later")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    names = Names(host)
    then = lambda found: [LinkDown(link=1, reason=str(found.strerror))]
    assert names.ask("node0.nowhere", 80, then) == names.ask("node0.nowhere", 80, then) == []
    answers.set()
    seen: list[object] = []
    until = time.monotonic() + 30
    while not seen and time.monotonic() < until:
        seen += host.wait(until)
    assert seen == [LinkDown(link=1, reason="try again later")] * 2 and asked == ["node0.nowhere"], "one question for both"
    names.close()


def test_an_answer_that_comes_too_late_is_nobody_s(host: Host) -> None:
    names = Names(host)
    names.ask("localhost", 80, lambda found: [])
    names.close()
    names.close()

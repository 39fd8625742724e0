"""Which port a job is given, that nobody else is given it, and who serves one that several want to."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from errno import EADDRINUSE, ECONNREFUSED

import pytest

from holdfast.core.wire.links import Serving
from holdfast.runtime.host import Host
from holdfast.runtime.net import network as net
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.net.ports import hold_port, listening_process


def listener(port: int) -> socket.socket:
    """As a store or an HTTP server opens one."""
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", port))
    one.listen()
    return one


def test_the_port_that_is_wanted_is_held_for_one_and_another_one_for_who_comes_second() -> None:
    with closing(hold_port()) as free:
        wanted = free.getsockname()[1]
    with closing(hold_port(rather=wanted)) as first, closing(hold_port(rather=wanted)) as second:
        ports = [held.getsockname()[1] for held in (first, second)]
        assert ports[0] == wanted != ports[1]
        for port in ports:
            listener(port).close()


def test_a_port_that_somebody_listens_at_is_not_given_away() -> None:
    with closing(hold_port()) as held:
        port = held.getsockname()[1]
        with closing(listener(port)), closing(hold_port(rather=port)) as other:
            assert other.getsockname()[1] != port


class Refused(socket.socket):
    """One that the kernel does not let listen, as if another one were about to: so many times."""

    times = 0

    def listen(self, *backlog: int) -> None:
        if type(self).times:
            type(self).times -= 1
            raise OSError(EADDRINUSE, "Address already in use")
        super().listen(*backlog)


@pytest.mark.parametrize(("times", "serves"), [(1, True), (net.LISTEN_TRIES, False)])
def test_of_two_who_begin_in_one_moment_one_serves_the_endpoint(
    times: int, serves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Refused, "times", times)
    monkeypatch.setattr(net.socket, "socket", Refused)
    with closing(Host(list[str]().append)) as host:
        network = net.Network(host, Identity("job", b""), ("127.0.0.1", 0))
        assert network.listen() is serves and network.taken is not serves
        network.close()


def test_who_listens_at_a_port_is_told_by_its_pid_and_name() -> None:
    with closing(hold_port()) as held:
        port = held.getsockname()[1]
        assert listening_process(port) == "", "it is held, and nobody listens"
        with closing(listener(port)):
            assert listening_process(port).startswith(f"pid {os.getpid()} (")


@pytest.fixture
def links() -> Iterator[net.Network]:
    """Those of an agent that does not listen yet."""
    host = Host(lambda what: None)
    made = net.Network(host, Identity("job", b"token"), ("127.0.0.1", 0))
    yield made
    made.close()
    host.close()


def test_an_endpoint_is_served_by_who_may_where_it_is_here_and_its_port_is_free(links: net.Network) -> None:
    with closing(hold_port()) as held:
        port = held.getsockname()[1]
    with closing(listener(port)):
        assert links.connect(2, f"127.0.0.1:{port}", may_serve=True) == [] and links.taken == port
    assert links.connect(3, f"127.0.0.1:{port}", may_serve=True) == [Serving()]
    assert links.listens_at == f"127.0.0.1:{port}" and not links.taken


def test_an_endpoint_elsewhere_is_served_by_nobody_here(links: net.Network) -> None:
    assert Serving() not in links.connect(1, "192.0.2.1:1", may_serve=True) and not links.listeners


def test_after_an_address_of_a_name_that_does_not_answer_the_next_is_tried_whatever_else_is_called(
    links: net.Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = ("127.0.0.1", 1), ("127.0.0.2", 1)
    known = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in (here, there)]
    monkeypatch.setattr(links.names, "ask", lambda name, port, then: then(known))
    called: list[object] = []

    class Noted(socket.socket):
        def connect_ex(self, address: object) -> int:
            called.append(address)
            return ECONNREFUSED

    monkeypatch.setattr(net.socket, "socket", Noted)
    for link in range(4):
        links.connect(link, ("one:1", "other:1")[link % 2])
    assert called == [here, here, there, there]

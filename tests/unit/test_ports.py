"""Which port a job is given, that nobody else is given it, and who serves one that several want to."""

from __future__ import annotations

import socket
from contextlib import closing
from errno import EADDRINUSE

import pytest

from holdfast.runtime.host import Host
from holdfast.runtime.net import network as net
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.net.ports import hold_port


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

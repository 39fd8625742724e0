"""Which port a job is given, and that nobody else is given it."""

from __future__ import annotations

import socket
from contextlib import closing

from holdfast.runtime.ports import hold_port


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

"""For whom is the first rank's store waited for (`client.in_place.groups.await_store`)? As `init_process_group` is called."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from holdfast.client.in_place.groups import await_store


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A port at which nobody listens yet; this is rank 1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", str(taken.getsockname()[1])), ("RANK", "1")):
            monkeypatch.setenv(name, value)
        yield taken


def waits(*args: object, **named: object) -> bool:
    thread = threading.Thread(target=await_store, args=args, kwargs=named, daemon=True)
    thread.start()
    thread.join(0.3)
    return thread.is_alive()


def test_it_is_waited_for_until_somebody_listens(port: socket.socket) -> None:
    waiting = threading.Thread(target=await_store, args=("gloo", "env://"), daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    port.listen()
    waiting.join(30)
    assert not waiting.is_alive()


def test_who_meets_elsewhere_does_not_wait(port: socket.socket) -> None:
    assert waits("gloo") and waits(backend="gloo", init_method="env://")
    assert not waits("gloo", "tcp://127.0.0.1:1") and not waits(init_method="file:///tmp/there")
    assert not waits("gloo", None, None, 2, 1, object()) and not waits(store=object())


@pytest.mark.parametrize(("name", "value"), [("RANK", "0"), ("MASTER_ADDR", ""), ("MASTER_PORT", "none")])
def test_neither_the_first_rank_waits_nor_one_that_torch_will_refuse(
    port: socket.socket, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert not waits("gloo")

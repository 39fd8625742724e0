"""Does a rank begin its next life, whatever becomes of the process groups of the last (`client.in_place.groups`)?"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import threading
import time
from contextlib import suppress

import pytest

from holdfast.client.in_place import groups, lost_sends

PATIENCE_S = 20.0


class Group:
    """Whoever lets go of it last waits for its threads, as for torch's."""

    def __init__(self) -> None:
        self.is_let_go, self.threads_end = threading.Event(), threading.Event()

    def __del__(self) -> None:
        self.is_let_go.set()
        self.threads_end.wait(3 * PATIENCE_S)


def test_a_group_whose_threads_do_not_end_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    is_let_go, threads_end = group.is_let_go, group.threads_end
    monkeypatch.setattr(groups, "_held", [group])
    del group
    groups.end_life()
    assert not is_let_go.is_set()  # what that life has left may refer to it
    ends = threading.Thread(target=groups.end_life)
    ends.start()
    assert is_let_go.wait(PATIENCE_S)
    ends.join(PATIENCE_S)
    assert not ends.is_alive() and not threads_end.is_set()
    threads_end.set()


def test_a_descriptor_that_has_become_something_else_is_left_alone() -> None:
    """Gloo's own thread closes connections, while another looks at what is open."""
    reads, writes = os.pipe()
    groups._shut(reads, "socket:[1]")
    os.write(writes, b"as ever")
    assert os.read(reads, 100) == b"as ever"
    os.close(reads)
    os.close(writes)


def test_without_torch_no_send_is_lost() -> None:
    assert lost_sends.end() == 0


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "__res_state"), reason="this C library is not glibc")
def test_a_lookup_whose_answer_never_comes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the C library's own, which asks a nameserver of the test's twice, for a minute each."""
    with socket.socket(type=socket.SOCK_DGRAM) as nameserver, socket.socket(type=socket.SOCK_DGRAM) as of_the_script:
        nameserver.bind(("127.0.0.1", 0))
        of_the_script.connect(nameserver.getsockname())
        nameserver.settimeout(PATIENCE_S)
        monkeypatch.setattr(groups, "NAMES", nameserver.getsockname()[1])
        before = groups.sockets()
        looks = threading.Thread(target=_look_up, args=nameserver.getsockname(), daemon=True)
        looks.start()
        nameserver.recv(1000)
        deadline = time.monotonic() + PATIENCE_S
        while looks.is_alive() and time.monotonic() < deadline:
            groups.answer_for_others(before)
            looks.join(0.01)
        assert not looks.is_alive()
        of_the_script.send(b"as ever")
        asked = [nameserver.recv(1000) for _ in range(2)]
    assert asked[-1] == b"as ever"


def _look_up(host: str, port: int) -> None:
    libc = ctypes.CDLL(None)
    libc["__res_init"]()
    state_at = libc["__res_state"]
    state_at.restype = ctypes.c_void_p
    address = socket.AF_INET.to_bytes(2, sys.byteorder) + port.to_bytes(2, "big") + socket.inet_aton(host) + bytes(8)
    # Seconds of a try, tries, options as they are; one nameserver.
    at = state_at()
    ctypes.memmove(at, (60).to_bytes(4, sys.byteorder) + (2).to_bytes(4, sys.byteorder), 8)
    ctypes.memmove(at + 16, (1).to_bytes(4, sys.byteorder) + address, 20)
    with suppress(socket.gaierror):
        socket.getnameinfo(("192.0.2.1", 80), 0)

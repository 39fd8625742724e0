"""Does a rank begin its next life, whatever becomes of the process groups of the last (`client.in_place.groups`)?"""

from __future__ import annotations

import os
import threading

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

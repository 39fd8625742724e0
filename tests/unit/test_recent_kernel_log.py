"""The kernel's log is read record by record, to its end, across what was overwritten meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from holdfast.runtime.hardware import kmsg

FIRST, SECOND = b"6,1,1000000,-;first\n SUBSYSTEM=pci\n", b"6,2,2000000,-;second\n"


@pytest.fixture
def device() -> Iterator[tuple[str, int]]:
    """(path, what writes there) of a pipe that gives a record to a read, as /dev/kmsg does."""
    reader, writer = os.pipe2(os.O_DIRECT)
    yield f"/proc/self/fd/{reader}", writer
    os.close(reader)
    os.close(writer)


def test_it_ends_where_there_is_no_more_and_waits_for_nothing(device: tuple[str, int]) -> None:
    path, writer = device
    os.write(writer, FIRST)
    os.write(writer, SECOND)
    assert list(kmsg.records(path)) == [FIRST.decode(), SECOND.decode()]  # the writer is there: a read would wait, or EAGAIN
    assert list(kmsg.records(path)) == []


def test_what_was_overwritten_before_it_was_read_is_a_gap(device: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    path, writer = device
    os.write(writer, SECOND)
    overwritten, read = [BrokenPipeError()], os.read

    def reads(fd: int, size: int) -> bytes:
        if overwritten:
            raise overwritten.pop()
        return read(fd, size)

    monkeypatch.setattr(os, "read", reads)
    assert list(kmsg.records(path)) == [SECOND.decode()]

"""What does a spare that cannot be made leave behind? No descriptor, whichever call fails."""

from __future__ import annotations

import errno
import os
import socket

import pytest
from kit.descriptors import open_here

from holdfast.agent.spares.messages import Made
from holdfast.agent.spares.pool import SparePool


@pytest.mark.parametrize("failing", range(4))
def test_a_spare_that_cannot_be_made_keeps_no_descriptor(monkeypatch, failing):
    told: list[object] = []
    pool = object.__new__(SparePool)
    pool.given, pool._show = {0: (["python"], {}, None)}, told.append  # type: ignore[method-assign,assignment]
    calls = iter(range(10))

    def short_of_files(call):
        def tried(*args):
            if next(calls) == failing:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return call(*args)

        return tried

    monkeypatch.setattr(socket, "socketpair", short_of_files(socket.socketpair))
    monkeypatch.setattr(os, "memfd_create", short_of_files(os.memfd_create))
    before = open_here()
    pool._make(0, 0)
    assert open_here() <= before
    assert isinstance(told[0], Made) and os.strerror(errno.EMFILE) in told[0].trouble

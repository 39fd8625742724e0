"""Free ports beside the one that a test has, and those that commands have got for themselves.

A port that was free a moment ago may be another test's by now: all that are given out here come from a range of this process's
own, in which no other test of any checkout on this host looks. Nor does the kernel, for outgoing connections, nor do the ports
lie where those are that go by Slurm's job ids.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import re
import socket
from collections.abc import Iterator
from typing import Any

FIRST, RANGES, EACH = 10_000, 50, 200
"""Where the ranges begin, how many there are, and ports in each: more than any few tests in a row take."""


def claim(name: str) -> socket.socket | None:
    """Has `name` as long as it is open: an address without a file, which the kernel gives to one process of this host. None:
    somebody else has it."""
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0holdfast-tests-{name}")
    except OSError:
        mark.close()
        return None
    return mark


def ports(count: int) -> list[int]:
    """TCP ports that are free now, and that nobody else is given."""
    return list(itertools.islice(filter(_is_free, _ours()), count))


def another_port(port: int) -> int:
    """A TCP port other than `port` that is free now, and that nobody else is given."""
    return next(other for other in _ours() if other != port and _is_free(other))


_claims: list[socket.socket] = []
"""Held for as long as this process lives."""


@functools.cache
def _ours() -> Iterator[int]:
    """All ports of this process's range, again and again, in an order that nobody relies on."""
    chance = random.SystemRandom()  # hypothesis seeds the other one, alike everywhere
    for number in chance.sample(range(RANGES), RANGES):
        if (mark := claim(f"ports-{number}")) is not None:
            _claims.append(mark)
            first = FIRST + number * EACH
            return itertools.cycle(chance.sample(range(first, first + EACH), EACH))
    raise RuntimeError(f"{RANGES} processes that run tests have taken all ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def port_of(running: Any, says: str = "listening at") -> int:
    """Of a command that was told to take any port: the one that it says it has."""
    running.wait_for_output(says)
    found = re.search(rf"{says} \S+:(\d+)", running.stdout)
    assert found, running.stdout
    return int(found[1])

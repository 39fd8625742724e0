"""Asks questions about this host, each in a throw-away child with a deadline, all at the same time.

A name server that does not answer, a driver that hangs, or a file system that is gone cost `DEADLINE_S` and one line, and no
attempt leaves a mark on the asking process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NoReturn

from holdfast.core.value import Value, replace, to_plain

DEADLINE_S = 5.0  # For each question. nvidia-smi without persistence mode takes some 2 s.


class State(StrEnum):
    """Whether this host has what was asked for."""

    HAVE = "have"
    DEGRADED = "degraded"  # There is another way.
    MISSING = "missing"


HAVE, DEGRADED, MISSING = State


class Fact(Value):
    """The answer to one question about this host."""

    name: str = ""  # Filled in by `ask`.
    state: State
    found: str  # What was seen.
    means: str = ""  # What follows for a job; empty where nothing does.
    advice: str = ""  # What to do about it.
    required: bool = False  # Without it nothing runs.


def have(found: str, *, required: bool = False) -> Fact:
    """It is there."""
    return Fact(state=HAVE, found=found, required=required)


def degraded(found: str, means: str, advice: str = "") -> Fact:
    """It is not, or not as it should be, and jobs run without it."""
    return Fact(state=DEGRADED, found=found, means=means, advice=advice)


def missing(found: str, means: str, advice: str) -> Fact:
    """It is not, and nothing runs without it."""
    return Fact(state=MISSING, found=found, means=means, advice=advice, required=True)


Check = Callable[[], Fact]


def ask(checks: Mapping[str, Check], deadline_s: float = DEADLINE_S) -> list[Fact]:
    """The answers, in the order of the questions, after `deadline_s` seconds at most."""
    until = time.monotonic() + deadline_s
    children = {name: _Child(name, check) for name, check in checks.items()}
    return [child.answer(name, until, deadline_s) for name, child in children.items()]


class _Child:
    """One question being answered in a process of its own."""

    def __init__(self, name: str, check: Check) -> None:
        self._reader, writer = os.pipe()
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            _answer_and_leave(name, check, writer)
        os.close(writer)

    def answer(self, name: str, until: float, deadline_s: float) -> Fact:
        text, said = b"", select.poll()
        said.register(self._reader, select.POLLIN)
        while said.poll(1000 * max(0.0, until - time.monotonic())):
            piece = os.read(self._reader, 1 << 16)
            if not piece:
                break
            text += piece
        else:
            # Not waited for: in uninterruptible sleep it would not even die. It ends with its pipe, or never.
            os.close(self._reader)
            try:  # the group: what it has started hangs just as well
                os.killpg(self._pid, signal.SIGKILL)
            except ProcessLookupError:
                os.kill(self._pid, signal.SIGKILL)
            return _unclear(name, f"no answer within {deadline_s:g} s")
        os.close(self._reader)
        _, status = os.waitpid(self._pid, 0)
        if not text:
            return _unclear(name, f"the attempt ended with {os.waitstatus_to_exitcode(status)}")
        return Fact(**json.loads(text) | {"name": name})


def _unclear(name: str, found: str) -> Fact:
    return replace(degraded(found, "not known whether it works: whatever needs it may hang or fail"), name=name)


def _answer_and_leave(name: str, check: Check, writer: int) -> NoReturn:
    try:
        os.setpgid(0, 0)
        answer = json.dumps(to_plain(check())).encode()
        while answer:
            answer = answer[os.write(writer, answer) :]
    except BaseException as error:
        os.write(2, f"holdfast doctor: {name}: {type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(0)

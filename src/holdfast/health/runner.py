"""How does a check run without harm to us? In a process and a session of its own, with a deadline.

    start ──ends──▶ answer                      what it wrote on descriptor 3, or why there is nothing
      └──deadline──▶ SIGKILL ──ends──▶ answer   no answer within …
                        └──KILL_S──▶ abandoned  not even SIGKILL reaches it: it sleeps in the kernel (state D)

A process that cannot be killed is left alone and named with what it sleeps in, and the same check is not started beside it: a
mount that hangs costs one process, however often it is asked for. `Child` is one such process, for the agent's loop; an
`Examination` runs several side by side and waits for all.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.core.errors import StartError
from holdfast.core.job.xid import DeviceFault
from holdfast.core.value import Value, replace, to_plain
from holdfast.health.check import Wanted
from holdfast.health.child import ANSWER_FD, CHARS
from holdfast.health.verdict import DEGRADED, STATES, Verdict
from holdfast.runtime.process import process

KILL_S = 1.0  # After SIGKILL a process is gone within milliseconds, or sleeps where nothing wakes it.
BLIND_S = 0.05  # How often to look whether one has ended that cannot be waited for.
MOST = 1 << 20  # Bytes of an answer that are read.

SLOW = "see what does not answer: a driver, a mount, a service; if it only takes longer, write {name}[deadline=SECONDS]"

BROKEN = "the check itself is broken, or lacks something: `holdfast check` shows it alone"


class Child:
    """One check that runs. Never blocks."""

    def __init__(
        self,
        wanted: Wanted,
        root: str,
        before: Mapping[str, Any],
        environ: Mapping[str, str],
        now: float,
        clock: Value | None = None,
    ) -> None:
        """Starts it. StartError: it cannot be started."""
        self.wanted, self.started_at = wanted, now
        self.until = now + wanted.check.deadline_s
        self.overdue = False
        self._answer = os.memfd_create("verdict", os.MFD_CLOEXEC)
        self._said = os.memfd_create("said", os.MFD_CLOEXEC)
        self._devnull = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        task = {"target": wanted.check.target, "argument": wanted.argument, "root": root, "before": dict(before)}
        task |= {"clock": to_plain(clock)} if clock is not None else {}
        told = json.dumps({**task, "deadline_s": wanted.check.deadline_s, "until": self.until})
        try:
            self.process = process.spawn(
                (sys.executable, "-P", "-m", "holdfast.health.child", told),
                environ,
                stdin=self._devnull,
                stdout=self._said,
                stderr=self._said,
                inherit={ANSWER_FD: self._answer},
            )
        except BaseException:
            self._close_files()
            raise

    @property
    def pid(self) -> int:
        """Of its process, which leads a process group."""
        return self.process.pid

    def ended(self) -> bool:
        """Whether it is gone; it is reaped by that."""
        try:
            return process.reap(self.pid) is not None
        except ChildProcessError:
            return True  # somebody else has reaped it

    def end(self, now: float) -> None:
        """Its time is up: kill it and whatever it has started. Say by `ended` or `stuck` what has become of it."""
        self.overdue, self.until = True, now + KILL_S
        process.kill_group(self.pid, 9)

    def answer(self, now: float) -> Verdict:
        """What it found. Only once it has ended."""
        took_s = now - self.started_at
        if self.overdue:
            verdict = self._silence(f"no answer within {self.wanted.check.deadline_s:g} s")
        else:
            verdict = self._read()
        return replace(verdict, check=self.wanted.label, took_s=took_s)

    def stuck(self, now: float) -> Verdict:
        """The verdict about one that even SIGKILL does not end."""
        limit_s = self.wanted.check.deadline_s
        text = f"no answer within {limit_s:g} s, and its process {self.pid} cannot be killed ({process.asleep(self.pid)})"
        return replace(self._silence(text), check=self.wanted.label, took_s=now - self.started_at)

    def close(self) -> None:
        """Give the descriptors back; the process is left alone."""
        self._close_files()
        self.process.close()

    def _close_files(self) -> None:
        for fd in (self._answer, self._said, self._devnull):
            os.close(fd)

    def _silence(self, text: str) -> Verdict:
        said = self._last_line()
        reason = f"{text}; it said last: {said}" if said else text
        advice = SLOW.format(name=self.wanted.check.name)
        return Verdict(state=self.wanted.check.silence, reason=reason[:CHARS], advice=advice)

    def _read(self) -> Verdict:
        text = os.pread(self._answer, MOST, 0)
        try:
            plain = json.loads(text)
            found = Verdict(**plain | {"devices": tuple(DeviceFault(**one) for one in plain["devices"])})
            if found.state in STATES:
                return found
        except (ValueError, TypeError, KeyError):
            pass
        said = self._last_line() or "it ended without an answer"
        return Verdict(state=DEGRADED, reason=f"not known: {said}"[:CHARS], advice=BROKEN)

    def _last_line(self) -> str:
        size = os.fstat(self._said).st_size
        lines = os.pread(self._said, 4096, max(0, size - 4096)).decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def unstartable(wanted: Wanted, error: StartError) -> Verdict:
    """The verdict about a check that cannot even be started."""
    return Verdict(state=DEGRADED, reason=f"not known: {error.what}"[:CHARS], advice=error.hint, check=wanted.label)


class Examination:
    """The same checks, as often as they are asked for. Each is given what it kept when it looked last. One that even SIGKILL
    does not end is not started again."""

    def __init__(
        self,
        wanted: Sequence[Wanted],
        *,
        root: str = "/",
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wanted, self.root, self.clock = wanted, root, clock
        self.environ = os.environ if environ is None else environ
        self._kept: dict[str, dict[str, Any]] = {}
        self._stuck: dict[str, Child] = {}

    def take(self) -> list[Verdict]:
        """All verdicts, in order. The checks run side by side, for the longest deadline and KILL_S at most."""
        verdicts: dict[str, Verdict] = {}
        running: dict[int, Child] = {}
        now = self.clock()
        for one in self.wanted:
            if (child := self._stuck.get(one.label)) is not None:
                if not child.ended():
                    verdicts[one.label] = child.stuck(now)
                    continue
                self._stuck.pop(one.label).close()
            try:
                child = Child(one, self.root, self._kept.get(one.label, {}), self.environ, now)
            except StartError as error:
                verdicts[one.label] = unstartable(one, error)
                continue
            running[child.pid] = child
        while running:
            until = min(child.until for child in running.values())
            _wait([child.process.pidfd for child in running.values()], until - now)
            now = self.clock()
            for pid, child in list(running.items()):
                label = child.wanted.label
                if child.ended():
                    verdicts[label] = child.answer(now)
                    child.close()
                elif now < child.until:
                    continue
                elif not child.overdue:
                    child.end(now)
                    continue
                else:
                    verdicts[label], self._stuck[label] = child.stuck(now), child
                del running[pid]
        self._kept |= {label: verdict.keep for label, verdict in verdicts.items() if verdict.keep}
        return [verdicts[one.label] for one in self.wanted]


def _wait(pidfds: Sequence[int | None], longest_s: float) -> None:
    """Until one of them ends, for `longest_s` at most. Where a kernel gives no pidfd, for a moment."""
    poll = select.poll()
    for fd in pidfds:
        if fd is not None:
            poll.register(fd, select.POLLIN)
    wait_s = min(longest_s, BLIND_S) if None in pidfds else longest_s
    poll.poll(max(0.0, wait_s) * 1000.0)

"""Sends a queue's deliveries to their receiver: a thread for each receiver, so that one that hangs delays no other.

What has been told is written to a file after each letter: the next life goes on from there.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.core.machine import NEVER
from holdfast.supervisor.notify.delivery_queue import Letter, Outbox, Phase
from holdfast.supervisor.notify.webhook import Answer
from holdfast.telemetry.report.phrasing import span


class Receiver(Protocol):
    """Somebody who is told."""

    name: str

    def deliver(self, letter: Letter) -> Answer:
        """Try once; may block, and raises nothing."""


class Courier:
    """One receiver's."""

    def __init__(
        self,
        receiver: Receiver,
        path: str,
        say: Callable[[str], None],
        began_unix: float,
        phases: Sequence[Phase] = tuple(Phase),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`path`: the file of what has been told; `began_unix`: a new receiver hears of nothing that was over before."""
        self.receiver, self.path, self.say, self.clock = receiver, path, say, clock
        self.outbox = Outbox(_read(path), began_unix, phases)
        self.said = ""
        """The last complaint."""
        self._turn = threading.Condition()
        self._writing = threading.Lock()
        """Two threads write the file, one after the other: the newer text stays."""
        self._is_known = False
        """What was over before is on disk as told."""

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"courier {self.receiver.name}", daemon=True).start()

    def hear(self, new: Sequence[dict[str, Any]], known: Sequence[dict[str, Any]]) -> None:
        """These deeds are new, of those that are known. Never waits for the receiver."""
        with self._turn:
            dropped = self.outbox.dropped
            self.outbox.hear(new)
            self.outbox.forget(known)
            self._turn.notify()
        if self.outbox.dropped > dropped:
            self.say(f"{self.receiver.name}: {self.outbox.dropped} messages were dropped, since too many wait")
        if not self._is_known:
            self._is_known = True
            self._write()

    def _run(self) -> None:
        while True:
            letter = self._next()
            answer = self.receiver.deliver(letter)
            with self._turn:
                if answer.taken or answer.is_final:
                    self.outbox.taken(letter)
                    again = ": it is not sent again"
                else:
                    pause_s = self.outbox.failed(self.clock(), answer.wait_s)
                    again = f": tried again in {span(pause_s)}, and later each time"
            if answer.taken or answer.is_final:
                self._write()
            complaint = f"has {'refused' if answer.is_final else 'not taken'} {letter.id} ({answer.text})"
            if answer.taken:
                complaint = again = ""
            if complaint != self.said:
                self.say(f"{self.receiver.name} {complaint or 'takes messages again'}{again}")
                self.said = complaint

    def _next(self) -> Letter:
        with self._turn:
            while (letter := self.outbox.due(self.clock())) is None:
                until = self.outbox.deadline()
                self._turn.wait(None if until == NEVER else max(0.0, until - self.clock()))
            return letter

    def _write(self) -> None:
        try:
            with self._writing:
                with self._turn:
                    told = json.dumps({"told": self.outbox.told})
                with open(f"{self.path}.new", "w", encoding="utf-8") as file:
                    file.write(told)
                os.replace(f"{self.path}.new", self.path)
        except OSError as error:
            self.say(f"{self.path} cannot be written ({error.strerror}): the next life tells {self.receiver.name} again")


def _read(path: str) -> dict[str, str] | None:
    """None: there is none, so this receiver is new."""
    try:
        with open(path, encoding="utf-8") as file:
            told = json.load(file)["told"]
        return {str(id): str(phase) for id, phase in told.items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # twice rather than never

"""Sends a queue's deliveries to their receiver: a thread for each receiver, so that one that hangs delays no other.

What has been told is written to a file after each notification: the next life goes on from there.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.core.machine import NEVER
from holdfast.runtime.private_files import private
from holdfast.supervisor.notify.delivery_queue import DeliveryQueue, Notification, Phase
from holdfast.supervisor.notify.webhook import Answer
from holdfast.telemetry.report.phrasing import span


class Receiver(Protocol):
    """Somebody who is told."""

    name: str

    def deliver(self, notification: Notification) -> Answer:
        """Try once; may block, and raises nothing."""


class WebhookSender:
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
        self.queue = DeliveryQueue(_read(path), began_unix, phases)
        self.said = ""
        """The last complaint."""
        self._turn = threading.Condition()
        self._writing = threading.Lock()
        """Two threads write the file, one after the other: the newer text stays."""
        self._is_known = False
        """What was over before is on disk as told."""

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"webhook {self.receiver.name}", daemon=True).start()

    def hear(self, new: Sequence[dict[str, Any]], known: Sequence[dict[str, Any]]) -> None:
        """These deeds are new, of those that are known. Never waits for the receiver."""
        with self._turn:
            dropped = self.queue.dropped
            self.queue.hear(new)
            self.queue.forget(known)
            self._turn.notify()
        if self.queue.dropped > dropped:
            self.say(f"{self.receiver.name}: {self.queue.dropped} messages were dropped: the queue is full")
        if not self._is_known:
            self._is_known = True
            self._write()

    def _run(self) -> None:
        while True:
            notification = self._next()
            answer = self.receiver.deliver(notification)
            with self._turn:
                if answer.taken or answer.is_final:
                    self.queue.taken(notification)
                    again = ": it is not sent again"
                else:
                    pause_s = self.queue.failed(self.clock(), answer.wait_s)
                    again = f": tried again in {span(pause_s)}, and later each time"
            if answer.taken or answer.is_final:
                self._write()
            complaint = f"has {'refused' if answer.is_final else 'not taken'} {notification.id} ({answer.text})"
            if answer.taken:
                complaint = again = ""
            if complaint != self.said:
                self.say(f"{self.receiver.name} {complaint or 'takes messages again'}{again}")
                self.said = complaint

    def _next(self) -> Notification:
        with self._turn:
            while (notification := self.queue.due(self.clock())) is None:
                until = self.queue.deadline()
                self._turn.wait(None if until == NEVER else max(0.0, until - self.clock()))
            return notification

    def _write(self) -> None:
        try:
            with self._writing:
                with self._turn:
                    told = json.dumps({"told": self.queue.told})
                with open(f"{self.path}.new", "w", encoding="utf-8", opener=private) as file:
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

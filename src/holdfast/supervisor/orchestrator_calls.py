"""How is an orchestrator called that may hang? By a thread for each call; a late answer is dropped."""

from __future__ import annotations

import _thread
import os
import select
from collections import deque

from holdfast.core.errors import HoldfastError
from holdfast.core.machine import Observation
from holdfast.runtime.host import Host
from holdfast.supervisor.fleet.messages import Call, Called, CallVerb
from holdfast.supervisor.orchestrator import Orchestrator

MOST = 256
"""Threads at a time: calls that hang for ever must not take all there are. Beyond, a call fails at once."""


class Calls:
    """Those that are under way. What comes of each comes out of the host's `wait`."""

    def __init__(self, host: Host, orchestrator: Orchestrator) -> None:
        self.host, self.orchestrator = host, orchestrator
        self.answers: deque[Called] = deque()
        self.running = 0
        self.alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        host.watch(self.alarm, select.EPOLLIN, self._answered)

    def begin(self, call: Call) -> None:
        self.running += 1
        if self.running > MOST:
            self._put(Called(task=call.task, ok=False, text=f"{MOST} calls to {self.orchestrator.name} hang"))
            return
        try:
            _thread.start_new_thread(self._make, (call,))
        except RuntimeError as error:
            self._put(Called(task=call.task, ok=False, text=str(error)))

    def close(self) -> None:
        """Whatever still runs is left."""
        self.host.unwatch(self.alarm)

    def _make(self, call: Call) -> None:
        try:
            match call.verb:
                case CallVerb.DRAIN:
                    ok, text = True, self.orchestrator.drain(call.target, call.need.reason)
                case CallVerb.UNCORDON:
                    ok, text = True, self.orchestrator.uncordon(call.target, call.need.reason)
                case CallVerb.REPLACE:
                    ok, text = True, self.orchestrator.replace(call.target, call.task, call.need)
                case CallVerb.VACANT:
                    ok, text = True, self.orchestrator.vacant(call.target)
                case CallVerb.LABEL:
                    ok, text = True, self.orchestrator.label(call.target, call.task, call.need.label)
        except (HoldfastError, OSError) as error:
            ok, text = False, str(error)
        except Exception as error:  # a defect in an adapter is a call that has failed
            ok, text = False, f"{type(error).__name__}: {error}"
        self._put(Called(task=call.task, ok=ok, text=text))

    def _put(self, called: Called) -> None:
        self.answers.append(called)
        os.eventfd_write(self.alarm, 1)

    def _answered(self, events: int) -> list[Observation]:
        os.eventfd_read(self.alarm)
        seen: list[Observation] = []
        while self.answers:
            self.running -= 1
            seen.append(self.answers.popleft())
        return seen

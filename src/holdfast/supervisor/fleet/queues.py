"""Which order or call comes next? Each host has a queue, and one task of it runs at a time.

A task's deadline starts when the task does. A task that is late has failed, and a later answer to it is ignored. So a host that
hangs delays its own tasks, and no other's.
"""

from __future__ import annotations

from collections import deque

from holdfast.core.machine import NEVER, Action
from holdfast.core.value import Value

TASK_S = 10.0
"""Seconds in which an order or a call has to be answered. An agent answers an order as soon as its job's coordinator has; a
scheduler's controller that is busy takes some seconds."""


class Task(Value):
    """Something to be done, once."""

    id: str
    host: str
    """Whose queue it waits in."""
    action: Action
    """What begins it, again and again if need be: a `Tell` of an order, or a `Call`."""


class Queues:
    """Of all hosts. The first task of a queue is under way."""

    def __init__(self) -> None:
        self.by_host: dict[str, deque[Task]] = {}
        self.until: dict[str, float] = {}
        """Host → when the time of its current task is up."""
        self.host_of: dict[str, str] = {}
        """Task → whose queue it is in."""

    def __contains__(self, task: str) -> bool:
        return task in self.host_of

    def push(self, task: Task, now: float) -> list[Action]:
        """Begin it, now or when those before it are done. One that is in a queue already stays where it is."""
        if task.id in self.host_of:
            return []
        self.host_of[task.id] = task.host
        queue = self.by_host.setdefault(task.host, deque())
        queue.append(task)
        return self._begin(task.host, now) if len(queue) == 1 else []

    def asked(self, task_id: str) -> Action | None:
        """What began a task that is under way. None: it is not."""
        queue = self.by_host.get(self.host_of.get(task_id, ""))
        return queue[0].action if queue and queue[0].id == task_id else None

    def done(self, task_id: str, now: float) -> tuple[bool, list[Action]]:
        """It has been answered: whether somebody still waited for that, and what is begun next."""
        if self.asked(task_id) is None:
            return False, []
        return True, self._over(self.host_of[task_id], now)

    def again(self, host: str) -> list[Action]:
        """That host is back: say again what it may have missed."""
        return [self.by_host[host][0].action] if host in self.by_host else []

    def expire(self, now: float) -> tuple[list[str], list[Action]]:
        """Tasks whose time is up, and what is begun in their place."""
        hosts = [host for host, until in self.until.items() if now >= until]
        late = [self.by_host[host][0].id for host in hosts]
        return late, [action for host in hosts for action in self._over(host, now)]

    def deadline(self) -> float:
        return min(self.until.values(), default=NEVER)

    def _over(self, host: str, now: float) -> list[Action]:
        """The host's current task is over: begin its next."""
        queue = self.by_host[host]
        del self.host_of[queue.popleft().id]
        if queue:
            return self._begin(host, now)
        del self.by_host[host], self.until[host]
        return []

    def _begin(self, host: str, now: float) -> list[Action]:
        self.until[host] = now + TASK_S
        return [self.by_host[host][0].action]

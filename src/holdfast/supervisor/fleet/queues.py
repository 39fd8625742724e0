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
    within_s: float = TASK_S


class Queue:
    """Of one host."""

    def __init__(self) -> None:
        self.waiting: deque[Task] = deque()
        self.current: Task | None = None
        self.until = NEVER

    def begin_next(self, now: float) -> list[Action]:
        """Begin the next task. None is left: nothing."""
        self.current, self.until = None, NEVER
        if not self.waiting:
            return []
        self.current = self.waiting.popleft()
        self.until = now + self.current.within_s
        return [self.current.action]


class Queues:
    """Of all."""

    def __init__(self) -> None:
        self.by_host: dict[str, Queue] = {}
        self.host_of: dict[str, str] = {}
        """Task → whose queue it is in."""

    def __contains__(self, task: str) -> bool:
        return task in self.host_of

    def push(self, task: Task, now: float) -> list[Action]:
        """Do it, or do it when those before it are done. One that is in a queue already stays where it is."""
        if task.id in self.host_of:
            return []
        queue = self.by_host.setdefault(task.host, Queue())
        self.host_of[task.id] = task.host
        queue.waiting.append(task)
        return queue.begin_next(now) if queue.current is None else []

    def asked(self, task_id: str) -> Action | None:
        """What began a task that is under way. None: it is not."""
        queue = self.by_host.get(self.host_of.get(task_id, ""))
        current = queue.current if queue is not None else None
        return current.action if current is not None and current.id == task_id else None

    def done(self, task_id: str, now: float) -> tuple[bool, list[Action]]:
        """It has been answered: whether somebody still waited for that, and what is begun next."""
        queue = self.by_host.get(self.host_of.get(task_id, ""))
        if queue is None or queue.current is None or queue.current.id != task_id:
            return False, []
        return True, self._next(task_id, queue, now)

    def again(self, host: str) -> list[Action]:
        """That host is back: say again what it may have missed."""
        queue = self.by_host.get(host)
        return [queue.current.action] if queue is not None and queue.current is not None else []

    def expire(self, now: float) -> tuple[list[str], list[Action]]:
        """Tasks whose time is up, and what is begun in their place."""
        late: list[str] = []
        actions: list[Action] = []
        for queue in list(self.by_host.values()):
            if now >= queue.until and queue.current is not None:
                late.append(queue.current.id)
                actions += self._next(queue.current.id, queue, now)
        return late, actions

    def deadline(self) -> float:
        """When the next task's time is up."""
        return min((queue.until for queue in self.by_host.values()), default=NEVER)

    def _next(self, over: str, queue: Queue, now: float) -> list[Action]:
        """That task is over."""
        host = self.host_of.pop(over)
        if not queue.waiting:
            del self.by_host[host]
        return queue.begin_next(now)

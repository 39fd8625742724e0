"""Who is told what next, so that nobody waits for anybody? One queue for each host, in which one thing is done at a time.

A task has a deadline that begins when it begins; what has not been done by then has failed, and an answer that comes later is
to a question that nobody asks any more. So a host that hangs delays what is meant for it, and nothing else.
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
        return self._next(queue, now) if queue.current is None else []

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
        del self.host_of[task_id]
        return True, self._next(queue, now)

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
                del self.host_of[queue.current.id]
                actions += self._next(queue, now)
        return late, actions

    def deadline(self) -> float:
        """When the next task's time is up."""
        return min((queue.until for queue in self.by_host.values()), default=NEVER)

    def _next(self, queue: Queue, now: float) -> list[Action]:
        queue.current, queue.until = None, NEVER
        if queue.waiting:
            queue.current = queue.waiting.popleft()
            queue.until = now + queue.current.within_s
            return [queue.current.action]
        for host in [host for host, one in self.by_host.items() if one is queue]:
            del self.by_host[host]
        return []

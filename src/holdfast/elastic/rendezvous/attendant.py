"""How does this node keep its seat while its agent is busy? A thread with the links, the lease and, on one node, the
coordinator. The handler shows the `Attendant` what it wants (`show`) and waits for the result (`wait_for`).
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import cast

from holdfast.agent.group.machine import Group
from holdfast.agent.group.messages import Exit
from holdfast.agent.node import Node
from holdfast.core.job.events import Decided
from holdfast.core.job.failure import Failure
from holdfast.core.job.policy import Decision
from holdfast.core.machine import Action, Observation, Record, Say, Tick
from holdfast.core.wire.links import Connect, HangUp, Transmit
from holdfast.core.wire.messages import Join
from holdfast.elastic.utils.logging import get_logger
from holdfast.recovery.policy import RestartOnFailure
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.link_router import LinkRouter
from holdfast.rendezvous.member import Member
from holdfast.rendezvous.rules import Rules
from holdfast.runtime.host import Host
from holdfast.runtime.net.addresses import host_and_port
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.net.network import Network
from holdfast.runtime.process.process import children_of, kill_tree
from holdfast.runtime.secrets import Shelter

from .attendance import Attendance, EndWorkers

logger = get_logger(__name__)

SLICE_S = 0.5  # longest sleep of a waiting agent, so that signals are handled everywhere


class MembershipOnly(RestartOnFailure):
    """The policy here: whatever ends a round, another may form, since each agent counts its own restarts."""

    def __init__(self) -> None:
        super().__init__(max_restarts=0)

    def consider(self, failure: Failure, *, uptime_s: float, now: float) -> Decision:
        """See `core.job.policy.Policy`."""
        return Decision(reason="the launchers decide about restarts")

    def consider_request(self, what: str, *, uptime_s: float, now: float) -> Decision:
        """See `core.job.policy.Policy`."""
        return Decision(reason=what)

    def heed(self, verdict: str) -> None:
        """No verdict ends the job here: the launchers decide about restarts."""


class Attendant:
    """One node's machines and their loop, in a thread of their own."""

    def __init__(
        self,
        join: Join,
        rules: Rules,
        identity: Identity,
        endpoint: tuple[str, int],
        *,
        shelter: Shelter | None = None,
        may_host: bool,
        alone: bool = False,
    ) -> None:
        """`alone`: no other node can come, so no port is opened."""
        self.attendance = Attendance(join)
        self.host = Host(lambda what: logger.warning("%s", what))
        self.network = Network(self.host, identity, endpoint, shelter=shelter)
        self.hosting = alone or (may_host and self.network.listen())
        self.node = self._node(join, rules, f"{endpoint[0]}:{endpoint[1]}")
        self.changed = threading.Condition()
        self.broken: BaseException | None = None
        self._inbox: deque[Observation] = deque()
        self._waits: list[Callable[[Attendance], object]] = []
        """What others wait for: they are woken when something of it is so, and not at every turn."""
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # rung when the inbox has something
        self._closing = False
        self.host.watch(self._bell, select.EPOLLIN, self._rung)
        self._thread = threading.Thread(target=self._run, name="holdfast-rendezvous", daemon=True)
        self._thread.start()

    def _node(self, join: Join, rules: Rules, endpoint: str) -> Node:
        now = self.host.now()
        seat = cast("Group", self.attendance)  # it has what a Node asks of a group
        if self.hosting:
            return Node(seat, server=LinkRouter(Rendezvous(rules, MembershipOnly(), now=now, now_unix=self.host.unix())))
        return Node(seat, member=Member(join.node, endpoint=endpoint, join_timeout_s=rules.join_timeout_s, now=now))

    # --- asked for by other threads -------------------------------------------------------------------------------------

    def show(self, seen: Observation, until: Callable[[Attendance], object] = bool) -> None:
        """Let the attendance observe something; returns when it has, and when `until` holds. To wait for both at once spares a
        turn of either thread."""
        self._inbox.append(seen)
        self._ring()
        self.wait_for(until)

    def wait_for(self, predicate: Callable[[Attendance], object], timeout_s: float = float("inf")) -> bool:
        """Until `predicate` holds, `timeout_s` seconds at most. Everything shown before has been observed by then."""
        deadline = time.monotonic() + timeout_s
        with self.changed:
            self._waits.append(predicate)
            try:
                while self.broken is None and (self._inbox or not predicate(self.attendance)):
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        return False
                    self.changed.wait(min(left_s, SLICE_S))
            finally:
                self._waits.remove(predicate)
        if self.broken is not None:
            raise RuntimeError("the rendezvous' own thread has ended") from self.broken
        return True

    def where(self) -> tuple[str, int]:
        """The endpoint at which the coordinator is now."""
        moved = self.node.member.moved_to if self.node.member is not None else ""
        return host_and_port(moved) if moved else self.network.endpoint

    @property
    def is_over(self) -> bool:
        """As the coordinator's host: whether the job has ended. A node that never asked for a seat is not told."""
        return self.node.server is not None and self.node.server.rendezvous.report is not None

    def wait_until_idle(self, timeout_s: float) -> bool:
        """As the coordinator's host: until everybody has heard how the job ended."""
        return self.wait_for(lambda _: self.node.server is None or self.node.server.idle, timeout_s)

    def close(self) -> None:
        """End the thread and close every link."""
        self._closing = True
        self._ring()
        self._thread.join()
        os.close(self._bell)

    def _ring(self) -> None:
        if self._thread.is_alive():
            os.eventfd_write(self._bell, 1)

    # --- the thread -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self.changed:
                self._perform(self.node.begin(self.host.now()))
            while not self._closing:
                due_at = self.node.deadline()
                happened = self.host.wait(min(due_at, self.network.deadline()))
                late = [Tick()] if self.host.now() >= due_at else []
                with self.changed:
                    for seen in [*happened, *self.network.due(), *late]:
                        self._observe(seen)
                    if not self._inbox and any(awaited(self.attendance) for awaited in self._waits):
                        self.changed.notify_all()
        except BaseException as error:
            logger.exception("the rendezvous' own thread has ended")
            self.broken = error
        finally:
            self.network.close()
            self.host.close()
            with self.changed:
                self.changed.notify_all()

    def _observe(self, seen: Observation) -> None:
        self._perform(self.node.observe(seen, self.host.now()))

    def _rung(self, events: int) -> list[Observation]:
        os.eventfd_read(self._bell)
        with self.changed:
            while self._inbox:
                self._observe(self._inbox[0])
                self._inbox.popleft()
        return []

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Connect() | Transmit() | HangUp():
                    for seen in self.network.perform(action):
                        self._observe(seen)
                case Say(text=text, level=level):
                    logger.warning("%s", text) if level in ("warning", "error") else logger.info("%s", text)
                case Record(event=event):
                    logger.info("%s", event.reason if isinstance(event, Decided) else event)
                case EndWorkers():
                    end_workers()
                case Exit():
                    pass  # the agent itself decides when it goes
                case _:
                    raise AssertionError(f"an attendant cannot do {action!r}")


def end_workers() -> None:
    """SIGKILL the sessions that this process started, with everything below them: that is how torchrun starts workers."""
    sessions = []
    for pid in children_of(os.getpid()):
        with suppress(ProcessLookupError):
            sessions += [pid] if os.getsid(pid) == pid else []
    logger.warning("killed what still ran at the end of the lease: %s", sorted(kill_tree(sessions)))

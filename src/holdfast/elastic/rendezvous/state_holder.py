"""How does a node of a dynamic rendezvous read the shared state, and write it unless another node was faster?

The edge of the machine in `next_step`: it talks to the backend and reads the clock.
"""

from __future__ import annotations

import time
from datetime import timedelta

from holdfast.elastic.events import NodeState, construct_and_record_rdzv_event
from holdfast.elastic.utils.logging import get_logger

from .backend import RendezvousBackend, RendezvousSettings, Token
from .next_step import Sightings, Situation, Step, Wish, Write, next_step
from .shared_state import Node, Shared, decode, encode, without

logger = get_logger(__name__)

FRESH_S = 1.0
"""How long a state counts as read: the agent asks ten times a second, and every node of the job asks the same backend."""


class StateHolder:
    """This node's view of the shared state. Not for several threads at once."""

    def __init__(self, backend: RendezvousBackend, node: Node, settings: RendezvousSettings) -> None:
        self._backend = backend
        self._node = node
        self._settings = settings
        self._shared = Shared()
        self._seen = Sightings()
        self._token: Token = None
        self._read_at = float("-inf")
        self._dead: list[Node] = []  # nodes that this one counts as dead, and the others do not yet know it

    def look(self) -> Shared:
        """The state without the dead; read again after `FRESH_S` seconds."""
        if time.monotonic() - self._read_at > FRESH_S:
            self._take(self._backend.get_state())
        return self._shared

    def step(self, wish: Wish, deadline: float) -> tuple[Step, Shared]:
        """Take one step towards `wish`. Returns it, and the state that it was decided on."""
        shared = self.look()
        step = next_step(wish, Situation(self._node, self._settings, shared, self._seen), deadline, time.monotonic())
        if isinstance(step, Write):
            self._write(step.shared)
        return step, shared

    def _write(self, wanted: Shared) -> None:
        data, dead = encode(wanted), self._dead
        written = self._backend.set_state(data, self._token)
        found = self._backend.get_state() if written is None else written[:2]
        self._take((data, None) if found is None else found)  # a backend that never tells has no other nodes
        if dead and found is not None and found[0] == data:
            self._tell_of_the_dead(dead)

    def _take(self, found: tuple[bytes, Token] | None) -> None:
        data, self._token = found or (None, None)
        shared = Shared() if data is None else decode(data)
        now = self._read_at = time.monotonic()
        self._seen = self._seen.after(shared, now)
        silent = self._seen.silent(self._settings.lease.total_seconds(), now)
        self._dead = [node for node in silent if node != self._node]
        self._shared = without(shared, self._dead) if self._dead else shared

    def _tell_of_the_dead(self, dead: list[Node]) -> None:
        lease: timedelta = self._settings.lease
        message = f"Without a heartbeat for {lease}, no longer in the rendezvous: {', '.join(map(str, dead))}"
        logger.info(message)
        construct_and_record_rdzv_event(run_id=self._settings.run_id, message=message, node_state=NodeState.RUNNING)

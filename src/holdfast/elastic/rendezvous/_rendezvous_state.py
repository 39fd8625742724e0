"""What do the nodes of a dynamic rendezvous share, and how does each step change it?

The shared state, its encoding, and the transitions: functions of a state and of the time that they are told. Which step comes
next is `_rendezvous_ops`' matter; reading and writing the backend is `dynamic_rendezvous`'.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from .api import RendezvousStateError

Token = Any
"""Says which version of the state a node has seen; opaque, each backend has its own kind."""


class RendezvousBackend(ABC):
    """Holds the state that the nodes share. Subclass it to keep that state in a place of your own."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the backend."""

    @abstractmethod
    def get_state(self) -> tuple[bytes, Token] | None:
        """The state and its token; None: there is none yet.

        Raises RendezvousConnectionError or RendezvousStateError, as `set_state` does.
        """

    @abstractmethod
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write `state` if `token` is still the current one; without a token, if there is no state yet.

        Returns what stands there afterwards, its token, and whether this call wrote it.
        """


class RendezvousTimeout:
    """How long each step may take; every value must be positive.

    `join`: until a round is formed (600 s). `last_call`: how long a round that has enough nodes waits for more (30 s).
    `close`: until the end is known to all (30 s). `heartbeat`: until a heartbeat is written (5 s).
    """

    _DEFAULTS_S = (("join", 600), ("last_call", 30), ("close", 30), ("heartbeat", 5))

    def __init__(
        self,
        join: timedelta | None = None,
        last_call: timedelta | None = None,
        close: timedelta | None = None,
        heartbeat: timedelta | None = None,
    ) -> None:
        given = {"join": join, "last_call": last_call, "close": close, "heartbeat": heartbeat}
        self._limits = {name: given[name] or self._default(given[name], seconds) for name, seconds in self._DEFAULTS_S}
        for name, limit in self._limits.items():
            if limit <= timedelta(0):
                raise ValueError(f"The {name} timeout ({limit}) must be positive.")

    @staticmethod
    def _default(given: timedelta | None, seconds: int) -> timedelta:
        return timedelta(seconds=seconds) if given is None else given

    @property
    def join(self) -> timedelta:
        """Until a round is formed."""
        return self._limits["join"]

    @property
    def last_call(self) -> timedelta:
        """How long a round that has enough nodes waits for more."""
        return self._limits["last_call"]

    @property
    def close(self) -> timedelta:
        """Until the end is known to all."""
        return self._limits["close"]

    @property
    def heartbeat(self) -> timedelta:
        """Until a heartbeat is written."""
        return self._limits["heartbeat"]


@dataclass(repr=False, eq=False, frozen=True)
class RendezvousSettings:
    """What all nodes of the rendezvous must be told alike.

    A node without a heartbeat for `keep_alive_interval` times `keep_alive_max_attempt` counts as dead.
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta
    keep_alive_max_attempt: int

    @property
    def lease(self) -> timedelta:
        """How old a node's last heartbeat may be."""
        return self.keep_alive_interval * self.keep_alive_max_attempt


@dataclass(eq=True, order=True, frozen=True)
class _NodeDesc:
    """One handler of one process of one host. Ranks follow the order of these."""

    addr: str
    pid: int
    local_id: int

    def __repr__(self) -> str:
        return f"{self.addr}_{self.pid}_{self.local_id}"


class _NodeDescGenerator:
    """Descriptors that differ, also for several handlers of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._local_id = 0

    def generate(self, local_addr: str | None = None) -> _NodeDesc:
        """The next one. Without an address: this host's full name."""
        with self._lock:
            local_id, self._local_id = self._local_id, self._local_id + 1
        return _NodeDesc(local_addr or socket.getfqdn(), os.getpid(), local_id)


class _RendezvousState:
    """What all nodes share, as each has last seen it."""

    def __init__(self) -> None:
        self.round = 0
        self.complete = False  # the participants have their ranks
        self.deadline: datetime | None = None  # the end of the last call; None: too few nodes, or complete
        self.closed = False
        self.participants: dict[_NodeDesc, int] = {}  # with their ranks, once complete
        self.wait_list: set[_NodeDesc] = set()  # want into the next round, and have one formed for them
        self.redundancy_list: set[_NodeDesc] = set()  # wait for a seat to become free
        self.last_heartbeats: dict[_NodeDesc, datetime] = {}


_KNOWN = {
    (_RendezvousState.__module__, "_RendezvousState"): _RendezvousState,
    (_NodeDesc.__module__, "_NodeDesc"): _NodeDesc,
}
_KNOWN_BUILTINS = {("builtins", "set"), ("datetime", "datetime"), ("datetime", "timedelta"), ("datetime", "timezone")}


class _StateReader(pickle.Unpickler):
    """Reads states and nothing else: backends hold pickles, as torch's do, and a plain unpickler runs what a peer sends."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _KNOWN_BUILTINS:
            return super().find_class(module, name)
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a rendezvous' state") from None


def encode(state: _RendezvousState) -> bytes:
    """The form in which backends hold a state."""
    return pickle.dumps(state)


def decode(data: bytes) -> _RendezvousState:
    """A state from that form, or a RendezvousStateError. Names nothing but our own classes can be loaded by it."""
    try:
        state = _StateReader(io.BytesIO(data)).load()
    except Exception as error:  # broken pickles fail in many ways
        raise RendezvousStateError("The rendezvous state is corrupt. See inner exception for details.") from error
    if not isinstance(state, _RendezvousState):
        raise RendezvousStateError(f"The rendezvous state is corrupt: it is a {type(state).__name__}.")
    return state


def keep_alive(state: _RendezvousState, node: _NodeDesc, now: datetime) -> None:
    """The node is alive."""
    state.last_heartbeats[node] = now


def add_participant(state: _RendezvousState, node: _NodeDesc, settings: RendezvousSettings, now: datetime) -> None:
    """The node takes a seat. The one that makes the minimum starts the last call; the last one forms the round."""
    state.wait_list.discard(node)
    state.participants[node] = 0
    keep_alive(state, node, now)
    if len(state.participants) == settings.min_nodes:
        state.deadline = now + settings.timeout.last_call
    if len(state.participants) == settings.max_nodes:
        complete(state)


def add_waiting(state: _RendezvousState, node: _NodeDesc, now: datetime) -> None:
    """The node asks for a round with it in it."""
    state.redundancy_list.discard(node)
    state.wait_list.add(node)
    keep_alive(state, node, now)


def add_redundant(state: _RendezvousState, node: _NodeDesc, now: datetime) -> None:
    """All seats are taken: the node waits for one to become free."""
    state.redundancy_list.add(node)
    keep_alive(state, node, now)


def remove_participant(state: _RendezvousState, node: _NodeDesc, settings: RendezvousSettings) -> None:
    """The node gives its seat back."""
    del state.participants[node]
    del state.last_heartbeats[node]
    _after_leaving(state, settings)


def remove_waiting(state: _RendezvousState, node: _NodeDesc) -> None:
    """The node no longer waits for the next round."""
    state.wait_list.remove(node)
    del state.last_heartbeats[node]


def remove_redundant(state: _RendezvousState, node: _NodeDesc) -> None:
    """The node no longer waits for a free seat."""
    state.redundancy_list.remove(node)
    del state.last_heartbeats[node]


def complete(state: _RendezvousState) -> None:
    """The round is formed: ranks in the order of the descriptors."""
    state.complete = True
    state.deadline = None
    for rank, node in enumerate(sorted(state.participants)):
        state.participants[node] = rank


def remove_dead(state: _RendezvousState, settings: RendezvousSettings, now: datetime) -> list[_NodeDesc]:
    """Take out the nodes whose lease has run out, and say which they were."""
    dead = [node for node, last in state.last_heartbeats.items() if last < now - settings.lease]
    lost_a_seat = False
    for node in dead:
        del state.last_heartbeats[node]
        lost_a_seat |= state.participants.pop(node, None) is not None
        state.wait_list.discard(node)
        state.redundancy_list.discard(node)
    if lost_a_seat:
        _after_leaving(state, settings)
    return dead


def _after_leaving(state: _RendezvousState, settings: RendezvousSettings) -> None:
    if state.complete:
        if not state.participants:  # the round is over: the next can form
            state.complete = False
            state.round += 1
    elif len(state.participants) < settings.min_nodes:
        state.deadline = None

"""How do nodes agree on rounds through a backend that stores one shared state, with nobody in charge?

Each node reads the state, decides on its next step (`next_step`), and writes the state back unless another node was faster
(`state_holder`). This module makes a handler of it: rounds, heartbeats, and where the workers of a round meet.

Unlike torch's, every round has a store and a port of its own for its workers, published anew: nothing of a dead attempt is left
for the next one to trip over, and a node that joins later is told where to go.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

from holdfast.elastic.events import NodeState, construct_and_record_rdzv_event
from holdfast.elastic.utils.logging import get_logger
from holdfast.runtime.net.ports import hold_port

from .api import RendezvousError, RendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousStoreInfo
from .backend import RendezvousBackend, RendezvousSettings, RendezvousTimeout, Token
from .memory_store import MemoryStore
from .next_step import Done, Fail, Wait, Wish, Write
from .shared_state import Node, Phase, Place, Shared
from .state_holder import StateHolder
from .store import Store
from .stores import torch_distributed, torch_is_loaded, with_prefix
from .utils import _delay, _PeriodicTimer

__all__ = [
    "DynamicRendezvousHandler",
    "RendezvousBackend",
    "RendezvousSettings",
    "RendezvousTimeout",
    "Token",
    "create_handler",
]

logger = get_logger(__name__)

LOOK_AGAIN_S = 1.0  # between two looks of a node that waits
SKEW_S = 0.3  # nodes that are started together first wait up to so long: otherwise all but one would write in vain


class DynamicRendezvousHandler(RendezvousHandler):
    """One node of a rendezvous whose nodes may come and go between `min_nodes` and `max_nodes`."""

    _local_ids = count()  # tell the handlers of one process apart

    @classmethod
    def from_backend(
        cls,
        run_id: str,
        store: Any,
        backend: RendezvousBackend,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        timeout: RendezvousTimeout | None = None,
        keep_alive_interval: int = 5,
        keep_alive_max_attempt: int = 3,
    ) -> DynamicRendezvousHandler:
        """A handler over `backend`; `store` is what rounds give their agents, each under a prefix of its own.

        A node is dead after `keep_alive_max_attempt` intervals of `keep_alive_interval` seconds without a heartbeat.
        """
        interval = timedelta(seconds=keep_alive_interval)
        limits = timeout or RendezvousTimeout()
        settings = RendezvousSettings(run_id, min_nodes, max_nodes, limits, interval, keep_alive_max_attempt)
        node = Node(local_addr or socket.getfqdn(), os.getpid(), next(cls._local_ids))
        return cls(node, settings, backend.name, store, StateHolder(backend, node, settings))

    def __init__(
        self, node: Node, settings: RendezvousSettings, backend_name: str, store: Any, state_holder: StateHolder
    ) -> None:
        if not settings.run_id:
            raise ValueError("The run id must be a non-empty string.")
        if settings.min_nodes < 1:
            raise ValueError(f"The minimum number of nodes ({settings.min_nodes}) must be greater than zero.")
        if settings.max_nodes < settings.min_nodes:
            raise ValueError(
                f"The maximum number of nodes ({settings.max_nodes}) must be greater than or equal to "
                f"the minimum number of nodes ({settings.min_nodes})."
            )
        self._this_node = node
        self._settings = settings
        self._backend_name = backend_name
        self._store = store
        self._state_holder = state_holder
        self._lock = threading.Lock()  # held for one step: the agent and the heartbeats share the state holder
        self._keep_alive_timer: _PeriodicTimer | None = None
        self._shared_tcp_store_server: Any = None  # of this round, while this node has rank 0
        self._reserved_port: Any = None  # held for the rank-0 worker, which serves the store itself
        self.round = 0  # number of the last round that this node took part in

    @property
    def settings(self) -> RendezvousSettings:
        return self._settings

    def get_backend(self) -> str:
        return self._backend_name

    def get_run_id(self) -> str:
        return self._settings.run_id

    @property
    def use_agent_store(self) -> bool:
        """True: the agent of rank 0 serves the workers' store. False: the rank-0 worker serves it."""
        return os.getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1" and not self._without_torch

    @property
    def _without_torch(self) -> bool:
        """Whether this agent has no torch to serve a store with."""
        return isinstance(self._store, MemoryStore) or (isinstance(self._store, Store) and not torch_is_loaded())

    # Rounds.

    def next_rendezvous(self) -> RendezvousInfo:
        """Leave the last round, join the next, and find out where its workers meet."""
        with self._failures_recorded("next_rendezvous"):
            self._stop_heartbeats()
            if self._look().round == 0 and not isinstance(self._store, MemoryStore):
                _delay(seconds=(0, SKEW_S))
            self._fulfil(Wish.LEAVE, self._settings.timeout.join)
            shared = self._fulfil(Wish.JOIN, self._settings.timeout.join)
            self._start_heartbeats()
            rank, self.round = shared.members[self._this_node].rank, shared.round
            store = with_prefix(f"torch.rendezvous.{self._settings.run_id}.{self.round}", self._store)
        message = f"{self._this_node} is rank {rank} of {shared.world_size} in round {self.round}"
        self._record("next_rendezvous", message, rank=rank)
        logger.info(message)
        return RendezvousInfo(store, rank, shared.world_size, self._publish_meeting_point(rank, store))

    def _fulfil(self, wish: Wish, timeout: timedelta) -> Shared:
        """Step by step. Returns the state in which the wish is fulfilled."""
        deadline = time.monotonic() + timeout.total_seconds()
        while True:
            with self._lock:
                step, shared = self._state_holder.step(wish, deadline)
            match step:
                case Done():
                    return shared
                case Fail(error=error):
                    raise error
                case Wait():
                    _delay(seconds=LOOK_AGAIN_S)
                case Write(what=what, renews=renews):
                    logger.debug("%s %s (rendezvous '%s')", self._this_node, what, self._settings.run_id)
                    self._record(wish.name.lower(), f"{self._this_node} {what} (rendezvous '{self._settings.run_id}')")
                    if renews:
                        deadline = time.monotonic() + timeout.total_seconds()

    def _publish_meeting_point(self, rank: int, store: Any) -> RendezvousStoreInfo:
        """In every round anew, by its rank 0: with a fresh store server, or a fresh port for the worker that hosts one."""
        self._release()
        address, port = self._this_node.addr, None
        if rank == 0 and self.use_agent_store:
            self._shared_tcp_store_server = self._create_tcp_store_server(address, 0)
            port = self._shared_tcp_store_server.port
        elif rank == 0 and self._without_torch:
            self._reserved_port = hold_port()
            port = self._reserved_port.getsockname()[1]
        return RendezvousStoreInfo.build(rank, store, local_addr=address, server_port=port)

    def _create_tcp_store_server(self, master_addr: str, master_port: int) -> Any:
        dist = torch_distributed("A store shared with the workers")
        return dist.TCPStore(host_name=master_addr, port=master_port, is_master=True, multi_tenant=True)

    def _release(self) -> None:
        self._shared_tcp_store_server = None
        if self._reserved_port is not None:
            self._reserved_port.close()
            self._reserved_port = None

    # Questions.

    def is_closed(self) -> bool:
        with self._failures_recorded("is_closed"):
            return self._look().phase is Phase.CLOSED

    def num_nodes_waiting(self) -> int:
        with self._failures_recorded("num_nodes_waiting"):
            return len(self._look().nodes(Place.WAITING))

    def _look(self) -> Shared:
        with self._lock:
            return self._state_holder.look()

    # The end.

    def set_closed(self) -> None:
        with self._failures_recorded("set_closed"):
            self._fulfil(Wish.CLOSE, self._settings.timeout.close)

    def shutdown(self) -> bool:
        """Close the rendezvous for everybody. False: the backend cannot be reached."""
        self._stop_heartbeats()
        with self._failures_recorded("shutdown"):
            try:
                self._fulfil(Wish.CLOSE, self._settings.timeout.close)
            except RendezvousError as error:
                self._warn("shutdown", f"could not close the rendezvous '{self._settings.run_id}'", error)
                return False
        self._release()
        return True

    # Heartbeats.

    @staticmethod
    def _keep_alive_weak(weak_self: weakref.ref[DynamicRendezvousHandler]) -> None:
        handler = weak_self()
        if handler is not None:
            handler._keep_alive()

    def _keep_alive(self) -> None:
        try:
            self._fulfil(Wish.STAY, self._settings.timeout.heartbeat)
        except RendezvousError as error:
            self._warn("_keep_alive", f"could not write its heartbeat to '{self._settings.run_id}'", error)

    def _start_heartbeats(self) -> None:
        self._keep_alive_timer = _PeriodicTimer(self._settings.keep_alive_interval, self._keep_alive_weak, weakref.ref(self))
        self._keep_alive_timer.set_name(f"RendezvousKeepAliveTimer_{self._this_node.local_id}")
        self._keep_alive_timer.start()

    def _stop_heartbeats(self) -> None:
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()

    # Records.

    @contextmanager
    def _failures_recorded(self, method: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._record(method, f"{type(error).__name__}: {error}", NodeState.FAILED)
            raise

    def _warn(self, method: str, what: str, error: Exception) -> None:
        message = f"{self._this_node} {what}: {type(error).__name__}{f': {error}' if str(error) else ''}"
        self._record(method, message, NodeState.FAILED)
        logger.warning(message)

    def _record(self, method: str, message: str, node_state: NodeState = NodeState.RUNNING, rank: int | None = None) -> None:
        construct_and_record_rdzv_event(
            name=f"{type(self).__name__}.{method}",
            run_id=self._settings.run_id,
            message=message,
            node_state=node_state,
            hostname=self._this_node.addr,
            pid=self._this_node.pid,
            local_id=self._this_node.local_id,
            rank=rank,
        )


def create_handler(store: Any, backend: RendezvousBackend, params: RendezvousParameters) -> DynamicRendezvousHandler:
    """A handler with the settings in `params`: join_timeout, last_call_timeout, close_timeout, heartbeat_timeout,
    keep_alive_interval (all in seconds) and keep_alive_max_attempt."""
    try:
        limits = {name: params.get_as_int(f"{name}_timeout") for name in ("join", "last_call", "close", "heartbeat")}
        return DynamicRendezvousHandler.from_backend(
            params.run_id,
            store,
            backend,
            params.min_nodes,
            params.max_nodes,
            params.local_addr,
            RendezvousTimeout(**{name: timedelta(seconds=limit) for name, limit in limits.items() if limit is not None}),
            keep_alive_interval=_whole_number(params, "keep_alive_interval", 5),
            keep_alive_max_attempt=_whole_number(params, "keep_alive_max_attempt", 3),
        )
    except Exception as error:
        construct_and_record_rdzv_event(
            message=f"{type(error).__name__}: {error}", run_id=params.run_id, node_state=NodeState.FAILED
        )
        raise


def _whole_number(params: RendezvousParameters, key: str, otherwise: int) -> int:
    number = params.get_as_int(key, otherwise)
    if number is None:
        raise TypeError(f"The rendezvous configuration option '{key}' is None: give a number, or leave it out.")
    return number

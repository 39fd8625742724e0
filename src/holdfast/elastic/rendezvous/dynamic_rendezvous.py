"""How do nodes agree on rounds through a backend that holds one shared state, with nobody in charge?

Each node reads the state, decides on its next step, and writes the state back unless another node was faster. This module reads
the clocks and talks to the backend; what a step does is in `_rendezvous_state`, which step it is in `_rendezvous_ops`.

Unlike torch's, every round has a store and a port of its own for its workers, published anew: nothing of a dead attempt is left
for the next one to trip over, and a node that joins later is told where to go.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from holdfast.elastic.events import NodeState, construct_and_record_rdzv_event
from holdfast.elastic.utils.logging import get_logger
from holdfast.runtime.net.ports import hold_port

from . import _rendezvous_ops as ops
from . import _rendezvous_state as shared
from ._rendezvous_ops import _Action, _RendezvousContext
from ._rendezvous_state import (
    RendezvousBackend,
    RendezvousSettings,
    RendezvousTimeout,
    Token,
    _NodeDesc,
    _NodeDescGenerator,
    _RendezvousState,
)
from .api import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)
from .memory_store import MemoryStore
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

if TYPE_CHECKING:
    from _socket import socket


def get_method_name(depth: int = 2) -> str:
    """Name of the function `depth` calls up the stack."""
    try:
        return sys._getframe(depth).f_code.co_name
    except ValueError:
        return "no_method_name"


class _RendezvousStateHolder(ABC):
    """This node's copy of the shared state."""

    @property
    @abstractmethod
    def state(self) -> _RendezvousState:
        """The copy."""

    @abstractmethod
    def sync(self) -> bool | None:
        """Write the copy if it was changed, otherwise read. True, False: written, or another was faster; None: only read."""

    @abstractmethod
    def mark_dirty(self) -> None:
        """The copy was changed."""


class _BackendRendezvousStateHolder(_RendezvousStateHolder):
    """The copy, held against a backend. What was read within the last `cache_duration` seconds is not read again."""

    def __init__(self, backend: RendezvousBackend, settings: RendezvousSettings, cache_duration: int = 1) -> None:
        self._backend = backend
        self._state = _RendezvousState()
        self._settings = settings
        self._cache_duration = cache_duration
        self._token: Token = None
        self._dirty = False
        self._last_sync_time = -1.0
        self._dead_nodes: list[_NodeDesc] = []

    @property
    def state(self) -> _RendezvousState:
        return self._state

    def sync(self) -> bool | None:
        has_set: bool | None = None
        data: bytes | None = None
        token: Token = None
        if self._dirty:
            has_set = False
            data = shared.encode(self._state)  # stays ours where a backend does not say what stands there
            written = self._backend.set_state(data, self._token)
            if written is not None:
                data, token, has_set = written
        else:
            if self._cache_duration > 0 and self._last_sync_time >= max(time.monotonic() - self._cache_duration, 0):
                return None
            read = self._backend.get_state()
            if read is not None:
                data, token = read
        self._state = _RendezvousState() if data is None else shared.decode(data)
        if has_set and self._dead_nodes:
            self._tell_of_the_dead()
        self._token = token
        self._dirty = False
        self._last_sync_time = time.monotonic()
        self._dead_nodes = shared.remove_dead(self._state, self._settings, datetime.now(UTC))
        return has_set

    def _tell_of_the_dead(self) -> None:
        names = ", ".join(map(repr, self._dead_nodes))
        message = f"Without a heartbeat for {self._settings.lease}, no longer in the rendezvous: {names}"
        logger.info(message)
        construct_and_record_rdzv_event(
            name=f"{type(self).__name__}.sync", run_id=self._settings.run_id, message=message, node_state=NodeState.RUNNING
        )

    def mark_dirty(self) -> None:
        self._dirty = True


class _RendezvousOpExecutor(ABC):
    """Takes steps until an operation is done."""

    @abstractmethod
    def run(
        self,
        state_handler: Callable[[_RendezvousContext, float], _Action],
        deadline: float,
        update_deadline: Callable[[timedelta], float] | None = None,
    ) -> None:
        """Ask `state_handler` for the next step and take it, until it says FINISH.

        `deadline` (monotonic seconds) is handed to it; a node that stops being a spare gets a new one from `update_deadline`.
        """


_WHAT_A_STEP_DOES = {
    _Action.KEEP_ALIVE: "wrote a heartbeat",
    _Action.ADD_TO_PARTICIPANTS: "took a seat in round {round}",
    _Action.ADD_TO_WAIT_LIST: "waits for round {next_round}",
    _Action.ADD_TO_REDUNDANCY_LIST: "waits for a free seat",
    _Action.REMOVE_FROM_PARTICIPANTS: "left round {round}",
    _Action.REMOVE_FROM_WAIT_LIST: "no longer waits for round {next_round}",
    _Action.REMOVE_FROM_REDUNDANCY_LIST: "no longer waits for a free seat",
    _Action.MARK_RENDEZVOUS_COMPLETE: "completed round {round}",
    _Action.MARK_RENDEZVOUS_CLOSED: "closed the rendezvous",
}


class _DistributedRendezvousOpExecutor(_RendezvousOpExecutor):
    """Takes each step on this node's copy, and has it written; if another node was faster, the question is asked again."""

    def __init__(self, node: _NodeDesc, state_holder: _RendezvousStateHolder, settings: RendezvousSettings) -> None:
        self._node = node
        self._state_holder = state_holder
        self._settings = settings

    def run(
        self,
        state_handler: Callable[[_RendezvousContext, float], _Action],
        deadline: float,
        update_deadline: Callable[[timedelta], float] | None = None,
    ) -> None:
        while True:
            self._state_holder.sync()
            state = self._state_holder.state
            action = state_handler(_RendezvousContext(self._node, state, self._settings), deadline)
            match action:
                case _Action.FINISH:
                    return
                case _Action.ERROR_CLOSED:
                    raise RendezvousClosedError(f"The rendezvous '{self._settings.run_id}' is closed: the job is over.")
                case _Action.ERROR_TIMEOUT:
                    raise RendezvousTimeoutError(self._too_late(state))
                case _Action.SYNC:
                    _delay(seconds=1)
                    continue
            self._record(action, state)
            self._take(action, state)
            if action is _Action.REMOVE_FROM_REDUNDANCY_LIST and update_deadline:
                deadline = update_deadline(self._settings.timeout.join)
            self._state_holder.mark_dirty()

    def _take(self, action: _Action, state: _RendezvousState) -> None:
        node, settings, now = self._node, self._settings, datetime.now(UTC)
        match action:
            case _Action.KEEP_ALIVE:
                shared.keep_alive(state, node, now)
            case _Action.ADD_TO_PARTICIPANTS:
                shared.add_participant(state, node, settings, now)
            case _Action.ADD_TO_WAIT_LIST:
                shared.add_waiting(state, node, now)
            case _Action.ADD_TO_REDUNDANCY_LIST:
                shared.add_redundant(state, node, now)
            case _Action.REMOVE_FROM_PARTICIPANTS:
                shared.remove_participant(state, node, settings)
            case _Action.REMOVE_FROM_WAIT_LIST:
                shared.remove_waiting(state, node)
            case _Action.REMOVE_FROM_REDUNDANCY_LIST:
                shared.remove_redundant(state, node)
            case _Action.MARK_RENDEZVOUS_COMPLETE:
                shared.complete(state)
            case _Action.MARK_RENDEZVOUS_CLOSED:
                state.closed = True

    def _too_late(self, state: _RendezvousState) -> str:
        return (
            f"The rendezvous '{self._settings.run_id}' was not done in time: round {state.round} has {len(state.participants)} "
            f"of {self._settings.min_nodes} nodes ({', '.join(map(repr, state.participants)) or 'nobody'})."
        )

    def _record(self, action: _Action, state: _RendezvousState) -> None:
        done = action in (_Action.MARK_RENDEZVOUS_COMPLETE, _Action.MARK_RENDEZVOUS_CLOSED)
        step = _WHAT_A_STEP_DOES[action].format(round=state.round, next_round=state.round + 1)
        message = f"{self._node} {step} (rendezvous '{self._settings.run_id}')"
        logger.debug(message)
        construct_and_record_rdzv_event(
            name=f"{type(self).__name__}.{action.name.lower()}",
            run_id=self._settings.run_id,
            message=message,
            node_state=NodeState.SUCCEEDED if done else NodeState.RUNNING,
            hostname=self._node.addr,
            pid=self._node.pid,
            local_id=self._node.local_id,
        )


class _RendezvousExitOp:
    """Leave the last round."""

    def __call__(self, ctx: _RendezvousContext, deadline: float) -> _Action:
        return ops.to_leave(ctx, deadline, time.monotonic())


class _RendezvousJoinOp:
    """Join a round."""

    def __call__(self, ctx: _RendezvousContext, deadline: float) -> _Action:
        return ops.to_join(ctx, deadline, time.monotonic(), datetime.now(UTC))


class _RendezvousCloseOp:
    """End the job."""

    def __call__(self, ctx: _RendezvousContext, deadline: float) -> _Action:
        return ops.to_close(ctx, deadline, time.monotonic())


class _RendezvousKeepAliveOp:
    """Write a heartbeat if one is due."""

    def __call__(self, ctx: _RendezvousContext, deadline: float) -> _Action:
        return ops.to_keep_alive(ctx, deadline, time.monotonic(), datetime.now(UTC))


class DynamicRendezvousHandler(RendezvousHandler):
    """One node of a rendezvous whose nodes may come and go between `min_nodes` and `max_nodes`."""

    _node_desc_generator = _NodeDescGenerator()

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
        settings = RendezvousSettings(
            run_id,
            min_nodes,
            max_nodes,
            timeout or RendezvousTimeout(),
            keep_alive_interval=timedelta(seconds=keep_alive_interval),
            keep_alive_max_attempt=keep_alive_max_attempt,
        )
        node = cls._node_desc_generator.generate(local_addr)
        return cls(node, settings, backend.name, store, _BackendRendezvousStateHolder(backend, settings))

    def __init__(
        self,
        node: _NodeDesc,
        settings: RendezvousSettings,
        backend_name: str,
        store: Any,
        state_holder: _RendezvousStateHolder,
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
        self._op_executor: _RendezvousOpExecutor = _DistributedRendezvousOpExecutor(node, state_holder, settings)
        self._heartbeat_lock = threading.Lock()
        self._keep_alive_timer: _PeriodicTimer | None = None
        self._shared_tcp_store_server: Any = None  # of this round, while this node has rank 0
        self._reserved_port: socket | None = None
        self._bootstrap_store_info: RendezvousStoreInfo | None = None

    @property
    def settings(self) -> RendezvousSettings:
        """What this rendezvous was told."""
        return self._settings

    def get_backend(self) -> str:
        return self._backend_name

    def get_run_id(self) -> str:
        return self._settings.run_id

    @property
    def use_agent_store(self) -> bool:
        """True: the agent of rank 0 serves the workers' store. False where the rank-0 worker is to host it."""
        return os.getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1" and not self._without_torch

    @property
    def _without_torch(self) -> bool:
        """Whether this agent has no torch to serve a store with."""
        return isinstance(self._store, MemoryStore) or (isinstance(self._store, Store) and not torch_is_loaded())

    def next_rendezvous(self) -> RendezvousInfo:
        """Leave the last round, join the next, and find out where its workers meet."""
        self._record(f"{self._this_node} wants to join the rendezvous '{self._settings.run_id}'")
        try:
            self._stop_heartbeats()
            if self._state_holder.state.round == 0 and not isinstance(self._store, MemoryStore):
                _delay(seconds=(0, 0.3))  # nodes started together would all find the same state, and all but one write in vain
            deadline = self._get_deadline(self._settings.timeout.join)
            self._op_executor.run(_RendezvousExitOp(), deadline)
            self._op_executor.run(_RendezvousJoinOp(), deadline, self._get_deadline)
            self._start_heartbeats()
            rank, world_size = self._get_world()
            store = self._get_store()
        except Exception as error:
            self._record_failure(error)
            raise
        message = f"{self._this_node} is rank {rank} of {world_size} in round {self._state_holder.state.round}"
        self._record(message, rank=rank)
        logger.info(message)
        self._bootstrap_store_info = self._publish_meeting_point(rank, store)
        return RendezvousInfo(store, rank, world_size, self._bootstrap_store_info)

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

    def is_closed(self) -> bool:
        return self._look().closed

    def num_nodes_waiting(self) -> int:
        return len(self._look().wait_list)

    def _look(self) -> _RendezvousState:
        try:
            with self._heartbeat_lock:
                self._state_holder.sync()
                return self._state_holder.state
        except Exception as error:
            self._record_failure(error)
            raise

    def set_closed(self) -> None:
        try:
            with self._heartbeat_lock:
                self._close()
        except Exception as error:
            self._record_failure(error)
            raise

    def shutdown(self) -> bool:
        """Close the rendezvous for everybody. False: the backend could not be told."""
        self._stop_heartbeats()
        try:
            self._close()
        except RendezvousError as error:
            message = f"{self._this_node} could not close the rendezvous '{self._settings.run_id}': {_in_words(error)}"
            self._record(message, NodeState.FAILED)
            logger.warning(message)
            return False
        except Exception as error:
            self._record_failure(error)
            raise
        self._release()
        return True

    def _close(self) -> None:
        self._op_executor.run(_RendezvousCloseOp(), self._get_deadline(self._settings.timeout.close))
        self._record(f"{self._this_node} closed the rendezvous '{self._settings.run_id}'", NodeState.SUCCEEDED)

    @staticmethod
    def _keep_alive_weak(weak_self: weakref.ref[DynamicRendezvousHandler]) -> None:
        handler = weak_self()
        if handler is not None:
            handler._keep_alive()

    def _keep_alive(self) -> None:
        with self._heartbeat_lock:
            try:
                self._op_executor.run(_RendezvousKeepAliveOp(), self._get_deadline(self._settings.timeout.heartbeat))
            except RendezvousError as error:
                message = f"{self._this_node} could not write its heartbeat to '{self._settings.run_id}': {_in_words(error)}"
                self._record(message, NodeState.FAILED)
                logger.warning(message)

    def _start_heartbeats(self) -> None:
        self._keep_alive_timer = _PeriodicTimer(self._settings.keep_alive_interval, self._keep_alive_weak, weakref.ref(self))
        self._keep_alive_timer.set_name(f"RendezvousKeepAliveTimer_{self._this_node.local_id}")
        self._keep_alive_timer.start()

    def _stop_heartbeats(self) -> None:
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()

    def _get_world(self) -> tuple[int, int]:
        participants = self._state_holder.state.participants
        return participants[self._this_node], len(participants)

    def _wrap_store(self, store: Any) -> Any:
        return with_prefix(f"torch.rendezvous.{self._settings.run_id}.{self._state_holder.state.round}", store)

    def _get_store(self) -> Any:
        return self._wrap_store(self._store)

    def _get_deadline(self, timeout: timedelta) -> float:
        return time.monotonic() + timeout.total_seconds()

    def _record_failure(self, error: Exception) -> None:
        self._record(f"{type(error).__name__}: {error}", NodeState.FAILED)

    def _record(self, message: str, node_state: NodeState = NodeState.RUNNING, rank: int | None = None) -> None:
        construct_and_record_rdzv_event(
            name=f"{type(self).__name__}.{get_method_name()}",
            run_id=self._settings.run_id,
            message=message,
            node_state=node_state,
            hostname=self._this_node.addr,
            pid=self._this_node.pid,
            local_id=self._this_node.local_id,
            rank=rank,
        )


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _get_timeout(params: RendezvousParameters, key: str) -> timedelta | None:
    seconds = params.get_as_int(f"{key}_timeout")
    return None if seconds is None else timedelta(seconds=seconds)


def create_handler(store: Any, backend: RendezvousBackend, params: RendezvousParameters) -> DynamicRendezvousHandler:
    """A handler with the settings in `params`: join_timeout, last_call_timeout, close_timeout, heartbeat_timeout,
    keep_alive_interval (all in seconds) and keep_alive_max_attempt."""
    try:
        timeout = RendezvousTimeout(*(_get_timeout(params, key) for key in ("join", "last_call", "close", "heartbeat")))
        interval, attempts = params.get_as_int("keep_alive_interval", 5), params.get_as_int("keep_alive_max_attempt", 3)
        for name, value in (("keep_alive_interval", interval), ("keep_alive_max_attempt", attempts)):
            if value is None:
                raise TypeError(f"The rendezvous configuration option '{name}' is None: give a number, or leave it out.")
        assert interval is not None and attempts is not None
        return DynamicRendezvousHandler.from_backend(
            params.run_id,
            store,
            backend,
            params.min_nodes,
            params.max_nodes,
            params.local_addr,
            timeout,
            keep_alive_interval=interval,
            keep_alive_max_attempt=attempts,
        )
    except Exception as error:
        construct_and_record_rdzv_event(
            message=f"{type(error).__name__}: {error}", run_id=params.run_id, node_state=NodeState.FAILED
        )
        raise

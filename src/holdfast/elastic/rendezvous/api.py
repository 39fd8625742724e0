"""The interface between a rendezvous and an elastic agent, and the registry of backends by name.

The words every backend shares: the handler's interface, what it returns, what it is made from, how it fails, the registry.
How nodes actually agree is each backend's own matter.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.elastic.utils.distributed import get_free_port

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutError",
    "rendezvous_handler_registry",
]


class RendezvousError(Exception):
    """The nodes could not agree. Base of the five below."""


class RendezvousClosedError(RendezvousError):
    """The job is over: no node can join any more."""


class RendezvousTimeoutError(RendezvousError):
    """Too few nodes came in time."""


class RendezvousConnectionError(RendezvousError):
    """The store that the nodes meet in cannot be reached."""


class RendezvousStateError(RendezvousError):
    """What stands in the store is not a rendezvous' state."""


class RendezvousGracefulExitError(RendezvousError):
    """The job ended while this node waited for a seat. No failure: the agent ends with success."""


@dataclass
class RendezvousStoreInfo:
    """Where the workers of one round meet: `MASTER_ADDR` and `MASTER_PORT`."""

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"
    master_addr: str
    master_port: int

    @staticmethod
    def build(rank: int, store: Any, local_addr: str | None, server_port: int | None = None) -> RendezvousStoreInfo:
        """Node 0 publishes its address and a port in `store`; every node, 0 included, reads them back and waits for them.

        Without `local_addr` it is this host's full name; without `server_port` (or 0) a port that is free now.
        """
        if rank == 0:
            address, port = local_addr or socket.getfqdn(), server_port or get_free_port()
            store.set(RendezvousStoreInfo.MASTER_ADDR_KEY, address.encode())
            store.set(RendezvousStoreInfo.MASTER_PORT_KEY, str(port).encode())
        master_addr = store.get(RendezvousStoreInfo.MASTER_ADDR_KEY).decode()
        master_port = int(store.get(RendezvousStoreInfo.MASTER_PORT_KEY).decode())
        return RendezvousStoreInfo(master_addr=master_addr, master_port=master_port)


@dataclass(frozen=True, eq=False)
class RendezvousInfo:
    """What one round agreed on, as seen by one node."""

    store: Any  # Key-value store of this round, for the agents. It has the methods of a torch Store.
    rank: int  # this node's rank among the nodes
    world_size: int  # number of nodes in the round
    bootstrap_store_info: RendezvousStoreInfo | None  # where the workers meet


class RendezvousHandler(ABC):
    """One node's part in a rendezvous. Subclass it to have nodes find each other in a way of your own."""

    @abstractmethod
    def get_backend(self) -> str:
        """Name under which this kind of handler is registered."""

    @property
    def use_agent_store(self) -> bool:
        """Whether a store already listens at the address the workers are given, so that no worker needs to host one."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Take part in the next round; blocks until it is formed with this node in it.

        Raises RendezvousClosedError, RendezvousConnectionError, RendezvousStateError or RendezvousTimeoutError.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Whether the job is over. Other nodes may learn of it a little later."""

    @abstractmethod
    def set_closed(self) -> None:
        """Declare the job over: no round will be formed again."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """How many nodes came after the round was formed. The agent keeps asking, and calls `next_rendezvous` if any."""

    @abstractmethod
    def get_run_id(self) -> str:
        """The job's name, the same on all its nodes."""

    @abstractmethod
    def shutdown(self) -> bool:
        """Let go of everything. True: all is closed."""


class RendezvousParameters:
    """What a handler is made from. Further keyword arguments are the backend's own and lie in `config`."""

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **kwargs: Any,
    ) -> None:
        if not backend:
            raise ValueError("The rendezvous backend name must be a non-empty string.")
        if min_nodes < 1:
            raise ValueError(f"The minimum number of rendezvous nodes ({min_nodes}) must be greater than zero.")
        if max_nodes < min_nodes:
            raise ValueError(
                f"The maximum number of rendezvous nodes ({max_nodes}) must be greater than or equal to "
                f"the minimum number of rendezvous nodes ({min_nodes})."
            )
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.config = kwargs
        self.local_addr = local_addr

    def get(self, key: str, default: Any = None) -> Any:
        """The backend's own setting `key`."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """The same as a truth value: 1 true t yes y, 0 false f no n, in any case. Anything else is a ValueError."""
        value = self.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        word = value.lower() if isinstance(value, str) else str(value) if isinstance(value, int) else ""
        if word in ("1", "true", "t", "yes", "y"):
            return True
        if word in ("0", "false", "f", "no", "n"):
            return False
        raise ValueError(f"The rendezvous configuration option '{key}' does not represent a valid boolean value.")

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """The same as a whole number, or a ValueError."""
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return int(value)
        except ValueError as error:
            raise ValueError(
                f"The rendezvous configuration option '{key}' does not represent a valid integer value."
            ) from error


RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]  # makes a handler from its parameters


class RendezvousHandlerRegistry:
    """Which creator belongs to which backend name."""

    _registry: dict[str, RendezvousHandlerCreator]

    def __init__(self) -> None:
        self._registry = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Give `backend` its creator. A second, different one for the same name is a ValueError."""
        if not backend:
            raise ValueError("The rendezvous backend name must be a non-empty string.")
        current = self._registry.setdefault(backend, creator)
        if current != creator:
            raise ValueError(
                f"The rendezvous backend '{backend}' cannot be registered with '{creator}' as it is "
                f"already registered with '{current}'."
            )

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """A handler for `params.backend`. ValueError: it is not registered. RuntimeError: its creator made another kind."""
        creator = self._registry.get(params.backend)
        if creator is None:
            raise ValueError(
                f"The rendezvous backend '{params.backend}' is not registered. Did you forget to "
                f"call `{self.register.__name__}`?"
            )
        handler = creator(params)
        if handler.get_backend() != params.backend:
            raise RuntimeError(
                f"The rendezvous backend '{handler.get_backend()}' does not match the requested backend '{params.backend}'."
            )
        return handler


rendezvous_handler_registry = RendezvousHandlerRegistry()
"""Where launchers look; `etcd`, `etcd-v2`, `c10d`, `static`, `holdfast`, `embedded` and `memory` are in it from the start."""

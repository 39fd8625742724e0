"""How do nodes meet whose number, ranks and address are fixed beforehand?

The agent of rank 0 serves one store at the given address, for agents and workers, as torch's does. What torch lacks: a restart
is a round here, which all nodes enter together, and the last one to enter removes what the workers of the round before left in
the store. Otherwise the new workers would find the addresses of dead ones there.

One node in a program without torch needs no store at all: its rank-0 worker serves the one at the given address.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from holdfast.elastic.utils.logging import get_logger

from .api import RendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousStoreInfo
from .memory_store import MemoryStore
from .stores import PatientStore, torch_distributed, torch_is_loaded, with_prefix
from .utils import parse_rendezvous_endpoint

logger = get_logger(__name__)

DEFAULT_TIMEOUT_S = 600  # torch's, for a handler made without the launcher (which gives 900)
LOOK_EVERY_S = 0.5  # how often a node asks the store whether others wait for it in the next round


class StaticTCPRendezvous(RendezvousHandler):
    """Node `rank` of `world_size` nodes that meet at `master_addr:master_port`; `timeout` in seconds."""

    def __init__(self, master_addr: str, master_port: int, rank: int, world_size: int, run_id: str, timeout: int) -> None:
        self.master_addr = master_addr
        self.master_port = master_port
        self.rank = rank
        self.world_size = world_size
        self.run_id = run_id
        self.timeout = timedelta(seconds=timeout)
        self._store: Any = MemoryStore() if world_size == 1 and not torch_is_loaded() else None
        self._round = -1
        self._looked_at = float("-inf")

    def get_backend(self) -> str:
        return "static"

    @property
    def use_agent_store(self) -> bool:
        """True: the agent of rank 0 serves the store at the address. False: its worker does."""
        return not isinstance(self._store, MemoryStore)

    def next_rendezvous(self) -> RendezvousInfo:
        """Enter the next round; waits for all nodes."""
        if self._store is None:
            self._store = self._open_store()
        self._enter(self._which_round())
        store = with_prefix(f"{self.run_id}/round_{self._round}", self._store)
        meeting_point = RendezvousStoreInfo(self.master_addr, self.master_port)
        return RendezvousInfo(store, self.rank, self.world_size, meeting_point)

    def _open_store(self) -> Any:
        dist = torch_distributed(f"A static rendezvous of {self.world_size} nodes")
        return dist.TCPStore(
            self.master_addr, self.master_port, self.world_size, self.rank == 0, self.timeout, multi_tenant=True
        )

    @property
    def _rounds(self) -> Any:
        return with_prefix(f"{self.run_id}/rounds", self._store)

    def _read(self, key: str, otherwise: int) -> int:
        """A number, which may not be written yet. (Reading an absent key would wait for it.)"""
        return int(self._rounds.compare_set(key, "", str(otherwise)))

    def _which_round(self) -> int:
        """The one others wait for this rank in, or else a new one. Announced to the others here."""
        latest, last = self._read("latest", 0), self._read(f"entered/{self.rank}", -1)
        if last >= latest:  # `last` may have been another process's, whose place we take
            latest = int(self._rounds.compare_set("latest", str(latest), str(latest + 1)))
        self._rounds.set(f"entered/{self.rank}", str(latest))
        return latest

    def _enter(self, number: int) -> None:
        """In round 0 there is nothing to clear away, and the store itself waited for all nodes."""
        self._round = number
        if number == 0:
            return
        opened = f"open/{number}"
        if self._rounds.add(f"arrived/{number}", 1) == self.world_size:
            self._clear_away_what_workers_left()
            self._rounds.set(opened, "")
        elif not self._rounds.check([opened]):
            logger.info("[%s] waiting for the other nodes in round %s", self.run_id, number)
            PatientStore(self._rounds).wait([opened], self.timeout)

    def _clear_away_what_workers_left(self) -> None:
        """Every node is between two groups of workers now: the workers that wrote these keys are dead."""
        for key in self._store.list_keys():
            if not key.startswith((f"{self.run_id}/", "init/")):
                self._store.delete_key(key)

    def num_nodes_waiting(self) -> int:
        """1 while others wait for this node in a later round, else 0."""
        now = time.monotonic()
        if self._store is None or not self.use_agent_store or now < self._looked_at + LOOK_EVERY_S:
            return 0
        self._looked_at = now
        try:
            return int(self._read("latest", 0) > self._round)
        except RuntimeError as error:
            # The store's host may have ended well before us: no reason to stop our workers.
            logger.debug("[%s] cannot ask for a later round: %s", self.run_id, error)
            return 0

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nothing to close: no node can join later."""

    def get_run_id(self) -> str:
        return self.run_id

    def shutdown(self) -> bool:
        return True


def create_rdzv_handler(params: RendezvousParameters) -> RendezvousHandler:
    """A handler from `params`: its endpoint needs a port, its settings a `rank`; `timeout` in seconds (600)."""
    if "rank" not in params.config:
        raise ValueError("The static rendezvous was not told this node's rank. Give --node-rank, or rank=N in the settings.")
    timeout = int(params.config.get("timeout", DEFAULT_TIMEOUT_S))
    rank = int(params.config["rank"])
    return StaticTCPRendezvous(*meeting_point(params), rank, params.max_nodes, params.run_id, timeout)


def meeting_point(params: RendezvousParameters) -> tuple[str, int]:
    """Host and port of the endpoint, which needs both."""
    endpoint = params.endpoint.strip()
    if not endpoint:
        raise ValueError("The static rendezvous was not told where to meet. Give --master-addr and --master-port.")
    master_addr, master_port = parse_rendezvous_endpoint(endpoint, -1)
    if master_port == -1:
        raise ValueError(f"The endpoint of the static rendezvous has no port: {endpoint}. Give --master-port.")
    return master_addr, master_port

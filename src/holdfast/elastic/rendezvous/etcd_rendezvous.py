"""torch elastic's first etcd rendezvous, backend `etcd`: its names and settings, over the dynamic rendezvous.

torch's own is a protocol of its own over many keys of etcd's version 2 API. What a job sees of it is the same: `timeout`,
`last_call_timeout`, `etcd_prefix`, and a store of each round in etcd. `holdfast run --rdzv-backend etcd` does not come here:
there etcd elects the coordinator.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from holdfast.elastic.utils.logging import get_logger

from .api import RendezvousHandler, RendezvousParameters
from .dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout
from .etcd_connection import connect
from .etcd_rendezvous_backend import EtcdRendezvousBackend
from .etcd_store import EtcdStore
from .etcd_store import cas_delay as cas_delay  # torch has it here too

logger = get_logger(__name__)

DEFAULT_TIMEOUT_S, DEFAULT_LAST_CALL_S = 600, 30  # torch's
DEFAULT_PREFIX = "/torchelastic/p2p"  # torch's


CONST_ETCD_SETUP_TTL = 5
"""Seconds for which a round may be set up, in torch's protocol. Here nothing goes by it; torch's tests wait so long."""


class EtcdRendezvousRetryableFailure(Exception):
    """A step of the rendezvous failed and may be tried again."""


class EtcdRendezvousRetryImmediately(Exception):
    """A step lost against another node's and should be tried again at once."""


class EtcdRendezvous:
    """What the nodes of job `run_id` agree on below `prefix`; times in seconds."""

    def __init__(
        self,
        client: Any,
        prefix: str,
        run_id: str,
        num_min_workers: int,
        num_max_workers: int,
        timeout: int,
        last_call_timeout: int,
    ) -> None:
        self.client, self.run_id = client, run_id
        self.num_min_workers, self.num_max_workers = num_min_workers, num_max_workers
        self.folder = f"{prefix.rstrip('/')}/run_{run_id}"
        self.timeout = RendezvousTimeout(join=timedelta(seconds=timeout), last_call=timedelta(seconds=last_call_timeout))
        self._own: DynamicRendezvousHandler | None = None

    def rendezvous_barrier(self) -> tuple[int, int, int]:
        """Take part in the next round; blocks. Returns its number, this node's rank, and the number of nodes."""
        if self._own is None:
            self._own = self.handler(None)
        info = self._own.next_rendezvous()
        return self._own.round, info.rank, info.world_size

    def handler(self, local_addr: str | None) -> DynamicRendezvousHandler:
        """This node's part in it."""
        store = EtcdStore(self.client, f"{self.folder}/store")
        return DynamicRendezvousHandler.from_backend(
            self.run_id,
            store,
            EtcdRendezvousBackend(self.client, "rdzv", key_prefix=self.folder),
            self.num_min_workers,
            self.num_max_workers,
            local_addr,
            self.timeout,
        )


class EtcdRendezvousHandler(DynamicRendezvousHandler):
    """The handler over it."""

    def __init__(self, rdzv_impl: EtcdRendezvous, local_addr: str | None = None) -> None:
        own = rdzv_impl.handler(local_addr)
        super().__init__(own._this_node, own.settings, "etcd", own._store, own._state_holder)


def create_rdzv_handler(params: RendezvousParameters) -> RendezvousHandler:
    """A handler for backend `etcd`. Settings: timeout, last_call_timeout (seconds), etcd_prefix, protocol, cert, key, cacert,
    user, password. The endpoint may name several members of etcd, separated by commas."""
    timeout = params.get_as_int("timeout", DEFAULT_TIMEOUT_S)
    last_call = params.get_as_int("last_call_timeout", DEFAULT_LAST_CALL_S)
    assert timeout is not None and last_call is not None
    client = connect(params)
    logger.info("the rendezvous backend etcd is served over etcd's version 3 API")
    prefix = str(params.get("etcd_prefix", DEFAULT_PREFIX))
    rendezvous = EtcdRendezvous(client, prefix, params.run_id, params.min_nodes, params.max_nodes, timeout, last_call)
    return EtcdRendezvousHandler(rendezvous, params.local_addr)

"""The dynamic rendezvous over etcd, backend `etcd-v2`: one key holds the state, and a write needs its latest revision.

torch's name speaks of the API that its client used; this one uses version 3, which every etcd of today has.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from holdfast.elastic.utils.logging import get_logger

from .api import RendezvousParameters
from .backend import RendezvousBackend, Token, failure_recorded, read_timeout_of, state_in
from .etcd_connection import Lease, connect, no_connection, read, write
from .etcd_store import EtcdStore

logger = get_logger(__name__)

PREFIX, STORE_PREFIX = "/torch/elastic/rendezvous", "/torch/elastic/store"  # torch's
TTL_S = 900  # how long the state outlives the last node's last word


class EtcdRendezvousBackend(RendezvousBackend):
    """The shared state under one key of etcd, in base64. The token is the revision of its last change."""

    _DEFAULT_TTL = TTL_S

    def __init__(self, client: Any, run_id: str, key_prefix: str | None = None, ttl: int | None = None) -> None:
        if not run_id:
            raise ValueError("The run id must be a non-empty string.")
        self._client = client
        self._key = f"{key_prefix.rstrip('/')}/{run_id}" if key_prefix else run_id
        self._lease = Lease(client, f"{self._key} (state)", ttl if ttl and ttl > 0 else TTL_S)

    @property
    def name(self) -> str:
        return "etcd-v2"

    def get_state(self) -> tuple[bytes, Token] | None:
        try:
            found, _ = read(self._client, [self._key])
        except Exception as error:
            raise no_connection() from error
        if self._key not in found:
            return None
        stored, revision = found[self._key]
        return state_in(stored), revision

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        if token and not isinstance(token, int):  # none of ours: it cannot match
            return self._current()
        try:
            lease = self._lease.hold()
            revision = write(self._client, [(self._key, b64encode(state))], lease, unchanged=token or 0)
        except Exception as error:
            self._lease.doubt()
            raise no_connection() from error
        return (state, revision, True) if revision else self._current()

    def _current(self) -> tuple[bytes, Token, bool] | None:
        current = self.get_state()
        return None if current is None else (*current, False)


def create_backend(params: RendezvousParameters) -> tuple[EtcdRendezvousBackend, EtcdStore]:
    """Backend and store for `etcd-v2`.

    Settings: protocol (`http`, `https`), ssl_cert, ssl_cert_key, ca_cert (files), user, password (or the variables
    HOLDFAST_ETCD_USER and HOLDFAST_ETCD_PASSWORD), read_timeout (seconds a key of the store is waited for, 60). The endpoint
    may name several members of etcd, separated by commas.
    """
    logger.info("the rendezvous backend %s is served over etcd's version 3 API", params.backend)
    with failure_recorded(params.run_id):
        client = connect(params)
        store = EtcdStore(client, f"{STORE_PREFIX}/{params.run_id}", read_timeout_of(params))
        return EtcdRendezvousBackend(client, params.run_id, key_prefix=PREFIX), store

"""How is the shared state of a rendezvous kept in a torch Store, and which store is it?"""

from __future__ import annotations

import os
import tempfile
from base64 import b64encode
from typing import Any

from holdfast.elastic.events import NodeState, construct_and_record_rdzv_event
from holdfast.elastic.utils.logging import get_logger

from .api import RendezvousConnectionError, RendezvousError, RendezvousParameters
from .api import RendezvousStateError as RendezvousStateError  # torch has it here too
from .backend import RendezvousBackend, Token, failure_recorded, read_timeout_of, state_in
from .memory_store import MemoryStore
from .stores import torch_distributed, torch_is_loaded
from .utils import _matches_machine_hostname, parse_rendezvous_endpoint

logger = get_logger(__name__)

DEFAULT_PORT = 29400  # torchrun's, for an endpoint without a port
_STORE_ERRORS = (ValueError, RuntimeError, TimeoutError)
_NO_CONNECTION = "The connection to the C10d store has failed. See inner exception for details."


class C10dRendezvousBackend(RendezvousBackend):
    """The state under one key of `store`, in base64. The token is the value of that key."""

    _NOTHING_YET = "-"
    """Stands there before the first state, since reading an absent key blocks. No base64 text can look like it."""

    def __init__(self, store: Any, run_id: str) -> None:
        if not run_id:
            raise ValueError("The run id must be a non-empty string.")
        self._store = store
        self._key = f"torch.rendezvous.{run_id}"
        self._call_store("compare_set", self._key, "", self._NOTHING_YET)

    @property
    def name(self) -> str:
        return "c10d"

    def get_state(self) -> tuple[bytes, Token] | None:
        return self._decode_state(self._call_store("get", self._key))

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        if token and not isinstance(token, bytes):  # none of ours: it cannot match
            current = self.get_state()
            return None if current is None else (*current, False)
        expected = token.decode() if token else self._NOTHING_YET
        current = self._decode_state(self._call_store("compare_set", self._key, expected, b64encode(state).decode()))
        # The store does not say whether it wrote; it returns the current value.
        return None if current is None else (*current, current[0] == state)

    def _call_store(self, operation: str, *args: Any) -> Any:
        try:
            return getattr(self._store, operation)(*args)
        except _STORE_ERRORS as error:
            raise RendezvousConnectionError(_NO_CONNECTION) from error

    def _decode_state(self, stored: bytes) -> tuple[bytes, Token] | None:
        return None if stored == self._NOTHING_YET.encode() else (state_in(stored), stored)


def TCPStore(*args: Any, **kwargs: Any) -> Any:
    """torch's `TCPStore`, loaded now."""
    return torch_distributed("The c10d rendezvous").TCPStore(*args, **kwargs)


def FileStore(path: str) -> Any:
    """torch's `FileStore`, loaded now."""
    return torch_distributed("The c10d rendezvous over a file").FileStore(path)


def _create_tcp_store(params: RendezvousParameters) -> Any:
    host, port = parse_rendezvous_endpoint(params.endpoint, default_port=DEFAULT_PORT)
    told = params.get_as_bool("is_host")
    is_host = _matches_machine_hostname(host) if told is None else told
    timeout = read_timeout_of(params)
    if params.max_nodes == 1 and is_host and not torch_is_loaded():
        return MemoryStore()
    how = {"multi_tenant": True, "timeout": timeout}
    try:
        try:
            store = TCPStore(host, port, is_master=is_host, **how)
        except _STORE_ERRORS:
            if not is_host or told is not None:
                raise
            # We only guessed that we host it: another process of this machine may already do so. Then be its client.
            is_host, store = False, TCPStore(host, port, is_master=False, **how)
    except _STORE_ERRORS as error:
        raise RendezvousConnectionError(_NO_CONNECTION) from error
    if is_host:
        message = f"Process {os.getpid()} serves the store of the c10d rendezvous at {host}:{port}"
        construct_and_record_rdzv_event(run_id=params.run_id, message=message, node_state=NodeState.INIT)
        logger.info(message)
    return store


def _create_file_store(params: RendezvousParameters) -> Any:
    path = params.endpoint
    if not path:
        try:
            opened, path = tempfile.mkstemp()
        except OSError as error:
            raise RendezvousError("The file creation for C10d store has failed. See inner exception for details.") from error
        os.close(opened)
    try:
        return FileStore(path)
    except (ValueError, RuntimeError) as error:
        raise RendezvousConnectionError(_NO_CONNECTION) from error


def create_backend(params: RendezvousParameters) -> tuple[C10dRendezvousBackend, Any]:
    """The backend, and the store it stands on.

    Settings: store_type (`tcp`, or `file` with the endpoint as its path), read_timeout (seconds, 60; tcp only), is_host
    (whether this process serves the store; otherwise it is worked out from the endpoint's host).

    A job of one node in a program without torch gets a store in memory: it needs no socket.
    """
    with failure_recorded(params.run_id):
        store_type = params.get("store_type", "tcp").strip().lower()
        if store_type not in ("tcp", "file"):
            raise ValueError("Invalid store type given. Currently only supports file and tcp.")
        store = _create_file_store(params) if store_type == "file" else _create_tcp_store(params)
        return C10dRendezvousBackend(store, params.run_id), store

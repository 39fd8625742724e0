"""A torch TCPStore on this host or for it, and free ports. torch is loaded only to make the store."""

from __future__ import annotations

import os
from contextlib import closing
from datetime import timedelta
from importlib import import_module
from typing import Any

from holdfast.elastic.utils.api import get_socket_with_port
from holdfast.elastic.utils.logging import get_logger
from holdfast.elastic.utils.store import barrier

logger = get_logger(__name__)

_ADDRESS_IN_USE = "Address already in use"
_SOCKET_TIMEOUT = "Socket Timeout"
_TCP_STORE_INIT = "_tcp_store/num_members"


def create_c10d_store(
    is_server: bool,
    server_addr: str,
    server_port: int = -1,
    world_size: int = 1,
    timeout: float = 600,
    wait_for_workers: bool = True,
    retries: int = 3,
    use_libuv: bool | None = None,
) -> Any:
    """A `torch.distributed.TCPStore`: the server, or a client of the one at `server_addr`.

    `server_port` -1 takes a free port, and another one, `retries` times in all, if it is taken meanwhile; 0 lets the
    kernel choose. With `wait_for_workers` it returns when `world_size` members are there, or fails after `timeout` seconds.
    """
    if use_libuv is not None:
        logger.warning("create_c10d_store: use_libuv does nothing; USE_LIBUV=0 in the environment turns libuv off")
    if server_port == -1 and world_size > 1:
        raise ValueError(
            f"server_port must be specified when world_size > 1, got server_port={server_port}, world_size={world_size}"
        )
    tries = retries if server_port == -1 else 1
    while True:
        tries -= 1
        port = get_free_port() if server_port == -1 else server_port
        try:
            store = _open(is_server, server_addr, port, world_size, timeout, wait_for_workers)
        except RuntimeError as error:
            if str(error) != _ADDRESS_IN_USE:  # torch gives the reason only in its text
                raise
            if tries <= 0:
                raise RuntimeError(f"on {server_addr}, port: {port} already in use") from error
            logger.warning("port %s was taken before the store could bind it: %s more tries", port, tries)
            continue
        if wait_for_workers:
            _check_full_rank(store, world_size, timeout)
        return store


def _open(is_server: bool, server_addr: str, port: int, world_size: int, timeout: float, wait_for_workers: bool) -> Any:
    use_libuv = os.environ.get("USE_LIBUV", "1") == "1"
    where = f"{'serving' if is_server else 'joining'} {server_addr}:{port}"
    logger.info("TCPStore %s for %s members (timeout %s s, libuv %s)", where, world_size, timeout, use_libuv)
    return import_module("torch.distributed").TCPStore(
        host_name=server_addr,
        port=port,
        world_size=world_size,
        is_master=is_server,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=wait_for_workers,
        use_libuv=use_libuv,
    )


def _check_full_rank(store: Any, world_size: int, timeout: float) -> None:
    try:
        barrier(store, world_size, key_prefix=_TCP_STORE_INIT, barrier_timeout=timeout)
    except RuntimeError as error:
        if str(error) != _SOCKET_TIMEOUT:
            raise
        raise TimeoutError(f"timed out waiting for all {world_size} members to join") from error


def get_free_port() -> int:
    """A TCP port of this host that is free now. It is not reserved: another program may take it."""
    with closing(get_socket_with_port()) as held:
        port: int = held.getsockname()[1]
        return port

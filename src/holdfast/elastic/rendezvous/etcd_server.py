"""An etcd server for tests, started from its binary: its names. Starting one says what to use instead."""

from __future__ import annotations

from typing import Any, NoReturn

from ._etcd_missing import refuse


class EtcdServer:
    """The server."""

    def __init__(self, data_dir: str | None = None) -> None:
        self._data_dir = data_dir

    def start(self, timeout: int = 60, num_retries: int = 3, stderr: Any = None) -> NoReturn:
        """Start it and wait until it answers."""
        refuse("EtcdServer")

    def stop(self) -> None:
        """Stop it. One that was never started needs nothing."""

    def get_host(self) -> str:
        refuse("EtcdServer")

    def get_port(self) -> int:
        refuse("EtcdServer")

    def get_endpoint(self) -> str:
        refuse("EtcdServer")

    def get_client(self) -> Any:
        refuse("EtcdServer")

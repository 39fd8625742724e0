"""A real etcd of one member on loopback, started from its binary: for tests, and for trying things out.

The binary is `$TORCHELASTIC_ETCD_BINARY_PATH`, or the `etcd` on the PATH. It forgets everything when it is stopped.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import tempfile
import time
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Any

from holdfast.elastic.utils.api import get_socket_with_port
from holdfast.elastic.utils.logging import get_logger

from .etcd_connection import client_for, read

logger = get_logger(__name__)

BINARY_VARIABLE = "TORCHELASTIC_ETCD_BINARY_PATH"  # torch's
LOOK_EVERY_S = 0.05
END_S = 10.0  # how long etcd may take to end when asked to


def find_free_port() -> socket.socket:
    """A socket at a free port of this host: close it before the port is used."""
    return get_socket_with_port()


def stop_etcd(subprocess: Popen[Any] | None, data_dir: str | None = None) -> None:
    """End an etcd, and remove its folder where one is given."""
    if subprocess is not None and subprocess.poll() is None:
        subprocess.terminate()
        try:
            subprocess.wait(END_S)
        except TimeoutExpired:
            subprocess.kill()
            subprocess.wait()
    if data_dir:
        shutil.rmtree(data_dir, ignore_errors=True)


class EtcdServer:
    """The server. `data_dir`: a folder for its data, which is removed at the end; a temporary one without."""

    def __init__(self, data_dir: str | None = None) -> None:
        self._port, self._host = -1, "localhost"
        self._etcd_binary_path = os.environ.get(BINARY_VARIABLE) or shutil.which("etcd") or ""
        self._base_data_dir = data_dir
        self._etcd_proc: Popen[Any] | None = None

    def start(self, timeout: int = 60, num_retries: int = 3, stderr: Any = None) -> None:
        """Start it and wait until it answers; TimeoutError if it does not within `timeout` seconds, `num_retries` times.

        `stderr` is where its log goes, as for `subprocess.Popen`.
        """
        if not self._etcd_binary_path:
            raise RuntimeError(f"etcd is not installed: apt-get install etcd-server, or name its binary in {BINARY_VARIABLE}")
        self._base_data_dir = self._base_data_dir or tempfile.mkdtemp(prefix="holdfast_etcd_")
        atexit.register(self.stop)
        for attempt in range(num_retries):
            try:
                return self._start(os.path.join(self._base_data_dir, str(attempt)), timeout, stderr)
            except Exception as error:
                stop_etcd(self._etcd_proc)
                if attempt == num_retries - 1:
                    self.stop()
                    raise
                logger.warning("etcd could not be started: %s; trying again", error)

    def _start(self, data_dir: str, timeout: int, stderr: Any) -> None:
        os.makedirs(data_dir, mode=0o700, exist_ok=True)
        client, peer = find_free_port(), find_free_port()
        self._port, peer_port = client.getsockname()[1], peer.getsockname()[1]
        url, peer_url = f"http://{self.get_endpoint()}", f"http://{self._host}:{peer_port}"
        command = [self._etcd_binary_path, "--data-dir", data_dir, "--listen-client-urls", url, "--advertise-client-urls", url]
        command += ["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url]
        command += ["--initial-cluster", f"default={peer_url}"]
        client.close()
        peer.close()
        self._etcd_proc = Popen(command, stdin=DEVNULL, stdout=stderr, stderr=stderr)
        self._wait_for_ready(timeout)

    def _wait_for_ready(self, timeout: int = 60) -> None:
        assert self._etcd_proc is not None
        client, deadline = self.get_client(), time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self._etcd_proc.poll() is not None:
                raise RuntimeError(f"etcd exited with code {self._etcd_proc.returncode} before it answered")
            try:
                read(client, ["/"])
                return
            except Exception as error:
                logger.debug("etcd does not answer yet: %s", error)
                time.sleep(LOOK_EVERY_S)
        raise TimeoutError(f"etcd did not answer within {timeout} s")

    def stop(self) -> None:
        """Stop it and remove its data. One that was never started needs nothing."""
        atexit.unregister(self.stop)
        stop_etcd(self._etcd_proc, self._base_data_dir)
        self._etcd_proc = None

    def get_host(self) -> str:
        """Where it listens."""
        return self._host

    def get_port(self) -> int:
        """At which port; -1 before its start."""
        return self._port

    def get_endpoint(self) -> str:
        """`host:port`, as a rendezvous endpoint."""
        return f"{self._host}:{self._port}"

    def get_client(self) -> Any:
        """A client of it, as `EtcdStore` and `EtcdRendezvousBackend` take it."""
        return client_for(self.get_endpoint(), {})

"""Asking a running worker over a Unix socket: torch's HTTP handlers (ping, stack dump, flight recorder) for a training script.

The server is a C++ class of torch's, loaded only when `TORCH_WORKER_SERVER_SOCKET` names a socket.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from holdfast.elastic.multiprocessing.errors import record

TORCH_WORKER_SERVER_SOCKET = "TORCH_WORKER_SERVER_SOCKET"


@record
@contextmanager
def worker_main() -> Iterator[None]:
    """Around a script's main function (`@worker_main()`, or `with`): error record, and the server while the block runs."""
    socket_path = os.environ.get(TORCH_WORKER_SERVER_SOCKET)
    if socket_path is None:
        yield
        return
    server = import_module("torch._C._distributed_c10d")._WorkerServer(socket_path)
    try:
        yield
    finally:
        server.shutdown()

"""NVRx's small tools, as far as scripts and tests use them: messages over sockets, and whether a process lives."""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import UsageError
from holdfast.core.resolve.infrastructure import infrastructure
from holdfast.fault_tolerance import wire
from holdfast.fault_tolerance._distributed import get_rank as get_rank

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

logger = logging.getLogger("nvrx")


def get_infrastructure_rank(skip_nodename_logic: bool = False) -> int:
    """This node's rank as the infrastructure gives it (`core.resolve.infrastructure`); -1: it gives none. With
    `skip_nodename_logic` node names and Slurm's topology are not asked. ValueError: a variable makes no sense;
    RuntimeError: Slurm's are missing."""
    by_name = ("NVRX_INFRA_RANK_FROM_NODENAME", "SLURM_TOPOLOGY_ADDR_PATTERN")
    environ = {name: value for name, value in os.environ.items() if not (skip_nodename_logic and name in by_name)}
    try:
        found = infrastructure(environ)
    except UsageError as error:
        raise (RuntimeError if error.what.startswith("SLURM_ARRAY_TASK_ID is set") else ValueError)(str(error)) from error
    if found.rank is None and "SLURM_JOB_ID" in environ:
        raise RuntimeError("in a Slurm job neither CROSS_SLURM_PROCID nor SLURM_PROCID is defined: start this with srun")
    logger.debug(f"infrastructure rank: {found.rank_from or 'none is given, so it is assigned deterministically'}")
    return -1 if found.rank is None else found.rank


def is_slurm_job_array() -> bool:
    """This is a task of a Slurm job array."""
    return "SLURM_ARRAY_TASK_ID" in os.environ


def is_process_alive(pid: int) -> bool:
    """It exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False


def wait_until_process_terminated(pid: int, timeout: float = 0) -> None:
    """Until it is gone or a zombie; `timeout` seconds at most (0: however long it takes), then RuntimeError."""
    left_s = _countdown(timeout)
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with open(fd, "rb", buffering=0):
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while is_process_alive(pid):
            if timeout and not left_s():
                raise RuntimeError(f"process {pid} is still alive after {timeout} s")
            poll.poll(max(1, left_s() * 1000) if timeout else None)


def _countdown(timeout: float) -> Callable[[], float]:
    """Says how many of `timeout` seconds are left, 0 at least."""
    until = time.monotonic() + timeout
    return lambda: max(0.0, until - time.monotonic())


def wait_for_mp_events(events: Iterable[Any], timeout: float = 60) -> None:
    """Until each of these multiprocessing events is set; RuntimeError after `timeout` seconds for all together."""
    left_s = _countdown(timeout)
    for event in events:
        if not event.wait(left_s()):
            raise RuntimeError(f"not all events were set within {timeout} s")


def set_ipc_socket_timeouts(fileno: int, timeout: float) -> None:
    """No send or receive on this socket waits for longer than `timeout` seconds."""
    whole, part = divmod(timeout, 1)
    limit = struct.pack("ll", int(whole), int(part * 1e6))
    with socket.socket(fileno=os.dup(fileno)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


async def read_obj_from_ipc_stream(stream: StreamReader) -> Any:
    """The next message. asyncio.IncompleteReadError at the end, WireError if it is none of ours."""
    length = wire.length_of(await stream.readexactly(4))
    return wire.loads(await stream.readexactly(length))


async def write_obj_to_ipc_stream(obj: Any, stream: StreamWriter) -> None:
    """Send `obj`. WireError if it is no message."""
    stream.write(wire.frame(obj))
    await stream.drain()


def recv_all(sock: socket.socket, n: int) -> bytes:
    """Exactly `n` bytes. ConnectionError if the other side closes before."""
    got = bytearray()
    while len(got) < n:
        part = sock.recv(n - len(got))
        if not part:
            raise ConnectionError(f"the other side closed after {len(got)} of {n} bytes")
        got += part
    return bytes(got)


def read_obj_from_ipc_socket(sock: socket.socket, raise_exc: bool = False) -> Any:
    """The next message. When there is none to be had: None, or with `raise_exc` the reason as an exception."""
    try:
        return wire.loads(recv_all(sock, wire.length_of(recv_all(sock, 4))))
    except (OSError, wire.WireError):
        if raise_exc:
            raise
        return None


def write_object_to_ipc_socket(obj: Any, sock: socket.socket) -> None:
    """Send `obj`. WireError if it is no message."""
    sock.sendall(wire.frame(obj))

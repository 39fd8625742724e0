"""How long do N agents take to agree on their ranks? Light processes, forked when everything is imported: one agent each.

    agents.py holdfast|torchrun N PATIENCE_S      → seconds from the first agent's join to the last one's rank

PATIENCE_S if that takes longer.
"""

import gc
import importlib
import mmap
import os
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable

KEPT: list[object] = []
"""What others still need when its own agent has its rank: the store, for one."""
ELASTIC = "torch.distributed.elastic.rendezvous"
IMPORTED = {
    "holdfast": ["holdfast.elastic.rendezvous.attendant", "holdfast.runtime.net.codec"],
    "torchrun": [f"{ELASTIC}.c10d_rendezvous_backend", f"{ELASTIC}.dynamic_rendezvous"],
}


def ours(number: int, count: int, port: int) -> Callable[[], int]:
    """A seat of our own handler: the real member, links and handshakes; agent 0 has the coordinator. Its link is up before the
    clock runs, as torchrun's to its store is."""
    from holdfast.core.wire.messages import Join
    from holdfast.elastic.rendezvous.attendance import Enter
    from holdfast.elastic.rendezvous.attendant import Attendant
    from holdfast.rendezvous.rules import Rules
    from holdfast.runtime.net import codec
    from holdfast.runtime.net.frames import Identity

    codec.warm()
    join = Join(node=f"n{number}-{os.urandom(8).hex()}", name=f"n{number}", addr="127.0.0.1", master_port=0, nproc=1, role="r")
    rules = Rules(job="bench", min_nodes=count, max_nodes=count, lease_s=30.0)

    attendant = Attendant(join, rules, Identity("bench", b"0123456789abcdef"), ("127.0.0.1", port), may_host=number == 0)
    while number and not attendant.node.member.up:  # type: ignore[union-attr]
        time.sleep(0.001)

    def rank() -> int:
        attendant.show(Enter(port=1), lambda attendance: attendance.state == "in")
        return attendant.attendance.assigned.group_rank  # type: ignore[union-attr]

    return rank


def theirs(number: int, count: int, port: int) -> Callable[[], int]:
    """torchrun's handler, connected to its store, which agent 0 serves."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    given = {"is_host": number == 0}
    params = RendezvousParameters("c10d", f"127.0.0.1:{port}", "bench", count, count, "127.0.0.1", **given)
    backend, store = create_backend(params)
    handler = create_handler(store, backend, params)
    return lambda: handler.next_rendezvous().rank


def agent(prepare: Callable[..., Callable[[], int]], number: int, count: int, port: int, ends: list[tuple[int, int]]) -> tuple:
    """When it joined, when it had its rank, and which. `ends` are pipes: ready, go."""
    (_, ready), (go, starter) = ends
    os.close(starter)
    rank = prepare(number, count, port)
    KEPT.append(rank)
    os.write(ready, b".")
    os.read(go, 1)
    begun = time.monotonic()
    found = rank()
    return begun, time.monotonic(), float(found)


def main() -> None:
    prepare, count = {"holdfast": ours, "torchrun": theirs}[sys.argv[1]], int(sys.argv[2])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for module in IMPORTED[sys.argv[1]]:
        importlib.import_module(module)
    board = mmap.mmap(-1, 24 * count)
    ends = [os.pipe(), os.pipe()]
    gc.freeze()
    pids = []
    for number in range(count):
        if not (pid := os.fork()):
            try:
                board[24 * number : 24 * number + 24] = struct.pack("3d", *agent(prepare, number, count, port, ends))
                os.write(ends[0][1], b".")
                signal.pause()  # others may still need it
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        pids.append(pid)
        if number == 0:
            os.read(ends[0][0], 1)  # its server listens
    try:
        signal.signal(signal.SIGALRM, too_long)
        begun = False
        signal.alarm(180)
        wait_for(ends[0][0], count - 1)
        begun = True
        signal.setitimer(signal.ITIMER_REAL, float(sys.argv[3]))
        os.close(ends[1][1])
        wait_for(ends[0][0], count)
        times = list(struct.iter_unpack("3d", board))
        assert sorted(rank for _, _, rank in times) == list(range(count)), "ranks are missing"
        print(max(end for _, end, _ in times) - min(begun for begun, _, _ in times))
    except TimeoutError:
        if not begun:
            raise
        print(sys.argv[3])
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def too_long(signum: int, frame: object) -> None:
    raise TimeoutError


def wait_for(pipe: int, count: int) -> None:
    while count:
        count -= len(os.read(pipe, count))


if __name__ == "__main__":
    main()

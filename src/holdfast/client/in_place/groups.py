"""How are torch's process groups ended when a round is left, so that no thread waits in one and nothing of it reaches the next?

NCCL's abort ends its collectives. Gloo's (torch 2.13) does not end one that waits for a rank that lives: its connections have
to be shut. They are not marked as gloo's, so all TCP connections go that this process has opened since the life began. Nor does
anything end its wait for a connection that a rank was to make and has died before: that rank is answered for. And torch asks
for the name of each address that it connects to, which takes 5 or 10 s where a nameserver's answer is lost.

No signal ends torch's wait for a store that is not there yet. So that wait is made here, where one does.

The script's torch, if it has any: this imports none.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
from _thread import start_new_thread
from contextlib import suppress
from importlib import import_module
from time import monotonic

from holdfast.client.in_place import lost_sends

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType


OF_GROUPS = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg", "pg_coalesce_state")
"""What torch knows of its process groups, by name of the field."""
LOOK_S = 0.005  # Between two looks whether the store is there.
ANSWER_S = 0.1  # How long a socket of our own may take to be connected to.
NAMES = 53  # The port of nameservers.
MEETING_S = 60.0  # After so long torch waits by itself, and says why it gives up.


_held: list[object] = []
"""Process groups of this life. Whoever drops the last reference to one ends its threads. C++ code does that with the GIL, for
which one of those threads may wait: DDP as it goes, or `destroy_process_group` in a `finally`."""
_stand_ins: list[object] = []
"""The store of this life, where its first rank has died."""
_is_over = threading.Event()
"""The life that follows the one whose groups are kept has ended."""


def hold() -> None:
    """Keep the process groups that there are; those of the last life until the end."""
    if (c10d := _c10d()) is not None:
        _held.extend(group for group in list(c10d._world.pg_map) if group not in _held)


def end_life() -> None:
    """Let go of the groups of the life before, since nothing of its script is left. What this one has left may still refer to
    its own. Another thread does it: a thread of gloo's may be lost in a collective until that times out, and whoever lets go of
    its group waits for it, without the GIL."""
    global _is_over
    _once_at_exit()
    if _held:
        lost_sends.end()  # those that were lost since
    _is_over.set()
    _is_over = threading.Event()
    start_new_thread(_keep_until, (_is_over, list(_held)))
    _held.clear()


def let_go(within_s: float) -> None:
    """Let go of all groups now, where the script has left nothing that refers to one; return when they are gone, or after so
    long. With them goes the store that the first rank has served: the next one has its port, and none of its keys."""
    _once_at_exit()
    if _held:
        lost_sends.end()
    groups = list(_held)
    _held.clear()
    lets_go = threading.Thread(target=groups.clear, name="lets groups go", daemon=True)
    lets_go.start()
    lets_go.join(within_s)


def _once_at_exit() -> None:
    atexit.unregister(_leave_no_abort)
    atexit.register(_leave_no_abort)


def _leave_no_abort() -> None:
    """As this process ends, a thread that is still within a group's end waits. It would abort the process: Python before 3.14
    unwinds a thread that wants the GIL then, and C++ forbids that in a destructor."""
    with suppress(OSError, AttributeError):
        ctypes = import_module("ctypes")
        set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE  # C++'s name of `std::set_terminate`
        set_terminate(ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p))


def _keep_until(is_over: threading.Event, groups: list[object]) -> None:
    is_over.wait()
    groups.clear()


def sockets() -> frozenset[str]:
    """Those that this process has open, as the kernel names them."""
    return frozenset(name for name in _open_files().values() if name.startswith("socket:"))


def interrupt(before: Collection[str]) -> None:
    """End what the main thread may wait for in C code: collectives, and the store where the ranks meet. From another thread.
    `before`: the sockets that were open when the life began."""
    if (c10d := _c10d()) is not None:
        hold()
        _abort_all(c10d, before)


def answer_for_others(before: Collection[str]) -> None:
    """End the waits for ranks that have died before they connected, or were connected to: there is nothing yet that could be
    shut, and torch tries again until its time-out, half an hour (2.13). So what they had to do is done here.

    Gloo, which has told where it is, is connected to for each rank, and that connection ends at once: who connects says which
    rank it is, as a number of 8 bytes. The store that the first rank had on this host is served from here until the life is
    over. Nameservers are answered for too."""
    opened = [fd for fd, name in _open_files().items() if name.startswith("socket:") and name not in before]
    for fd in opened:
        _end_lookup(fd)
    if (torch := sys.modules.get("torch.distributed")) is None:
        return
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    for fd in opened:
        if (address := _listens_at(fd)) and str(address[1]) != port:
            for number in range(int(os.environ.get("WORLD_SIZE", "0"))):
                with suppress(OSError), socket.create_connection(address, ANSWER_S) as one:
                    one.sendall(number.to_bytes(8, sys.byteorder))
    with suppress(OSError, RuntimeError, ValueError):  # another rank serves it by now, or it was on another host
        socket.create_server((host, 0)).close()
        socket.create_server((host, int(port))).close()
        _stand_ins.append(torch.TCPStore(host, int(port), is_master=True, wait_for_workers=False))


def await_store(backend: object = None, init_method: str | None = None, *others: object, **named: object) -> None:
    """Wait until the first rank serves the store where all meet, if that is how the script meets them. Called with what
    `init_process_group` is called with; torch comes to its own judgement afterwards."""
    is_given = named.get("store") is not None or any(other is not None for other in others[3:4])
    host, port, rank = (os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "RANK"))
    is_elsewhere = is_given or (init_method or "env://").partition("?")[0] != "env://"
    if is_elsewhere or not host or not port.isdecimal() or rank in ("", "0"):
        return
    ends = monotonic() + MEETING_S
    while monotonic() < ends:
        try:
            return socket.create_connection((host, int(port)), MEETING_S).close()
        except OSError:
            threading.Event().wait(LOOK_S)


def tear_down(before: Collection[str]) -> None:
    """The main thread is out: abort all process groups, and forget them, those that were only half made too: torch counts them,
    and names what is made next by that count, which has to be the same in all ranks."""
    if (c10d := _c10d()) is None:
        return
    hold()
    _abort_all(c10d, before)
    _stand_ins.clear()
    try:
        if c10d.is_initialized():
            c10d.destroy_process_group()
    except Exception as error:
        sys.stderr.write(f"holdfast: a process group of the round that was left could not be destroyed: {error}\n")
    world = c10d._world
    for name in OF_GROUPS:
        getattr(world, name, {}).clear()
    c10d._update_default_pg(None)
    c10d._unregister_all_process_groups()
    vars(c10d)["_group_count"] = 0


def _c10d() -> ModuleType | None:
    """torch.distributed, if the script has it."""
    return sys.modules.get("torch.distributed.distributed_c10d")


def _abort_all(c10d: ModuleType, before: Collection[str]) -> None:
    for group in list(c10d._world.pg_map):
        try:
            group.abort()
        except Exception:  # an older torch, or a backend that cannot
            continue
    for fd, name in _open_files().items():
        if name.startswith("socket:") and name not in before:
            _shut(fd, name)
    lost_sends.end()


def _open_files() -> dict[int, str]:
    """What each descriptor is, in the kernel's words."""
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # it was the folder's own
            continue
    return found


def _listens_at(fd: int) -> tuple[str, int] | None:
    """Host and port. None: it is no TCP socket, or does not listen."""
    with suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:
        if one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            host, port, *_ = one.getsockname()
            return host, port
    return None


def _end_lookup(fd: int) -> None:
    """Where a nameserver is asked there, let the answer be that nobody is there: the C library asks again, or gives up."""
    with suppress(OSError), socket.socket(fileno=os.dup(fd)) as one, socket.socket(one.family, one.type) as nobody:
        if one.type == socket.SOCK_DGRAM and one.getpeername()[1] == NAMES:
            nobody.bind(("::1" if one.family == socket.AF_INET6 else "127.0.0.1", 0))
            address = nobody.getsockname()
            nobody.close()
            one.connect(address)
            one.send(b"?")


def _shut(fd: int, name: str) -> None:
    """Shut a TCP connection: who waits at either end is told that it is gone."""
    try:
        copy = os.dup(fd)
    except OSError:
        return
    if os.readlink(f"/proc/self/fd/{copy}") != name:  # it has been closed meanwhile, and is something else
        return os.close(copy)
    with socket.socket(fileno=copy) as one:
        try:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.getpeername():
                one.shutdown(socket.SHUT_RDWR)
        except OSError:  # it listens, or is gone
            return

"""How is a worker kept to some CPUs and to the memory of one NUMA node? Both are the starting thread's own for as long as the
start takes, and the child inherits them: no `numactl` is needed, and any program can be started so.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import TypeVar

from holdfast.core.config.binding import Binding
from holdfast.core.config.grammar import ranges
from holdfast.core.errors import StartError

T = TypeVar("T")
Policy = tuple[int, ctypes.Array[ctypes.c_ulong]]  # One of MPOL_*, and the NUMA nodes that it is about.

MPOL_DEFAULT, MPOL_BIND = 0, 2  # linux/mempolicy.h

CALLS = {"x86_64": (238, 239), "aarch64": (237, 236)}  # set_mempolicy, get_mempolicy.

MOST_NODES = 1024  # NUMA nodes that a mask has room for: as many as Linux can be built for.

Mask = ctypes.c_ulong * (MOST_NODES // (8 * ctypes.sizeof(ctypes.c_ulong)))


def bound(binding: Binding, start: Callable[[], T], complain: Callable[[str], None]) -> T:
    """`start()`, by a thread that is bound. StartError: these CPUs cannot be had. Memory that cannot be bound costs a line."""
    before = os.sched_getaffinity(0)
    policy = take(binding, complain)
    try:
        return start()
    finally:
        os.sched_setaffinity(0, before)
        if policy is not None:
            _set_policy(*policy)


def take(binding: Binding, complain: Callable[[str], None]) -> Policy | None:
    """Bind this thread, and whatever it starts. Returns its former policy for memory. None: it has that still."""
    try:
        if binding.cpus:
            os.sched_setaffinity(0, binding.cpus)
    except OSError as error:
        what = f"cannot run on CPUs {ranges(binding.cpus)}: {error.strerror}"
        raise StartError(what, hint="is one of them offline?") from error
    return None if binding.memory is None else _take_memory(binding.memory, complain)


def _take_memory(node: int, complain: Callable[[str], None]) -> Policy | None:
    mode, mask, wanted = ctypes.c_int(), Mask(), Mask()
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    wanted[node // bits] = 1 << node % bits
    try:
        _call(1, ctypes.byref(mode), mask, ctypes.c_ulong(MOST_NODES), None, ctypes.c_ulong(0))
        _set_policy(MPOL_BIND, wanted)
    except OSError as error:
        complain(f"workers run near their GPUs, but their memory is not bound: {error.strerror} (a container needs SYS_NICE)")
        return None
    return mode.value, mask


def _set_policy(mode: int, mask: ctypes.Array[ctypes.c_ulong]) -> None:
    # The kernel reads one bit less than it is told.
    _call(0, ctypes.c_int(mode), None if mode == MPOL_DEFAULT else mask, ctypes.c_ulong(MOST_NODES))


def _call(which: int, *arguments: object) -> None:
    numbers = CALLS.get(os.uname().machine)
    if numbers is None:
        raise OSError(errno.ENOSYS, f"the system call is not known for {os.uname().machine}")
    if ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(numbers[which]), *arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

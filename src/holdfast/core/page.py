"""Where is each fact in a worker's shared page? The layout only: who maps it is `runtime.shm` and `client.bootstrap`.

A page is 4096 bytes of memory shared by one worker and its agent. Every field has exactly one writer and one reader, is
eight bytes wide and eight-aligned (so that one store is one machine store), and is named here by its index into the page
seen as 64-bit words. Fields that different sides write lie on different cache lines.

    words    writer   what
    0-15     agent    magic, version, agent's pid, requests to the worker
    16-31    worker   where the lock word is; answer to the request
    32-39    kernel   the robust mutex: taken by the worker, marked OWNER_DIED by the kernel when the worker is gone
    40-63    worker   pid, state, exit mark, error mark
    64-79    worker   heartbeat and progress (hot)
    80-207   worker   sections (reserved)
    208-239  worker   text: why the bootstrap could not do its whole work
    240-511  -        reserved

The layout has a version, since the worker's interpreter may hold another copy of this file than the agent's.
"""

from __future__ import annotations

SIZE = 4096
MAGIC = 0x3145474150464C48  # "HLFPAGE1", little-endian
VERSION = 1

# Agent → worker.
MAGIC_AT = 0
VERSION_AT = 1
AGENT_PID = 2
REQUEST = 8
"""Bits of REQUEST_*: what the agent asks of the worker."""
REQUEST_COUNT = 9
"""Raised by one with each new request."""

REQUEST_DUMP = 1
REQUEST_CHECKPOINT = 2
REQUEST_STOP = 4

# Worker → agent: the lock.
LOCK_AT = 16
"""Byte offset of the mutex's lock word; 0 until the worker has taken it. The low half is a futex that the agent waits on."""
REQUEST_SEEN = 24
"""Last REQUEST_COUNT that the worker has acted on."""

MUTEX = 32
MUTEX_BYTES = 64
"""Room for a pthread_mutex_t: 40 bytes on x86-64, 48 on aarch64."""

# Worker → agent: life and death.
PID = 40
BOOTED_NS = 41
"""CLOCK_MONOTONIC when the bootstrap ran."""
STATE = 42
EXIT_NS = 44
"""CLOCK_MONOTONIC when the interpreter began to end in good order; 0: it has not."""
ERROR = 48
"""1 once an uncaught exception is ending the main thread and its record is on disk."""
ERROR_UNIX_NS = 49
"""When that exception was seen, nanoseconds since the epoch. Finer than the whole seconds of the error record."""

BOOTING, RUNNING, FINISHING = 0, 1, 2

# Worker → agent: progress.
BEAT_NS = 64
"""CLOCK_MONOTONIC of the last heartbeat; 0: none yet."""
BEATS = 65
STEP = 66
STEP_NS = 67

SECTIONS = 80
SECTIONS_WORDS = 128
TROUBLE = 208
TROUBLE_BYTES = 256

# The kernel's marks in a robust mutex's lock word (linux/futex.h).
FUTEX_WAITERS = 0x80000000
FUTEX_OWNER_DIED = 0x40000000
FUTEX_TID_MASK = 0x3FFFFFFF

FUTEX_WAIT, FUTEX_WAKE = 0, 1

_FUTEX_SYSCALLS = {
    "x86_64": 202,
    "aarch64": 98,
    "riscv64": 98,
    "loongarch64": 98,
    "ppc64le": 221,
    "ppc64": 221,
    "s390x": 238,
}


def futex_syscall(machine: str) -> int | None:
    """Number of futex(2) on `machine` (as in `os.uname().machine`). None: not known, so deaths come by pidfd alone."""
    return _FUTEX_SYSCALLS.get(machine)

"""How does a thread come back that gloo has lost, as it waits for something to be sent?

Gloo (torch 2.13) keeps what it cannot write at once for later. When the connection ends before, it tells that to all who wait,
but to those who wait for these pieces: they wait for the group's timeout, half an hour. The kernel says which thread waits on
which word of memory, and until when. Where that word is the one of a buffer of gloo's, and the wait is still the same after a
while, gloo's own function ends it, and the collective goes on to what is next, which fails, since all connections are shut.

Where anything of it is not as in that torch, nothing is done, and the thread stays lost.
"""

from __future__ import annotations

import ctypes
import os
from time import monotonic

Wait = tuple[str, int, bytes]
"""A thread, the word on which it waits, and until when: the same wait has the same."""

LIBRARY = "libtorch_cpu.so"
END = "_ZN4gloo9transport3tcp13UnboundBuffer13abortWaitSendEv"
BUFFER = "_ZTVN4gloo9transport3tcp13UnboundBufferE"
CONTEXT = "_ZTVN4gloo9transport3tcp7ContextE"
"""The tables of functions of gloo's buffers and contexts. An object begins with where its table does, behind two words."""
CONTEXT_AT, SENT_AT, SENT_BYTES = 0x18, 0x80, 0x30
"""In a buffer: where its context is, and the condition on which those wait that send."""
FUTEX = ("202", "98", "219", "128")
"""The system call, on x86-64 and arm64; and as it is called once a debugger or SIGSTOP has held it up (restart_syscall)."""
LOST_S = 0.05
"""Whoever waits so long for a connection that is shut is lost. The others are told of its end, and go, within 0.01 s."""

_since: dict[Wait, float] = {}
"""When each wait was seen first."""


def end() -> int:
    """End the waits of gloo's for something to be sent that have been seen before; how many. No connection is in use."""
    try:
        library = ctypes.CDLL(LIBRARY, os.RTLD_NOLOAD | os.RTLD_LAZY)
        buffer, context = (ctypes.addressof(ctypes.c_char.in_dll(library, name)) + 16 for name in (BUFFER, CONTEXT))
        with open("/proc/self/mem", "rb", 0) as file:
            memory, now = file.fileno(), monotonic()
            waits = {wait: _since.get(wait, now) for wait in _waits(memory)}
            _since.clear()
            _since.update(waits)
            lost = [word for (_, word, _), since in waits.items() if now - since >= LOST_S]
            found = [at for word in lost if (at := _buffer(memory, word, buffer, context))]
        for at in found:
            library[END](ctypes.c_void_p(at))
    except (OSError, AttributeError, ValueError):  # no torch, another one, or a kernel that does not say it
        return 0
    return len(found)


def _waits(memory: int) -> list[Wait]:
    """Which threads of this process wait for a limited time, on which word, and until when."""
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/syscall") as file:
                number, *given = file.read().split()
            if number in FUTEX and int(given[3], 16):
                found.append((task, int(given[0], 16), os.pread(memory, 16, int(given[3], 16))))
        except (OSError, OverflowError):  # it has ended, or the fourth argument is none
            continue
    return found


def _buffer(memory: int, word: int, buffer: int, context: int) -> int:
    """Where the buffer begins, if it is the word of those who send. 0: it is not."""
    for at in range((word - SENT_AT) & ~7, word - SENT_AT - SENT_BYTES, -8):
        if _word(memory, at) == buffer and _word(memory, _word(memory, at + CONTEXT_AT)) == context:
            return at
    return 0


def _word(memory: int, at: int) -> int:
    try:
        return int.from_bytes(os.pread(memory, 8, at), "little")
    except (OSError, OverflowError):  # nothing is there
        return 0

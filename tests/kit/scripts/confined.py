"""Runs a command that may not make certain system calls: `confined.py ptrace,pidfd_open COMMAND …`. Each fails with EPERM, as
under a container's seccomp filter. Needs no privilege, and everything below inherits it."""

import ctypes
import os
import struct
import sys

NUMBERS = {  # asm/unistd.h
    "x86_64": {"ptrace": 101, "pidfd_open": 434, "memfd_create": 319, "inotify_init1": 294, "process_vm_readv": 310},
    "aarch64": {"ptrace": 117, "pidfd_open": 434, "memfd_create": 279, "inotify_init1": 26, "process_vm_readv": 270},
}
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h
ALLOW, ERRNO = 0x7FFF0000, 0x00050000  # linux/seccomp.h
EPERM = 1
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def refuse(numbers: list[int]) -> None:
    """From now on these system calls fail with EPERM, here and in all that is started."""
    steps = [(LOAD, 0, 0, 0)]  # the number of the call
    for left, number in zip(range(len(numbers), 0, -1), numbers, strict=True):
        steps.append((JUMP_IF_EQUAL, left, 0, number))
    steps += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | EPERM)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    libc = ctypes.CDLL(None, use_errno=True)
    program = Program(len(steps), code)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0):
        sys.exit(f"no seccomp here: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    known = NUMBERS.get(os.uname().machine, {})
    refuse([known[name] for name in sys.argv[1].split(",")])
    os.execvp(sys.argv[2], sys.argv[2:])

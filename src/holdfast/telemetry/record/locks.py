"""Is this file locked by a living process? The kernel frees the lock when its holder ends, however it ends.

Open-file-description locks: flock cannot be looked at without being taken, and lockf is dropped by any close() of the file
in the same process. Where only flock is known (gVisor) it has to do; where there are no locks at all nobody is held up.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


def take(fd: int) -> bool:
    """Lock the whole file for as long as `fd` is open. False: somebody else has it."""
    try:
        # Not flock: that cannot be looked at without being taken. Not lockf: any close() of the file would drop it.
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK))
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            return False
        try:  # gVisor knows only flock
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as refused:
            return refused.errno in _UNSUPPORTED  # no locks at all: everybody is welcome
    return True


def is_taken(fd: int) -> bool:
    """Whether somebody holds a lock on the file. Looking takes nothing."""
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK))
        return bool(struct.unpack_from("@h", answer)[0] != fcntl.F_UNLCK)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
    except OSError as error:
        return error.errno not in _UNSUPPORTED
    return False


def _flock(kind: int) -> bytes:
    return struct.pack("@hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)

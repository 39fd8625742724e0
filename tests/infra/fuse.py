"""A file system that stops answering: FUSE, spoken by hand, since all that it has to do is to be mounted and then be silent."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from pathlib import Path

INIT = 26
"""Opcode of FUSE_INIT: only when it is answered does the kernel send what processes ask for."""

IN_HEADER, OUT_HEADER = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
INIT_OUT = struct.Struct("<IIIIHHIIHH32x")
FORCE_AND_DETACH = 3
"""Abort the connection, also for those who wait already, and unmount."""

_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str:
    """Why there can be no such file system here. Empty: there can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    return "" if os.path.exists("/dev/fuse") else "no /dev/fuse: modprobe fuse"


class SilentMount:
    """Mounted at `path`, and silent from then on.

    `deaf`: it takes up each request and never answers it, so that whoever asks sleeps where not even SIGKILL reaches (state D);
    otherwise it does not take them up, and who waits can be killed.
    """

    def __init__(self, path: Path, *, deaf: bool) -> None:
        self.path = str(path)
        self.asked = 0
        """Requests that were taken up and not answered."""
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0".encode()
        if _libc.mount(b"silent", self.path.encode(), b"fuse", 0, options):
            error = ctypes.get_errno()
            os.close(self.fd)
            raise OSError(error, os.strerror(error))
        self._begin()
        if deaf:
            threading.Thread(target=self._swallow, daemon=True).start()

    def _begin(self) -> None:
        request = os.read(self.fd, 1 << 20)
        _, opcode, unique, *_ = IN_HEADER.unpack_from(request)
        assert opcode == INIT
        body = INIT_OUT.pack(7, 31, 1 << 16, 0, 12, 9, 1 << 16, 1, 16, 0)
        os.write(self.fd, OUT_HEADER.pack(OUT_HEADER.size + len(body), 0, unique) + body)

    def _swallow(self) -> None:
        try:
            while os.read(self.fd, 1 << 20):
                self.asked += 1
        except OSError:
            pass  # it is unmounted

    def close(self) -> None:
        """Those who wait get an error, and go on."""
        _libc.umount2(self.path.encode(), FORCE_AND_DETACH)
        os.close(self.fd)

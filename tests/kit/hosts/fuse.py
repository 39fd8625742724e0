"""File systems that stop answering: FUSE, spoken by hand, since there is little that they have to do before they are silent."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
from pathlib import Path

INIT = 26
"""Opcode of FUSE_INIT: only when it is answered does the kernel send what processes ask for."""
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, INTERRUPT, BATCH_FORGET = 1, 2, 3, 14, 15, 18, 36, 42

IN_HEADER, OUT_HEADER = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
INIT_OUT = struct.Struct("<IIIIHHIIHH32x")
ATTR, DIRECT_IO = struct.Struct("<6Q10I"), 1
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
    otherwise it does not take them up, and who waits can be killed. `kind`: its type, as mounts are listed.
    """

    def __init__(self, path: Path, *, deaf: bool, kind: str = "fuse") -> None:
        self.path = str(path)
        self.asked = 0
        """Requests that were taken up and not answered."""
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0".encode()
        if _libc.mount(b"silent", self.path.encode(), kind.encode(), 0, options):
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
        if self.fd >= 0:
            _libc.umount2(self.path.encode(), FORCE_AND_DETACH)
            os.close(self.fd)
            self.fd = -1


class LogMount(SilentMount):
    """It has one file, `log`, and answers, but for when `speaks` is cleared. Nobody caches what it says."""

    def __init__(self, path: Path) -> None:
        self.content = b""
        self.speaks = threading.Event()
        self.speaks.set()
        super().__init__(path, deaf=True)
        self.log = f"{self.path}/log"

    def close(self) -> None:
        super().close()
        self.speaks.set()

    def _swallow(self) -> None:
        try:
            while request := os.read(self.fd, 1 << 20):
                self.asked += 1
                self.speaks.wait()
                _, opcode, unique, node, *_ = IN_HEADER.unpack_from(request)
                if opcode not in (FORGET, BATCH_FORGET, INTERRUPT):
                    self._say(unique, self._answer(opcode, node, request[IN_HEADER.size :]))
        except OSError:
            pass  # it is unmounted

    def _say(self, unique: int, said: bytes | None) -> None:
        body = said or b""
        failed = -errno.ENOSYS if said is None else 0
        os.write(self.fd, OUT_HEADER.pack(OUT_HEADER.size + len(body), failed, unique) + body)

    def _answer(self, opcode: int, node: int, asked: bytes) -> bytes | None:
        """None: there is no such thing here."""
        if opcode == LOOKUP:
            return struct.pack("<4Q2I", 2, 1, 0, 0, 0, 0) + self._attributes(2)
        if opcode == GETATTR:
            return struct.pack("<Q2I", 0, 0, 0) + self._attributes(node)
        if opcode == OPEN:
            return struct.pack("<Q2I", 1, DIRECT_IO, 0)
        if opcode == READ:
            _, offset, size = struct.unpack_from("<2QI", asked)
            return self.content[offset : offset + size]
        return b"" if opcode == RELEASE else None

    def _attributes(self, node: int) -> bytes:
        mode, size = (stat.S_IFDIR | 0o755, 0) if node == 1 else (stat.S_IFREG | 0o644, len(self.content))
        return ATTR.pack(node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

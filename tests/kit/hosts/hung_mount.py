"""A file system that hangs when it is told to, reads and writes alike, as a file server does that pauses; then it goes on.

Run as a program: `hung_mount.py BACK MOUNT KIND` shows the folder BACK at MOUNT, by FUSE, as a mount of that type. It reads
`hang` and `go` from stdin, one a line, and answers each with a line; it unmounts at the end of its stdin. It is a program of
its own: whoever asks a file system that he serves himself may wait for himself. `HungMount` starts it.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from kit.hosts.fuse import ATTR, BATCH_FORGET, FORGET, IN_HEADER, INTERRUPT, OUT_HEADER, SilentMount, why_not

__all__ = ["HungMount", "why_not"]

LOOKUP, GETATTR, SETATTR, READLINK, SYMLINK, MKNOD, MKDIR, UNLINK, RMDIR, RENAME = 1, 3, 4, 5, 6, 8, 9, 10, 11, 12
LINK, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, OPENDIR, READDIR = 13, 14, 15, 16, 17, 18, 20, 27, 28
RELEASEDIR, CREATE, RENAME2 = 29, 35, 45
BY_NAME = {MKDIR: 8, MKNOD: 16, LINK: 8, RENAME: 8, RENAME2: 16, CREATE: 16}
"""How long the fields are before the names, where names follow fields."""
SILENT = FORGET, BATCH_FORGET, INTERRUPT
MODE, OWNER, GROUP, SIZE, ATIME, MTIME = 1, 2, 4, 8, 16, 32


class HungMount:
    """Mounted until `close`. Whoever asks while it hangs sleeps where not even SIGKILL reaches (state D)."""

    def __init__(self, folder: Path, kind: str = "fuse") -> None:
        back, self.path = folder / "back", folder / "mount"
        back.mkdir(parents=True)
        self.path.mkdir()
        argv = [sys.executable, __file__, str(back), str(self.path), kind]
        self.server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._hear("mounted")

    def hang(self) -> None:
        """Answer nothing from now on."""
        self._tell("hang")

    def go(self) -> None:
        """Answer again, what has been asked meanwhile too."""
        self._tell("go")

    def close(self) -> None:
        if self.server.poll() is None:
            self.go()
        self.server.communicate()

    def _tell(self, word: str) -> None:
        assert self.server.stdin is not None
        self.server.stdin.write(f"{word}\n")
        self.server.stdin.flush()
        self._hear(word)

    def _hear(self, word: str) -> None:
        assert self.server.stdout is not None
        said = self.server.stdout.readline().strip()
        assert said == word, f"the file system said {said!r} instead of {word!r}"


class Passing(SilentMount):
    """The server: what it is asked, it asks the folder `back`."""

    def __init__(self, back: str, path: Path, kind: str) -> None:
        self.back = back
        self.paths, self.ids = {1: ""}, {"": 1}
        self.hangs = False
        self.waiting: list[bytes] = []
        super().__init__(path, deaf=False, kind=kind)

    def serve(self) -> None:
        """Until stdin ends."""
        print("mounted", flush=True)
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        poll.register(0, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == 0:
                    words = os.read(0, 4096).decode().split()
                    if not words:
                        return
                    for word in words:
                        self.hangs = word == "hang"
                        print(word, flush=True)
                    while self.waiting and not self.hangs:
                        self._serve(self.waiting.pop(0))
                else:
                    request = os.read(self.fd, 1 << 20)
                    self.waiting.append(request) if self.hangs else self._serve(request)

    def _serve(self, request: bytes) -> None:
        _, opcode, unique, node, *_ = IN_HEADER.unpack_from(request)
        if opcode in SILENT:
            return
        failed, body = 0, b""
        try:
            body = self._answer(opcode, node, request[IN_HEADER.size :])
        except OSError as error:
            failed = -(error.errno or errno.EIO)
        with suppress(OSError):  # who asked has been killed
            os.write(self.fd, OUT_HEADER.pack(OUT_HEADER.size + len(body), failed, unique) + body)

    def _at(self, node: int, name: str = "") -> str:
        return os.path.join(self.back, self._below(node, name))

    def _below(self, node: int, name: str) -> str:
        return os.path.join(self.paths[node], name) if name else self.paths[node]

    def _entry(self, node: int, name: str) -> bytes:
        below = self._below(node, name)
        seen = os.lstat(os.path.join(self.back, below))
        number = self.ids.setdefault(below, len(self.paths) + 1)
        self.paths[number] = below
        return struct.pack("<4Q2I", number, 0, 0, 0, 0, 0) + self._attributes_of(seen)

    def _attributes_of(self, seen: os.stat_result) -> bytes:
        times = seen.st_atime_ns, seen.st_mtime_ns, seen.st_ctime_ns
        whole, rest = [at // 10**9 for at in times], [at % 10**9 for at in times]
        owner = seen.st_mode, seen.st_nlink, seen.st_uid, seen.st_gid, seen.st_rdev & 0xFFFFFFFF, 4096, 0
        return ATTR.pack(seen.st_ino, seen.st_size, seen.st_blocks, *whole, *rest, *owner)

    def _answer(self, opcode: int, node: int, asked: bytes) -> bytes:
        fields = BY_NAME.get(opcode, 0)
        names = [name.decode("utf-8", "surrogateescape") for name in asked[fields:].split(b"\0")[:2]]
        first = names[0] if names else ""
        match opcode:
            case 1:
                return self._entry(node, first)
            case 3:
                return struct.pack("<Q2I", 0, 0, 0) + self._attributes_of(os.lstat(self._at(node)))
            case 4:
                self._change(self._at(node), asked)
                return struct.pack("<Q2I", 0, 0, 0) + self._attributes_of(os.lstat(self._at(node)))
            case 5:
                return os.fsencode(os.readlink(self._at(node)))
            case 6:
                os.symlink(names[1], self._at(node, first))
                return self._entry(node, first)
            case 8:
                os.mknod(self._at(node, first), *struct.unpack_from("<2I", asked))
                return self._entry(node, first)
            case 9:
                os.mkdir(self._at(node, first), struct.unpack_from("<I", asked)[0])
                return self._entry(node, first)
            case 10:
                os.unlink(self._at(node, first))
            case 11:
                os.rmdir(self._at(node, first))
            case 12 | 45:
                self._rename(self._below(node, first), self._below(struct.unpack_from("<Q", asked)[0], names[1]))
            case 13:
                os.link(self._at(struct.unpack_from("<Q", asked)[0]), self._at(node, first))
                return self._entry(node, first)
            case 14 | 27:
                flags = struct.unpack_from("<I", asked)[0] & ~(os.O_APPEND | os.O_EXCL | os.O_CREAT)
                return struct.pack("<Q2I", os.open(self._at(node), flags | os.O_CLOEXEC), 0, 0)
            case 15:
                fd, offset, size = struct.unpack_from("<2QI", asked)
                return os.pread(fd, size, offset)
            case 16:
                fd, offset, size = struct.unpack_from("<2QI", asked)
                return struct.pack("<2I", os.pwrite(fd, asked[40 : 40 + size], offset), 0)
            case 17:
                return struct.pack("<5Q4I24x", 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096, 0)
            case 18 | 29:
                os.close(struct.unpack_from("<Q", asked)[0])
            case 28:
                return self._listed(node, *struct.unpack_from("<2QI", asked)[1:])
            case 35:
                flags, mode = struct.unpack_from("<2I", asked)
                fd = os.open(self._at(node, first), (flags & ~os.O_APPEND) | os.O_CREAT | os.O_CLOEXEC, mode & 0o7777)
                return self._entry(node, first) + struct.pack("<Q2I", fd, 0, 0)
            case 20:
                pass
            case _:  # FLUSH too, which is not asked for again: closing a file waits for nobody, as on most file systems
                raise OSError(errno.ENOSYS, "not known here")
        return b""

    def _rename(self, old: str, new: str) -> None:
        os.rename(os.path.join(self.back, old), os.path.join(self.back, new))
        for number, path in list(self.paths.items()):
            if path == old or path.startswith(f"{old}/"):
                moved = new + path[len(old) :]
                self.ids.pop(path, None)
                self.paths[number], self.ids[moved] = moved, number

    def _change(self, path: str, asked: bytes) -> None:
        valid, _, _, size, _, atime, mtime, _, *rest = struct.unpack_from("<2I6Q8I", asked)
        if valid & MODE:
            os.chmod(path, stat.S_IMODE(rest[3]))
        if valid & SIZE:
            os.truncate(path, size)
        if valid & (ATIME | MTIME):
            os.utime(path, ns=(atime * 10**9 + rest[0], mtime * 10**9 + rest[1]))

    def _listed(self, node: int, offset: int, size: int) -> bytes:
        said = b""
        for at, name in enumerate(sorted(os.listdir(self._at(node)))[offset:], offset + 1):
            raw = os.fsencode(name)
            entry = struct.pack("<2Q2I", 1, at, len(raw), 0) + raw
            entry += bytes(-len(entry) % 8)
            if len(said) + len(entry) > size:
                break
            said += entry
        return said


def main(back: str, path: str, kind: str) -> None:
    server: Any = Passing(back, Path(path), kind)
    try:
        server.serve()
    finally:
        server.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

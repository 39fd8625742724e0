"""How are files and folders made that nobody but this user (and root) may open, whatever the umask?"""

from __future__ import annotations

import os
import stat


def make_folder(path: str) -> None:
    """Make a folder, and those above it that are missing. One that is there is left as it is. OSError: it cannot be."""
    if os.path.isdir(path):
        return
    if (above := os.path.dirname(path)) and not os.path.lexists(above):
        make_folder(above)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return  # somebody else was quicker
    os.chmod(path, 0o700)  # a umask may have taken our own rights too


def private(path: str, flags: int) -> int:
    """An `opener` for `open`: the file is this user's only, also where it was there with a wider mode. OSError."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    seen = os.fstat(fd)
    if stat.S_ISREG(seen.st_mode) and seen.st_mode & 0o777 != 0o600 and seen.st_uid == os.geteuid():
        try:  # noqa: SIM105 (contextlib costs a millisecond on the way to the first worker)
            os.fchmod(fd, 0o600)
        except OSError:
            pass  # a file system without modes
    return fd


def is_private(path: str) -> bool:
    """Whether it is a folder of this user's (no symlink) that nobody else may write to: what is in it may be trusted."""
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid() and not seen.st_mode & 0o022

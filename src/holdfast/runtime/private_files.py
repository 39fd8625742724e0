"""How are files and folders made that nobody but this user (and root) may open, whatever the umask?"""

from __future__ import annotations

import errno
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


def own_folder(path: str) -> None:
    """Make it as `make_folder` does; one that is there is closed to others. OSError: it cannot be, or is another user's.

    Ours is what has the owner that our files get there: on NFS those of root may be nobody's."""
    make_folder(path)
    probe = os.path.join(path, f".{os.urandom(4).hex()}.new")
    fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        owners = {os.fstat(fd).st_uid, os.lstat(path).st_uid, os.stat(path).st_uid}
    finally:
        os.close(fd)
        os.unlink(probe)
    if len(owners) > 1:
        raise PermissionError(errno.EPERM, "it belongs to another user", path)
    try:  # noqa: SIM105 (contextlib costs a millisecond on the way to the first worker)
        os.chmod(path, 0o700)
    except OSError:
        pass  # a file system without modes


def private(path: str, flags: int) -> int:
    """An `opener` for `open`: the file is this user's only, also where it was there with a wider mode; no link is followed.
    OSError."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    seen = os.fstat(fd)
    if stat.S_ISREG(seen.st_mode) and seen.st_mode & 0o777 != 0o600 and seen.st_uid == os.geteuid():
        try:  # noqa: SIM105 (as above)
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


def new_file(path: str, text: str, *, replace: bool = False) -> None:
    """A file in one step: nobody sees half of it, or one that others may read, or follows a link put there for us.

    FileExistsError: there is one, and it is not to be replaced. OSError."""
    draft = f"{path}.{os.urandom(4).hex()}.new"
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(fd)
        if replace:
            os.replace(draft, path)
        else:
            os.link(draft, path)  # unlike a rename, it fails if there is something
    finally:
        if os.path.lexists(draft):
            os.unlink(draft)

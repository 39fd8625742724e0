"""How does a rank replace a checkpoint, so that it is always whole and never older than what others have written since?

    with holdfast.client.commit("checkpoint.pt") as path:
        torch.save(state, path)

What is written goes to another name in the same folder, and to the disk; then it takes the place of the old in one step. Before
that step the rank looks at its node's lease: a node that was stopped, or cut off, may go on when others hold its ranks. A stop
between look and step is harmless too: whoever commits next takes away what other rounds have left aside (`core.page.asides`),
so their step finds nothing.

Without an agent, or under another launcher, all is the same but the look. In any child of a rank, forked or started anew, the
rank's lease counts. Standard library only, nothing newer than Python 3.8.
"""

from __future__ import annotations

import os
import sys
from time import monotonic, monotonic_ns, sleep

from holdfast.core.page import layout
from holdfast.core.page.asides import aside_name, outdated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import overload

PATIENCE_S = 10.0
"""How long a rank whose lease is over waits for it to be renewed. Its agent kills it within half a second, or is about to."""

PAUSE_S = 0.01

MOST_ANCESTORS = 8  # From a process that writes a checkpoint up to its rank.

_EXCHANGE, _AT_CWD = 2, -100  # Of renameat2(2).


class NotCommitted(RuntimeError):
    """This process is no rank of the job any more: nothing was replaced."""


class Commit:
    """What is written aside, and then takes the place of `path`: a file, a folder or a link."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)  # the script may change its directory meanwhile
        self.job, self.round = os.environ.get("HOLDFAST_JOB", ""), os.environ.get("HOLDFAST_ROUND", "")
        self.folder, self.name = os.path.split(self.path)
        self.life = _life()
        unique = f"{os.getpid()}.{os.urandom(4).hex()}"
        self.aside = os.path.join(self.folder, aside_name(self.name, self.job, self.round, unique))

    def __enter__(self) -> str:
        return self.aside

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._replace()
        finally:
            _remove(self.aside)  # there is nothing any more where it has taken its place

    def _replace(self) -> None:
        self._finish()
        # In this order: what was listed while the lease was good cannot be a later life's.
        earlier = outdated(os.listdir(self.folder), self.name, self.job, self.round)
        self._await_lease()
        self._see_that_it_is_the_same_life()
        for name in earlier:
            _take_away(os.path.join(self.folder, name))
        try:
            _rename(self.aside, self.path)
        except FileNotFoundError as gone:
            raise NotCommitted(f"{self.path} is not replaced: {_NO_RANK}, and have taken away what was written") from gone
        _sync_one(self.folder)

    def _finish(self) -> None:
        """See that all is there, and on the disk."""
        try:
            if not os.path.lexists(self.aside):
                raise FileNotFoundError(f"nothing was written to {self.aside}, so {self.path} stays as it is")
            _sync(self.aside)
        except FileNotFoundError as gone:
            if holds_lease():
                raise
            raise NotCommitted(f"{self.path} is not replaced: {_NO_RANK}, and have taken away what was written") from gone

    def _await_lease(self) -> None:
        gives_up_at = monotonic() + PATIENCE_S
        while not holds_lease():
            self._see_that_it_is_the_same_life()
            if monotonic() > gives_up_at:
                raise NotCommitted(f"{self.path} is not replaced: {_NO_RANK}; what was written is removed")
            sleep(PAUSE_S)


    def _see_that_it_is_the_same_life(self) -> None:
        if _life() != self.life:
            raise NotCommitted(f"{self.path} is not replaced: this rank has let go of its round; what was written is removed")


_NO_RANK = "this node's lease is over, so others may hold this rank by now"

if TYPE_CHECKING:

    @overload
    def commit(path: str | os.PathLike[str]) -> Commit: ...
    @overload
    def commit(path: str | os.PathLike[str], write: Callable[[str], object]) -> None: ...


def commit(path: str | os.PathLike[str], write: Callable[[str], object] | None = None) -> Commit | None:
    """Replace `path`, a file or a folder, by what is written to the path that `with` gives, or that `write` is called with.

    There is nothing at that path yet: write a file, or make a folder. An exception leaves all as it was. NotCommitted: this
    process is no rank any more."""
    made = Commit(os.fsdecode(path))
    if write is None:
        return made
    with made as aside:
        write(aside)
    return None


# --- the lease --------------------------------------------------------------------------------------------------------------


def holds_lease() -> bool:
    """Whether nobody else can hold this rank by now. Without an agent: True."""
    words = _page()
    until_ns = 0 if words is None else words[layout.LEASE_NS]
    return until_ns == 0 or monotonic_ns() < until_ns


def _life() -> int:
    """The agent's last word of which life this process has; in it, it changes nothing for one before."""
    words = _page()
    return 0 if words is None else words[layout.LIFE_ASKED]


_found: list[memoryview] = []  # The page of the rank above, once it has been looked for, where there is one.
_looked_in = 0  # The process that has looked for it.


def _page() -> memoryview | None:
    """That of this rank, or of the rank that this process descends from."""
    global _looked_in
    bootstrap = sys.modules.get("_holdfast_bootstrap")
    if bootstrap is not None:
        own: memoryview | None = getattr(bootstrap, "page", None)
        return own if getattr(bootstrap.layout, "VERSION", None) == layout.VERSION else None
    if "HOLDFAST_JOB" in os.environ and _looked_in != os.getpid() and not _found:
        _looked_in = os.getpid()
        above = _page_above()
        _found.extend([above] if above is not None else [])
    return _found[0] if _found else None


def _page_above() -> memoryview | None:
    pid = os.getppid()
    for _ in range(MOST_ANCESTORS):
        if pid <= 1:
            return None
        for fd in _pages_of(pid):
            page = _mapped(f"/proc/{pid}/fd/{fd}")
            if page is not None and page[layout.PID] == pid:
                return page
        pid = _parent_of(pid)
    return None


def _pages_of(pid: int) -> list[str]:
    found = []
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                if "holdfast-page" in os.readlink(f"/proc/{pid}/fd/{fd}"):
                    found.append(fd)
            except OSError:
                continue  # closed meanwhile
    except OSError:
        pass  # another user's, or gone
    return found


def _mapped(path: str) -> memoryview | None:
    import mmap  # only a process that a rank has started anew looks for its page

    try:
        with open(path, "rb") as file:
            page = memoryview(mmap.mmap(file.fileno(), layout.FIELDS_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)).cast("Q")
    except (OSError, ValueError):
        return None
    return page if (page[layout.MAGIC_AT], page[layout.VERSION_AT]) == (layout.MAGIC, layout.VERSION) else None


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


# --- files and folders ------------------------------------------------------------------------------------------------------


def _sync(path: str) -> None:
    """Have the disk take all that was written. A link is its folder's."""
    if os.path.islink(path):
        return
    if not os.path.isdir(path):
        _sync_one(path)
    for folder, _, names in os.walk(path):
        for name in names:
            file = os.path.join(folder, name)
            if os.path.isfile(file) and not os.path.islink(file):
                _sync_one(file)
        _sync_one(folder)


def _sync_one(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError:
        if not os.path.isdir(path):  # some file systems sync no folder
            raise
    finally:
        os.close(fd)


def _rename(aside: str, path: str) -> None:
    """Put `aside` in the place of `path`, whatever that is. FileNotFoundError: `aside` is gone."""
    if not os.path.lexists(path) or not (_is_folder(path) or _is_folder(aside)):
        os.replace(aside, path)
    elif not _exchanged(aside, path):  # nothing takes a folder's place in one step, but two names can be exchanged in one
        if not os.path.lexists(aside):
            raise FileNotFoundError(aside)
        old = aside + ".old"
        os.rename(path, old)
        try:
            os.rename(aside, path)
        except OSError:
            os.rename(old, path)
            raise
        _remove(old)


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _exchanged(one: str, other: str) -> bool:
    """Whether the two have changed places."""
    import ctypes  # only a folder that takes another's place needs it

    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False  # another C library
    return bool(renameat2(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE) == 0)  # else NFS, or one is gone


def _take_away(path: str) -> None:
    """Remove it, a folder too, so that nobody finds a part of it under that name."""
    gone = os.path.join(os.path.dirname(path), f".holdfast-gone-{os.getpid()}.{os.urandom(4).hex()}")
    try:
        os.rename(path, gone)
    except FileNotFoundError:
        return  # another rank has
    _remove(gone)


def _remove(path: str) -> None:
    """Remove it, and what is in it. What cannot be removed stays."""
    if _is_folder(path):
        for folder, folders, names in os.walk(path, topdown=False):
            for name in names:
                _unlink(os.path.join(folder, name))
            for name in folders:
                _unlink(os.path.join(folder, name))
    _unlink(path)


def _unlink(path: str) -> None:
    try:
        if _is_folder(path):
            os.rmdir(path)
        else:
            os.unlink(path)
    except OSError:
        pass

"""What does a spare worker do until it is needed, and how does it become a worker like any other?

It is started as its worker would be: same command line, directory, limits and CPUs, a session of its own, and the environment
of the worker's last life. As Python starts (`client/boot`), `begin` runs before the user's own `sitecustomize` and `park` after
it. `park` imports what the agent names, at low priority, says that the spare is ready, and waits. When it is needed, the agent
sends what has changed: variables, the page, the log files. `park` returns, and Python runs the script.

What an import has read or done cannot be undone. So the spare tells the agent all variables that Python code has read while it
imported, and the agent takes no spare for which one of them has changed. The spare refuses by itself if an import has opened a
socket or a GPU, or if one of the user's files has changed since.

With `fork` one spare serves many workers: it forks each, which shares its memory until either writes to it. It refuses if it
has more than one thread.

Standard library only, nothing newer than Python 3.8, and nothing of Holdfast by name: the bootstrap loads this file.
"""

from __future__ import annotations

import _socket
import ctypes
import gc
import os
import sys
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, NoReturn

    Identity = Callable[[str], tuple[int, int]]

ORDER_BYTES = 262144
MOST_FDS = 8
NAME = b"holdfast-spare"  # What `ps` and `top` show of it while it waits; 15 bytes are shown.

EXPENDABLE = b"1000"
"""Its oom_score_adj until it is needed: a host that runs out of memory loses a spare first, and not a worker."""

ADOPTED_WITHIN_S = 1.0
"""A forked worker becomes the agent's child when the one in between ends, which takes milliseconds."""

LET_FIRST_S = (0.002, 0.003, 0.005, 0.01, 0.02, 0.04)  # Pauses between two looks whether rank 0 is there.

SEEDED_BY = {"random": ("seed", "setstate"), "numpy.random": ("seed", "set_state")}
"""Generators that every process has: module → by what an import chooses their seed."""

_PR_SET_NAME, _OOM = 15, "/proc/self/oom_score_adj"


class _Spare:
    """What `begin` has found, for `park`."""

    def __init__(self, fd: int, agent: int) -> None:
        os.set_inheritable(fd, False)
        self.link: _socket.socket = _socket.socket(fileno=fd)
        self.agent = agent
        self.began_with = dict(os.environb)
        self.command = _read("/proc/self/comm").strip()
        self.expendability = _read(_OOM).strip()
        self.reads, self.seeds = _Reads(), _Seeds()

    def say(self, word: str, *more: object) -> None:
        """To the agent."""
        self.link.send(b"\0".join([word.encode(), *(str(one).encode("utf-8", "replace") for one in more)]))

    def hear(self) -> tuple[list[bytes], list[int]]:
        """The agent's next order, and descriptors that come with it. When the agent is gone, so are we."""
        said, control, _, _ = self.link.recvmsg(ORDER_BYTES, _socket.CMSG_SPACE(4 * MOST_FDS), _socket.MSG_CMSG_CLOEXEC)
        if not said:
            os._exit(0)
        fds = [int.from_bytes(one[at : at + 4], sys.byteorder) for _, _, one in control for at in range(0, len(one), 4)]
        return said.split(b"\0"), fds


class _Reads:
    """Which variables are read. A search or a copy of all of them (`.items()`, `dict(os.environ)`) reads none."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._lookup, self._walk = type(os.environ).__getitem__, type(os.environ).__iter__
        self._here: object = None  # The name at which a walk through all names stands.
        self._all: list[object] = []  # All names, in the order of the last walk: a copy asks for them in that order.
        self._copied = 0  # So many of them have been asked for since.

    def begin(self) -> None:
        """From now on."""

        def noted(environ: Any, key: Any) -> Any:
            if key != self._here:
                self._asked(key)
            return self._lookup(environ, key)

        def walking(environ: Any) -> Any:
            passed: list[object] = []
            try:
                for key in self._walk(environ):
                    self._here = key
                    passed.append(key)
                    yield key
                self._no_copy()
                self._all = passed
            finally:
                self._here = None

        type(os.environ).__getitem__, type(os.environ).__iter__ = noted, walking  # type: ignore

    def end(self) -> None:
        """As it was."""
        self._no_copy()
        type(os.environ).__getitem__, type(os.environ).__iter__ = self._lookup, self._walk  # type: ignore

    def _asked(self, key: object) -> None:
        if self._copied < len(self._all) and key == self._all[self._copied]:
            self._copied += 1
            if self._copied == len(self._all):
                self._all, self._copied = [], 0
            return
        self._no_copy()
        self._add(key)

    def _no_copy(self) -> None:
        """What looked like the beginning of a copy was none."""
        for key in self._all[: self._copied]:
            self._add(key)
        self._all, self._copied = [], 0

    def _add(self, key: object) -> None:
        self.names.add(key if isinstance(key, str) else os.fsdecode(key))  # type: ignore[arg-type]


class _Seeds:
    """Which generators an import has seeded: a forked worker goes on from there, as a cold one would."""

    def __init__(self) -> None:
        self.chosen: set[str] = set()
        self._theirs: list[tuple[ModuleType, str, Callable[..., object]]] = []

    def watch(self, module: ModuleType) -> None:
        """From now on."""
        for name in SEEDED_BY[module.__name__]:
            theirs = getattr(module, name)
            self._theirs.append((module, name, theirs))
            setattr(module, name, self._noting(module.__name__, theirs))

    def _noting(self, module: str, theirs: Callable[..., object]) -> Callable[..., object]:
        def noting(*args: object, **kwargs: object) -> object:
            self.chosen.add(module)
            return theirs(*args, **kwargs)

        return noting

    def end(self) -> None:
        """As it was."""
        for module, name, theirs in self._theirs:
            setattr(module, name, theirs)


_spare: _Spare | None = None


def begin(die_with: Callable[[Any, int], None]) -> tuple[int, dict[str, Callable[[ModuleType], object]]]:
    """As early as a worker's page is opened. Returns what of the script's doings is to be noted (HOOK_*), and what to do when a
    module has been loaded."""
    global _spare
    fd, agent, hook = map(int, os.environ["HOLDFAST_SPARE"].split(","))
    _spare = _Spare(fd, agent)
    libc = ctypes.CDLL(None)
    die_with(libc, agent)
    libc.prctl(_PR_SET_NAME, NAME, 0, 0, 0)
    _write(_OOM, EXPENDABLE)
    _spare.reads.begin()
    return hook, dict.fromkeys(SEEDED_BY, _spare.seeds.watch)


def park(bootstrap: ModuleType) -> None:
    """Import, wait, and become a worker. Returns in workers only."""
    spare = _spare
    assert spare is not None
    (_, mode, *_), fds = spare.hear()
    try:
        began, imports = monotonic(), bootstrap.load("_holdfast_spare_imports", "client", "spare_imports.py")
        sockets = imports.sockets()
        with open(fds[0], encoding="utf-8") as file:
            lines = file.read().split("\n")
        course, files = imports.Course(bootstrap.notebook, spare.reads.names), imports.files()
        unfit = imports.prepare(lines, course) or imports.unfit(sockets)
        if not unfit and mode == b"fork":
            unfit = imports.unforkable(files)
        own = {path: imports.identity(path) for path in imports.own_files()}
    except BaseException as error:
        unfit = f"{type(error).__name__}: {error}"
    if unfit:
        _refuse(spare, unfit)
    spare.reads.end()
    spare.seeds.end()
    if mode == b"fork":
        gc.collect()
        gc.freeze()  # so that the collector does not write to pages that are shared
    threads = _lasting_threads() if mode == b"fork" else 1
    spare.say("ready", f"{monotonic() - began:.3f}", threads, course.until, *sorted(spare.reads.names))
    while True:
        (_, streams, *changes), fds = spare.hear()
        if mode == b"fork" and not _fork(spare, fds):
            continue
        if trouble := _contradicted(spare, changes, own, imports.identity):
            _refuse(spare, trouble, "no")
        _become(spare, bootstrap, streams, changes, fds)
        return


def _refuse(spare: _Spare, why: str, word: str = "failed") -> NoReturn:
    spare.say(word, why)
    os._exit(0)


def _lasting_threads() -> int:
    """How many threads a fork finds. Libraries of linear algebra start one for each core as they are imported, end them
    when the process forks, and start them again when they calculate: a child that ends at once has them do so now."""
    if len(os.listdir("/proc/self/task")) > 1:
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    return len(os.listdir("/proc/self/task"))


# --- when it is needed --------------------------------------------------------------------------------------------------


def _fork(spare: _Spare, fds: list[int]) -> bool:
    """True in a new child of the agent's; False in the one that stays."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        spare.say("no", f"the process to fork from has {threads} threads")
    else:
        random = sys.modules.get("random")
        state = random.getstate() if random is not None and "random" in spare.seeds.chosen else None
        between = os.fork()
        if not between:
            if os.fork():
                os._exit(0)
            _forked(spare)
            if random is not None and state is not None:
                random.setstate(state)
            return True
        os.waitpid(between, 0)
    for fd in fds:
        os.close(fd)
    return False


def _forked(spare: _Spare) -> None:
    """In the child: of the agent, which takes in who has lost its parent, and in a session of its own."""
    gc.unfreeze()
    os.setsid()
    until = monotonic() + ADOPTED_WITHIN_S
    while os.getppid() != spare.agent:
        if monotonic() > until:
            _refuse(spare, "the agent did not accept a forked worker", "no")
        os.sched_yield()
    _seed_anew(spare.seeds.chosen)
    threading = sys.modules.get("threading")
    if threading is not None:  # Python 3.11 leaves the parent's thread id there
        threading.current_thread()._set_native_id()


def _seed_anew(chosen: set[str]) -> None:
    """What draws by a seed of the kernel's in any other process. Python's own generator does so by itself."""
    random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if random is not None and "numpy.random" not in chosen:
        random.seed()
    generator = getattr(torch, "default_generator", None)
    if generator is not None and generator.initial_seed() >> 32:  # else an import has chosen it, and every process has the same
        generator.seed()


def _contradicted(spare: _Spare, changes: list[bytes], files: dict[str, tuple[int, int]], identity: Identity) -> str:
    """Why the worker cannot begin here; empty: it can. `files`: what has been imported, and its identity then."""
    _write(_OOM, spare.expendability)
    if _read(_OOM).strip() != spare.expendability:
        return "the kernel does not let it reset its oom_score_adj"
    for change in changes:
        name = change.partition(b"=")[0]
        if os.environb.get(name) != spare.began_with.get(name):
            return f"an import has set {os.fsdecode(name)}"
    changed = [path for path, before in files.items() if identity(path) != before]
    return f"{changed[0]} has changed since it was imported" if changed else ""


def _become(spare: _Spare, bootstrap: ModuleType, streams: bytes, changes: list[bytes], fds: list[int]) -> None:
    """Everything that a worker gets at its start. `streams`: `p` (page), `1`, `2`: what the descriptors are."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, spare.command, 0, 0, 0)
    for change in changes:
        name, sign, value = change.partition(b"=")
        if sign:
            os.environb[name] = value
        else:
            os.environb.pop(name, None)
    del os.environ["HOLDFAST_SPARE"]
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    libc.fflush(None)
    given = dict(zip(streams.decode(), fds))
    if "p" in given:
        bootstrap.adopt(given["p"])
    else:
        bootstrap.running()
    said = [(number, _redirect(number, given[str(number)])) for number in (1, 2) if str(number) in given]
    spare.say("taken", os.getpid())
    spare.link.close()
    for number, text in said:
        while text:
            text = text[os.write(number, text) :]
    _await_store()


def _pause(seconds: float) -> None:
    """Wait so long. `time.sleep` raises where an interposed clock (libfaketime) was set back, and would end the rank."""
    one, other = _socket.socketpair()
    one.settimeout(seconds)
    try:
        one.recv(1)
    except OSError:
        pass
    finally:
        one.close()
        other.close()


def _await_store(pause: Callable[[float], object] = _pause) -> None:
    """Let rank 0 start first, by a few milliseconds: a rank that comes before its store listens tries again only after half a
    second. A wait in vain costs LET_FIRST_S together."""
    if "torch.distributed" not in sys.modules or os.environ.get("RANK", "0") == "0":
        return
    try:
        where = _socket.getaddrinfo(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 0, _socket.SOCK_STREAM)
    except (OSError, KeyError, ValueError):
        return
    family, kind, protocol, _, address = where[0]
    for pause_s in LET_FIRST_S:
        probe = _socket.socket(family, kind, protocol)
        probe.settimeout(pause_s)
        try:
            probe.connect(address)
            return
        except ConnectionRefusedError:  # the port is held for rank 0, which does not listen yet
            pause(pause_s)
        except OSError:
            return
        finally:
            probe.close()


def _redirect(number: int, fd: int) -> bytes:
    """Put a worker's output in its place. Returns what was printed while it imported."""
    said = b""
    while more := os.pread(number, 65536, len(said)):
        said += more
    os.dup2(fd, number)
    os.close(fd)
    return said


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _write(path: str, what: bytes) -> None:
    try:
        with open(path, "wb") as file:
            file.write(what)
    except OSError:
        pass

"""What happens in a Python worker before its script starts, and how does that stay invisible to the script?

The worker is started as torchrun starts it, `PY -u SCRIPT args`, with a directory of ours first on PYTHONPATH. As it starts,
Python imports the `sitecustomize` in there, which loads this file by its path and calls `restore` and `start`. Then Python runs
the script as always: `__main__`, sys.path[0], tracebacks, -m, zip files, multiprocessing's children, exit codes and messages
are Python's own. Any interpreter will do (PYTHON_EXEC), with Holdfast installed or not: this uses the standard library only,
nothing newer than Python 3.8, and imports nothing of Holdfast by name. An interpreter that ignores PYTHONPATH (-E, -I) runs the
script without us; the agent then has its pidfd.

`start` does this, each step on its own, since a platform may lack one and have the others:

- maps the page from the inherited fd;
- has faulthandler write stacks behind the page: of all threads at one real-time signal of the agent, of the main thread at
  another; it is C code, which needs neither the GIL nor a main thread that gets on;
- has it write the main thread's when SIGTERM comes, before the process ends of it: so where a rank was when it was stopped is
  known, and nobody has waited to hear it. Only where nobody else handles that signal, and not in forked children;
- takes the page's robust mutex, for as long as the main thread lives: the kernel marks it before it frees memory. It
  is never unlocked, so that the mark comes at the end of every life; the agent asks the kernel for the exit code then;
- asks to die with the agent;
- where the agent wishes it, has what an unmodified script does count as signs of life (`client.hooks`);
- once the script has a process group, has a thread answer how far its collectives have come (`client.collectives`);
- enables faulthandler, as torch's `record` does;
- wraps sys.excepthook, to leave the exception's words in the page, write the error record and raise the page's error flag
  before the traceback is printed. The words need no disk and no descriptor: neither may be left. Where all ranks write to one
  stderr, only one of those with the same error prints its traceback, and none that lost its connection to another once an
  error is shown; each has it in its record;
- leaves a mark when the interpreter begins to end in good order, and tells the agent: the exit code comes a while later;
- keeps what Python wrote to stderr last, for that moment: the text of a SystemExit is shown there, and reaches no hook.

A spare (`client.spare`) is started in the very same way, but ahead of time. It has no page yet, so it does what needs none,
imports what its worker is going to import, and waits, here: `park` returns when it has become a worker, and Python then runs
the script as it always does. What it has been given meanwhile (`adopt`) is what a worker gets at its start.

The script can see of it: a few modules more in sys.modules (`_holdfast_bootstrap` among them, by which `holdfast.client`
finds the page), faulthandler enabled, a thread that sleeps in C, one function in the place of sys.excepthook and one in that
of `sys.stderr.buffer.write`, in /proc that SIGTERM is caught (to Python's `signal` it is SIG_DFL), and one descriptor of a high
number, the page's file, which it may close. Forked children are none of the agent's workers: in them `words` is None, the hook
only prints, and SIGTERM is not caught.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` takes 5 ms to load
import atexit
import faulthandler
import os
import sys
from _thread import allocate_lock, get_ident, get_native_id
from time import monotonic_ns, time_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes  # only workers with a page need it
    from collections.abc import Callable, Mapping
    from types import ModuleType, TracebackType
    from typing import Any

    from holdfast.client.hooks import Notebook
    from holdfast.client.writer import Writer

words: memoryview | None = None
"""The page as 64-bit fields (`core.page.layout`); None without a page, and in forked children."""

page: memoryview | None = None  # The same, in forked children too: to look at.

layout: ModuleType  # The `core.page.layout` by which `words` is read; from `start` on.

_wake_agent: Callable[[], int] | None = None
"""Rouses the agent's watch on our lock, to have it look at the page. Returns how many it has roused: 1, or 0."""

stash = ""
"""Where this worker may leave its state (`core.page.stash.VARIABLE`). Its children are not to find that in their
environment.
"""
spare: ModuleType | None = None  # `client.spare`, in an interpreter that has been started to wait.

notebook: Notebook | None = None  # Notes which modules are loaded. None: nobody wants to know.

sleep_on: Callable[..., None] | None = None
"""Returns once REQUEST_COUNT, or another word of the page, is no longer what is given, or sooner."""

_error_file: str | None = None  # Where the error record is to go: absolute, since the script may change directory.

_me = 0  # The process that is the worker: not its forked children.

load: Callable[..., ModuleType]  # `load(name, *path)` gives another of our files as a module; from `start` on.

_writer: Writer | None = None
_making = allocate_lock()

_DUMP_SIGNAL = 57  # A real-time signal (34 to 64), and not near either end, where those who need one begin.
_MAIN_DUMP_SIGNAL = 58  # The same for the main thread alone: no other can be at work on its frames meanwhile.

_DUMP_AT = 1000
"""The lowest descriptor for the page's file: few scripts close so high a number, and it is below select's 1024."""

_PDEATHSIG, _SIGKILL, _SIGTERM = 1, 9, 15
_READ_WRITE, _SHARED = 3, 1
_PROCESS_SHARED, _ROBUST = 1, 1  # glibc and musl alike


def restore(boot_dir: str) -> None:
    """Take our directory off sys.path and put the user's PYTHONPATH back."""
    theirs = os.environ.pop("HOLDFAST_USER_PYTHONPATH", None)
    if theirs is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = theirs
    if boot_dir in sys.path:
        sys.path.remove(boot_dir)
    sys.path_importer_cache.pop(boot_dir, None)


def start(page_layout: ModuleType, loader: Callable[..., ModuleType]) -> None:
    """All of the above."""
    global layout, load, spare, stash
    layout, load = page_layout, loader
    stash = os.environ.pop("HOLDFAST_STASH", "")
    fd = os.environ.pop("HOLDFAST_PAGE_FD", "")
    if "HOLDFAST_SPARE" in os.environ:
        spare = load("_holdfast_spare", "client", "spare.py")
        hook, once_loaded = spare.begin(_die_with)
        _try(_enable_faulthandler, lambda: _watch_script(hook, once_loaded))
    elif fd:
        _try(*_page_steps(int(fd)), _enable_faulthandler, lambda: _watch_script(words[layout.HOOK] if words is not None else 0))
    else:
        _try(_enable_faulthandler)
    _install_hooks()
    os.register_at_fork(after_in_child=_forget)
    if spare is None:
        running()


def adopt(fd: int) -> None:
    """A spare becomes a worker: its environment is the worker's by now, and `fd` is the worker's page."""
    global stash
    stash = os.environ.pop("HOLDFAST_STASH", stash)  # it is sent only if it is another
    if notebook is not None:
        notebook.begin_anew()
    _try(*_page_steps(fd))
    if _writer is not None and words is not None:
        _writer.attach(words, _wake_agent)
    running()


def _page_steps(fd: int) -> list[Callable[[], None]]:
    return [lambda: _open_page(fd), lambda: _offer_stacks(fd), lambda: os.close(fd)]


def _try(*steps: Callable[[], None]) -> None:
    for step in steps:
        try:
            step()
        except Exception as error:
            _tell(f"{type(error).__name__}: {error}")


def running() -> None:
    """All is done: from here on this process is the worker, with the error file that its environment names."""
    global _error_file, _me
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    _error_file, _me = os.path.abspath(file) if file else None, os.getpid()
    if words is not None:
        words[layout.STATE] = layout.RUNNING


def go_on(stash_at: str) -> None:
    """This process is the worker of another round, by what its environment says. `stash_at`: as `stash`; empty: as it was."""
    global stash
    stash = stash_at or stash
    running()


def writer() -> Writer:
    """What writes into our page, for the script (`holdfast.client`) and for our hooks that watch it: there is but one."""
    global _writer
    with _making:
        if _writer is None:
            _writer = load("_holdfast_writer", "client", "writer.py").Writer()
            if words is not None:
                _writer.attach(words, _wake_agent)
        return _writer


def _open_page(fd: int) -> None:
    """Map the page, tie our life to the agent's, and take the mutex."""
    global words, page
    import ctypes  # only workers with a page need it

    libc = ctypes.CDLL(None, use_errno=True)
    # Not the mmap module: it keeps a copy of the fd open, and unmaps the page when the interpreter clears its modules,
    # while the kernel has yet to find the mutex there.
    libc.mmap.restype = ctypes.c_void_p
    base = libc.mmap(None, ctypes.c_size_t(layout.SIZE), _READ_WRITE, _SHARED, fd, ctypes.c_long(0))
    problem = ctypes.get_errno()
    if base == ctypes.c_void_p(-1).value:
        raise OSError(problem, os.strerror(problem))
    fields = memoryview((ctypes.c_ubyte * layout.SIZE).from_address(base)).cast("B").cast("Q")
    if fields[layout.MAGIC_AT] != layout.MAGIC or fields[layout.VERSION_AT] != layout.VERSION:
        return  # an agent of another version
    fields[layout.BOOTED_NS] = monotonic_ns()
    fields[layout.PID] = os.getpid()
    words = page = fields
    _die_with(libc, fields[layout.AGENT_PID])
    _lock(libc, base)


def _offer_stacks(fd: int) -> None:
    """Write our stacks behind the page whenever the agent's signal comes. It looks first whether the descriptor is ours yet."""
    if words is None:
        return
    import fcntl  # only workers with a page need it

    limit = os.sysconf("SC_OPEN_MAX")
    kept = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _DUMP_AT if limit < 0 else min(_DUMP_AT, limit - 1))
    os.lseek(kept, layout.SIZE, os.SEEK_SET)
    faulthandler.register(_DUMP_SIGNAL, file=kept, all_threads=True, chain=False)
    faulthandler.register(_MAIN_DUMP_SIGNAL, file=kept, all_threads=False, chain=False)
    if _signal.getsignal(_SIGTERM) == _signal.SIG_DFL:
        faulthandler.register(_SIGTERM, file=kept, all_threads=False, chain=True)
    words[layout.DUMP_FD], words[layout.DUMP_SIGNAL], words[layout.MAIN_DUMP_SIGNAL] = kept, _DUMP_SIGNAL, _MAIN_DUMP_SIGNAL


def _watch_script(hook: int, once_loaded: Mapping[str, Callable[[ModuleType], object]] | None = None) -> None:
    global notebook
    if hook & (layout.HOOK_SIGNS | layout.HOOK_MODULES):
        hooks = load("_holdfast_hooks", "client", "hooks.py")
        notebook = hooks.Notebook(layout, lambda: words) if hook & layout.HOOK_MODULES else None
        hooks.watch(writer, notebook, signs=hook & layout.HOOK_SIGNS != 0, joined=_offer_collectives, more=once_loaded)


def _offer_collectives() -> None:
    if sleep_on is not None and words is not None:
        try:
            load("_holdfast_collectives", "client", "collectives.py").offer(layout, lambda: words, sleep_on)
        except Exception:  # another version of torch, or no more threads are allowed
            return


def _lock(libc: ctypes.CDLL, base: int) -> None:
    """Take the mutex of the page mapped at `base`, and tell the agent, who waits for that."""
    global sleep_on, _wake_agent
    import ctypes  # only workers with a page need it

    mutex = ctypes.c_void_p(base + layout.MUTEX * 8)
    attributes = ctypes.create_string_buffer(64)
    for problem in (
        libc.pthread_mutexattr_init(attributes),
        libc.pthread_mutexattr_setpshared(attributes, _PROCESS_SHARED),
        libc.pthread_mutexattr_setrobust(attributes, _ROBUST),
        libc.pthread_mutex_init(mutex, attributes),
        libc.pthread_mutex_lock(mutex),
    ):
        if problem:
            raise OSError(problem, os.strerror(problem))
    half = (ctypes.c_uint32 * (layout.SIZE // 4)).from_address(base)
    lock_at = _lock_word(half)
    # The kernel wakes a sleeper at our death only if the word says that there is one. Nobody else writes it meanwhile.
    half[lock_at // 4] |= layout.FUTEX_WAITERS
    half[layout.LOCK_AT * 2] = lock_at
    number = layout.futex_syscall(os.uname().machine)
    if number is None:
        return

    def wake(address: int) -> int:
        one = ctypes.c_int(1)
        return int(libc.syscall(ctypes.c_long(number), ctypes.c_void_p(address), ctypes.c_long(wake_code), one, None, None, 0))

    def sleep(seen: int, word: int = layout.REQUEST_COUNT) -> None:
        at, expected = ctypes.c_void_p(base + word * 8), ctypes.c_uint32(seen)
        libc.syscall(ctypes.c_long(number), at, ctypes.c_long(wait_code), expected, None, None, 0)

    wake_code, wait_code = layout.FUTEX_WAKE, layout.FUTEX_WAIT
    sleep_on = sleep
    wake(base + layout.LOCK_AT * 8)
    _wake_agent = lambda: wake(base + lock_at)


def _lock_word(half: ctypes.Array[ctypes.c_uint32]) -> int:
    """Byte offset of the word that holds our thread id: the mutex's first in glibc, its second in musl."""
    mine = get_native_id()
    start = layout.MUTEX * 8
    for offset in range(start, start + layout.MUTEX_BYTES, 4):
        if half[offset // 4] == mine:
            return int(offset)
    raise OSError("this C library's mutex does not carry its owner")


def _die_with(libc: ctypes.CDLL, agent: int) -> None:
    """Die when the agent does. Under a wrapper, which then is our parent, the guardian has to see to that."""
    if os.getppid() != agent:
        return
    libc.prctl(_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != agent:  # it went in between
        os.kill(os.getpid(), _SIGKILL)


def _enable_faulthandler() -> None:
    if sys.stderr is not None:  # its descriptor, since faulthandler keeps a file that it is given
        faulthandler.enable(2, all_threads=True)


def _tell(trouble: str) -> None:
    """Leave word for the agent."""
    if words is not None:
        text = trouble.encode("utf-8", "replace")[: layout.TROUBLE_BYTES - 1] + b"\0"  # in the place of a longer one, perhaps
        at = layout.TROUBLE * 8
        words.cast("B")[at : at + len(text)] = text


def _keep_last_line() -> Callable[[], bytes]:
    """From now on what Python writes to stderr is kept until it writes again. Returns what gives the last of it."""
    last = [b"", b""]  # SystemExit's text and its line end are written one after the other
    raw = getattr(sys.stderr, "buffer", None)
    write = getattr(raw, "write", None)

    def noted(data: Any) -> Any:
        last[0], last[1] = last[1], bytes(data[-layout.LAST_LINE_BYTES :])
        return write(data)  # type: ignore[misc]

    if write is not None:
        _try_quietly(lambda: setattr(raw, "write", noted))
    return lambda: b"".join(last)


def _put_text(at: int, room: int, text: bytes) -> None:
    if words is not None:
        ended = text[: room - 1] + b"\0"
        words.cast("B")[at * 8 : at * 8 + len(ended)] = ended


def _install_hooks() -> None:
    main_thread = get_ident()
    last_written = _keep_last_line()
    judged: list[BaseException] = []  # exceptions that went through the hook, whatever came of it
    shown = sys.excepthook

    def write(error: BaseException) -> None:
        if not isinstance(error, KeyboardInterrupt) and _error_file:  # torch's CheckpointException is no Exception
            record, now = load("_holdfast_record", "client", "record.py"), time_ns()
            more: list[str] = []
            # What is left out, into the page too: it may be the record for which no space is left.
            _try_quietly(lambda: more.append(record.left_out(error)), lambda: _leave_words(error, *more))
            # Twice, where a signal handler that raises cuts it short: torch's for SIGCHLD does, when data loader workers die.
            _try_quietly(*(lambda: record.write(_error_file, error, now, *more),) * 2)

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        once_shown: list[Callable[[], None] | None] = [lambda: None]
        if os.getpid() == _me:
            judged.append(error)
            if get_ident() == main_thread and _is_the_end():
                now, claim = time_ns(), lambda: once_shown.append(_claim(error))
                _try_quietly(lambda: _leave_words(error), lambda: write(error), lambda: _flag_error(error, now), claim)
        if once_shown[-1] is not None:
            shown(kind, error, trace)
            _try_quietly(once_shown[-1])

    def at_exit() -> None:
        if os.getpid() != _me:
            return
        # A hook of the script's own may have taken our place.
        error = getattr(sys, "last_value", None)
        if error is not None and not any(error is seen for seen in judged):
            _try_quietly(lambda: _leave_words(error), lambda: write(error))
        elif not judged:
            lines = last_written().strip().splitlines()
            _put_text(layout.LAST_LINE, layout.LAST_LINE_BYTES, lines[-1].strip() if lines else b"")
        judged.clear()  # with it go the frames of the traceback: what they hold may still speak while there is a stderr
        if words is not None:
            words[layout.EXIT_NS] = monotonic_ns()
            words[layout.STATE] = layout.FINISHING
            if _wake_agent is not None:
                _wake_agent()

    # Both, since programs ask `sys.excepthook is sys.__excepthook__` to learn whether anybody has changed it.
    sys.excepthook = excepthook
    sys.__excepthook__ = excepthook
    atexit.register(at_exit)  # the first to register is the last to run


def _try_quietly(*steps: Callable[[], object]) -> None:
    """Each by itself: a disk that is full, or no descriptor left, costs the record and not the word of it."""
    for step in steps:
        try:
            step()
        except Exception:
            continue


def _leave_words(error: BaseException, more: str = "") -> None:
    try:
        said = str(error)[: layout.LAST_WORDS_BYTES] + more
    except Exception:
        said = "<exception without a text>"
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    _put_text(layout.LAST_WORDS, layout.LAST_WORDS_BYTES, " ".join(text.split()).encode("utf-8", "backslashreplace"))


def _claim(error: BaseException) -> Callable[[], None] | None:
    """What to call once the error is shown. None: it is not to be, since another rank, whose stderr is ours, has shown it."""
    if words is None or not words[layout.HOOK] & layout.HOOK_ONCE or isinstance(error, KeyboardInterrupt) or not _error_file:
        return lambda: None
    follows = load("_holdfast_lost_peers", "core", "job", "lost_peers.py").follows(error)
    return load("_holdfast_record", "client", "record.py").claim(_error_file, error, follows)  # type: ignore[no-any-return]


def _is_the_end() -> bool:
    """True when Python calls the hook for the script's end, False when C code printed an exception and goes on: then the
    script is still on the stack below us."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name not in ("<module>", "_run_module_as_main")


def _flag_error(error: BaseException, now_ns: int) -> None:
    if words is not None and not isinstance(error, KeyboardInterrupt):
        words[layout.ERROR_UNIX_NS] = now_ns
        words[layout.ERROR] = 1
        if _wake_agent is not None:
            _wake_agent()


def _forget() -> None:
    """In a forked child: the page belongs to our parent, and SIGTERM is as the script has it."""
    global words
    if words is None:
        return
    words = None
    if _signal.getsignal(_SIGTERM) == _signal.SIG_DFL:
        faulthandler.unregister(_SIGTERM)

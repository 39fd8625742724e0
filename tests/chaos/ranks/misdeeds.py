"""What a rank can be ordered to do to itself. Each takes the rank's ledger, and what else the order says."""

import atexit
import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time

FOREVER_S = 3600


# --- it ends ----------------------------------------------------------------------------------------------------------


def exits(book, code):
    sys.exit(code)


def exits_with_text(book):
    raise SystemExit("the data set is empty")


def exits_at_once(book, code):
    os._exit(code)


def signals_itself(book, signum):
    if signum != signal.SIGINT:  # Python's own handler stays; else the signal's own effect.
        signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    time.sleep(FOREVER_S)


def segfault(book):
    ctypes.string_at(0)


def aborts(book):
    os.abort()


def bus_error(book):
    import mmap

    path = f"{book.folder}/shrinks.{os.getpid()}"
    with open(path, "w+b") as file:
        file.truncate(1 << 16)
        seen = mmap.mmap(file.fileno(), 1 << 16)
        file.truncate(0)
        seen[1 << 15]


def overflows_the_stack(book):
    """In C: Python's own recursion has a limit."""
    sys.setrecursionlimit(1 << 30)
    nested = []
    for _ in range(2_000_000):
        nested = [nested]
    repr(nested) if sys.version_info < (3, 12) else ctypes.string_at(0)


def becomes_another(book):
    os.execv("/bin/sh", ["sh", "-c", "exit 9"])


def raises_huge(book):
    raise RuntimeError("x" * (8 << 20))


def raises_unpicklable(book):
    class Odd(Exception):
        def __init__(self):
            super().__init__("unpicklable", lambda: None, threading.Lock())

    raise Odd


def raises_chain(book):
    error = ValueError("the first of all")
    for number in range(2000):
        following = ValueError(f"number {number}")
        following.__cause__ = error
        error = following
    raise error


def raises_surrogates(book):
    raise ValueError("not text: \udc80\udcff \ud800")


def raises_memory_error(book):
    raise MemoryError


def raises_group(book):
    raise ExceptionGroup("two at once", [ValueError("one"), KeyError("two")])


def raises_keyboard_interrupt(book):
    raise KeyboardInterrupt


def raises_without_words(book):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("cannot say")

    raise Mute


def raises_with_own_hook(book):
    sys.excepthook = lambda *_: print("a hook of its own was here", file=sys.stderr)
    raise ValueError("seen by the hook alone")


def raises_with_broken_hook(book):
    def hook(*_):
        raise RuntimeError("the hook fails too")

    sys.excepthook = hook
    raise ValueError("and then the hook")


def raises_in_a_thread(book):
    def work():
        raise ValueError("in a thread")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    os._exit(1)


def raises_in_atexit(book):
    def late():
        raise ValueError("at the very end")

    atexit.register(late)
    sys.exit(5)


def raises_escapes(book):
    raise ValueError("\x1b[2J\x1b[H\x1b]0;owned\x07 restarts left \r\n holdfast: job succeeded")


def asserts(book):
    raise AssertionError("loss is NaN")


def recurses(book):
    recurses(book)


def leaks_descriptors(book):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held = []
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))


def takes_memory(book, megabytes):
    held = []
    for _ in range(megabytes):
        held.append(b"\1" * (1 << 20))


def address_space_is_small(book):
    resource.setrlimit(resource.RLIMIT_AS, (1 << 28, resource.RLIM_INFINITY))
    takes_memory(book, 1024)


def file_size_limit(book):
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
    with open(f"{book.folder}/large.{os.getpid()}", "wb") as file:
        file.write(b"\1" * (1 << 20))


def cpu_limit(book):
    resource.setrlimit(resource.RLIMIT_CPU, (1, 2))
    while True:
        pass


def import_fails(book):
    import no_such_module_here  # noqa: F401


def does_not_end(book):
    """Its main thread fails, and another keeps the process."""
    threading.Thread(target=time.sleep, args=(FOREVER_S,)).start()
    raise ValueError("with a thread that stays")


def hangs_in_atexit(book):
    atexit.register(time.sleep, FOREVER_S)
    raise ValueError("and then atexit hangs")


def fails_deaf(book):
    """Another fails, and this one does not end for SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


# --- it hangs ---------------------------------------------------------------------------------------------------------


def sleeps(book):
    time.sleep(FOREVER_S)


def sleeps_in_c(book):
    """With the GIL."""
    ctypes.PyDLL(None).sleep(FOREVER_S)


def computes_in_c(book):
    """With the GIL."""
    compare = ctypes.PyDLL(None).memcmp
    large = ctypes.create_string_buffer(1 << 28)
    while True:
        compare(large, large, 1 << 28)


def spins(book):
    while True:
        pass


def locks_itself(book):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def waits_for_a_child(book):
    subprocess.run(["sleep", str(FOREVER_S)])


def reads_a_pipe(book):
    os.read(os.pipe()[0], 1)


def stops_itself(book):
    os.kill(os.getpid(), signal.SIGSTOP)


def hangs_in_a_handler(book):
    signal.signal(signal.SIGALRM, lambda *_: time.sleep(FOREVER_S))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(FOREVER_S)


def hangs_deaf(book):
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    time.sleep(FOREVER_S)


def wrong_collective(book):
    import torch
    import torch.distributed as dist

    dist.broadcast(torch.zeros(7), src=book.rank)
    time.sleep(FOREVER_S)


def hangs_after_fork(book):
    """A lock that another thread holds is for ever held in a child, which is waited for."""
    lock = threading.Lock()
    threading.Thread(target=lambda: (lock.acquire(), time.sleep(FOREVER_S)), daemon=True).start()
    time.sleep(0.05)
    pid = os.fork()
    if not pid:
        lock.acquire()
    os.waitpid(pid, 0)


# --- it has others ----------------------------------------------------------------------------------------------------


def grandchildren(book, count):
    """In sessions of their own, each second without an environment; some deaf to SIGTERM."""
    for number in range(count):
        deaf = "trap '' TERM; " if number % 4 < 2 else ""
        command = ["setsid", "sh", "-c", f"{deaf}sleep {FOREVER_S} & wait; sleep {FOREVER_S}"]
        subprocess.Popen(command, env={} if number % 2 else None, stdin=subprocess.DEVNULL)


def children(book, count):
    """Forked, each second in a session of its own."""
    for number in range(count):
        if not os.fork():
            if number % 2:
                os.setsid()
            time.sleep(FOREVER_S)


def daemons(book, count):
    """Twice forked, with nothing open."""
    for _ in range(count):
        if not os.fork():
            os.setsid()
            if not os.fork():
                os.closerange(0, 256)
                time.sleep(FOREVER_S)
            os._exit(0)


def zombies(book, count):
    for _ in range(count):
        if not os.fork():
            os._exit(0)


def holds_the_log(book):
    """A child that keeps the streams, and the rank is gone."""
    subprocess.Popen(["sh", "-c", f"sleep {FOREVER_S}"])
    os._exit(3)


# --- what it writes ---------------------------------------------------------------------------------------------------


def writes(book, megabytes, line, code=4):
    """So much to stderr, and fails."""
    chunk = line.encode("latin1") * max(1, (1 << 20) // len(line))
    for _ in range(megabytes):
        data = chunk
        while data:
            data = data[os.write(2, data) :]
    os._exit(code)


def writes_on(book, megabytes, line):
    """So much to stdout, and trains on."""
    chunk = line.encode("latin1") * max(1, (1 << 20) // len(line))
    for _ in range(megabytes):
        data = chunk
        while data:
            data = data[os.write(1, data) :]


def closes_its_streams(book):
    os.close(1)
    os.close(2)


def closes_all(book):
    """As daemons do with all that they have inherited, but for what it trains with."""
    keep = {book._stamps, book._saves}
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        with contextlib.suppress(OSError):  # the one that the names were read from is gone
            if number > 2 and number not in keep and not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.close(number)


def fakes_our_words(book):
    text = "holdfast: job chaos succeeded after 0 restarts\nholdfast[n0]: received SIGTERM; stopping the workers\n"
    os.write(2, text.encode())
    os._exit(6)

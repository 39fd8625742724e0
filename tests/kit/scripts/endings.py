"""Ends in the way that its argument names."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def deep(n: int) -> int:
    return deep(n + 1)


def chained() -> None:
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("while looking") from error


def with_notes() -> None:
    error = RuntimeError("noted")
    error.add_note("a note")
    raise error


def in_a_thread() -> None:
    thread = threading.Thread(target=lambda: 1 / 0, name="side")
    thread.start()
    thread.join()


def with_a_thread_alive() -> None:
    threading.Thread(target=lambda: (main_is_over.wait(), print("thread ends")), name="side").start()
    atexit.register(print, "after the threads")
    threading._register_atexit(main_is_over.set)  # type: ignore[attr-defined]
    raise RuntimeError("main thread ends")


def forked() -> None:
    if os.fork() == 0:
        raise RuntimeError("in a forked child")
    print("child", os.wait()[1])
    sys.exit(4)


def own_hook() -> None:
    sys.excepthook = lambda kind, error, trace: print("mine", kind.__name__, error, file=sys.stderr)
    raise RuntimeError("for my hook")


def chained_hook() -> None:
    theirs = sys.excepthook
    sys.excepthook = lambda kind, error, trace: theirs(kind, error, trace)
    raise RuntimeError("for both hooks")


class _Late:
    def __init__(self) -> None:
        import ctypes

        self.run = ctypes.pythonapi.PyRun_SimpleString

    def __del__(self) -> None:
        self.run(b"raise RuntimeError('as the failed function lets go of what it holds')")


def held() -> None:
    late = _Late()
    raise RuntimeError(f"holds a {type(late).__name__}")


def printed_from_c() -> None:
    import ctypes

    ctypes.pythonapi.PyRun_SimpleString(b"raise RuntimeError('printed by C code, which goes on')")
    print("and on it goes")


ENDINGS = {
    "plain": lambda: None,
    "exit3": lambda: sys.exit(3),
    "exit-text": lambda: sys.exit("a message"),
    "exit-none": lambda: sys.exit(None),
    "exit-300": lambda: sys.exit(300),
    "exception": lambda: 1 / 0,
    "chained": chained,
    "held": held,
    "notes": with_notes,
    "group": lambda: (_ for _ in ()).throw(ExceptionGroup("several", [ValueError("one"), TypeError("two")])),
    "unprintable": lambda: (_ for _ in ()).throw(Unprintable()),
    "recursion": lambda: deep(0),
    "unicode": lambda: (_ for _ in ()).throw(ValueError("naïve \udce9 ☃")),
    "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
    "raised-interrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
    "_exit": lambda: os._exit(5),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "thread": in_a_thread,
    "thread-alive": with_a_thread_alive,
    "fork": forked,
    "own-hook": own_hook,
    "chained-hook": chained_hook,
    "from-c": printed_from_c,
    "exec": lambda: os.execv("/bin/sh", ["sh", "-c", "echo from the shell; exit 6"]),
    "closed-stderr": lambda: (sys.stderr.close(), 1 / 0),
}

if __name__ == "__main__":
    main_is_over = threading.Event()
    atexit.register(print, "at exit")
    print("begins")
    ENDINGS[sys.argv[1]]()
    print("ends")

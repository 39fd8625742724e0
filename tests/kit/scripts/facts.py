"""Prints whatever a script can find out about how it is being run. Two ways of running it are alike if the output is."""

from __future__ import annotations

import atexit
import inspect
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings

WHERE = ("__file__", "__name__", "__package__", "__cached__", "__doc__")


class Thing:
    """Pickled by reference to this module."""

    def __init__(self, size: int) -> None:
        self.size = size


def main() -> None:
    import __main__

    print("argv", sys.argv, "orig", sys.orig_argv)
    print("path", sys.path)
    print("main", [(name, globals().get(name)) for name in WHERE], sorted(vars(__main__)))
    print("spec", getattr(__spec__, "name", None), type(globals()["__loader__"]).__name__, type(globals()["__builtins__"]))
    print("identity", sys.modules["__main__"] is __main__, vars(__main__) is globals(), Thing.__module__, main.__module__)
    print("flags", sys.flags, sys.warnoptions, sys._xoptions, sys.dont_write_bytecode)
    print("environment", sorted(os.environ.items()))
    print("child's environment", subprocess.run(["env"], capture_output=True, text=True, check=True).stdout)
    fds = [fd for fd in sorted(os.listdir("/proc/self/fd"))[:-1] if "holdfast-page" not in os.readlink(f"/proc/self/fd/{fd}")]
    print("fds", fds, os.getcwd(), os.umask(0o22))
    print("streams", [(s.encoding, s.errors, s.line_buffering, s.write_through, s.fileno()) for s in (sys.stdout, sys.stderr)])
    print("stdin", sys.stdin.read())
    print("signals", [(s.name, repr(signal.getsignal(s)).split(" at ")[0]) for s in signal.Signals])
    print("blocked", signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    print("threads", threading.current_thread() is threading.main_thread(), threading.active_count())
    print("hooks", sys.excepthook is sys.__excepthook__, sys.displayhook, threading.excepthook, sys.gettrace())
    for name in ("comm", "oom_score_adj", "cmdline", "limits"):
        with open(f"/proc/self/{name}") as file:
            print(name, file.read())
    print("scheduler", os.nice(0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)), os.listdir("/proc/self/task")[1:])
    print("site", sys.modules.get("sitecustomize"), "usercustomize" in sys.modules, sys.prefix)
    print("import", len(sys.meta_path), len(sys.path_hooks))
    print("importers", [name for name in sys.path_importer_cache if "holdfast" in name and name.endswith("boot")])
    print("pickle", pickle.loads(pickle.dumps(Thing(3))).size, b"__main__" in pickle.dumps(Thing(3)))
    print("source", inspect.getsource(Thing), inspect.getsourcefile(Thing))
    atexit.register(print, "registered first, runs last")
    atexit.register(print, "registered last, runs first")
    warnings.warn("a warning with its line", stacklevel=1)
    warnings.warn("a deprecation in __main__ is shown", DeprecationWarning, stacklevel=1)


if __name__ == "__main__":
    main()

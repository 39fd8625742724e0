# ruff: noqa: E501 (a row is a row: what is done stands in one line)
"""A rank ends in a way of its own."""

from __future__ import annotations

import signal

from chaos.fault import Outcome, fault
from chaos.job import Job

WHO = ("rank {rank} .*on {node}",)


def ending(name: str, done: str, misdeed: str, *words: str, arguments: tuple[object, ...] = (), **more: object) -> None:
    """A kind in which a rank ends in a way of `ranks/misdeeds.py`. `words`: the cause, beside who it was."""

    def play(job: Job) -> None:
        job.order(misdeed, *arguments)
        job.again()

    given = {"restarts": 1, "cause": (*WHO, *words)} | more
    fault(name, done, **given)(play)  # type: ignore[arg-type]


RAISES = "a rank ends of an exception"

ending("exits 0 early", "a rank exits with 0 while the others train", "exits", "exited with (code )?0|exit code 0|ended with 0", arguments=(0,),
       smoke=True)  # fmt: skip
ending("exits 3", "a rank calls sys.exit(3)", "exits", "code 3", arguments=(3,))
ending("exits 3 at once", "a rank calls os._exit(3)", "exits_at_once", "code 3", arguments=(3,), torchrun=True)
ending("exits 0 at once", "a rank calls os._exit(0) while the others train", "exits_at_once", "exited with (code )?0|exit code 0|ended with 0",
       arguments=(0,))  # fmt: skip
ending("segfault", "a rank dereferences NULL", "segfault", "SIGSEGV", smoke=True, torchrun=True)
ending("abort", "a rank aborts", "aborts", "SIGABRT")
ending("bus error", "a rank reads a mapped file that has shrunk", "bus_error", "SIGBUS")
ending("floating point exception", "a rank gets SIGFPE", "signals_itself", "SIGFPE", arguments=(int(signal.SIGFPE),))
ending("stack overflow", "a rank's C stack overflows", "overflows_the_stack", "SIGSEGV|RecursionError")
ending("exec", "a rank becomes another program, which exits with 9", "becomes_another", "code 9")
ending("raises: huge", f"{RAISES}: its text has 8 MB", "raises_huge", "RuntimeError")
ending("raises: unpicklable", f"{RAISES}: no pickle can hold it", "raises_unpicklable", "Odd")
ending("raises: chain of 2000", f"{RAISES}: it has 2,000 causes", "raises_chain", "ValueError")
ending(
    "raises: SystemExit text",
    f"{RAISES}: SystemExit with a text",
    "exits_with_text",
    "the data set is empty|called sys.exit",
    smoke=True,
)
ending("raises: exit 256", f"{RAISES}: sys.exit(256), which the kernel makes 0", "exits", arguments=(256,))
ending("raises: surrogates", f"{RAISES}: its text is none that can be encoded", "raises_surrogates", "ValueError")
ending("raises: MemoryError", f"{RAISES}: MemoryError", "raises_memory_error", "MemoryError")
ending("raises: group", f"{RAISES}: an ExceptionGroup", "raises_group", "two at once")
ending(
    "raises: KeyboardInterrupt", f"{RAISES}: a KeyboardInterrupt of its own", "raises_keyboard_interrupt", "KeyboardInterrupt"
)
ending("raises: no words", f"{RAISES}: its __str__ raises", "raises_without_words", "Mute")
ending(
    "raises: own excepthook",
    f"{RAISES}: the script has a hook of its own",
    "raises_with_own_hook",
    "ValueError|seen by the hook",
)
ending(
    "raises: broken excepthook",
    f"{RAISES}: the script's hook raises too",
    "raises_with_broken_hook",
    "ValueError|and then the hook",
)
ending("raises: in a thread", f"{RAISES} in a thread, and ends by os._exit(1)", "raises_in_a_thread", "in a thread|code 1")
ending("raises: in atexit", f"{RAISES} in atexit, behind sys.exit(5)", "raises_in_atexit", "code 5")
ending(
    "raises: terminal's escapes",
    f"{RAISES}: its text would clear the screen and forge our lines",
    "raises_escapes",
    "ValueError",
)
ending("raises: assertion", f"{RAISES}: an assertion", "asserts", "loss is NaN")
ending("raises: recursion", f"{RAISES}: RecursionError", "recurses", "RecursionError")
ending("raises: import", f"{RAISES}: a module is not there", "import_fails", "no_such_module_here")
ending("raises, and a thread stays", "a rank's main thread ends of an exception, and another thread keeps the process", "does_not_end",
       "ValueError|with a thread that stays|no progress|hang", options=("--most-limit", 4, "--least-limit", 4, "--still-limit", 6))  # fmt: skip
ending("raises, and atexit hangs", "a rank ends of an exception, and its atexit does not return", "hangs_in_atexit",
       "ValueError|and then atexit hangs|no progress|hang", options=("--most-limit", 4, "--least-limit", 4, "--still-limit", 6))  # fmt: skip
ending(
    "too many open files", "a rank opens files until it may open none", "leaks_descriptors", "Too many open files", smoke=True
)
ending(
    "too little address space", "a rank has 256 MB of address space, and takes more", "address_space_is_small", "MemoryError"
)
ending("file too large", "a rank writes a file beyond its limit", "file_size_limit", "SIGXFSZ|File too large")
ending("CPU time is over", "a rank has used up its processor time", "cpu_limit", "SIGXCPU|SIGKILL")
ending("SIGTERM to a rank", "somebody sends a rank SIGTERM", "signals_itself", "SIGTERM", arguments=(int(signal.SIGTERM),))
ending(
    "SIGINT to a rank",
    "somebody sends a rank SIGINT",
    "signals_itself",
    "KeyboardInterrupt|SIGINT",
    arguments=(int(signal.SIGINT),),
)
ending("SIGHUP to a rank", "somebody sends a rank SIGHUP", "signals_itself", "SIGHUP", arguments=(int(signal.SIGHUP),))
ending("SIGPIPE to a rank", "a rank ends of SIGPIPE", "signals_itself", "SIGPIPE", arguments=(int(signal.SIGPIPE),))
ending("fakes our words", "a rank writes lines like ours to stderr, and fails", "fakes_our_words", "code 6", arguments=())
ending("a child keeps the log", "a rank exits with 3, and a child of it keeps its streams open", "holds_the_log", "code 3")


@fault("deaf to SIGTERM", "a rank fails, and another ignores SIGTERM; --shutdown-timeout 3", restarts=1, nproc=2, cause=WHO,
       options=("--shutdown-timeout", 3))  # fmt: skip
def deaf(job: Job) -> None:
    job.order("fails_deaf", rank=0)
    job.struck_at = float("inf")
    job.kill_rank(job.rank(2))
    job.again()


@fault("fails each time", "a rank fails in each life, as soon as it begins; three restarts may be made", outcome=Outcome.ENDS, restarts=3,
       starts=False, options=("--max-restarts", 3), cause=("rank 1 .*on n1", "no such column"), smoke=True,
       script="import os\nif os.environ['RANK'] == '1': raise KeyError('no such column')\n")  # fmt: skip
def fails_each_time(job: Job) -> None:
    job.strike()
    job.start()


@fault("script has a syntax error", "the script cannot be compiled", outcome=Outcome.ENDS, restarts=(0, 2), starts=False,
       options=("--max-restarts", 2), cause=("SyntaxError",), script="def (:\n")  # fmt: skip
def syntax_error(job: Job) -> None:
    job.strike()
    job.start()


@fault("script is not there", "there is no script of that name", outcome=Outcome.ENDS, restarts=(0, 2), starts=False,
       options=("--max-restarts", 2))  # fmt: skip
def no_script(job: Job) -> None:
    job.strike()
    job.script = job.base / "no-such-script.py"
    job.start()


@fault("fails in its first life", "a rank fails before its first step, once", restarts=1, starts=False, cause=("rank 0", "warming up"),
       script="import os\nif os.environ['RANK'] + os.environ['TORCHELASTIC_RESTART_COUNT'] == '00': raise OSError('warming up')\n")  # fmt: skip
def fails_first(job: Job) -> None:
    job.strike()
    job.start()
    job.trains()
    job.goes_on()

# ruff: noqa: E501 (a row is a row: what is done stands in one line)
"""A rank makes no progress."""

from __future__ import annotations

from chaos.fault import fault
from chaos.job import Job

PATIENT = ("--most-limit", 30, "--still-limit", 8, "--least-limit", 5)
"""With PyTorch, whose interpreters take seconds to end on a busy machine."""
LIMIT = ("--most-limit", 4, "--still-limit", 6, "--least-limit", 4)
BLAMED = ("rank {rank} .*on {node} hung",)
LEARNED = 30
"""Steps after which a limit is learned: before that a rank that is busy is never accused."""


def hang(
    name: str, done: str, misdeed: str, *, cause: tuple[str, ...] | None = None, smoke: bool = False, **setup: object
) -> None:
    """A kind in which a rank hangs in a way of `ranks/misdeeds.py`. Who is to blame is known where PyTorch's record of
    collectives tells who waits for whom."""

    def play(job: Job) -> None:
        job.trains(LEARNED)
        job.order(misdeed)
        job.again()

    if cause is None:
        cause = BLAMED if setup.get("ddp") else ("hung",)
    fault(name, done, restarts=1, cause=cause, options=PATIENT if setup.get("ddp") else LIMIT, smoke=smoke, **setup)(play)  # type: ignore[arg-type]


hang("hang in C, GIL held", "a rank sleeps in C code that does not release the GIL", "sleeps_in_c", smoke=True)
hang("hang in C, busy", "a rank computes in C code for ever, with the GIL (--most-limit 4)", "computes_in_c")
hang("hang outside a collective", "a rank sleeps in Python; the others wait for it in a collective", "sleeps", smoke=True)
hang("hang outside a collective, DDP", "the same with PyTorch's DDP", "sleeps", ddp=True)
hang("hang in a wrong collective", "a rank calls another collective than the others", "wrong_collective", ddp=True, cause=())
hang("hang in a thread lock", "a rank waits for a lock of its own", "locks_itself")
hang("hang in a loop", "a rank computes in Python for ever (--most-limit 4)", "spins")
hang("hang on a child", "a rank waits for a child that does not end", "waits_for_a_child")
hang("hang on a pipe", "a rank reads from a pipe that nobody writes to", "reads_a_pipe")
hang("hang, stopped by itself", "a rank sends itself SIGSTOP", "stops_itself")
hang("hang in a signal handler", "a rank's handler of SIGALRM does not return", "hangs_in_a_handler")
hang("hang, deaf to signals", "a rank hangs, and ignores SIGTERM, SIGINT and SIGHUP", "hangs_deaf", patience_s=90)
hang(
    "hang after fork",
    "a forked child waits for a lock that no thread of its own holds, and the rank for the child",
    "hangs_after_fork",
)


@fault("hang of all", "all ranks sleep in the same moment", restarts=1, options=LIMIT)
def hang_of_all(job: Job) -> None:
    job.trains(LEARNED)
    job.order_all("sleeps")
    job.again()


@fault("hang, then kill", "a rank hangs, and 2 s later another is killed", restarts=1, options=LIMIT)
def hang_then_kill(job: Job) -> None:
    job.trains(LEARNED)
    hanging = job.order("sleeps")
    job.lasts(2)
    job.kill_rank(next(life for life in job.alive() if life.rank != hanging.rank))
    job.again()


@fault("hang at the start", "a rank hangs in its first life before its first step", restarts=1, starts=False, options=LIMIT,
       script="import os, time\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.environ['RANK'] == '1': time.sleep(3600)\n",
       cause=("hung",))  # fmt: skip
def hang_at_the_start(job: Job) -> None:
    job.strike()
    job.start()
    job.trains()
    job.goes_on()

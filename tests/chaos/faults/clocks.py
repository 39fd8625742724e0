# ruff: noqa: E501 (a row is a row: what is done stands in one line)
"""The time of day is wrong, or jumps. The machine's own clock is not touched: a library in front of the C library's shows a node
another (`clock.c`), and leaves the monotonic clock and all that waits to the kernel, as a real step does.
"""

from __future__ import annotations

import struct
import subprocess
import time
from pathlib import Path

from chaos.fault import fault
from chaos.job import Job

SOURCE = Path(__file__).parents[1] / "clock.c"
DONE = "the time of day on n1, or on n0, jumps while it trains; then a rank is killed"
DAY_S = 86400


class Clock:
    """The time of day that a node's processes see from their start on."""

    def __init__(self, job: Job, name: str) -> None:
        library = job.base / "clock.so"
        if not library.exists():
            subprocess.run(
                ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True, capture_output=True
            )
        self.path = job.base / f"clock-{name}"
        self.path.write_bytes(struct.pack("3d", 0.0, 1.0, time.time()))
        job.nodes[name].env |= {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self.path)}

    def set(self, later_s: float, rate: float = 1.0) -> None:
        with self.path.open("r+b") as file:
            file.write(struct.pack("3d", later_s, rate, time.time()))


def steps(words: str, by_s: float, *, smoke: bool = False) -> None:
    @fault(f"clock steps {words}", DONE, needs="cc", restarts=1, starts=False, smoke=smoke)
    def play(job: Job) -> None:
        clock = Clock(job, job.rng.choice(["n0", "n1"]))
        job.start()
        job.trains(job.rng.randint(4, 25))
        clock.set(by_s)
        job.goes_on(steps=5)
        job.kill_rank(job.any_rank())
        job.again()


steps("+3600s", 3600)
steps("-600s", -600, smoke=True)
steps("-1 day", -DAY_S)
steps("+10y", 3650 * DAY_S)


@fault("clock steps in a restart", "a rank is killed, and up to 150 ms later the time of day of both nodes jumps, each its own way",
       needs="cc", restarts=1, starts=False)  # fmt: skip
def in_a_restart(job: Job) -> None:
    clocks = [Clock(job, name) for name in ("n0", "n1")]
    job.start()
    job.trains(job.rng.randint(4, 25))
    job.kill_rank(job.any_rank())
    job.lasts(job.rng.uniform(0, 0.15))
    for clock in clocks:
        clock.set(job.rng.choice([-600, -DAY_S, 3600, 3650 * DAY_S]))
    job.again()


def wrong(name: str, done: str, later_s: float, rate: float = 1.0) -> None:
    @fault(name, f"{done}; a rank is killed", needs="cc", restarts=1, starts=False)
    def play(job: Job) -> None:
        Clock(job, "n1").set(later_s, rate)
        job.start()
        job.trains()
        job.kill_rank(job.any_rank())
        job.again()


wrong("clock wrong from the start", "n1's time of day is a year behind from its start", -365 * DAY_S)
wrong("clock runs fast", "n1's time of day runs ten times as fast as it should", 0.0, 10.0)
wrong("clock runs backwards", "n1's time of day runs backwards", 0.0, -1.0)
wrong("clock set to 1970", "n1's time of day is that of 1970, as where a clock's battery is empty", 600 - time.time())


@fault(
    "clock goes to and fro",
    "n1's time of day jumps by an hour, ten times, to and fro; a rank is killed",
    needs="cc",
    restarts=1,
    starts=False,
)
def to_and_fro(job: Job) -> None:
    clock = Clock(job, "n1")
    job.start()
    job.trains()
    for number in range(10):
        clock.set(-3600 if number % 2 else 3600)
        job.lasts(0.2)
    job.kill_rank(job.any_rank())
    job.again()

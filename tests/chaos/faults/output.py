# ruff: noqa: E501 (a row is a row: what is done stands in one line)
"""What a rank writes, and who reads what the launcher writes."""

from __future__ import annotations

import os
import subprocess
import threading

from chaos.fault import fault
from chaos.job import Job

TEE = ("--tee", 3)


def writing(name: str, done: str, misdeed: str, *arguments: object, restarts: int = 1, **more: object) -> None:
    def play(job: Job) -> None:
        job.order(misdeed, *arguments, rank=None if restarts else 1)
        job.again() if restarts else job.goes_on()

    fault(name, done, restarts=restarts, **more)(play)  # type: ignore[arg-type]


WHO = ("rank {rank} .*on {node}", "code 4")

writing("1 GB of stderr in short lines", "a rank writes 1 GB to stderr in 31-byte lines, and fails; --tee 3", "writes", 1024,
        "thirty-one bytes make one line\n", options=TEE, cause=WHO, patience_s=120)  # fmt: skip
writing("1 GB of stderr, no newline", "a rank writes 1 GB to stderr without a newline, and fails; --tee 3", "writes", 1024, "x", options=TEE,
        cause=WHO, patience_s=120)  # fmt: skip
writing("binary output", "a rank writes 8 MB of NUL and of bytes that are no text to stderr, and fails; --tee 3", "writes", 8, "\0\xff\xfe\x80\r",
        options=TEE, cause=WHO, smoke=True)  # fmt: skip
writing("terminal's escapes", "a rank writes 1 MB of escape sequences to stderr, and fails; --tee 3", "writes", 1, "\x1b[2J\x1b[H\x1b]0;x\x07\n",
        options=TEE, cause=WHO)  # fmt: skip
writing("500 MB of stdout, trains on", "a rank writes 500 MB of lines to stdout, and trains on; --redirects 3", "writes_on", 500,
        "thirty-one bytes make one line\n", restarts=0, options=("--redirects", 3))  # fmt: skip
writing("closes its streams", "a rank closes stdout and stderr, and trains on", "closes_its_streams", restarts=0)
writing("closes all descriptors", "a rank closes all that it has inherited, as daemons do", "closes_all", restarts=0)


@fault("nobody reads stderr", "the launcher's stderr is a pipe that is full, and that nobody reads; a rank writes 8 MB there, and another is killed",
       restarts=(0, 1), starts=False, patience_s=90)  # fmt: skip
def nobody_reads(job: Job) -> None:
    reader, writer = os.pipe()
    job.start("n0")
    job.start("n1", stderr=writer)
    os.close(writer)
    job.trains()
    life = next(life for life in job.alive() if life.node == "n0")
    job.kill_rank(life)
    job.again()
    drain = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(reader, 65536), b"")], daemon=True)
    drain.start()
    job.afterwards(lambda: (drain.join(10), os.close(reader)))


@fault(
    "reader of stdout goes", "the launcher's stdout is a pipe whose reader ends, as with `| head -1`", restarts=0, starts=False
)
def reader_goes(job: Job) -> None:
    reader, writer = os.pipe()
    job.start("n0")
    job.start("n1", stdout=writer, stderr=subprocess.STDOUT)
    os.close(writer)
    job.trains()
    job.strike()
    os.close(reader)
    job.goes_on(steps=20)


@fault(
    "no descriptors 0 to 2",
    "the launcher is started with stdin, stdout and stderr closed; a rank is killed",
    restarts=1,
    starts=False,
)
def no_streams(job: Job) -> None:
    job.start("n0")
    close = 'exec "$@" <&- >&- 2>&-'
    job.nodes["n1"].start(["sh", "-c", close, "sh", *job.words("n1")], {})
    job.trains()
    job.kill_rank(job.any_rank())
    job.again()

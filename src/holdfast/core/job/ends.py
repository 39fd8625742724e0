"""How does the end of a rank become a cause, in one sentence? All that names an end asks here; pure.

    what its node has seen                                        cause        in words
    its script ended by an exception: a record, or its page       exception    the exception's type and text
    a signal ended it                                             signal       what that signal means, where that is sure
    a code, after its interpreter had ended in good order         exit         it called sys.exit
    a code, from the program that it had become                   exit         it had called exec
    a code, and its interpreter never came to its end             exit         os._exit, exec, or native code's exit
    0, while others of its round were training                    early        it left them
    one of our signals, after another rank had failed             stopped      (it is innocent)

A rank whose collective fails tells of another's end: it *follows*. Such words often come first, because an interpreter takes a
while to end. So a failure that follows is no root while there is one that does not.
"""

from __future__ import annotations

from itertools import dropwhile

from holdfast.core.job.failure import Cause, Evidence, Failure
from holdfast.core.job.lost_peers import OF_OTHERS
from holdfast.core.signals import name_of
from holdfast.core.value import Value

CODES = {
    120: "Python could not flush its output at its end (a full disk, or a closed pipe)",
    126: "its program cannot be executed",
    127: "its program was not found",
}
"""Exit codes that mean the same wherever they come from: Python's, and a shell's."""

SIGNALS = {
    "SIGXCPU": "it had used up its CPU time (ulimit -t)",
    "SIGXFSZ": "a file that it wrote had grown to the limit (ulimit -f)",
    "SIGSYS": "a system call is forbidden here (seccomp)",
    "SIGPIPE": "it wrote into a pipe that nobody reads any more",
    "SIGALRM": "a timer that it had set itself ran out",
    "SIGTRAP": "it ran into a breakpoint, or a trap of native code",
}
"""Signals that say by themselves why they came. What others usually mean is said by `telemetry.report.report_text`."""

EXITED = "its script called sys.exit"
QUOTED = EXITED + "; its last line on stderr: "
CUT_SHORT = "it ended without Python's own end (os._exit, exec, or native code)"
WORDLESS = ("", EXITED, CUT_SHORT)
"""What is said of a code whose program has said nothing: there is nothing in it to diagnose."""

TRACEBACK = "Traceback (most recent call last)"

LEFT = "exited with code 0 while other ranks were still training"
LEAVING = "began to exit by itself while other ranks were still training, and had not ended a second later"


LONGEST = 1000  # Characters of an exception's text in a sentence: its record has all of it.


LONGEST_LINE = 300  # Characters of a line that it wrote.


class Exited(Value):
    """A worker that has exited with 0 while its round went on."""

    rank: int
    local_rank: int
    pid: int
    at_unix: float  # When it began to, by its node's clock.


def cause_of(exitcode: int | None, evidence: Evidence) -> tuple[Cause, str]:
    """What a worker has ended of that nobody has stopped, and that in words; empty: its code says all that is known."""
    if evidence.traceback or evidence.error_record:
        return Cause.EXCEPTION, _plain(evidence.message or in_one_line(evidence.last_words))
    if evidence.last_words:  # no record of it could be written, or read
        return Cause.EXCEPTION, _plain(in_one_line(evidence.last_words))
    if exitcode is not None and exitcode < 0:
        return Cause.SIGNAL, SIGNALS.get(name_of(-exitcode), "")
    return Cause.EXIT, evidence.message or _of_code(exitcode or 0, evidence)


def in_one_line(text: str) -> str:
    """An exception's text. Of a traceback in it, by which another process's error is handed on, its last words are kept."""
    before, _, after = text.partition(TRACEBACK)
    if after:
        frames = after.rpartition(TRACEBACK)[2].splitlines()[1:]
        words = dropwhile(lambda line: not line or line[0].isspace(), frames)
        text = "\n".join((before.rstrip().removesuffix("Original").rstrip(), *words)).strip() or text
    return " ".join(text.split("\n")).strip()


def _plain(said: str) -> str:
    """The same wherever it is shown: not longer than anybody reads, and what is no text spelled out."""
    short = said if len(said) <= LONGEST else said[: LONGEST - 1] + "…"
    return short.encode("utf-8", "backslashreplace").decode().removesuffix(":")


def _of_code(code: int, evidence: Evidence) -> str:
    if evidence.became:
        return f"it had become another program by exec: {evidence.became}"
    if code in CODES:
        return CODES[code]
    if evidence.ending:
        last = _plain(evidence.last_line)[:LONGEST_LINE]
        return QUOTED + last if last else EXITED
    if 128 < code < 128 + 65:
        return f"a shell says so of a child that {name_of(code - 128)} ended"
    return CUT_SHORT if evidence.booted else ""


def follows(message: str, evidence: Evidence) -> bool:
    """Whether what a failed worker says tells of another rank's end."""
    said = (message, evidence.traceback or "") if message or evidence.traceback else evidence.log_tail
    return any(words in text for text in said for words in OF_OTHERS)


def left(one: Exited, *, node: str, role: str, round: int, attempt: int) -> Failure:
    """The failure of a worker that was done before the others of its round were."""
    return Failure(
        node=node, rank=one.rank, local_rank=one.local_rank, role=role, pid=one.pid, exitcode=0, at_unix=one.at_unix,
        cause=Cause.EARLY, message=LEFT, round=round, attempt=attempt,
    )  # fmt: skip

# ruff: noqa: E501
"""Every way in which a rank can end has a sentence, and of several ends the first is named: the pure part, by ends as recorded.

`e2e/test_every_end.py` plays the same ends for real.
"""

from __future__ import annotations

from typing import Any

import pytest
from kit.stages.group_stage import running
from kit.stages.round_stage import Job, kinds

from holdfast.agent.group.messages import Ending, SignalWorkers
from holdfast.agent.group.stopping import LAST_WORDS_S
from holdfast.core.job.ends import LEFT, TRACEBACK, Exited, cause_of, in_one_line
from holdfast.core.job.events import FailureSeen
from holdfast.core.job.failure import Cause, Evidence, Failure, describe, in_order
from holdfast.core.machine import Tick
from holdfast.core.wire.messages import Failed, Stopped, Succeeded
from holdfast.diagnosis.collect import diagnose
from holdfast.rendezvous.coordinator.failure_handling import DOUBT_S
from holdfast.rendezvous.rules import Unlinked

GLOO = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2452"
PYTHON = {"booted": True, "ending": True}
NATIVE = {"booted": True}

ENDS = {
    "exception": (1, {"message": "ValueError: bad", "traceback": "Traceback"}, "exited with code 1: ValueError: bad"),
    "exception without a text": (1, {"message": "MemoryError:", "traceback": "T"}, "exited with code 1: MemoryError"),
    "exception that left no record": (1, {"last_words": "OSError: [Errno 24] Too many open files: '/x'"} | PYTHON,
                                      "exited with code 1: OSError: [Errno 24] Too many open files: '/x'"),
    "exception whose record is broken": (1, {"last_words": "ValueError: bad", "trouble": "is not JSON"}, "exited with code 1: ValueError: bad"),
    "exception of half characters": (1, {"last_words": "ValueError: \ud800"}, "exited with code 1: ValueError: \\ud800"),
    "exception as long as a book": (1, {"message": "E: " + "h" * 5000, "traceback": "T"}, f"exited with code 1: E: {'h' * 996}…"),
    "KeyboardInterrupt of its own": (-2, {"last_words": "KeyboardInterrupt"} | PYTHON, "was killed by SIGINT: KeyboardInterrupt"),
    "sys.exit(3)": (3, PYTHON, "exited with code 3: its script called sys.exit"),
    "sys.exit(text)": (1, PYTHON | {"last_line": "no data left"},
                       "exited with code 1: its script called sys.exit; its last line on stderr: no data left"),
    "os._exit(7)": (7, NATIVE, "exited with code 7: it ended without Python's own end (os._exit, exec, or native code)"),
    "exec": (9, NATIVE | {"became": "sh"}, "exited with code 9: it had become another program by exec: sh"),
    "a full disk at its last flush": (120, PYTHON, "exited with code 120: Python could not flush its output at its end (a full disk, or a closed pipe)"),
    "a program that cannot be executed": (126, {}, "exited with code 126: its program cannot be executed"),
    "a program that is not there": (127, {}, "exited with code 127: its program was not found"),
    "a shell's child": (137, {}, "exited with code 137: a shell says so of a child that SIGKILL ended"),
    "a program that is no Python": (5, {}, "exited with code 5"),
    "SIGKILL": (-9, NATIVE, "was killed by SIGKILL"),
    "SIGSEGV": (-11, NATIVE, "was killed by SIGSEGV"),
    "a real-time signal": (-40, NATIVE, "was killed by signal 40"),
    "RLIMIT_CPU": (-24, NATIVE, "was killed by SIGXCPU: it had used up its CPU time (ulimit -t)"),
    "RLIMIT_FSIZE": (-25, NATIVE, "was killed by SIGXFSZ: a file that it wrote had grown to the limit (ulimit -f)"),
    "SIGPIPE": (-13, NATIVE, "was killed by SIGPIPE: it wrote into a pipe that nobody reads any more"),
    "exit 1, and nothing else known": (1, {"trouble": "that disk does not answer"}, "exited with code 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_every_end_has_a_sentence(name: str) -> None:
    code, seen, sentence = ENDS[name]
    cause, message = cause_of(code, Evidence(**seen))
    failure = Failure(node="n1", rank=1, local_rank=0, exitcode=code, at_unix=0.0, cause=cause, message=message)
    assert describe(failure) == f"rank 1 (local 0) on n1 {sentence}"


def test_an_error_that_another_process_handed_on_is_told_by_its_own_words() -> None:
    shape = "RuntimeError: stack expects equal sizes\n  got [3]\nand [4]"
    inner = f'{TRACEBACK}:\n  File "worker.py", line 1, in loop\n    fetch()\n'
    loader = f"RuntimeError: Caught RuntimeError in DataLoader worker process 1.\nOriginal {inner}{shape}\n"
    said = "RuntimeError: Caught RuntimeError in DataLoader worker process 1. RuntimeError: stack expects equal sizes   got [3] and [4]"
    assert in_one_line(loader) == said
    pool = f'"""\n{inner}KeyError: 0\n\nDuring handling of the above exception, another exception occurred:\n\n{inner}{shape}\n"""'
    assert in_one_line(pool).endswith('""" RuntimeError: stack expects equal sizes   got [3] and [4] """')
    cut = cause_of(-15, Evidence(last_words=" ".join(loader[:150].split())))
    assert cut == (Cause.EXCEPTION, "RuntimeError: Caught RuntimeError in DataLoader worker process 1.")
    assert in_one_line(f"{TRACEBACK}:") == f"{TRACEBACK}:"


def test_what_argparse_says_is_diagnosed() -> None:
    said = PYTHON | {"last_line": "train.py: error: the following arguments are required: --lr"}
    cause, message = cause_of(2, Evidence(**said))
    found = diagnose([failure(rank, exitcode=2, cause=cause, message=message) for rank in (0, 1)])
    assert (found.rule, found.everywhere) == ("python-usage", True)


def failure(rank: int = 0, node: str = "a", **more: Any) -> Failure:
    return Failure(**{"node": node, "rank": rank, "local_rank": 0, "at_unix": 0.0, "exitcode": 1} | more)


def follower(node: str = "a") -> Failed:
    return Failed(node=node, round=1, failure=failure(node=node, cause=Cause.EXCEPTION, message=GLOO, follows=True))


@pytest.fixture
def job() -> Job:
    """Two nodes of two, in round 1."""
    job = Job()
    job.join("a", "b")
    return job


def test_what_followed_comes_after_what_it_followed_from_though_it_was_seen_first() -> None:
    those = [failure(0, follows=True, at_unix=1.0), failure(1, at_unix=2.0), failure(2, at_unix=0.0, cause=Cause.STOPPED)]
    assert [one.rank for one in in_order(those)] == [1, 0, 2]


def test_a_rank_that_left_early_is_what_failed_and_not_the_rank_whose_collective_broke(job: Job) -> None:
    job.hear(Succeeded(node="b", round=1, exited=(Exited(rank=2, local_rank=0, pid=7, at_unix=5.0),)))
    job.hear(follower())
    verdict, reason = job.decided[-1]
    assert verdict == "restart" and reason.startswith(f"rank 2 (local 0) on b {LEFT}; restarting all ranks")
    told = [event.failure for event in job.events if isinstance(event, FailureSeen)]
    assert [(one.rank, one.node, one.cause, one.exitcode) for one in told] == [(2, "b", Cause.EARLY, 0)]


@pytest.mark.parametrize("news", ["it failed", "it failed beside it", "it left early"])
def test_a_broken_collective_waits_for_the_end_that_broke_it(job: Job, news: str) -> None:
    assert job.hear(follower(), 1.0) == [] and job.machine.deadline() <= 1.0 + DOUBT_S
    node, rank = ("a", 1) if news == "it failed beside it" else ("b", 3)
    own = failure(rank, node, local_rank=1, exitcode=3)
    early = Exited(rank=3, local_rank=1, pid=7, at_unix=5.0)
    message = {
        "it failed": Failed(node="b", round=1, failure=own),
        "it failed beside it": Stopped(node="a", round=1, failures=(follower().failure, own)),
        "it left early": Succeeded(node="b", round=1, exited=(early,)),
    }[news]
    assert "Stop" in kinds(job.hear(message, 1.2))
    assert job.decided[-1][1].startswith(f"rank {rank} (local 1) on {node} exited with code ")


def test_another_that_followed_settles_nothing_and_after_a_moment_the_first_is_taken(job: Job) -> None:
    job.hear(follower("a"), 1.0)
    assert job.hear(follower("b"), 1.1) == []
    job.renew("a", "b", now=2.0)
    assert "Stop" in kinds(job.tick(1.0 + DOUBT_S))
    assert job.decided[-1][1].startswith(f"rank 0 (local 0) on a exited with code 1: {GLOO}; restarting")


def test_a_link_that_breaks_meanwhile_is_what_it_followed_from(job: Job) -> None:
    job.hear(follower("a"), 1.0)
    job.see(Unlinked(node="b"), 1.1)
    assert job.decided[-1][0] == "rejoin"


def test_a_failure_of_its_own_waits_for_nobody(job: Job) -> None:
    assert "Stop" in kinds(job.fail("a"))


def test_a_worker_whose_interpreter_ends_may_end_by_itself_before_it_is_asked_to_stop() -> None:
    stage = running()
    stage.see(Ending(local_rank=1, pid=101, at_unix=3.0))
    stage.end(0, 1, at=4.0, message=GLOO)
    assert not stage.does(SignalWorkers), "its code is still to come"
    stage.end(1, 3, at=5.0)
    (stopped,) = [message for message in stage.said if isinstance(message, Stopped)]
    assert [(one.rank, one.follows, one.at_unix) for one in in_order(stopped.failures)] == [(5, False, 3.0), (4, True, 4.0)]


def test_one_that_does_not_end_then_is_asked_and_still_was_on_its_way_out() -> None:
    stage = running()
    stage.see(Ending(local_rank=1, pid=101, at_unix=3.0))
    stage.end(0, 1, message=GLOO)
    stage.see(Tick(), LAST_WORDS_S)
    assert stage.only(SignalWorkers).local_ranks == (1,)
    stage.end(1, -15)
    (stopped,) = [message for message in stage.said if isinstance(message, Stopped)]
    assert "began to exit by itself" in describe(in_order(stopped.failures)[0])


def test_one_that_exits_with_0_because_it_was_told_to_has_not_left_early() -> None:
    stage = running()
    stage.end(0, 1, message="ValueError: bad")
    stage.end(1, 0)
    (stopped,) = [message for message in stage.said if isinstance(message, Stopped)]
    assert stopped.exited == ()


def test_a_node_tells_of_its_ranks_that_had_left_when_another_fails() -> None:
    stage = running()
    stage.end(1, 0, at=2.0)
    stage.end(0, 1, message=GLOO)
    (failed,) = [message for message in stage.said if isinstance(message, Failed)]
    assert failed.failure.follows and [(one.rank, one.at_unix) for one in failed.exited] == [(5, 2.0)]


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (failure(1, "b", exitcode=0, cause=Cause.EARLY, message=LEFT), f"rank 1 on b: {LEFT}; have all ranks make"),
        (
            failure(1, "b", exitcode=3, message="its script called sys.exit"),
            "rank 1 on b: exited with code 3: its script called",
        ),
        (failure(1, "b", cause=Cause.EXCEPTION, message="E: odd"), "rank 1 on b: exited with code 1: E: odd"),
        (failure(1, "b", exitcode=-40, cause=Cause.SIGNAL), "rank 1 on b: was killed by signal 40"),
    ],
)
def test_what_it_means_names_the_same_rank_whatever_the_others_complain_of(first: Failure, says: str) -> None:
    others = failure(0, "a", cause=Cause.EXCEPTION, message=GLOO, traceback=GLOO, follows=True)
    found = diagnose([first, others])
    assert found.sentence.startswith(says) and (found.rank, found.node) == (1, "b")

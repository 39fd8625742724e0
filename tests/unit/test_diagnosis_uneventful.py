"""What is found where no line tells of a failure: who was elsewhere, what was given, what was unlike before."""

from __future__ import annotations

import pytest

from holdfast.core.job.finding import Action, Class, Finding
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.gather import of_text
from holdfast.diagnosis.rule import load

CANCELLED = "slurmstepd: error: *** JOB 3377 ON n9 CANCELLED AT 2026-11-15T{at} ***"
WATCHDOG = (
    "[rank{rank}]:[E1109 15:30:00.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=8414, OpType={op}, NumelIn={size}, NumelOut={size}, Timeout(ms)=1800000) ran for 1800021 milliseconds"
)


def told(*lines: str) -> Finding:
    return attribute(of_text("\n".join(lines) + "\n", load()))


def steps(*losses: float, took: float = 1.2) -> list[str]:
    return [
        f"2026-11-15 05:{n:02d}:00,113 INFO train step={n} loss={loss:.4f} step_time={took:.3f}s"
        for n, loss in enumerate(losses)
    ]


def test_the_rank_that_gives_another_size_has_called_something_else() -> None:
    sizes = {0: 25557032, 1: 25557032, 2: 25557032, 3: 1}
    found = told(*(WATCHDOG.format(rank=rank, op="ALLREDUCE", size=size) for rank, size in sizes.items()))
    assert (found.kind, found.rank, found.action) == (Class.USER_CODE, 3, Action.STOP)
    assert "gave 1 values" in found.sentence


def test_sizes_may_differ_where_each_gives_what_it_likes() -> None:
    found = told(*(WATCHDOG.format(rank=rank, op="ALLTOALL_BASE", size=rank) for rank in range(4)))
    assert (found.kind, found.rank) == (Class.FABRIC, None)


def test_stacks_that_ranks_write_into_one_log_tell_who_is_elsewhere() -> None:
    waits = (
        "[rank{0}]: Timeout (0:30:00)!", "[rank{0}]: Thread 0x00007f{0}2 (most recent call first):",
        '[rank{0}]:   File "/env/site-packages/torch/distributed/distributed_c10d.py", line 2806 in all_reduce',
        '[rank{0}]:   File "/work/train.py", line 391 in step',
    )  # fmt: skip
    loads = (*waits[:2], '[rank{0}]:   File "<frozen genericpath>", line 19 in exists', waits[3])
    found = told(*(line.format(rank) for rank in range(8) for line in (loads if rank == 6 else waits)))
    assert (found.rule, found.rank) == ("stack-outlier", 6)


def test_the_rank_whose_last_line_is_another_than_all_others_is_named() -> None:
    beats = [
        f"rank={rank} step={step} phase={'backward' if (rank, step) == (6, 3) else 'allreduce_wait'}"
        for step in range(4)
        for rank in range(8)
    ]
    found = told(*beats, CANCELLED.format(at="05:14:00"))
    assert (found.rule, found.kind, found.rank) == ("last-lines", Class.UNKNOWN, 6)


def test_a_loss_that_grows_is_told_where_only_somebody_ended_it() -> None:
    found = told(*steps(2.2, 2.2, 2.1, 2.1, 2.1, 2.2, 4.5, 8.1, 10.4, 10.8, 10.8, 10.8), "KeyboardInterrupt")
    assert (found.rule, found.kind, found.action) == ("uneventful", Class.DATA, Action.ASK)
    assert "grown from 2.1 to 10.8" in found.sentence
    assert told(*steps(*[2.2 - n / 100 for n in range(12)]), "KeyboardInterrupt").kind == Class.PREEMPTED


def test_silence_before_somebody_ended_it_is_a_hang() -> None:
    ordinary = steps(*[2.2] * 12)
    assert told(*ordinary, CANCELLED.format(at="05:12:30")).kind == Class.PREEMPTED
    found = told(*ordinary, CANCELLED.format(at="06:40:00"))
    assert found.kind == Class.UNKNOWN and "nothing was written for 89 minutes" in found.sentence


def test_steps_that_become_slow_are_told() -> None:
    slow = [line.replace("step_time=1.200", "step_time=60.000") for line in steps(*[2.2] * 6)]
    found = told(*steps(*[2.2] * 6), *slow, CANCELLED.format(at="05:12:30"))
    assert "50 times as long" in found.sentence


def test_a_step_that_is_cancelled_after_a_task_has_failed_is_not_the_cause() -> None:
    found = told(
        "2: Traceback (most recent call last):",
        '2:   File "/work/train.py", line 9, in <module>',
        "2: OSError: [Errno 40] Too many levels of symbolic links: '/data/current'",
        "srun: error: n3: task 2: Exited with exit code 1",
        "srun: Terminating StepId=8812.0",
        "slurmstepd: error: *** STEP 8812.0 ON n1 CANCELLED AT 2026-11-15T05:14:00 ***",
    )
    assert (found.kind, found.rank) == (Class.USER_CODE, 2)


def test_who_only_complains_of_another_is_not_to_blame() -> None:
    found = told(
        "[rank2]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
    )
    assert (found.kind, found.rank) == (Class.UNKNOWN, None)


def test_of_several_nodes_ranks_a_local_one_is_that_which_says_what_failed() -> None:
    found = told(
        "[rank1]: step 1",
        "Oct 30 04:46:04 b12 kernel: Memory failure: 0xa3f: Sending SIGBUS to python:88213 due to hardware memory corruption",
        "[rank19]: Fatal Python error: Bus error",
        "E1030 04:46:04.9 1201 torch/distributed/elastic/multiprocessing/api.py:874] "
        "failed (exitcode: -7) local_rank: 3 (pid: 88213) of binary: /opt/venv/bin/python",
    )  # fmt: skip
    assert found.rank == 19


@pytest.mark.parametrize(("fit", "broken", "kind"), [(0, 8, Class.DATA), (4, 3, Class.DATA), (6, 1, Class.UNKNOWN)])
def test_gradients_that_are_no_number_are_told_too(fit: int, broken: int, kind: Class) -> None:
    """One alone may be a step that was left out."""
    norms = ["0.7"] * fit + ["nan"] * broken
    lines = [f"{{'loss': 0.5, 'grad_norm': {norm}, 'epoch': {n / 100}}}" for n, norm in enumerate(norms)]
    found = told(*lines, "KeyboardInterrupt")
    assert (found.kind == Class.DATA) == (kind == Class.DATA), found


def test_the_rank_that_only_tells_of_its_work_is_missed_where_the_others_wait() -> None:
    waits = (WATCHDOG.format(rank=rank, op="ALLREDUCE", size=64) for rank in (0, 1, 2))
    found = told("[rank3]: waited 41.0 s for data", *waits)
    assert (found.kind, found.rank) == (Class.UNKNOWN, 3)

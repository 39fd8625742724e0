"""An error that a program logged and lived through is not the one that ended it, wherever both stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.job.failure import Failure
from holdfast.core.job.finding import Finding
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.collect import diagnose
from holdfast.diagnosis.gather import gather, of_text
from holdfast.diagnosis.logs.prefix import Speaker
from holdfast.diagnosis.precedence import LIVED_ON
from holdfast.diagnosis.rule import load

SKIPPED = [
    "ERROR:data:sample could not be decoded, it is skipped",
    "Traceback (most recent call last):",
    '  File "/workspace/data.py", line 31, in get',
    "OSError: image file is truncated (3 bytes not processed)",
]
ENDED = [
    "Traceback (most recent call last):",
    '  File "/workspace/train.py", line 88, in <module>',
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
]
QUIET = ["reading the next shard"] * (LIVED_ON + 1)
"""Nothing that tells of progress."""


def written(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def judged(*paths: str) -> Finding:
    return attribute(gather(paths, load()))


def test_in_a_rank_s_own_file_the_error_at_its_end_counts(tmp_path: Path) -> None:
    found = judged(written(tmp_path / "rank_3.log", *SKIPPED, *QUIET, *ENDED))
    assert (found.kind, found.rank) == ("oom-gpu", 3)


def test_of_two_ranks_files_the_error_at_an_end_counts(tmp_path: Path) -> None:
    paths = written(tmp_path / "rank_0.log", *SKIPPED, *QUIET), written(tmp_path / "rank_1.log", *QUIET, *ENDED)
    found = judged(*paths)
    assert (found.kind, found.rank) == ("oom-gpu", 1)


def test_in_a_file_of_many_ranks_a_rank_s_own_lines_are_counted(tmp_path: Path) -> None:
    told = [f"[rank2]: {line}" for line in (*SKIPPED, *QUIET)] + [f"[rank5]: {line}" for line in ENDED]
    found = judged(written(tmp_path / "console.log", *told))
    assert (found.kind, found.rank) == ("oom-gpu", 5)


def test_lines_of_others_do_not_tell_that_it_lived(tmp_path: Path) -> None:
    told = [f"[rank2]: {line}" for line in ENDED] + [f"[rank5]: {line}" for line in (*QUIET, *SKIPPED)]
    found = judged(written(tmp_path / "console.log", *told))
    assert (found.kind, found.rank) == ("oom-gpu", 2)


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_an_error_that_was_caught_and_logged_is_not_the_one_that_was_not(tmp_path: Path, prefix: str) -> None:
    lines = [prefix + line for line in (*SKIPPED, "reading", *ENDED)]
    assert judged(written(tmp_path / "rank_3.log", *lines)).kind == "oom-gpu"
    both = [prefix + line for line in ("CRITICAL:root:gave up", *ENDED, *SKIPPED, *ENDED)]
    assert judged(written(tmp_path / "rank_3.log", *both)).kind == "oom-gpu", "logged, and raised again"


GLOG = "W1127 09:10:11.000000 123 torch/_inductor/utils.py:1250] "


def test_what_torch_told_as_a_warning_is_not_why_the_job_ended(tmp_path: Path) -> None:
    lines = [GLOG + line for line in SKIPPED[1:]]
    assert judged(written(tmp_path / "warned.log", *lines, "reading", *ENDED[:2], "ValueError: bad mix")).rule == "python-value"
    raised = judged(written(tmp_path / "own.log", *SKIPPED[1:]))
    assert judged(written(tmp_path / "again.log", *lines, *SKIPPED[1:])).confidence == raised.confidence
    assert judged(written(tmp_path / "alone.log", *lines)).kind == "data", "where nothing else is known"


def test_the_line_of_a_launcher_s_box_that_tells_of_a_signal_is_nobody_s_word(tmp_path: Path) -> None:
    box = [*BOX.replace("-9", "-15").splitlines(), "  traceback : Signal 15 (SIGTERM) received by PID 4711"]
    found = judged(written(tmp_path / "console.log", *box))
    assert (found.kind, found.rank, found.node) == ("preempted", 2, "n7") and "SIGTERM" in found.sentence


def test_of_two_errors_in_one_file_the_first_is_the_cause(tmp_path: Path) -> None:
    first, then = "KeyError: 'input_ids'", "AttributeError: 'Loader' object has no attribute 'workers'"
    told = [f"[rank{rank}]: {line}" for rank, end in ((2, first), (5, then)) for line in (*ENDED[:2], end)]
    found = judged(written(tmp_path / "console.log", *told))
    assert (found.rule, found.rank) == ("python-key", 2)


def test_where_nothing_else_is_known_an_error_in_the_middle_is_the_cause(tmp_path: Path) -> None:
    assert judged(written(tmp_path / "rank_3.log", *SKIPPED, *QUIET)).kind == "data"


def test_progress_tells_it_sooner_in_the_end_of_a_log_too() -> None:
    lines = (*SKIPPED, "step 12: loss 2.1", "step 13: loss 2.0", *ENDED)
    evidence = of_text("\n".join(lines), load(), source="stderr.log", speaker=Speaker(rank=3))
    assert {one.rule.kind for one in evidence.sightings if one.recovered} == {"data"}
    assert attribute(evidence).kind == "oom-gpu"


@pytest.mark.parametrize("kernel", [False, True])
def test_a_worker_ended_by_the_exception_that_left_it_and_not_by_what_it_had_logged(kernel: bool) -> None:
    below = ["NVRM: Xid (PCI:0000:17:00): 79, pid=4711, GPU has fallen off the bus."] if kernel else []
    failure = Failure(
        node="n", rank=1, local_rank=1, exitcode=1, at_unix=1.0, cause="exception", message=ENDED[-1],
        traceback="\n".join(ENDED), log_tail=(*SKIPPED, *below, *ENDED), log_path="/logs/stderr.log",
    )  # fmt: skip
    found = diagnose([failure])
    assert found.kind == ("gpu" if kernel else "oom-gpu"), found
    assert found.evidence[0].line == 0, "of the end of a log nobody knows the line's number"


def timeouts(*ranks: int) -> list[str]:
    """What torch's watchdog says on each of them."""
    said = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=47, OpType=ALLREDUCE, Timeout(ms)=600000)"
    return [f"[rank{rank}]:[E0304 05:06:07.{rank:09d} ProcessGroupNCCL.cpp:629] [Rank {rank}] {said}" for rank in ranks]


def test_the_exception_of_the_rank_that_all_waited_for_says_more_than_that_they_waited(tmp_path: Path) -> None:
    raised = "[rank2]: RuntimeError: an error that no rule knows"
    found = judged(written(tmp_path / "console.log", raised, *timeouts(0, 1, 3)))
    assert (found.rule, found.rank) == ("python-runtime", 2)
    assert judged(written(tmp_path / "quiet.log", "[rank2]: loading", *timeouts(0, 1, 3))).rule == "waited-for"


BOX = """Root Cause (first observed failure):
[0]:
  host      : n7
  rank      : 2 (local_rank: 2)
  exitcode  : -9 (pid: 4711)"""


MPIRUN = "mpirun noticed that process rank 2 with PID 4711 on node n7 exited on signal 9 (Killed)."


@pytest.mark.parametrize("told", [BOX, MPIRUN])
def test_that_the_rank_that_all_waited_for_was_killed_says_more_than_that_they_waited(tmp_path: Path, told: str) -> None:
    found = judged(written(tmp_path / "console.log", "[rank2]: loading", *timeouts(0, 1, 3), *told.splitlines()))
    assert (found.kind, found.rank, found.node) == ("oom-host", 2, "n7") and "SIGKILL" in found.sentence


def test_what_all_ranks_say_is_everybody_s_though_some_lines_name_ranks_and_others_places(tmp_path: Path) -> None:
    failed = [f"[default{local}]:ValueError: no such preset" for local in range(4)]
    aside = [f"[default{local}]:[rank{local}]:[W0304 05:06:09.0 TCPStore.cpp:106] Broken pipe" for local in range(4)]
    found = judged(written(tmp_path / "n7.log", *failed, *aside, *BOX.replace("-9", "1").splitlines()))
    assert found.everywhere and found.rank is None


@pytest.mark.parametrize(
    "event",
    [
        "60s         Warning   NodeNotReady   pod/train-worker-2   Node is not ready",
        "2s  Normal  TaintManagerEviction  taint-eviction-controller  Marking for deletion Pod train/job-worker-2",
    ],
)
def test_an_event_of_kubernetes_names_whose_it_is(tmp_path: Path, event: str) -> None:
    others = [f"[pod/train-worker-{rank}/main] ncclRemoteError: A call failed" for rank in (0, 1)]
    found = judged(written(tmp_path / "events.log", event, *others))
    assert (found.kind, found.rank) == ("node-lost", 2)


def test_a_pod_whose_probe_failed_is_started_again(tmp_path: Path) -> None:
    event = "Normal  Killing  33s  kubelet  Container trainer failed liveness probe, will be restarted"
    assert judged(written(tmp_path / "events.log", event)).action == "restart"

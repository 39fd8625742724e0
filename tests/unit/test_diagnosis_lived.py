"""An error that a program logged and lived through is not the one that ended it, wherever both stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.failure import Failure
from holdfast.core.finding import Finding
from holdfast.diagnosis.attribute import LIVED_ON, attribute
from holdfast.diagnosis.collect import diagnose
from holdfast.diagnosis.gather import gather, of_text
from holdfast.diagnosis.prefix import Speaker
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

"""Where no rule is sure, the words of the log count: what they speak for was learned, and overrules nothing that is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit import KIT

from holdfast.core.job.finding import CLASSES, Class, Finding, Quote
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.gather import gather, of_text
from holdfast.diagnosis.opinions.learned_words import distinct, features, weighed
from holdfast.diagnosis.rule import load

MESSAGES = KIT / "logs" / "failure_messages"
STORAGE = ("frobd: cannot write shard 7: the bucket refused the upload, the filesystem is full",)


def found(kind: Class, confidence: float, rule: str = "words", **more: object) -> Finding:
    return Finding(kind=kind, confidence=confidence, rule=rule, sentence="it failed", advice="see", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("frobd: cannot write shard 7: the bucket refused the upload, the filesystem is full", Class.STORAGE),
        ("frobd: worker evicted: the queue reclaimed the spot capacity for a job of higher priority", Class.PREEMPTED),
        ("frobd: accelerator 3 failed: uncorrectable ECC in HBM, the device must be reset", Class.GPU),
    ],
)
def test_a_message_that_no_rule_knows_is_of_the_class_that_its_words_speak_for(line: str, kind: Class) -> None:
    told = attribute(of_text(f"step 7 loss 1.2\n{line}\n", load()))
    assert told.kind == kind and 0 < told.confidence < 0.9, told


def test_what_decided_is_said_and_the_likeliest_classes_are_shown() -> None:
    told = weighed(found(Class.UNKNOWN, 0.0, rule=""), STORAGE)
    assert told.rule == "learned-words" and told.kind == Class.STORAGE and told.likely[0][0] == Class.STORAGE
    assert "by its words (" in told.sentence and "upload" in told.sentence and told.sentence.endswith(told.advice)


def test_a_rule_that_is_sure_is_not_doubted_nor_one_that_says_that_nobody_can_know() -> None:
    for known in (found(Class.USER_CODE, 0.92, rule="python-key"), found(Class.UNKNOWN, 0.6, rule="waited-for")):
        assert weighed(known, STORAGE) == known


def test_a_rule_that_is_less_sure_gives_way_to_plain_words_and_else_says_less() -> None:
    assert weighed(found(Class.USER_CODE, 0.75), STORAGE).kind == Class.STORAGE
    told = weighed(found(Class.USER_CODE, 0.75), ("the frobnicator failed: port lost",))
    assert told.kind == Class.USER_CODE and told.confidence < 0.7
    assert weighed(found(Class.STORAGE, 0.75), STORAGE).confidence == 0.75


HARMLESS = "UserWarning: The given NumPy array is not writable, and PyTorch does not support non-writable tensors\n"


def test_a_warning_is_no_failure_and_overrules_no_known_end() -> None:
    assert attribute(of_text(f"step 1\n{HARMLESS}step 2\nTraining finished\n", load())).kind == Class.UNKNOWN
    ended = found(Class.OOM_HOST, 0.55, rule="", evidence=(Quote(text="exit code -9"),))
    assert weighed(ended, (HARMLESS,)) == weighed(ended, STORAGE) == ended


RAISED = 'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    f(x)\nValueError: bad\n'


@pytest.mark.parametrize(
    "line",
    [
        "INFO data: worker 3 was requested to terminate",
        "ERROR aws: curlCode: 28, Timeout was reached",
        "W Resource exhausted: Ran out of memory, will try smaller",
    ],
)
def test_what_was_survived_takes_no_blame_from_what_was_raised(line: str) -> None:
    assert attribute(of_text(f"{line}\nstep 4\n{RAISED}", load())).kind == Class.USER_CODE


@pytest.mark.parametrize("line", ["ERROR Failed to connect, retry count = 3", "cannot open /data/x, retry count 3 of 5"])
def test_what_is_tried_again_is_no_failure(line: str) -> None:
    assert attribute(of_text(f"{line}\nstep 3\n", load())).kind == Class.UNKNOWN


def test_of_many_logs_the_words_of_the_one_that_failed_count(tmp_path: Path) -> None:
    (tmp_path / "rank_0.log").write_text(f"step 7\n{STORAGE[0]}\nRuntimeError: frobd has ended\n")
    for number in range(1, 81):
        name = "".join("abcdefghij"[int(digit)] for digit in str(number))
        (tmp_path / f"rank_{number}.log").write_text(f"step 7\nfrob.{name} is not set, the default is taken\n")
    assert STORAGE[0] in gather([str(tmp_path)], load()).said


def test_numbers_make_no_difference_and_parts_of_names_count() -> None:
    assert distinct(["node 7 lost", "gone", "node 8 lost"]) == ("gone", "node 8 lost")
    assert features(["DiskQuotaError on 12"]) == {"diskquotaerror", "on", "diskquotaerror on", "disk", "quota", "error"}


@pytest.mark.parametrize("file", sorted(MESSAGES.glob("*.jsonl")), ids=lambda file: file.stem)
def test_each_message_that_is_learned_from_has_a_class_and_stands_there_once(file: Path) -> None:
    told = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert {one["class"] for one in told} <= CLASSES.keys() and all(set(one) == {"class", "text"} for one in told)
    assert len({one["text"] for one in told}) == len(told)


def test_what_stands_above_all_progress_or_follows_from_another_s_failure_is_no_word_of_it() -> None:
    log = (
        "export TORCH_NCCL_ASYNC_ERROR_HANDLING=1\n"
        "cannot find nvidia-smi, falling over to lspci: device missing\n"
        "step 7 loss 1.2\n"
        f"{STORAGE[0]}\n"
        "[rank1]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:911\n"
    )
    assert of_text(log, load()).said == STORAGE

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from holdfast.core.job.failure import Failure
from holdfast.core.job.finding import Finding, Quote
from holdfast.core.job.report import JobReport
from holdfast.telemetry.report import report_text as module
from holdfast.telemetry.report.phrasing import ranges, span
from holdfast.telemetry.report.report_text import MOST_LINES, report_from_json, report_json, report_text, terminal

STACK = 'Traceback (most recent call last):\n  File "train.py", line 8, in <module>\n    step()\nRuntimeError: boom\n'


def failure(rank: int, **given: Any) -> Failure:
    known = {"node": f"gpu-{rank // 8:02}", "rank": rank, "local_rank": rank % 8, "pid": 4700 + rank, "at_unix": 1795209654.0}
    return Failure(**(known | given))


def stopped(rank: int, **given: Any) -> Failure:
    return failure(rank, **({"exitcode": -15, "cause": "stopped", "at_unix": 1795209655.0} | given))


def report(*failures: Failure, **given: Any) -> JobReport:
    known = {"job": "lm-7b", "outcome": "failed", "exit_code": 1, "failures": failures, "restarts_used": 3, "max_restarts": 3}
    known |= {"rounds": 4, "started_at_unix": 1795201674.0, "ended_at_unix": 1795209656.0, "reason": "the restarts are used up"}
    return JobReport(**(known | {"nodes": ("gpu-00", "gpu-01")} | given))


BOOM = failure(
    3, exitcode=1, cause="exception", message="RuntimeError: boom", traceback=STACK, attempt=3, round=4,
    log_path="/logs/attempt_3/3/stderr.log", log_tail=("step 99", *STACK.splitlines(), "bye"),
)  # fmt: skip


def test_a_report_reads_from_the_cause_to_the_decision():
    others = [stopped(rank) for rank in range(16) if rank != 3]
    assert report_text(report(BOOM, *others), width=120).splitlines() == [
        "holdfast: job lm-7b failed: rank 3 (local 3) on gpu-00 exited with code 1: RuntimeError: boom",
        "First failure",
        "  rank 3 (local 3) on gpu-00 · pid 4703 · exit code 1 · at 2026-11-20 21:20:54 UTC · attempt 3, round 4",
        '  File "train.py", line 8, in <module>',
        "    step()",
        "Last lines of its log",
        "  │ step 99",
        "  │ (its traceback)",
        "  │ bye",
        "  all of it: gpu-00:/logs/attempt_3/3/stderr.log",
        "After it",
        "  ranks 0-2, 4-15 on gpu-00, gpu-01: stopped by us after that (SIGTERM)",
        "Decision",
        "  gave up: the restarts are used up · 4 rounds on 2 nodes in 2 h 13 min · exit code 1",
        "  the whole story: holdfast report lm-7b",
    ]


def test_other_failures_are_told_apart_from_those_we_stopped():
    text = report_text(
        report(
            failure(3, exitcode=-9, cause="signal"),
            failure(9, exitcode=-6, cause="signal", at_unix=1795209654.25),
            stopped(1),
            stopped(2, exitcode=-9),
            stopped(4, exitcode=1),
        )
    )
    assert "  rank 9 (local 1) on gpu-01, 0.25 s later: was killed by SIGABRT\n" in text
    assert "  rank 1 (local 1) on gpu-00: stopped by us after that (SIGTERM)\n" in text
    assert "  rank 2 (local 2) on gpu-00: stopped by us after that (SIGKILL: it did not end in time)\n" in text
    assert "  rank 4 (local 4) on gpu-00: stopped by us after that (exit code 1)\n" in text


def test_a_signal_that_nobody_here_sent_is_explained():
    assert "out-of-memory killer" in report_text(report(failure(3, exitcode=-9, cause="signal")))
    watchdog = failure(3, exitcode=-9, cause="watchdog", message="timer 'forward' expired after 30 s")
    text = report_text(report(watchdog))
    assert "out-of-memory" not in text and "rank 3 (local 3) on gpu-00 timer 'forward' expired" in text


def test_a_lost_node_is_named_and_has_no_rank():
    lost = failure(-1, node="gpu-07", pid=-1, exitcode=None, cause="node_lost", message="silent for 3.0 s")
    text = report_text(report(lost, failure(-1, node="gpu-08", cause="node_lost", message="silent for 3.0 s"), stopped(1)))
    assert text.startswith("holdfast: job lm-7b failed: node gpu-07 was lost: silent for 3.0 s\n")
    assert "  node gpu-08: lost: silent for 3.0 s\n" in text and "rank -1" not in text


def test_without_any_evidence_it_says_how_to_have_some():
    assert "no traceback is known, and its output was not kept; with --tee 3" in report_text(report(failure(3, exitcode=7)))
    crashed = report_text(report(failure(3, exitcode=-11, cause="signal")))
    assert "its output says where it crashed, but was not kept; with --tee 3" in crashed
    empty = failure(3, exitcode=7, log_path="/logs/3/stderr.log")
    assert "no traceback is known, and its log is empty: /logs/3/stderr.log" in report_text(report(empty))


@pytest.mark.parametrize("code", [1, -9])
def test_what_is_wrong_with_an_error_file_is_said_in_a_line(code: int):
    trouble = "error file /logs/error.json is not JSON: Expecting value"
    text = report_text(report(failure(3, exitcode=code, cause="signal" if code < 0 else "exit", trouble=trouble)))
    assert text.count(trouble) == 1 and f"\n  {trouble}\n" in text


def test_a_stop_from_outside_blames_nobody():
    text = report_text(report(stopped(0), stopped(1), outcome="stopped", reason="received SIGTERM", max_restarts=0))
    assert text.splitlines()[0] == "holdfast: job lm-7b was stopped: received SIGTERM"
    assert "First failure" not in text and "restart" not in text, "restarts have nothing to do with it"
    assert "  ranks 0-1 on gpu-00: stopped by us after that (SIGTERM)" in text


def test_the_decision_does_not_say_the_failure_again():
    reason = "rank 3 (local 3) on gpu-00 exited with code 1: RuntimeError: boom; it is not worth another try"
    assert "  gave up: it is not worth another try · 3 of 3 restarts used · " in report_text(
        report(BOOM, reason=reason), width=200
    )


def test_a_success_is_silent_unless_it_took_more_than_one_round():
    assert report_text(report(outcome="succeeded", exit_code=0, restarts_used=0, rounds=1)) == ""
    text = report_text(
        report(outcome="succeeded", exit_code=0, restarts_used=1, rounds=2, reason="all workers exited with 0")
    )
    assert text.startswith("holdfast: job lm-7b succeeded after 1 restart in 2 rounds\n") and "First failure" not in text


def test_a_success_without_some_names_those_that_it_carried_on_without():
    text = report_text(report(BOOM, outcome="succeeded", exit_code=0, restarts_used=0, rounds=1, reason="2 nodes succeeded"))
    assert text.startswith("holdfast: job lm-7b succeeded after 0 restarts, though rank 3 (local 3) on gpu-00 exited")
    assert "First failure" in text and "finished: 2 nodes succeeded" in text


def test_a_worker_cannot_rewrite_the_terminal_or_forge_a_line():
    evil = "\x1b]0;owned\x07\x1b[2J\r\nholdfast: job succeeded \u202eevil"
    text = report_text(report(
        failure(3, exitcode=1, cause="exception", message=evil, traceback=evil, log_tail=(evil,), log_path=evil, node="n\x1b"),
        job="j\x07", reason=evil,
    ))  # fmt: skip
    assert not any(char in text for char in "\x1b\x07\r\u202e")
    assert sum(line.startswith("holdfast: ") for line in text.splitlines()) == 1


def test_colours_of_the_worker_are_dropped_and_ours_are_only_for_a_terminal():
    red = failure(3, exitcode=1, log_path="/x", log_tail=("\x1b[31mError\x1b[0m: bad",))
    assert "  │ Error: bad\n" in report_text(report(red))
    assert "\x1b[2m  │ Error: bad\x1b[0m\n" in report_text(report(red), colour=True)


def test_many_different_failures_do_not_bury_the_first():
    text = report_text(report(BOOM, *(failure(rank, exitcode=rank) for rank in range(10, 60))))
    assert "  … and 46 more\n" in text


def test_it_fits_a_terminal_whatever_there_is_to_tell():
    tail = tuple(f"line {number}" for number in range(40))
    root = failure(3, exitcode=-9, cause="signal", traceback=STACK, trouble="odd", log_path="/l", log_tail=tail)
    found = Finding(kind="user-code", confidence=0.95, rule="r", sentence="the script divides by zero; " * 9)
    lines = report_text(report(root, *(failure(rank, exitcode=rank) for rank in range(4, 900))), found).splitlines()
    assert len(lines) == MOST_LINES and "  │ line 39" in lines and "  │ line 0" not in lines


def test_ranks_that_failed_alike_are_said_to_have():
    others = [failure(rank, exitcode=1, cause="exception", message="RuntimeError: boom") for rank in range(4, 8)]
    assert "\n  ranks 4-7 on gpu-00: the same\n" in report_text(report(BOOM, *others))


def test_the_short_one_says_who_failed_and_what_was_decided():
    lines = report_text(report(BOOM, stopped(1)), brief=True).splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [lines[0], "Decision"] and "rank 3 (local 3)" in lines[0]


def test_paths_are_never_broken_by_a_narrow_terminal():
    path = "/very/long/" + "x" * 100 + "/stderr.log"
    assert f"gpu-00:{path}" in report_text(report(failure(3, exitcode=7, log_path=path, log_tail=("a",))), width=50)


def test_the_report_for_programs_has_the_sentence_too():
    content = json.loads(json.dumps(report_json(report(BOOM, stopped(1)))))
    assert content["schema"] == module.SCHEMA and content["job"] == "lm-7b" and content["duration_s"] == 7982.0
    assert content["first_failure"]["rank"] == 3 and content["first_failure"]["traceback"] == STACK
    assert content["failures"][1]["signal"] == "SIGTERM" and content["summary"].startswith("job lm-7b failed: rank 3")


def test_the_report_for_programs_says_the_cause_and_which_line_says_so():
    quotes = (Quote(text="NameError: name 'x' is not defined", source="/logs/1/stderr.log", rank=1), Quote(text="more"))
    found = Finding(sentence="rank 1: a name", kind="user-code", confidence=0.95, rule="python-name", rank=1, evidence=quotes)
    cause = json.loads(json.dumps(report_json(report(BOOM), found)))["cause"]
    assert (cause["sentence"], cause["kind"], cause["rank"]) == ("rank 1: a name", "user-code", 1)
    assert [(one["source"], one["text"]) for one in cause["from"]] == [("/logs/1/stderr.log", quotes[0].text)]
    assert report_json(report(BOOM))["cause"] is None


@pytest.mark.parametrize(("confidence", "title"), [(0.58, "Likely cause"), (0.7, "Cause")])
def test_a_cause_that_is_not_sure_is_called_likely(confidence: float, title: str):
    found = Finding(kind="user-code", sentence="rank 3 on gpu-00: a kernel used an illegal address", confidence=confidence)
    assert f"\n{title}\n  rank 3 on gpu-00: a kernel used an illegal address" in report_text(report(BOOM), found)


def test_a_file_is_no_terminal():
    assert terminal(io.StringIO()) == (100, False)


@pytest.mark.parametrize(
    ("numbers", "said"), [([], ""), ([5], "5"), ([3, 1, 2, 7], "1-3, 7"), ([0, 2, 4], "0, 2, 4"), ([1, 1], "1")]
)
def test_ranks_are_said_as_ranges(numbers: list[int], said: str):
    assert ranges(numbers) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-1, "0 s"),
        (0.25, "0.25 s"),
        (42, "42 s"),
        (59.7, "1 min"),
        (785, "13 min 5 s"),
        (7982, "2 h 13 min"),
        (360000, "4 d 4 h"),
    ],
)
def test_times_are_said_in_two_units(seconds: float, said: str):
    assert span(seconds) == said


def test_a_report_on_disk_is_the_report_again():
    ended = report(BOOM, stopped(4))
    assert report_from_json(json.dumps(report_json(ended))) == ended


@pytest.mark.parametrize("text", ["", "{", "[]", '{"failures": 1}', '{"failures": [], "job": "j"}'])
def test_what_is_no_report_is_none(text):
    assert report_from_json(text) is None
    assert report_from_json(json.dumps(report_json(report()) | {"exit_code": "no"})) is None

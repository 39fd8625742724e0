"""`holdfast doctor`: what it says about a host that has everything, lacks something, or hangs."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.node import doctor
from holdfast.runtime.hardware import capabilities
from holdfast.runtime.process import process
from holdfast.runtime.process.safe_probes import DEGRADED, HAVE, MISSING, Fact, ask

PATIENCE_S = 60.0


def test_a_line_for_each_question_and_an_exit_code_for_scripts(holdfast: Any) -> None:
    done = holdfast.run("doctor")
    assert done.returncode == 0, done.output
    lines = {line[10:].split("  ")[0].strip(): line.split()[0] for line in done.stdout.splitlines() if line[:1].strip()}
    wanted = {"python", "pidfd", "memfd", "robust mutex", "subreaper", "/dev/shm", "ptrace", "cgroup", "open files"}
    wanted |= {"host name", "nameservers", "ports", "gpus", "torch", "state directory"}
    assert wanted <= lines.keys() and {lines[name] for name in wanted} <= {HAVE, DEGRADED, MISSING}


def test_json_says_the_same(holdfast: Any) -> None:
    done = holdfast.run("doctor", "--json")
    said = json.loads(done.stdout)
    assert said["fit"] is True and done.returncode == 0
    facts = {fact["name"]: fact for fact in said["facts"]}
    assert facts["python"]["state"] == HAVE and facts["ports"]["required"]
    assert all(fact["means"] or fact["advice"] for fact in said["facts"] if fact["state"] != HAVE)


def test_py_spy_is_there_where_its_program_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert capabilities.py_spy({"PATH": "/nonexistent"}).state == DEGRADED
    (tmp_path / "py-spy").write_text("#!/bin/sh\n")
    (tmp_path / "py-spy").chmod(0o755)
    assert capabilities.py_spy({}).found == str(tmp_path / "py-spy")


def test_a_nameserver_that_does_not_answer_is_told_with_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(capabilities.socket, "getnameinfo", lambda *of: answers.wait())
    fact = capabilities.name_servers(0.01)
    answers.set()
    assert fact.state == DEGRADED and fact.found == "no answer within 0.01 s about 127.0.0.1" and "restart" in fact.means
    assert capabilities.name_servers(PATIENCE_S).state == HAVE


def test_it_leaves_nothing_in_the_state_directory(holdfast: Any) -> None:
    holdfast.run("doctor")
    assert holdfast.jobs() == []


def test_a_question_that_hangs_is_given_up_and_the_others_are_answered(wait_until: Callable[..., Any], tmp_path: Path) -> None:
    def hang() -> Fact:
        if os.fork() == 0:
            (tmp_path / "pid").write_text(str(os.getpid()))
            os.read(os.pipe()[0], 1)
        os.read(os.pipe()[0], 1)
        raise AssertionError("never")

    good = Fact(name="good", state=HAVE, found="well")

    def when_the_other_hangs() -> Fact:
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        return good

    facts = ask({"bad": hang, "good": when_the_other_hangs}, 2.0)
    assert facts[1] == good and facts[0].state == DEGRADED and "no answer within 2 s" in facts[0].found
    wait_until(lambda: process.dying(int((tmp_path / "pid").read_text())) is not None or _is_gone(tmp_path))


def _is_gone(folder: Path) -> bool:
    return not Path("/proc", (folder / "pid").read_text()).exists()


def test_a_question_that_crashes_costs_only_itself() -> None:
    facts = ask({"bad": lambda: Fact(**json.loads("{}")), "killed": lambda: os.kill(os.getpid(), 9)}, PATIENCE_S)  # type: ignore[arg-type,return-value]
    assert [(fact.name, fact.state) for fact in facts] == [("bad", DEGRADED), ("killed", DEGRADED)]
    assert "-9" in facts[1].found


def test_something_required_that_is_missing_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = Fact(
        name="ports", state=MISSING, found="no loopback", means="nothing runs", advice="ip link set lo up", required=True
    )
    monkeypatch.setattr(doctor, "every_check", lambda environ: {"ports": lambda: gone})
    monkeypatch.setattr(doctor, "state_home", lambda environ: "/dev/null/state")
    monkeypatch.setenv("HOLDFAST_SPARE_FOLDERS", "/dev/null")
    options = type("Options", (), {"json": False, "deadline": PATIENCE_S})()
    assert doctor.run(options) == 1
    said = capsys.readouterr().out
    assert (
        "missing" in said and "do: ip link set lo up" in said and "jobs cannot run here: ports, state directory missing" in said
    )


def test_little_shared_memory_is_said_with_what_to_do() -> None:
    fact = capabilities.shared_memory(enough_bytes=1 << 60)
    assert fact.state == DEGRADED and "--shm-size" in fact.advice and "MiB" in fact.found
    assert capabilities.shared_memory("/nonexistent").state == DEGRADED


def test_without_pidfd_it_says_what_is_used_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "pidfd_open", lambda pid: None)
    assert capabilities.pidfd().state == DEGRADED and "SIGCHLD" in capabilities.pidfd().means


def test_a_state_directory_that_cannot_be_written_is_degraded(tmp_path: Path) -> None:
    fact = doctor.state_directory("/dev/null/state")
    assert fact.state == DEGRADED and "HOLDFAST_STATE_DIR" in fact.advice
    assert doctor.state_directory(str(tmp_path / "home")).state == HAVE


def test_a_package_that_holdfast_needs_is_missing_another_only_degraded() -> None:
    assert capabilities.package("no-such", "no_such_module", "m", required=True).state == MISSING
    assert capabilities.package("no-such", "no_such_module", "m").advice == "pip install no-such"

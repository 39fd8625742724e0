"""`holdfast jobs`, `status`, `why`, `events`, `report` and `stop`: from the files and the agents' sockets alone.

Most jobs here are made up: recorded by the recorder itself, with an agent's socket in a thread. The last tests hold the same
commands to a job that really runs.
"""

from __future__ import annotations

import json
import os
import re
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.agent.control.control_socket import ControlSocket
from holdfast.cli import choose
from holdfast.cli.main import main
from holdfast.core.job.events import (
    AgentStarted,
    CoordinatorFound,
    Decided,
    Event,
    FailureSeen,
    JobEnded,
    JoinRequested,
    RoundFormed,
    WorkerExited,
    WorkerStarted,
)
from holdfast.core.job.failure import Failure
from holdfast.telemetry.record.io_thread import IoThread
from holdfast.telemetry.record.recorder import Recorder
from holdfast.telemetry.record.state_dir import open_job

REASON = "rank 1 (local 0) on n2 was killed by SIGKILL; restarting all ranks (2 of 3 restarts left)"
PATIENCE_S = 60.0


class Agent:
    """One node's agent, as far as files and socket go. It leaves when it is asked to stop, unless it is `deaf`."""

    def __init__(self, home: Path, job: str, node: str, *, began: float = 1_790_000_000.0, alone: bool = False) -> None:
        self.job = open_job(str(home), job, node, alone=alone)
        self.recorder = Recorder(self.job.events_path, self.job.node, io_thread=IoThread(patience_s=PATIENCE_S))
        self.recorder.flush()
        self.now, self.round, self.attempt = began, 0, 0
        self.asked: list[dict[str, Any]] = []
        self.is_deaf = False
        self._thread: threading.Thread | None = None
        self._wake, self._wake_end = os.pipe()

    @property
    def node(self) -> str:
        return self.job.node

    def saw(self, *events: Event, at: float | None = None) -> Agent:
        for event in events:
            self.now = self.now + 1.0 if at is None else at
            self.recorder.record(event, at_unix=self.now, round=self.round, attempt=self.attempt)
        self.recorder.flush()
        return self

    def started(self, pid: int = 4000) -> Agent:
        return self.saw(
            AgentStarted(
                pid=pid, host=self.node, version="1", argv=("train.py",), min_nodes=2, max_nodes=2, nproc=1, max_restarts=3,
                backend="embedded",
            )
        )  # fmt: skip

    def life(self, number: int, attempt: int, nodes: tuple[str, ...], rank: int, reason: str = "all nodes are here") -> Agent:
        self.round, self.attempt = number, attempt
        formed = RoundFormed(
            round=number, nodes=nodes, group_rank=rank, world_size=len(nodes), master_addr="n1", master_port=29500, waited_s=0,
            reason=reason,
        )  # fmt: skip
        return self.saw(
            formed, WorkerStarted(rank=rank, local_rank=0, pid=5000 + 10 * number + rank, argv=("x",), log_dir="/l")
        )

    def serve(self) -> Agent:
        self._thread = threading.Thread(target=self._loop, args=(ControlSocket(self.job.socket_path),), daemon=True)
        self._thread.start()
        return self

    def _loop(self, control: ControlSocket) -> None:
        leaving = False
        while not leaving and self._wake not in select.select([control, self._wake], [], [])[0]:
            for request in control.requests():
                self.asked.append({"ask": request.ask, **request.arguments})
                if request.ask == "status":
                    pid = 5000 + 10 * self.round
                    request.reply({"state": "stopping", "workers": [{"pid": pid, "state": "saving", "exitcode": None}]})
                elif self.is_deaf:
                    request.refuse("not now")
                else:
                    request.reply({})
                    leaving = True
        control.close()
        if leaving:
            self.saw(JobEnded(outcome="stopped", exit_code=1, reason="asked to"))
            self.leave()

    def leave(self) -> None:
        self.recorder.close()
        self.job.close()

    def close(self) -> None:
        os.write(self._wake_end, b"x")
        if self._thread:
            self._thread.join(PATIENCE_S)
        self.leave()
        os.close(self._wake)
        os.close(self._wake_end)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def agent(home: Path) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def make(job: str, node: str = "n1", **how: Any) -> Agent:
        made.append(Agent(home, job, node, **how))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Said(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def holdfast_says(home: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def call(*argv: str) -> Said:
        code = main(list(argv))
        seen = capsys.readouterr()
        return Said(code, seen.out, seen.err)

    return call


Say = Callable[..., Said]
Make = Callable[..., Agent]


def two_nodes(agent: Make, job: str = "train", **how: Any) -> tuple[Agent, Agent]:
    """A job of two nodes in its second life, after rank 1 was killed."""
    one, two = agent(job, "n1", **how).started(4001), agent(job, "n2", **how).started(4002)
    one.life(1, 0, ("n1", "n2"), 0)
    two.life(1, 0, ("n1", "n2"), 1)
    failure = Failure(
        node="n2", rank=1, local_rank=0, pid=5011, at_unix=two.now + 5, exitcode=-9, cause="signal", log_path="/logs/1"
    )
    two.saw(WorkerExited(rank=1, local_rank=0, pid=5011, exitcode=-9), at=two.now + 5)
    two.saw(FailureSeen(failure=failure), at=two.now)
    one.saw(Decided(decision="restart", reason=REASON, restarts_left=2), at=two.now)
    one.saw(WorkerExited(rank=0, local_rank=0, pid=5010, exitcode=-15))
    for rank, node in enumerate((one, two)):
        node.life(2, 1, ("n1", "n2"), rank, REASON)
    return one, two


def ended(agent: Make, job: str, **how: Any) -> None:
    one = agent(job, "n1", **how).started().life(1, 0, ("n1",), 0)
    one.saw(
        WorkerExited(rank=0, local_rank=0, pid=5010, exitcode=0), JobEnded(outcome="succeeded", exit_code=0, reason="all done")
    )
    one.leave()


# ---- which job is meant


def test_without_any_job_it_says_where_it_looked(holdfast_says: Say, home: Path) -> None:
    said = holdfast_says("status")
    assert said.code == 2 and str(home) in said.err and "HOLDFAST_STATE_DIR" in said.err
    assert holdfast_says("jobs").out == "no jobs\n"


def test_without_a_name_the_newest_job_is_meant(agent: Make, holdfast_says: Say) -> None:
    ended(agent, "new", began=1_790_000_900.0)
    ended(agent, "old", began=1_790_000_000.0)
    assert holdfast_says("status", "--json").json()["job"] == "new"


def test_the_start_of_a_name_is_enough(agent: Make, holdfast_says: Say) -> None:
    ended(agent, "train-gpt")
    ended(agent, "evaluate")
    assert holdfast_says("status", "tr", "--json").json()["job"] == "train-gpt"


def test_the_number_of_a_slurm_job_is_enough(agent: Make, holdfast_says: Say) -> None:
    for number, job in enumerate(("170.0-big", "17.0-llama", "17.0-llama-r1", "171-x-abc")):
        ended(agent, job, began=1_790_000_000.0 + number)
    assert holdfast_says("status", "17", "--json").json()["job"] == "17.0-llama-r1"
    assert holdfast_says("status", "171", "--json").json()["job"] == "171-x-abc"


def test_a_run_id_with_strange_characters_is_found(agent: Make, holdfast_says: Say) -> None:
    ended(agent, "team/my run")
    assert holdfast_says("status", "team/my run", "--json").json()["job"].startswith("team-my-run-")


def test_an_ambiguous_name_says_which(agent: Make, holdfast_says: Say) -> None:
    ended(agent, "train-a")
    ended(agent, "train-b")
    said = holdfast_says("status", "train")
    assert said.code == 2 and "train-a, train-b" in said.err


def test_an_unknown_name_says_the_nearest(agent: Make, holdfast_says: Say) -> None:
    ended(agent, "train-gpt")
    said = holdfast_says("why", "trian-gpt")
    assert said.code == 2 and "did you mean train-gpt?" in said.err


def test_a_job_that_ran_twice_is_its_newest_run(agent: Make, holdfast_says: Say) -> None:
    for _ in range(2):
        ended(agent, "train")
    said = holdfast_says("status", "train", "--json")
    assert said.json()["job"] == "train~2" and "train~1 is the first" in said.err
    assert holdfast_says("status", "train~1", "--json").json()["job"] == "train"
    assert holdfast_says("status", "train~7").code == 2


def test_that_an_older_run_still_runs_is_said(agent: Make, holdfast_says: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        ended(agent, "train")
    monkeypatch.setattr(choose, "running_nodes", lambda path: ["n1"] if path.endswith("/train") else [])
    assert "train~2, the newest of 2 runs (train~1 is the first; train~1 runs)" in holdfast_says("status", "train").err


def test_a_copy_of_a_jobs_directory_can_be_read(agent: Make, holdfast_says: Say, home: Path, tmp_path: Path) -> None:
    ended(agent, "train")
    os.rename(home / "jobs" / "train", tmp_path / "copy")
    assert holdfast_says("status", str(tmp_path / "copy"), "--json").json()["outcome"] == "succeeded"


# ---- jobs


def test_jobs_lists_them_newest_first(agent: Make, holdfast_says: Say) -> None:
    ended(agent, "old")
    two_nodes(agent, "train", began=1_790_000_500.0)
    lost = agent("lost", began=1_790_000_250.0).started()
    lost.leave()
    head, *rows = [line.split() for line in holdfast_says("jobs").out.splitlines()]
    assert head == ["JOB", "STATE", "NODES", "RANKS", "SINCE", "SCRIPT", "LAST", "DECISION"]
    assert [row[:4] for row in rows] == [
        ["train", "running", "2", "2"],
        ["lost", "lost", "1", "1"],
        ["old", "succeeded", "1", "1"],
    ]
    assert holdfast_says("jobs").out.splitlines()[1].endswith(f"  train.py  restart: {REASON}")


def test_jobs_can_be_limited_to_those_that_run(agent: Make, holdfast_says: Say) -> None:
    ended(agent, "old")
    two_nodes(agent)
    [job] = holdfast_says("jobs", "--running", "--json").json()
    assert (job["job"], job["state"], job["nodes"], job["ranks"], job["script"]) == ("train", "running", 2, 2, "train.py")


def test_an_agent_that_has_recorded_nothing_yet_is_a_job_that_starts(agent: Make, holdfast_says: Say) -> None:
    agent("train")
    assert holdfast_says("jobs").out.splitlines()[1].split()[:2] == ["train", "starting"]
    assert holdfast_says("status").code == holdfast_says("why").code == holdfast_says("report").code == 0


# ---- status


def test_status_says_the_last_decision_in_its_own_words(agent: Make, holdfast_says: Say) -> None:
    two_nodes(agent)
    said = holdfast_says("status").out
    assert f"restart: {REASON}" in said and "2 ranks on 2 nodes (n1, n2)" in said and "round     2, attempt 1" in said


def test_status_as_json_names_every_rank(agent: Make, holdfast_says: Say) -> None:
    two_nodes(agent)
    said = holdfast_says("status", "--json").json()
    assert (said["state"], said["round"], said["attempt"], said["world_size"]) == ("running", 2, 1, 2)
    assert [(worker["rank"], worker["node"], worker["pid"]) for worker in said["workers"]] == [(0, "n1", 5020), (1, "n2", 5021)]
    assert said["last_decision"]["reason"] == REASON and said["lost_s"] == 3.0


def test_status_asks_the_agent_how_its_workers_are(agent: Make, holdfast_says: Say) -> None:
    one, _ = two_nodes(agent)
    one.serve()
    said = holdfast_says("status", "--json").json()
    assert [(node["name"], node["answers"]) for node in said["nodes"]] == [("n1", True), ("n2", False)]
    assert [worker["state"] for worker in said["workers"]] == ["saving", "running"]
    assert "runs, does not answer" in holdfast_says("status").out


def test_text_from_a_worker_cannot_rewrite_the_terminal(agent: Make, holdfast_says: Say) -> None:
    agent("train").started().life(1, 0, ("n1",), 0).saw(Decided(decision="stop", reason="\x1b[2J\x1b]0;gotcha\x07\r\nbad"))
    for command in ("status", "why", "events", "report", "jobs"):
        said = holdfast_says(command).out
        assert "\x1b" not in said and "\r" not in said and "\x07" not in said and "gotcha" in said, command


# ---- why, events, report


def test_why_tells_each_decision_with_its_reason(agent: Make, holdfast_says: Say) -> None:
    two_nodes(agent)
    said = holdfast_says("why").out
    assert "round 1, attempt 0  restart (2 restarts left)" in said and f"    {REASON}\n" in said
    assert holdfast_says("why", "--json").json()[0]["reason"] == REASON


def test_a_job_that_failed_without_a_failed_rank_is_told_as_failed(agent: Make, holdfast_says: Say) -> None:
    reason = "1 of 2 nodes came within 5 s\n  hint: raise join_timeout"
    agent("train").started().saw(JobEnded(outcome="failed", exit_code=1, reason=reason)).leave()
    said = holdfast_says("incidents").out
    assert said.startswith("no rank has failed in job train, but the job has: 1 of 2 nodes came within 5 s")
    assert "but the job has: 1 of 2 nodes" in holdfast_says("diagnose").err
    why = holdfast_says("why").out
    assert "\\n" not in why and "5 s hint: raise join_timeout" in why


def test_a_path_that_is_not_there_is_no_job(agent: Make, holdfast_says: Say) -> None:
    agent("train").started()
    assert "there is no file logs/rank0.log" in holdfast_says("diagnose", "logs/rank0.log").err
    assert "there is no file nofile.log" in holdfast_says("diagnose", "nofile.log").err


def test_why_says_on_a_node_that_decided_nothing_what_it_was_told_and_by_whom(agent: Make, holdfast_says: Say) -> None:
    follower = agent("train", "n2").started()
    follower.saw(JoinRequested(round=1, backend="embedded", endpoint="n1:29400")).life(1, 0, ("n1", "n2"), 1, "first round")
    assert "no decision was taken" in holdfast_says("why").out
    follower.life(2, 1, ("n1", "n2"), 1, REASON)
    said = holdfast_says("why").out
    assert "round 2, attempt 1  told\n" in said and f"    {REASON}\n" in said and "no decision was taken" not in said
    assert said.splitlines()[-1].startswith("told by the coordinator at n1:29400: ")
    follower.saw(CoordinatorFound(endpoint="10.0.0.3:4000"))
    assert "told by the coordinator at 10.0.0.3:4000: " in holdfast_says("why").out


def test_why_says_when_the_agents_are_gone_without_a_word(agent: Make, holdfast_says: Say) -> None:
    for node in two_nodes(agent):
        node.leave()
    assert "vanished" in holdfast_says("why").out


def test_events_are_one_line_each_in_order(agent: Make, holdfast_says: Say) -> None:
    two_nodes(agent)
    lines = holdfast_says("events").out.splitlines()
    assert len(lines) == 14 and all(line.split()[2] in ("n1", "n2") for line in lines)
    assert [line.split()[4] for line in lines[:4]] == ["AgentStarted", "AgentStarted", "RoundFormed", "RoundFormed"]
    assert any("rank 1 (local 0) on n2 was killed by SIGKILL" in line for line in lines)


def test_events_as_json_are_the_lines_on_disk(agent: Make, holdfast_says: Say) -> None:
    one, _ = two_nodes(agent)
    said = [json.loads(line) for line in holdfast_says("events", "--json").out.splitlines()]
    on_disk = [json.loads(line) for line in Path(one.job.events_path).read_text().splitlines()]
    assert [event for event in said if event["node"] == "n1"] == on_disk


def test_following_ends_with_the_job(agent: Make, holdfast: Any) -> None:
    one = agent("train").started()
    following = holdfast.start("events", "--follow")
    following.wait_for_output("AgentStarted")
    one.saw(Decided(decision="finish", reason="every worker exited with 0"))
    one.saw(JobEnded(outcome="succeeded", exit_code=0, reason="every worker exited with 0"))
    one.leave()
    said = following.wait()
    assert said.returncode == 0
    assert [line.split()[4] for line in said.stdout.splitlines()] == ["AgentStarted", "Decided", "JobEnded"]


def test_report_shows_lives_failures_and_the_time_lost(agent: Make, holdfast_says: Say) -> None:
    two_nodes(agent)
    head, columns, first, second, *rest = holdfast_says("report").out.splitlines()
    assert head.startswith("job train: running, began ")
    assert columns.split()[:2] == ["ROUND", "ATTEMPT"]
    assert first.split()[:2] == ["1", "0"] and "  restart  3 s  " in first and first.endswith("was killed by SIGKILL")
    assert second.split()[:2] == ["2", "1"]
    assert "time lost to restarts: 3 s, 1 time" in rest and "round 1, rank 1: log at n2:/logs/1" in rest


def test_report_of_a_lost_job_claims_no_duration(agent: Make, holdfast_says: Say) -> None:
    """Its agent is gone without a word: how long it ran after its last record is not known."""
    for node in two_nodes(agent):
        node.leave()
    head, _, _, last, *_ = holdfast_says("report").out.splitlines()
    assert ", last record after " in head and "took" not in head
    assert re.search(r"  -  +2  +n1, n2", last), "how long its ranks ran"


def test_report_says_of_a_program_that_cannot_start_that_its_rank_did_not(holdfast: Any, tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(b"\x7fELF of another kind of processor")
    (tmp_path / "program").chmod(0o755)
    holdfast.run("run", "--rdzv-id", "absent", "--no-python", tmp_path / "program")
    assert f"did not start: cannot start '{tmp_path / 'program'}'" in holdfast.run("report", "absent").stdout


def test_report_in_a_pipe_cuts_nothing_and_pads_nothing_with_a_long_message(holdfast: Any, script: Any) -> None:
    message = "expected (128, 4096) but got (128, 2048); " * 12 + "the end"
    holdfast.run("run", "--rdzv-id", "long", "--max-restarts", "1", script(f"raise RuntimeError({message!r})"))
    lines = holdfast.run("report", "long").stdout.splitlines()
    first, second = [line for line in lines if line.split()[:2] in (["1", "0"], ["2", "1"])]
    assert first.endswith("the end") and second.endswith("the end")
    assert max(len(line.partition("rank 0 (local 0)")[0]) for line in (first, second)) < 120


def test_report_as_json_has_the_timeline_and_the_written_report(agent: Make, holdfast_says: Say) -> None:
    one, _ = two_nodes(agent)
    assert holdfast_says("report", "--json").json()["report"] is None
    Path(one.job.report_path).write_text('{"outcome": "failed"}')
    said = holdfast_says("report", "--json").json()
    assert said["report"] == {"outcome": "failed"} and said["timeline"]["lost_s"] == 3.0
    assert [life["round"] for life in said["timeline"]["lives"]] == [1, 2]


# ---- stop


def test_stop_asks_every_agent_and_waits_for_their_end(agent: Make, holdfast_says: Say) -> None:
    one, two = (node.serve() for node in two_nodes(agent))
    said = holdfast_says("stop", "train", "--grace", "5", "--reason", "maintenance")
    assert said.code == 0 and "has ended" in said.out
    assert one.asked == two.asked == [{"ask": "stop", "reason": "maintenance", "grace_s": 5.0}]
    assert holdfast_says("jobs", "--running").out == "no jobs\n"


def test_of_several_runs_the_newest_that_still_runs_is_stopped(agent: Make, holdfast_says: Say) -> None:
    first = agent("train").started().serve()
    ended(agent, "train", alone=True)
    said = holdfast_says("stop", "train")
    assert said.code == 0 and [request["ask"] for request in first.asked] == ["stop"]
    assert "train, the newest that runs of 2 runs" in said.err


def test_stopping_a_job_that_has_ended_is_no_mistake(agent: Make, holdfast_says: Say) -> None:
    ended(agent, "train")
    said = holdfast_says("stop", "train")
    assert said.code == 0 and "does not run" in said.out


def test_check_says_so_when_no_agent_of_the_job_answers(agent: Make, holdfast_says: Say) -> None:
    two_nodes(agent)
    said = holdfast_says("check", "--job", "train", "memory")
    assert said.code == 1 and "node n1 does not answer" in said.err and "node n2 does not answer" in said.err


def test_stop_says_so_when_no_agent_takes_it_up(agent: Make, holdfast_says: Say) -> None:
    one, _ = two_nodes(agent)
    one.is_deaf = True
    one.serve()
    said = holdfast_says("stop", "train")
    assert (
        said.code == 1 and "n1 refused: not now" in said.err and "node n2 does not answer" in said.err and "SIGTERM" in said.err
    )


@pytest.mark.parametrize("grace", ["-1", "nan", "inf"])
def test_stop_refuses_a_grace_period_that_is_none(agent: Make, holdfast_says: Say, grace: str) -> None:
    two_nodes(agent)
    assert holdfast_says("stop", "train", f"--grace={grace}").code == 2


@pytest.mark.parametrize("command", ["exclude", "readmit"])
def test_a_node_of_a_job_that_has_ended_cannot_be_excluded(agent: Make, holdfast_says: Say, command: str) -> None:
    ended(agent, "train")
    said = holdfast_says(command, "n1")
    assert said.code == 1 and "does not run on this host" in said.err


@pytest.mark.parametrize("command", ["exclude", "readmit"])
def test_what_the_coordinator_refuses_is_said(agent: Make, holdfast_says: Say, command: str) -> None:
    one, _ = two_nodes(agent)
    one.is_deaf = True
    one.serve()
    said = holdfast_says(command, "n2", "--job", "train", "--reason", "its fan is broken")
    assert (said.code, said.out) == (1, "") and "not now" in said.err
    assert one.asked == [{"ask": command, "node": "n2", "reason": f"its fan is broken (`holdfast {command}`)"}]


# ---- a job that really runs


def test_the_commands_work_on_a_job_that_runs(holdfast: Any, script: Any, wait_until: Any, free_port: int) -> None:
    path = script("import time\ntime.sleep(600)\n")
    meet = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-id", "real")
    job = holdfast.start("run", "--nproc-per-node", "2", *meet, path)
    wait_until(lambda: len(holdfast.events("WorkerStarted")) == 2)
    shown = lambda: json.loads(holdfast.run("status", "real", "--json").stdout)
    answered = lambda: (told := shown()) and all(node["answers"] for node in told["nodes"]) and told
    status = wait_until(answered, what="the agent to answer: it opens its socket once its ranks have had their time")
    assert status["state"] == "running"
    assert sorted(worker["pid"] for worker in status["workers"]) == sorted(e["pid"] for e in holdfast.events("WorkerStarted"))
    stopped = holdfast.run("stop", "real", "--reason", "the test is over")
    assert stopped.returncode == 0 and job.wait().returncode != 0
    report = json.loads(holdfast.run("report", "real", "--json").stdout)
    assert report["timeline"]["state"] == "ended" and report["timeline"]["outcome"] == "stopped"
    assert "the test is over" in holdfast.run("why", "real").stdout


@pytest.mark.parametrize("logs", [(), ("--redirects", 3)], ids=["shown", "filed"])
def test_status_names_the_log_of_a_rank_where_there_is_one_and_no_failure_where_none_was(
    holdfast: Any, script: Any, tmp_path: Path, wait_until: Any, logs: tuple[Any, ...]
) -> None:
    path = script("import os, time\nprint(1, flush=True)\ntime.sleep(600)\n")
    holdfast.start("run", "--rdzv-id", "real", "--max-restarts", 1, *logs, "--log-dir", tmp_path / "logs", path)
    wait_until(lambda: holdfast.events("WorkerStarted"))
    assert wait_until(lambda: holdfast.run("restart", "real").returncode == 0)
    wait_until(lambda: len(holdfast.events("WorkerStarted")) == 2)
    lines = holdfast.run("status").stdout.splitlines()
    (lost,) = (line for line in lines if line.startswith("lost"))
    assert re.match(r"lost +\S+ m?s by 1 restart, until ranks ran again", lost)
    log = lines[-1].split("running", 1)[1]
    assert log.endswith("its agent's output") if not logs else log.endswith("/attempt_1/0") and str(tmp_path / "logs") in log


def test_a_job_whose_agent_was_killed_outright_is_lost(
    holdfast: Any, script: Any, wait_until: Any, free_port: int
) -> None:
    path = script("import time\ntime.sleep(600)\n")
    meet = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-id", "real")
    job = holdfast.start("run", "--nproc-per-node", "1", *meet, path)
    [started] = wait_until(lambda: holdfast.events("WorkerStarted") and holdfast.events("AgentStarted"))
    os.kill(started["pid"], 9)
    job.wait()
    assert holdfast.run("jobs").stdout.splitlines()[1].split()[:2] == ["real", "lost"]


def test_the_socket_that_a_killed_agent_leaves_misleads_nobody_and_goes_with_the_next_life(
    holdfast: Any, script: Any, wait_until: Any
) -> None:
    job = holdfast.start("run", "--node-name", "n1", "--rdzv-id", "real", script("import time\ntime.sleep(600)\n"))
    socket = holdfast.state_dir / "jobs" / "real" / "agent-n1.sock"
    wait_until(socket.exists)
    [started] = wait_until(lambda: holdfast.events("AgentStarted"))  # the record may come after the socket
    os.kill(started["pid"], 9)
    job.wait()
    assert socket.exists()
    assert " gone " in holdfast.run("status", "real").stdout
    assert holdfast.run("stop", "real").output == "job real does not run on this host\n"
    assert holdfast.run("run", "--rdzv-id", "real", script("")).returncode == 0
    assert [path.name for path in holdfast.jobs()] == ["real", "real~2"] and not socket.exists()


def test_a_record_carries_the_round_of_the_workers_it_is_about(holdfast: Any, script: Any) -> None:
    path = script("import os\nraise SystemExit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and int(os.environ['RANK']))\n")
    assert holdfast.run("run", "--nproc-per-node", "2", "--max-restarts", "1", path).returncode == 0
    rounds: dict[int, int] = {}
    for event in holdfast.events():
        if event["event"] == "WorkerStarted":
            rounds[event["pid"]] = event["round"]
        if event["event"] == "WorkerExited":
            assert event["round"] == rounds[event["pid"]], event
    assert sorted(rounds.values()) == [1, 1, 2, 2]
    [decision] = [event for event in holdfast.events("Decided") if event["decision"] == "restart"]
    assert (decision["round"], decision["attempt"]) == (1, 0)

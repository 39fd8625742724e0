"""Does a job outlive the agent that hosts its coordinator, with no outside service? Real agents, killed for good."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from typing import Any

import pytest
from kit.jobs.ranks import agent_pid
from kit.jobs.succession import LEASE, LOGS, begin, lose

from holdfast.agent.reporting.shared_report import SharedReport
from holdfast.core.job.report import JobReport
from holdfast.core.value import replace
from holdfast.runtime.process.process import state
from holdfast.telemetry.report.report_text import report_json


def test_the_next_in_line_takes_over_and_the_endpoint_s_node_comes_back_as_a_member(job, holdfast):
    agents = begin(job, "abc", "2:3")
    lose(job, agents, "a")
    assert [job.rank(rank, 0, 2)[1] for rank in range(2)] == [2, 2]
    back = job.agent("a2", "2:3", *LEASE, nproc=1, env=LOGS)
    assert [job.rank(rank, 0, 3)[1] for rank in range(3)] == [3, 3, 3]
    job.finish()
    assert [agent.wait().returncode for agent in (agents["b"], agents["c"], back)] == [0, 0, 0]
    assert "this agent leads the job now, with the votes of 2 of 3 nodes" in agents["b"].stderr
    assert "no longer leads the job" in back.stderr


def test_a_coordinator_s_node_whose_guardian_is_killed_makes_way_and_the_others_train_on(job, holdfast, alive):
    agents = begin(job, "abc", "2:3")
    lost = agent_pid(holdfast, "a")
    (worker,) = [event["pid"] for event in job.started(3) if event["node"] == "a"]
    agents["a"].kill(signal.SIGKILL)
    assert [job.rank(rank, 0, 2)[1] for rank in range(2)] == [2, 2]
    assert worker not in alive()
    job.wait_until(lambda: lost not in alive(), what="the end of the agent that has lost its guardian")
    job.finish()
    assert [agents[name].wait().returncode for name in "bc"] == [0, 0]
    agents["a"].wait()
    why = "this agent no longer leads the job: its guardian was killed; the others choose another coordinator"
    assert agents["a"].stderr.count(why) == 1, agents["a"].stderr
    assert "this agent leads the job now, with the votes of 2 of 3 nodes" in agents["b"].stderr + agents["c"].stderr


def test_a_coordinator_s_node_whose_guardian_is_killed_ends_the_job_where_nobody_can_take_over(job, holdfast):
    agents = begin(job, "ab", "1:2")
    agents["a"].kill(signal.SIGKILL)
    assert agents["b"].wait().returncode == 1
    agents["a"].wait()
    assert "lost its guardian: the process that was started was killed" in agents["b"].stderr
    assert {event["round"] for event in holdfast.events("WorkerStarted")} == {1}


@pytest.mark.parametrize("lost", ["bc", "ab"])
def test_two_of_three_agents_that_are_killed_together_and_started_again_are_the_voters_that_they_were(job, holdfast, lost):
    agents = begin(job, "abc", "2:3")
    for name in lost:
        lose(job, agents, name)
    for name in lost:
        agents[name] = job.agent(name, "2:3", *LEASE, nproc=1, env=LOGS)
    job.wait_until(lambda: [ranks for ranks in rounds_of(holdfast) if ranks == 3][1:], what="another round of all three")
    job.finish()
    assert [agents[name].wait().returncode for name in "abc"] == [0, 0, 0]


def test_an_operator_lets_the_one_that_is_left_go_on_and_who_was_declared_lost_waits(job, holdfast):
    agents = begin(job, "abc", "1:3")
    for name in "bc":
        lose(job, agents, name)
    agents["a"].wait_for_output("holdfast force-leader several --lost b,c")
    assert "holdfast force-leader several --lost b,c" in holdfast.run("status").stdout
    assert "a is one of those" not in holdfast.run("force-leader", "several", "--lost", "b,c,d").stdout
    assert holdfast.run("force-leader", "several", "--lost", "b,c").returncode == 0
    job.wait_until(lambda: 1 in rounds_of(holdfast), what="a round of the one that is left")
    back = job.agent("b", "1:3", *LEASE, nproc=1, env=LOGS)
    agents["a"].wait_for_output("b waits as a spare: excluded: an operator declared it lost")
    job.finish()
    assert [agent.wait().returncode for agent in (agents["a"], back)] == [0, 0]


def rounds_of(holdfast) -> list[int]:
    """The sizes of the rounds so far, in ranks."""
    formed = {event["round"]: event["world_size"] for event in holdfast.events("RoundFormed")}
    return [formed[number] for number in sorted(formed)]


def test_fresh_agents_at_the_endpoint_run_nothing_beside_the_successor(job, holdfast):
    agents = begin(job, "abc", "2")
    lose(job, agents, "a")
    assert [job.rank(rank, 0, 2)[1] for rank in range(2)] == [2, 2]
    fresh = [job.agent(name, "2", *LEASE, nproc=1, env=LOGS) for name in ("a", "d")]  # enough of them for a round of their own
    said = [f"{name} waits as a spare: the job has its 2 nodes" for name in ("a", "d")]  # by b or c, whichever leads
    job.wait_until(lambda: all(text in agents["b"].stderr + agents["c"].stderr for text in said))
    job.finish()
    assert [agent.wait().returncode for agent in (agents["b"], agents["c"], *fresh)] == [0] * 4
    assert sorted(event["round"] for event in holdfast.events("WorkerStarted")) == [1, 1, 2, 2]
    assert "was here before and did not see its end" in fresh[0].stderr + fresh[1].stderr


def test_a_spare_votes_and_takes_part(job, holdfast):
    agents = begin(job, "abc", "2")
    lose(job, agents, "a")
    assert [job.rank(rank, 0, 2)[1] for rank in range(2)] == [2, 2]
    job.finish()
    assert [agents[name].wait().returncode for name in "bc"] == [0, 0]


def test_a_stopped_host_s_workers_end_before_the_next_round_begins(job, holdfast):
    agents = begin(job, "abc", "2:3")
    asleep = job.rank(0, 0, 1)[0]
    os.kill(agent_pid(holdfast, "a"), signal.SIGSTOP)
    assert job.rank(0, 0, 2)[1] == 2
    assert state(asleep) in (None, "Z"), "a worker of the old round beside the new one"
    job.finish()
    assert [agents[name].wait().returncode for name in "bc"] == [0, 0]
    assert agents["a"].wait().returncode != 0


def test_of_two_nodes_the_one_left_stops_and_says_what_would_help(job, holdfast):
    agents = begin(job, "ab", "1:2")
    lose(job, agents, "a")
    agents["b"].wait_for_output("--witness DIR")
    agents["b"].kill(signal.SIGTERM)
    end = agents["b"].wait()
    assert end.returncode == 1 and "--on-split continue" in end.stderr


@pytest.mark.parametrize("decides", ["witness", "on-split"])
def test_of_two_nodes_the_one_left_goes_on_where_something_decides(job, holdfast, tmp_path, decides):
    shared = tmp_path / "shared"
    shared.mkdir()
    agents = begin(job, "ab", "1:2", *(("--witness", shared) if decides == "witness" else ("--on-split", "continue")))
    lose(job, agents, "a")
    assert job.rank(0, 0, 2)[1] == 1
    job.finish()
    assert agents["b"].wait().returncode == 0
    assert bool(list(shared.glob("holdfast-*"))) == (decides == "witness")


def test_each_node_s_own_record_tells_what_it_knows_of_the_one_that_leads(job, holdfast, tmp_path):
    homes = {name: tmp_path / f"home-{name}" for name in "abcd"}
    agents: dict[str, Any] = {}
    for name, home in homes.items():
        agents[name] = job.agent(name, "2:4", *LEASE, "--state-dir", home, nproc=1, env=LOGS)
        job.wait_until(lambda: len(list(tmp_path.glob("home-*/jobs/several/agent-*.sock"))) == len(agents))

    def says(node: str, *command: str) -> str:
        return holdfast.run(*command, env={"HOLDFAST_STATE_DIR": str(homes[node])}).stdout

    for rank in range(4):
        job.rank(rank, 0, 1)
    says("a", "exclude", "d", "--reason", "its fan is broken")
    for name in "bcd":
        agents[name].wait_for_output("the 4 nodes choose another")
    (lost,) = re.findall(r'"AgentStarted".*"pid": ?(\d+)', (homes["a"] / "jobs/several/events-a.jsonl").read_text())
    assert job.rank(0, 0, 2)[1] == 3
    os.kill(int(lost), signal.SIGKILL)
    assert [job.rank(rank, 0, 3)[1] for rank in range(2)] == [2, 2]
    leads, follows = ("b", "c") if "leads the job now" in agents["b"].stderr else ("c", "b")
    assert "excluded  d: its fan is broken (`holdfast exclude`) (operator" in says(leads, "status")
    assert "exclude\n" not in says(leads, "why"), "that was decided by another"
    where = re.search(r"new nodes can join at (\S+)", agents[leads].stderr)[1]
    assert f"the coordinator is at {where} now" in agents[follows].stderr
    why = job.wait_until(lambda: (told := says(follows, "why")) and "told\n" in told and told, what="the record of round 3")
    assert f"told by the coordinator at {where}: " in why
    assert re.search(rf"^endpoint +{where}$", says(follows, "status"), re.MULTILINE)
    job.finish()
    assert [agents[name].wait().returncode for name in "bcd"] == [0, 0, 0]


def test_a_spare_that_slept_as_the_job_ended_learns_it_from_the_record_that_it_shares(job, holdfast):
    agents = begin(job, "abc", "2")
    formed = job.wait_until(lambda: holdfast.events("RoundFormed"))  # a rank may run before its agent has written its own
    (spare,) = set("abc") - set(formed[0]["nodes"])
    asleep = agent_pid(holdfast, spare)
    os.kill(asleep, signal.SIGSTOP)
    job.wait_until(lambda: holdfast.events("NodeLost"))
    job.finish()
    assert [agents[name].wait().returncode for name in "abc" if name != spare] == [0, 0]
    os.kill(asleep, signal.SIGCONT)
    assert agents[spare].wait().returncode == 0
    assert "the job has ended, as " in agents[spare].stderr and "report.json tells" in agents[spare].stderr


@pytest.mark.parametrize(("ends_with", "count", "code"), [(0, "0", 0), (3, "0", 1), (0, "1", None)])
def test_an_agent_that_comes_when_its_job_has_ended_ends_as_that_did(job, holdfast, script, ends_with, count, code):
    job.program = script(f"raise SystemExit({ends_with})")
    step = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_STEP_LAUNCHER_PORT": "40000"}
    quick = ("--rdzv-conf", "last_call_timeout=0.1")
    assert job.agent("a", "1:2", *quick, nproc=1, env=step).wait().returncode == (1 if ends_with else 0)
    patient = ("--rdzv-conf", "join_timeout=100,is_host=false")
    late = job.agent("b", "1:2", *patient, nproc=1, env=step | {"SLURM_RESTART_COUNT": count})
    if code is None:  # it is of another life of the Slurm job
        late.wait_for_output("no answer yet from the coordinator")
        return
    assert late.wait().returncode == code
    assert late.stderr.count("the job has ended, as ") == 1, late.stderr
    assert [event["node"] for event in holdfast.events("JobEnded")] == ["a", "b"]


def test_a_report_of_an_earlier_run_is_not_taken_for_the_end_of_this_one(tmp_path):
    path = tmp_path / "report.json"
    ended = JobReport(job="j", outcome="succeeded", exit_code=0, started_at_unix=1.0, ended_at_unix=2.0, reason="done")
    path.write_text(json.dumps(report_json(ended)))
    end = SharedReport(str(path))
    assert end.look() is None
    draft = tmp_path / "draft"
    draft.write_text(json.dumps(report_json(replace(ended, exit_code=1))))
    draft.rename(path)
    assert end.look() == replace(ended, exit_code=1)
    path.unlink()
    assert end.look() is None


def test_an_agent_listens_at_the_first_free_port_of_the_range_that_it_is_given(job, free_port):
    first, last = free_port + 1, free_port + 20
    agents = begin(job, "abc", "2:3", "--agent-port", f"{first}-{last}")
    lose(job, agents, "a")
    assert [job.rank(rank, 0, 2)[1] for rank in range(2)] == [2, 2]
    job.finish()
    assert [agents[name].wait().returncode for name in "bc"] == [0, 0]
    (port,) = map(int, re.findall(r"new nodes can join at 127\.0\.0\.1:(\d+)", agents["b"].stderr + agents["c"].stderr))
    assert first <= port <= last


def test_a_node_that_others_cannot_reach_finds_the_successor_all_the_same(job):
    agents = begin(job, "abc", "2:3")
    agents["d"] = job.agent("d", "2:3", *LEASE, "--local-addr", "192.0.2.7", nproc=1, env=LOGS)
    agents["d"].wait_for_output("the 3 nodes choose another")
    lose(job, agents, "a")
    third = lambda: [round for round in (2, 3) if (job.folder / f"2.0.{round}").exists()]
    (formed,) = job.wait_until(third, what="rank 2 in round 2, or in 3 where that node has come when the others had begun")
    assert [job.rank(rank, 0, formed)[1] for rank in range(3)] == [3, 3, 3]
    job.finish()
    assert [agents[name].wait().returncode for name in "bcd"] == [0, 0, 0]
    assert "with the votes of 2 of 3 nodes" in agents["b"].stderr + agents["c"].stderr


def test_an_agent_whose_port_is_taken_takes_part_though_it_cannot_take_over(job):
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        taken = stranger.getsockname()[1]
        agents = [job.agent("a", "2", nproc=1)]
        job.host()
        agents.append(job.agent("b", "2", "--agent-port", taken, nproc=1))
        agents[1].wait_for_output(f"cannot listen at 127.0.0.1:{taken}: the port is in use")
        for rank in range(2):
            job.rank(rank, 0, 1)
        job.finish()
        assert [agent.wait().returncode for agent in agents] == [0, 0]


def test_a_node_whose_address_is_translated_takes_part_though_it_cannot_take_over(job, holdfast):
    agents = {"a": job.agent("a", "2", nproc=1)}
    job.host()
    agents["b"] = job.agent("b", "2", "--local-addr", "192.0.2.7", nproc=1)  # of TEST-NET-1: no address of this host
    assert [job.rank(rank, 0, 1)[1] for rank in range(2)] == [2, 2]
    job.finish()
    assert [agents[name].wait().returncode for name in "ab"] == [0, 0]
    assert "this node cannot take over if the coordinator is lost: cannot listen at 192.0.2.7" in agents["b"].stderr
    assert any("cannot take over" in event["what"] for event in holdfast.events("Degraded"))


def test_a_witness_that_is_no_directory_is_an_error_at_once(job, tmp_path):
    end = job.agent("a", "2", "--witness", tmp_path / "nowhere").wait()
    assert end.returncode == 2 and "is not a directory" in end.stderr


NODES = """#!/bin/sh
[ "$*" = "show --oneliner node" ] && sed "s/@/$(cat {state})/" {folder}/nodes
"""


def test_slurm_speaks_for_the_node_that_is_left_once_the_other_is_down(job, tmp_path):
    program, state = tmp_path / "scontrol", tmp_path / "said"
    program.write_text(NODES.format(state=state, folder=tmp_path))
    program.chmod(0o755)
    ours = "NodeName=n2 NodeAddr=127.0.0.2 State=MIXED+DRAIN"
    (tmp_path / "nodes").write_text(f"NodeName=n1 Arch=x86_64 NodeAddr=127.0.0.1 State=@ ThreadsPerCore=1\n{ours}\n")
    state.write_text("ALLOCATED*+DRAIN")
    env = {**LOGS, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    agents = begin(job, "ab", "1:2", "--witness", "slurm", env=env, apart=True)
    lose(job, agents, "a")
    agents["b"].wait_for_output("ALLOCATED+DRAIN")
    state.write_text("DOWN*+NOT_RESPONDING")
    assert job.rank(0, 0, 2)[1] == 1
    job.finish()
    assert agents["b"].wait().returncode == 0
    assert "the witness does not speak for this node: slurm: 127.0.0.2:" in agents["b"].stderr


def test_slurm_as_a_witness_needs_its_commands(job, tmp_path):
    end = job.agent("a", "2", "--witness", "slurm", env={"PATH": str(tmp_path)}).wait()
    assert end.returncode == 2 and "there is no scontrol on this node" in end.stderr

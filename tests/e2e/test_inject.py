"""Faults that are played on real jobs: what follows is what follows a real one, and nothing of it stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit.fleet.supervised import Supervised
from kit.hosts.checked_host import CheckedHost
from kit.jobs.ranks import Cluster, agent_pid
from kit.ports import another_port

from holdfast.runtime.process.process import state

STEPS = """
import os, sys, time
from holdfast import client
folder = sys.argv[1]
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
name = f"{folder}/{rank}.{attempt}.{os.environ['HOLDFAST_ROUND']}"
open(name + ".tmp", "w").write(f"{os.getpid()} {os.environ['WORLD_SIZE']} {os.environ['MASTER_PORT']}")
os.rename(name + ".tmp", name)
step = 0
while not os.path.exists(f"{folder}/finish"):
    for _ in range(20):
        time.sleep(0.001)  # who is stopped most of the time needs longer for each; and nobody waits for another's processor
    client.progress(step := step + 1)
"""
ALLOWED = {"HOLDFAST_ALLOW_INJECT": "1"}
LIMIT = ("--ft-rank-heartbeat-timeout", "3")


@pytest.fixture
def job(holdfast: Any, free_port: int, tmp_path: Path, script: Any, wait_until: Any) -> Cluster:
    """Ranks that make steps, and say so."""
    return Cluster(holdfast, free_port, tmp_path / "ranks", script(STEPS), wait_until)


@pytest.fixture
def fleet(holdfast: Any, job: Cluster, tmp_path: Path, wait_until: Any) -> Supervised:
    """A supervisor that is there."""
    made = Supervised(holdfast, job, f"127.0.0.1:{another_port(job.port)}", tmp_path, wait_until)
    made.start()
    return made


def alone(job: Cluster, *options: object, env: dict[str, str] | None = None) -> Any:
    """A job of one node with two ranks, once both run."""
    agent = job.holdfast.start(
        *("run", "--nproc-per-node", 2, "--max-restarts", 1, "--node-name", "a", *options, job.program, job.folder),
        env=ALLOWED if env is None else env,
    )
    for rank in range(2):
        job.rank(rank, 0, 1)
    return agent


def inject(job: Cluster, *words: object) -> Any:
    done = job.holdfast.run("inject", *words, env={"USER": "you"})
    assert done.returncode == 0, done.output
    return done


def ended(job: Cluster, agent: Any) -> None:
    job.finish()
    done = agent.wait()
    assert done.returncode == 0, done.output


def injected_by_you(job: Cluster, how: str, fault: str) -> None:
    """Every surface says so of what has become of rank 1."""
    told = f"; injected by you (holdfast inject {fault})"
    for command in ("why", "incidents"):
        said = job.holdfast.run(command).stdout.splitlines()
        lines = [line for line in said if "rank 1 (local 1) on a" in line and how in line]
        assert len(lines) == 1 and told in lines[0]
    (incident,) = json.loads(job.holdfast.run("incidents", "--json").stdout)
    assert (incident["finding"]["class"], incident["finding"]["rank"]) == ("injected", 1)
    assert "rank 1 on a: " in incident["finding"]["sentence"] and told in incident["finding"]["sentence"]


# --- a rank ---------------------------------------------------------------------------------------------------------------


def test_a_killed_rank_is_restarted_and_the_records_say_that_it_was_injected(job):
    agent = alone(job)
    told = inject(job, "kill", "a", "--rank", "1").stdout
    assert "injected: rank 1 (local 1, pid " in told and "Watch: its exit is detected" in told
    assert job.rank(0, 1, 2) and job.rank(1, 1, 2)
    (event,) = job.holdfast.events("FaultInjected")
    assert (event["fault"], event["rank"], event["by"]) == ("kill", 1, "you")
    why = job.holdfast.run("why").stdout
    assert "injected by you: rank 1 (local 1, pid " in why and "was killed by SIGKILL" in why
    assert "injected by you: rank 1" in job.holdfast.run("report").stdout
    ended(job, agent)
    injected_by_you(job, "was killed by SIGKILL", "kill")


def test_a_hang_is_found_within_its_limit_with_its_stacks(job):
    agent = alone(job, *LIMIT)
    pid, *_ = job.rank(1, 0, 1)
    inject(job, "hang", "a", "--rank", "1")
    job.rank(1, 1, 2)
    ended(job, agent)  # the record is whole then: a thread writes it
    (hung,) = job.holdfast.events("RankHung")
    assert (hung["rank"], hung["pid"]) == (1, pid) and hung["reason"].startswith("no heartbeat for ")
    assert "(limit 3 s)" in hung["reason"]
    (kept,) = job.holdfast.events("StacksKept")
    assert "most recent call first" in (Path(kept["path"]) / "rank-1.txt").read_text()
    (failure,) = [event["failure"] for event in job.holdfast.events("FailureSeen") if event["failure"]["cause"] == "hung"]
    assert "stopped (SIGSTOP)" in failure["message"]
    injected_by_you(job, "stopped (SIGSTOP)", "hang")


def test_a_hang_that_nobody_finds_is_undone(job):
    agent = alone(job)
    pid, *_ = job.rank(0, 0, 1)
    inject(job, "hang", "a", "--rank", "0", "--for", "0.5")
    (over,) = job.wait_until(lambda: job.holdfast.events("FaultOver"))
    assert over["reason"] == "its time is over" and state(pid) in ("R", "S", "D")
    ended(job, agent)
    assert len(job.holdfast.events("RoundFormed")) == 1


def test_a_slow_rank_becomes_a_straggler(job, tmp_path):
    hurried = tmp_path / "hurried.py"
    hurried.write_text(
        "import sys\nfrom holdfast.monitor import stragglers\n"
        "stragglers.PERIOD_S = 2.0\n"
        "from holdfast.cli.main import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    options = ("run", "--nproc-per-node", "4", "--node-name", "a", str(job.program), str(job.folder))
    running = subprocess.Popen(
        [sys.executable, hurried, *options],
        env=os.environ | ALLOWED | {"HOLDFAST_STATE_DIR": str(job.holdfast.state_dir)},
        stderr=subprocess.DEVNULL,
    )
    try:
        for rank in range(4):
            job.rank(rank, 0, 1)
        inject(job, "slow", "a", "--rank", "2")
        (seen,) = job.wait_until(lambda: job.holdfast.events("StragglerSeen"))
        assert (seen["name"], seen["rank"], seen["series"]) == ("a", 2, "step")
        (line,) = (line for line in job.holdfast("status").stdout.splitlines() if line.split()[:1] == ["straggler"])
        assert "rank 2 on a: step takes" in line
        job.finish()
        assert running.wait(60) == 0
    finally:
        running.kill()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("fault", ["hang", "slow"])
def test_nobody_stays_stopped_when_the_agent_ends(job, alive, fault, signum):
    """That nothing is left is what the fixture `test_mark` sees to; SIGTERM does not have to wait for SIGKILL."""
    agent = alone(job, "--shutdown-timeout", "50")
    inject(job, fault, "a")
    os.kill(agent_pid(job.holdfast, "a"), signum)
    agent.wait(20)  # sooner than its ranks would be killed
    job.wait_until(lambda: not alive())


def test_without_permission_nothing_is_played(job):
    agent = alone(job, env={})
    done = job.holdfast.run("inject", "kill", "a")
    assert done.returncode != 0 and "no fault is injected on a: its agent was not started with --allow-inject" in done.stderr
    for words, said in (
        (("burn", "a"), "there is no fault 'burn'"),
        (("kill", "b"), "the job has no node b"),
    ):
        done = job.holdfast.run("inject", *words)
        assert done.returncode != 0 and said in done.stderr, done.output
    ended(job, agent)
    assert not job.holdfast.events("FaultInjected")


def test_another_node_is_reached_through_the_coordinator(job, tmp_path):
    """Its agent keeps its records elsewhere, as on another host."""
    elsewhere = {"HOLDFAST_STATE_DIR": str(tmp_path / "elsewhere")}
    agents = [job.agent("a", "2", "--max-restarts", 1, nproc=1)]
    agents.append(job.agent("b", "2", "--max-restarts", 1, "--allow-inject", nproc=1, env=elsewhere))
    ranks = [job.rank(rank, 0, 1)[0] for rank in range(2)]
    assert "b: injected: rank " in inject(job, "kill", "b").stdout
    assert [job.rank(rank, 1, 2)[0] for rank in range(2)] != ranks
    refused = job.holdfast.run("inject", "kill", "a")
    assert "no fault is injected on a" in refused.stderr
    job.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0]


# --- a GPU, and the supervisor ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "check", "said"),
    [
        ("xid", "xid", "GPU 0000:00:00: Xid 79, the GPU has fallen off the bus"),
        ("ecc", "gpu", "GPU 0 had 1 uncorrected memory errors (1 injected)"),
    ],
)
def test_a_gpu_that_fails_costs_its_node_its_place_and_a_spare_takes_it(fleet, tmp_path, fault, check, said):
    root = {"HOLDFAST_CHECK_ROOT": str(CheckedHost(tmp_path / "host").root)}
    os.environ.update(root)  # of this test's agents
    try:
        flags = ("--allow-inject", "--check-during", check, "--check-every", "0.3")
        agents = fleet.agents("a", "b", "c", flags=flags)
    finally:
        os.environ.pop("HOLDFAST_CHECK_ROOT")
    fleet.wait_until(lambda: fleet.states() == {"a": "fit", "b": "fit", "c": "spare"})
    told = fleet.holdfast.run("inject", fault, "b", "--state", fleet.state)
    assert told.returncode == 0 and "b: injected: " in told.stdout and "looks every 0.3 s" in told.stdout, told.output
    fleet.wait_until(lambda: fleet.states() == {"a": "fit", "b": "unfit", "c": "fit"})
    practice, *_ = fleet.why("b")
    assert practice["act"] == "inject" and practice["outcome"].startswith("b: injected: ")
    deed = fleet.wait_until(lambda: next((one for one in fleet.why("b") if one["act"] == "swap" and one["outcome"]), None))
    assert said in deed["seen"] and "injected" in deed["seen"]
    if fault == "xid":
        (device,) = fleet.nodes()["b"]["devices"]
        assert (device["state"], device["xid"]) == ("unfit", 79)
        assert device["history"][-1]["state"] == "unfit" and said in device["history"][-1]["reason"]
    shown = fleet.holdfast.run("why", "b", "--state", fleet.state).stdout
    assert "inject of job several" in shown and "what follows is not the hardware's doing" in shown
    fleet.job.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0, 0]


def test_through_the_supervisor_it_is_refused_too(fleet):
    agents = fleet.agents("a", "b", flags=("--allow-inject",))
    stranger = fleet.job.holdfast.run("inject", "kill", "nobody", "--state", fleet.state)
    assert stranger.returncode != 0
    fleet.wait_until(lambda: fleet.states() == {"a": "fit", "b": "fit"})
    refused = fleet.holdfast.run("inject", "xid", "b", "--state", fleet.state)
    assert refused.returncode != 0 and "start its agent with --check-during xid" in refused.stderr
    assert fleet.why("b")[-1]["outcome"].startswith("refused: ")
    fleet.job.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0]

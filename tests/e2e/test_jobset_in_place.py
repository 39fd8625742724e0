"""Does a JobSet that restarts in place get to know all it waits for, while no agent of ours ends for that?

Each question is asked of a real API server where there is one, and of the tests' own stand-in for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.jobs.ranks import agent_pid
from kit.servers.jobset_controller import CURRENT, NAME, Controller
from kit.servers.kubernetes import JOBSETS, Kubernetes, Real
from kit.servers.kubernetes_standin import Standin

from holdfast.agent.reporting.child_program import program

DISABLED = "jobset.sigs.k8s.io/disable-in-place-restart"
RIGHTS = "the service account may not list the jobsets of namespace default (403)"


class Pods:
    """Pods of the JobSet `train`, and its controller. The test starts what runs in them."""

    def __init__(self, cluster: Kubernetes, wait_until: Callable[..., Any]) -> None:
        self.cluster, self.wait_until = cluster, wait_until
        self.controller = Controller(cluster, "train")

    def add(self, name: str) -> dict[str, str]:
        """One more; returns the environment of its container."""
        self.cluster.add_pod(name, "n1", "10.0.0.9", labels={NAME: "train"})
        return {**self.cluster.env, "POD_NAME": name, "JOBSET_NAME": "train"}

    def agree(self, attempt: int, *names: str) -> None:
        """Wait until all pods say that they are at this attempt, and the JobSet that it is reached."""

        def reached() -> bool:
            return self.attempts() == dict.fromkeys(names, attempt) and self.status().get(CURRENT) == attempt

        self.wait_until(reached, what=f"attempt {attempt} of {names}")

    def attempts(self) -> dict[str, int]:
        return self.controller.attempts()

    def status(self) -> dict[str, Any]:
        return dict(self.cluster.jobset("train").get("status", {}))


@pytest.fixture
def pods(kubernetes_api: Kubernetes, wait_until: Callable[..., Any]) -> Iterator[Callable[..., Pods]]:
    """`pods(3)`: of a JobSet that wants so many."""
    made: list[Pods] = []

    def make(wanted: int, **how: Any) -> Pods:
        kubernetes_api.add_node("n1")
        kubernetes_api.add_jobset("train", wanted, **how)
        made.append(Pods(kubernetes_api, wait_until))
        return made[0]

    yield make
    for one in made:
        one.controller.stop()
        kubernetes_api.ask("DELETE", f"{JOBSETS}/train")


@pytest.fixture
def standin(kubernetes_api: Kubernetes) -> Standin:
    """What a real API server does not do when a test asks for it."""
    if isinstance(kubernetes_api, Real):
        pytest.skip("only the stand-in does so at will")
    assert isinstance(kubernetes_api, Standin)
    return kubernetes_api


class Program:
    """What an agent runs, without the agent."""

    def __init__(self, env: dict[str, str], own: str = "") -> None:
        command, pipe = [*program("kubernetes.jobset_in_place"), env["JOBSET_NAME"], env["POD_NAME"], own], subprocess.PIPE
        self.process = subprocess.Popen(command, env=os.environ | env, stdin=pipe, stdout=pipe, text=True)

    def line(self) -> str:
        """The next that it says; empty: it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        """As an agent that is gone: nothing is left of its program."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        assert self.process.wait(30) == 0
        self.process.stdout.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def begin(*how: Any) -> Program:
        started.append(Program(*how))
        return started[-1]

    yield begin
    for one in started:
        one.close()


# --- agents ---------------------------------------------------------------------------------------------------------------


def programs(alive: Callable[[], list[int]]) -> list[int]:
    """Pids of the programs that agents run."""
    found = []
    for pid in alive():
        with contextlib.suppress(OSError):  # it may end meanwhile
            if b"jobset_in_place" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def in_pod(job: Any, name: str, env: dict[str, str], nodes: int) -> Any:
    return job.agent(name, nodes, "--lease", 2, "--max-restarts", 0, "--in-place-restart", "--verbose", nproc=1, env=env)


def test_of_three_pods_one_is_made_again_and_the_agents_of_the_others_go_on(pods, job, alive, wait_until):
    there = pods(3)
    agents = {"a": in_pod(job, "a", there.add("a"), 3)}
    job.host()
    agents |= {name: in_pod(job, name, there.add(name), 3) for name in ("b", "c")}
    for rank in range(3):
        job.rank(rank, 0, 1)
    there.agree(0, "a", "b", "c")
    pids = {name: agent_pid(job.holdfast, name) for name in "ab"}
    for attempt, (lost, fresh) in enumerate([("c", "d"), ("d", "e")], 1):
        os.kill(agent_pid(job.holdfast, lost), signal.SIGKILL)
        assert agents.pop(lost).wait().returncode != 0
        wait_until(lambda: len(programs(alive)) == 2, what="the end of its program")
        there.cluster.end_pod(lost)
        agents[fresh] = in_pod(job, fresh, there.add(fresh), 3)
        assert {world for _, world, _ in (job.rank(rank, 0, attempt + 1) for rank in range(3))} == {3}
        there.agree(attempt, "a", "b", fresh)
    assert {name: agent_pid(job.holdfast, name) for name in "ab"} == pids
    agents["a"].wait_for_output("JobSet train counts this pod as in-place restart attempt 2")
    job.finish()
    assert [agent.wait().returncode for agent in agents.values()] == [0, 0, 0]
    assert not [event for event in job.holdfast.events("Degraded") if "JobSet" in event["what"]]


def test_the_program_is_started_again_for_the_same_life_of_its_pod(standin, pods, job, alive, wait_until):
    there = pods(1)
    agent = in_pod(job, "a", there.add("a"), 1)
    there.agree(0, "a")
    agent.wait_for_output("in-place restart attempt 0")  # the agent knows, and hands it on
    os.kill(*programs(alive), signal.SIGKILL)
    wait_until(lambda: standin.asked.count(("holdfast", "watch", "jobsets")) > 1, what="another program")
    assert there.attempts() == {"a": 0}
    in_status(there, previousInPlaceRestartAttempt=0)
    there.agree(1, "a")
    job.finish()
    assert agent.wait().returncode == 0


def in_status(there: Pods, **fields: int) -> None:
    there.cluster.ask("PATCH", f"{JOBSETS}/train/status", {"status": fields})


def test_an_api_server_that_is_away_costs_one_line_and_is_asked_again(standin, pods, job, alive, wait_until):
    there = pods(1)
    agent = in_pod(job, "a", there.add("a"), 1)
    there.agree(0, "a")
    for attempt in (1, 2):
        standin.stop()
        wait_until(lambda: not programs(alive), what="the end of the program")
        agent.wait_for_output("Connection refused")
        standin.start()
        in_status(there, previousInPlaceRestartAttempt=attempt - 1)
        there.agree(attempt, "a")
    job.finish()
    assert agent.wait().returncode == 0
    assert agent.stderr.count("JobSet train is not told of this pod for now") == agent.stderr.count("Connection refused") == 1


def test_an_account_without_the_rights_costs_one_line_and_the_job_goes_on(standin, pods, job, wait_until):
    there = pods(1)
    standin.may_see.remove("jobsets")
    agent = in_pod(job, "a", there.add("a"), 1)
    wait_until(lambda: standin.asked.count(("holdfast", "list", "jobsets")) > 1, what="a second try")
    job.rank(0, 0, 1)
    job.finish()
    assert agent.wait().returncode == 0 and there.attempts() == {}
    assert agent.stderr.count(f"--in-place-restart: JobSet train is not told of this pod for now: {RIGHTS}") == 1
    assert agent.stderr.count("JobSet train") == 1


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({}, "this agent is not in a pod"),
        ({"KUBERNETES_SERVICE_HOST": "127.0.0.1"}, "needs JOBSET_NAME and POD_NAME in the environment"),
        ({"KUBERNETES_SERVICE_HOST": "127.0.0.1", "JOBSET_NAME": "a"}, "hand down POD_NAME from fieldPath metadata.name"),
    ],
)
def test_who_does_not_know_its_pod_says_what_the_manifest_must_hand_down(holdfast, script, env, said):
    end = holdfast.run("run", script("pass"), env={"HOLDFAST_IN_PLACE_RESTART": "1", **env})
    assert end.returncode == 2 and said in end.stderr


# --- the program ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "why"),
    [({"strategy": "Recreate"}, "its restartStrategy is Recreate"), ({DISABLED: "true"}, f"it is annotated {DISABLED}")],
)
def test_a_jobset_that_does_not_restart_in_place_is_told_nothing(pods, start, how, why):
    there = pods(1, **how)
    running = start(there.add("a"))
    assert running.line() == f"bypass {why}"
    if DISABLED in how:
        there.cluster.ask("PATCH", f"{JOBSETS}/train", {"metadata": {"annotations": {DISABLED: None}}})
        assert running.line() == "attempt 0", "once it does"
    assert there.attempts() == ({"a": 0} if DISABLED in how else {})


def test_a_pod_that_is_not_made_again_goes_on_from_where_it_was(pods, start):
    there = pods(1)
    in_status(there, currentInPlaceRestartAttempt=3)
    running = start(there.add("a"), "3")
    assert running.line() == "attempt 3" and there.attempts() == {}, "it has said so before"
    there.controller.stop()
    in_status(there, previousInPlaceRestartAttempt=3)
    assert running.line() == "attempt 4" and there.attempts() == {"a": 4}


def test_a_watch_whose_time_is_over_is_gone_on_with(standin, pods, start, wait_until):
    there = pods(1)
    running = start(there.add("a"))
    assert running.line() == "attempt 0"
    began = time.monotonic()
    wait_until(lambda: time.monotonic() > began + 1.5)  # sooner it would be none
    standin.end_watches()
    wait_until(lambda: standin.asked.count(("holdfast", "watch", "jobsets")) == 2)
    in_status(there, previousInPlaceRestartAttempt=0)
    assert running.line() == "attempt 1" and standin.asked.count(("holdfast", "list", "jobsets")) == 1


def test_what_happened_too_long_ago_is_no_trouble_and_read_by_the_next(standin, pods, start):
    there = pods(1)
    env = there.add("a")
    running = start(env)
    assert running.line() == "attempt 0"
    with standin.lock:
        standin.things[f"{JOBSETS}/train"]["status"]["previousInPlaceRestartAttempt"] = 0  # no watch tells it
    standin.end_watches(forget=True)
    assert running.line() == ""
    assert start(env, "0").line() == "attempt 1"


def test_an_old_api_server_that_cannot_select_jobsets_gives_them_all(standin, pods, start):
    standin.selects_custom = False
    there = pods(1)
    there.cluster.ask("POST", JOBSETS, {**there.cluster.jobset("train"), "metadata": {"name": "another"}})
    running = start(there.add("a"))
    assert running.line() == "attempt 0"
    there.cluster.ask("PATCH", f"{JOBSETS}/another/status", {"status": {"previousInPlaceRestartAttempt": 7}})
    in_status(there, previousInPlaceRestartAttempt=4)
    assert running.line() == "attempt 5"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ({"JOBSET_NAME": "nobody"}, "trouble there is no JobSet nobody in namespace default"),
        ({"POD_NAME": "nobody"}, "trouble /api/v1/namespaces/default/pods/nobody: 404 Not Found"),
    ],
)
def test_what_is_not_there_is_named(pods, start, name, why):
    there = pods(1)
    running = start({**there.add("a"), **name})
    assert running.line() == why and running.line() == ""

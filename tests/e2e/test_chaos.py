"""Daemon, supervisor, agents and workers are killed in whatever order, and started again as an init system would. The job
trains to its end with the right result, the fleet's record has lost nothing and tells nothing twice, and nothing is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.fleet.supervised import Supervised
from kit.jobs.ranks import Cluster
from kit.jobs.succession import LOGS
from kit.ports import ports

TRAINS = """
import fcntl, json, os, sys, time
folder, steps = sys.argv[1], STEPS
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def put(name, text):
    with open(f"{folder}/{name}.{os.getpid()}", "w") as file:
        file.write(text)
    os.rename(f"{folder}/{name}.{os.getpid()}", f"{folder}/{name}")

alone = os.open(f"{folder}/lock.{rank}", os.O_RDWR | os.O_CREAT)
try:
    fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    put(f"two.{rank}.{os.environ['HOLDFAST_ROUND']}", "")
    sys.exit(7)
state = {"step": 0, "sum": 0}
try:
    state = json.load(open(f"{folder}/checkpoint.{rank}"))
except OSError:
    pass
put(f"pid.{rank}", str(os.getpid()))
while state["step"] < steps:
    step = state["step"]
    put(f"gradient.{step}.{rank}", str((step + 1) * (rank + 1)))
    while not all(os.path.exists(f"{folder}/gradient.{step}.{one}") for one in range(world)):
        time.sleep(0.01)
    total = sum(int(open(f"{folder}/gradient.{step}.{one}").read()) for one in range(world))
    state = {"step": step + 1, "sum": state["sum"] + total}
    put(f"checkpoint.{rank}", json.dumps(state))
    time.sleep(0.03)
while not os.path.exists(f"{folder}/finish"):
    time.sleep(0.02)
"""
"""Each rank's steps need the other's of the same number, as an all-reduce does, and each step is kept. Two of one rank at a
time say so. They end when they may."""

STEPS = 150
RESULT = sum((step + 1) * (rank + 1) for step in range(STEPS) for rank in range(2))

DEATHS = ("worker", "agent", "agent", "supervisor", "supervisor", "daemon")
"""In an order that goes by the seed, twice over."""


class Chaos:
    """All the processes, and how each is started again."""

    def __init__(self, holdfast: Any, fleet: Supervised, folder: Path, wait_until: Callable[..., Any]) -> None:
        self.holdfast, self.fleet, self.folder, self.wait_until = holdfast, fleet, folder, wait_until
        self.agents: dict[str, Any] = {}
        self.daemon: Any = None
        self.witness = folder.parent / "witness"
        self.witness.mkdir()

    def start_daemon(self) -> None:
        self.daemon = self.holdfast.start("daemon", "--port", "0")
        self.daemon.wait_for_output("listening at")

    def start_agent(self, name: str) -> None:
        where = ("--supervisor", self.fleet.where, "--max-restarts", "100", "--lease", "2", "--witness", self.witness)
        self.agents[name] = self.fleet.job.agent(name, "2", *where, nproc=1, env=LOGS)

    def kill(self, what: str, rng: random.Random) -> None:
        """kill -9, and another start."""
        match what:
            case "daemon":
                self.daemon.kill()
                self.daemon.process.wait()
                self.start_daemon()
            case "supervisor":
                self.fleet.kill()
                self.fleet.start()
            case "agent":
                name = rng.choice(sorted(self.agents))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.agent_pid(name), signal.SIGKILL)
                self.agents[name].wait()
                self.start_agent(name)
                # More than half of those with a say in who leads the job have to live, and its life that is over has one still.
                self.agents[name].wait_for_output("the 3 nodes choose another")
            case "worker":
                with contextlib.suppress(ProcessLookupError):  # its agent has just been killed
                    os.kill(int((self.folder / f"pid.{rng.randrange(2)}").read_text()), signal.SIGKILL)

    def agent_pid(self, name: str) -> int:
        """Of the agent itself; the process that was started is its guardian."""

        def pids() -> list[int]:
            children = Path(f"/proc/{self.agents[name].pid}/task/{self.agents[name].pid}/children").read_text().split()
            started = [event["pid"] for event in self.holdfast.events("AgentStarted") if event["node"] == name]
            return [int(pid) for pid in children if int(pid) in started]

        return int(self.wait_until(pids)[0])

    def step(self) -> int:
        """The last that both ranks have kept."""
        steps = [json.loads(path.read_text())["step"] for path in self.folder.glob("checkpoint.?")]
        return min(steps) if len(steps) == 2 else 0

    def known_to_the_daemon(self) -> list[str]:
        """The nodes whose agents it knows."""
        told = self.holdfast.run("daemon", "--json")
        assert told.returncode == 0, told.output
        return sorted(agent["node"] for agent in json.loads(told.stdout)["table"]["agents"])

    def let_back(self) -> None:
        """What an operator does with a node that is well, and was taken out for what we have done to it."""
        for name, state in self.fleet.states().items():
            if state in ("unfit", "suspect"):
                self.holdfast.run("uncordon", name, "--state", self.fleet.state)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whoever_is_killed_in_whatever_order_nothing_is_lost(
    seed: int, holdfast: Any, job: Cluster, tmp_path: Path, wait_until: Callable[..., Any], script: Callable[..., Path]
) -> None:
    rng = random.Random(seed)
    job.program = script(TRAINS.replace("STEPS", str(STEPS)), "trains.py")
    job.folder.mkdir(exist_ok=True)
    fleet = Supervised(holdfast, job, f"127.0.0.1:{ports(1)[0]}", tmp_path, wait_until)
    chaos = Chaos(holdfast, fleet, job.folder, wait_until)
    chaos.start_daemon()
    fleet.start()
    for name in ("a", "b", "c"):
        chaos.start_agent(name)
    wait_until(lambda: chaos.step() > 0)
    wait_until(lambda: len(fleet.states()) == 3)
    for what in rng.sample(DEATHS, len(DEATHS)) + rng.sample(DEATHS, len(DEATHS)):
        before = chaos.step()
        print(f"{what} at step {before}", file=sys.stderr)
        chaos.kill(what, rng)
        # Else the next is killed while this one comes back.
        if what == "agent" or rng.random() < 0.5:
            chaos.let_back()
            wait_until(lambda before=before: chaos.step() > min(before + 3, STEPS - 1), what=f"a step after {before}")
            wait_until(lambda: len([state for state in fleet.states().values() if state != "lost"]) == 3)
    wait_until(lambda: chaos.step() == STEPS)
    results = {path.name: json.loads(path.read_text()) for path in job.folder.glob("checkpoint.?")}
    assert results == {f"checkpoint.{rank}": {"step": STEPS, "sum": RESULT} for rank in range(2)}
    assert not list(job.folder.glob("two.*")), "two processes were one rank at a time"

    chaos.let_back()
    wait_until(lambda: sorted(fleet.states().values()) == ["fit", "fit", "spare"], what=f"{fleet.states()}")
    wait_until(lambda: chaos.known_to_the_daemon() == ["a", "b", "c"], what="agents to come back to the daemon")
    for name in ("a", "b", "c"):
        deeds = wait_until(lambda name=name: (all(deed["outcome"] for deed in fleet.why(name)) and fleet.why(name)) or [{}])
        assert len({deed.get("id") for deed in deeds}) == len(deeds)
    job.finish()
    assert {name: agent.wait().returncode for name, agent in chaos.agents.items()} == {"a": 0, "b": 0, "c": 0}

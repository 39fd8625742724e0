"""Ranks that have processes of their own, in whatever way."""

from __future__ import annotations

import signal

from chaos.fault import Outcome, fault
from chaos.job import Job
from chaos.node import send

SETSID = "each rank has eight grandchildren in sessions of their own, half with an emptied environment; then {}"
FORKS = "a rank forks 500 children, each second in a session of its own; then {}"


def _all_have(job: Job, what: str, count: int) -> None:
    job.order_all(what, count)
    job.struck_at = float("inf")
    job.goes_on(steps=3)


@fault("setsid grandchildren, rank", SETSID.format("it is killed"), restarts=1, nproc=2, smoke=True)
def grandchildren_rank(job: Job) -> None:
    _all_have(job, "grandchildren", 8)
    job.kill_rank(job.any_rank())
    job.again()


@fault("setsid grandchildren, agent", SETSID.format("its agent is killed"), nodes=3, nnodes="2:3", smoke=True)
def grandchildren_agent(job: Job) -> None:
    _all_have(job, "grandchildren", 8)
    job.nodes["n1"].is_lost = True
    job.strike()
    send(job.nodes["n1"].agent_pid(), signal.SIGKILL)
    job.again()


@fault("setsid grandchildren, guardian", SETSID.format("its guardian is killed"), nodes=3, nnodes="2:3")
def grandchildren_guardian(job: Job) -> None:
    _all_have(job, "grandchildren", 8)
    job.nodes["n1"].is_lost = True
    job.strike()
    send(job.nodes["n1"].launcher.pid, signal.SIGKILL)
    job.again()


@fault(
    "setsid grandchildren, agent and guardian",
    SETSID.format("its agent and guardian are killed in one moment"),
    nodes=3,
    nnodes="2:3",
)
def grandchildren_both(job: Job) -> None:
    _all_have(job, "grandchildren", 8)
    node = job.nodes["n1"]
    node.is_lost = True
    agent = node.agent_pid()
    job.strike()
    send(agent, signal.SIGKILL)
    send(node.launcher.pid, signal.SIGKILL)
    job.again()


@fault("setsid grandchildren, SIGTERM", SETSID.format("the job is ended by SIGTERM"), outcome=Outcome.ENDS)
def grandchildren_sigterm(job: Job) -> None:
    _all_have(job, "grandchildren", 8)
    job.strike()
    job.nodes["n0"].launcher.send_signal(signal.SIGTERM)


@fault("500 children, rank", FORKS.format("it is killed"), restarts=1)
def children_rank(job: Job) -> None:
    life = job.order("children", 500)
    job.struck_at = float("inf")
    job.goes_on(steps=3)
    job.kill_rank(job.rank(life.rank))
    job.again()


@fault("500 children, agent", FORKS.format("its agent is killed"), nodes=3, nnodes="2:3")
def children_agent(job: Job) -> None:
    life = job.order("children", 500, rank=2)
    job.struck_at = float("inf")
    job.goes_on(steps=3)
    job.nodes[life.node].is_lost = True
    job.strike()
    send(job.nodes[life.node].agent_pid(), signal.SIGKILL)
    job.again()


@fault("500 children, SIGTERM", FORKS.format("the job is ended by SIGTERM"), outcome=Outcome.ENDS)
def children_sigterm(job: Job) -> None:
    job.order("children", 500)
    job.goes_on(steps=3)
    job.nodes["n0"].launcher.send_signal(signal.SIGTERM)


@fault("daemons, rank", "a rank makes eight daemons (forked twice, nothing open), and is killed", restarts=1)
def daemons_rank(job: Job) -> None:
    life = job.order("daemons", 8)
    job.struck_at = float("inf")
    job.goes_on(steps=3)
    job.kill_rank(job.rank(life.rank))
    job.again()


@fault("daemons, agent and guardian", "each rank makes eight daemons; then an agent and its guardian are killed in one moment",
       nodes=3, nnodes="2:3")  # fmt: skip
def daemons_both(job: Job) -> None:
    _all_have(job, "daemons", 8)
    node = job.nodes["n1"]
    node.is_lost = True
    agent = node.agent_pid()
    job.strike()
    send(agent, signal.SIGKILL)
    send(node.launcher.pid, signal.SIGKILL)
    job.again()


@fault("zombies", "a rank has 200 children that have ended, and is killed", restarts=1)
def zombies(job: Job) -> None:
    life = job.order("zombies", 200)
    job.struck_at = float("inf")
    job.goes_on(steps=3)
    job.kill_rank(job.rank(life.rank))
    job.again()


@fault("child outlives the training", "each rank has eight grandchildren in sessions of their own, and the job ends well")
def child_outlives(job: Job) -> None:
    _all_have(job, "grandchildren", 8)
    job.strike()
    job.goes_on()

"""Something stands still, for a while or for ever: a rank, an agent, a guardian, a node."""

from __future__ import annotations

import signal

from chaos.fault import fault
from chaos.job import Job
from chaos.node import send

STOP, CONT = signal.SIGSTOP, signal.SIGCONT
THREE = {"nodes": 3, "nnodes": "2:3"}


def _stop(job: Job, pids: list[int], seconds: float | None) -> None:
    job.strike()
    for pid in pids:
        send(pid, STOP)
    if seconds is not None:
        job.lasts(seconds)
        for pid in reversed(pids):
            send(pid, CONT)


def _whole_node(job: Job, name: str, seconds: float) -> None:
    job.strike()
    job.nodes[name].signal(STOP)
    job.lasts(seconds)
    job.nodes[name].signal(CONT)


@fault("stop rank 2 s", "SIGSTOP to a rank, and 2 s later SIGCONT", smoke=True, torchrun=True)
def stop_rank(job: Job) -> None:
    _stop(job, [job.any_rank().pid], 2)
    job.goes_on()


@fault("stop agent 1 s", "SIGSTOP to an agent that is not the coordinator's", **THREE)
def stop_agent(job: Job) -> None:
    _stop(job, [job.nodes["n1"].agent_pid()], 1)
    job.goes_on()


@fault("stop coordinator agent 1 s", "SIGSTOP to the coordinator's agent", smoke=True, **THREE)
def stop_coordinator(job: Job) -> None:
    _stop(job, [job.nodes["n0"].agent_pid()], 1)
    job.goes_on()


@fault("stop node 1 s", "SIGSTOP to all processes of a node, the coordinator's too, as where a host freezes", **THREE)
def stop_node(job: Job) -> None:
    _whole_node(job, job.any_node().name, 1)
    job.goes_on()


@fault("stop agent 10 s", "SIGSTOP to an agent that is not the coordinator's", smoke=True, **THREE)
def stop_agent_long(job: Job) -> None:
    _stop(job, [job.nodes["n1"].agent_pid()], 10)
    job.nodes["n1"].is_lost = not job.nodes["n1"].runs
    job.goes_on()


@fault("stop coordinator agent 10 s", "SIGSTOP to the coordinator's agent", **THREE)
def stop_coordinator_long(job: Job) -> None:
    _stop(job, [job.nodes["n0"].agent_pid()], 10)
    job.lasts(1)
    job.nodes["n0"].is_lost = not job.nodes["n0"].runs
    job.goes_on()


@fault("stop guardian 10 s", "SIGSTOP to a guardian", **THREE)
def stop_guardian(job: Job) -> None:
    _stop(job, [job.any_node().launcher.pid], 10)
    job.goes_on()


@fault(
    "stop node 10 s", "SIGSTOP to all processes of a node, the coordinator's too, as where a host freezes", smoke=True, **THREE
)
def stop_node_long(job: Job) -> None:
    node = job.any_node()
    _whole_node(job, node.name, 10)
    job.lasts(1)
    node.is_lost = not node.runs
    job.goes_on()


@fault("stop node in a restart", "a rank is killed, and up to 300 ms later a whole node stops for 10 s", restarts=1, **THREE)
def stop_node_in_a_restart(job: Job) -> None:
    job.kill_rank(job.any_rank())
    job.lasts(job.rng.uniform(0, 0.3))
    node = job.any_node()
    _whole_node(job, node.name, 10)
    job.lasts(1)
    node.is_lost = not node.runs
    job.again()


@fault(
    "freeze node 10 s", "the node's cgroup (version 2) is frozen for 10 s, as a paused container is", needs="cgroup2", **THREE
)
def freeze_node(job: Job) -> None:
    node = job.any_node("n1", "n2")
    assert node.cgroup
    job.strike()
    (node.cgroup / "cgroup.freeze").write_text("1")
    job.lasts(10)
    (node.cgroup / "cgroup.freeze").write_text("0")
    job.lasts(1)
    node.is_lost = not node.runs
    job.goes_on()


@fault(
    "freeze node 1 s",
    "the node's cgroup (version 2) is frozen for 1 s, as a container is for a checkpoint",
    needs="cgroup2",
    **THREE,
)
def freeze_node_short(job: Job) -> None:
    node = job.any_node()
    assert node.cgroup
    job.strike()
    (node.cgroup / "cgroup.freeze").write_text("1")
    job.lasts(1)
    (node.cgroup / "cgroup.freeze").write_text("0")
    job.goes_on()


@fault(
    "all nodes stop 10 s", "SIGSTOP to all processes of all nodes, as where the hosts' machine is saved and resumed", **THREE
)
def all_stop(job: Job) -> None:
    job.strike()
    for node in job.nodes.values():
        node.signal(STOP)
    job.lasts(10)
    for node in job.nodes.values():
        node.signal(CONT)
    job.goes_on()


@fault("stop rank for ever", "SIGSTOP to a rank", restarts=1, cause=("hung",), options=("--most-limit", 4, "--least-limit", 4))
def stop_rank_for_ever(job: Job) -> None:
    job.trains(30)
    _stop(job, [job.any_rank().pid], None)
    job.again()


@fault("stop agent for ever", "SIGSTOP to an agent that is not the coordinator's", cause=("n1",), **THREE)
def stop_agent_for_ever(job: Job) -> None:
    job.nodes["n1"].is_lost = True
    _stop(job, [job.nodes["n1"].agent_pid()], None)
    job.again()


@fault("stop guardian for ever", "SIGSTOP to a guardian, and in the end SIGKILL", **THREE)
def stop_guardian_for_ever(job: Job) -> None:
    node = job.any_node("n1", "n2")
    node.is_lost = True
    _stop(job, [node.launcher.pid], None)
    job.goes_on()
    node.launcher.kill()


@fault("stop coordinator agent for ever", "SIGSTOP to the coordinator's agent", cause=("coordinator .*was lost",), **THREE)
def stop_coordinator_for_ever(job: Job) -> None:
    job.nodes["n0"].is_lost = True
    _stop(job, [job.nodes["n0"].agent_pid()], None)
    job.again()


@fault("Ctrl-Z 1 s", "SIGTSTP to the launcher of n1, later SIGCONT", **THREE)
def ctrl_z(job: Job) -> None:
    job.strike()
    send(job.nodes["n1"].launcher.pid, signal.SIGTSTP)
    job.lasts(1)
    send(job.nodes["n1"].launcher.pid, CONT)
    job.goes_on()


@fault("Ctrl-Z 8 s", "SIGTSTP to the launcher of n1, later SIGCONT", smoke=True, **THREE)
def ctrl_z_long(job: Job) -> None:
    job.strike()
    send(job.nodes["n1"].launcher.pid, signal.SIGTSTP)
    job.lasts(8)
    send(job.nodes["n1"].launcher.pid, CONT)
    job.lasts(1)
    job.nodes["n1"].is_lost = not job.nodes["n1"].runs
    job.goes_on()


@fault("stops again and again", "SIGSTOP to an agent for 0.5 s in each second, eight times", **THREE)
def stutters(job: Job) -> None:
    pid = job.any_node().agent_pid()
    for _ in range(8):
        _stop(job, [pid], 0.5)
        job.lasts(0.5)
    job.goes_on()

# ruff: noqa: E501 (a row is a row: what is done stands in one line)
"""Commands, debuggers and the job's own control: used at random, and killed at random."""

from __future__ import annotations

import signal
import subprocess
import threading
import time

from chaos.fault import Outcome, fault
from chaos.job import Job
from chaos.node import Node, send

COMMANDS = ("status", "why", "report", "events", "jobs", "incidents", "diagnose")


def _command(node: Node, *words: str) -> subprocess.Popen[bytes]:
    command = node.command(["python3", "-m", "holdfast", *words])
    from kit import ROOT

    command[command.index("python3")] = str(ROOT / ".venv/bin/python")
    return subprocess.Popen(command, env=node.environment(), cwd=node.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)  # fmt: skip


@fault(
    "commands killed",
    "status, why, report and others run on n0, twelve times, and each is killed within 0.3 s; then a rank is killed",
    restarts=1,
)
def commands_killed(job: Job) -> None:
    job.strike()
    for _ in range(12):
        asking = _command(job.nodes["n0"], job.rng.choice(COMMANDS))
        job.lasts(job.rng.uniform(0.05, 0.3))
        asking.kill()
        asking.wait()
    job.goes_on()
    job.kill_rank(job.any_rank())
    job.again()


@fault(
    "commands stopped",
    "three commands on n0 get SIGSTOP while they ask the agent, and stay so; then a rank is killed",
    restarts=1,
)
def commands_stopped(job: Job) -> None:
    asking = [_command(job.nodes["n0"], "status") for _ in range(3)]
    job.lasts(0.12)
    for one in asking:
        one.send_signal(signal.SIGSTOP)
    job.kill_rank(job.any_rank())
    job.again()
    for one in asking:
        one.kill()
        one.wait()


def asked(
    name: str, done: str, *words: str, outcome: Outcome = Outcome.TRAINS, restarts: int | tuple[int, int] = 0, **setup: object
) -> None:
    """A kind in which an operator asks something of the job, of an agent by chance."""

    @fault(name, done, outcome=outcome, restarts=restarts, **setup)  # type: ignore[arg-type]
    def play(job: Job) -> None:
        node = job.any_node()
        job.strike()
        job.note(said=node.ask(*words))
        if outcome == Outcome.TRAINS:
            job.again()


asked("holdfast stop", "an operator stops the job, on any node", "stop", "chaos", outcome=Outcome.ENDS)
asked("holdfast restart", "an operator has all ranks started again, on any node", "restart", "chaos", restarts=1)
asked("inject: kill", "`holdfast inject kill n1`, on any node", "inject", "kill", "n1", restarts=1, options=("--allow-inject",))
asked("inject: hang", "`holdfast inject hang n1`, on any node", "inject", "hang", "n1", restarts=1,
      options=("--allow-inject", "--most-limit", 4, "--least-limit", 4, "--still-limit", 6))  # fmt: skip


@fault(
    "holdfast restart, killed",
    "an operator asks for a restart, and the command is killed 0 to 0.2 s later; then a rank is killed",
    restarts=(1, 2),
)
def restart_killed(job: Job) -> None:
    asking = _command(job.nodes["n0"], "restart", "chaos")
    job.lasts(job.rng.uniform(0, 0.2))
    asking.kill()
    asking.wait()
    job.kill_rank(job.any_rank())
    job.again()


@fault("holdfast exclude", "an operator excludes n1, and a spare takes its place", nodes=3, nnodes="2")
def exclude(job: Job) -> None:
    name = ({life.node for life in job.alive()} - {"n0"}).pop()
    job.strike()
    job.note(said=job.nodes["n0"].ask("exclude", name))
    job.again()
    assert name not in {life.node for life in job.alive()}


@fault("exclude and readmit", "an operator excludes a node and readmits it, and excludes the other", nodes=3, nnodes="2")
def exclude_and_readmit(job: Job) -> None:
    job.strike()
    job.nodes["n0"].ask("exclude", "n1")
    job.wait(lambda: {life.node for life in job.alive()} == {"n0", "n2"}, "ranks on n0 and n2")
    job.goes_on()
    job.nodes["n0"].ask("readmit", "n1")
    job.nodes["n0"].ask("exclude", "n2")
    job.wait(lambda: {life.node for life in job.alive()} == {"n0", "n1"}, "ranks on n0 and n1")
    job.goes_on()


@fault(
    "control socket removed", "somebody removes the sockets in an agent's state directory; then a rank is killed", restarts=1
)
def control_removed(job: Job) -> None:
    for path in job.nodes["n0"].state.rglob("*.sock"):
        path.unlink()
    job.kill_rank(job.any_rank())
    job.again()


def _attached(job: Job, *command: object, seconds: float) -> None:
    tool = subprocess.Popen(
        list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    job.afterwards(lambda: (tool.kill(), tool.wait()))
    job.lasts(seconds)
    tool.terminate()
    tool.wait(10)


@fault("strace on a rank", "strace is attached to a rank for 3 s, and then the rank is killed", needs="strace root", restarts=1)
def strace_rank(job: Job) -> None:
    life = job.any_rank()
    _attached(job, "strace", "-f", "-o", "/dev/null", "-p", life.pid, seconds=3)
    job.kill_rank(job.rank(life.rank))
    job.again()


@fault(
    "strace on an agent", "strace is attached to an agent for 3 s, in which a rank is killed", needs="strace root", restarts=1
)
def strace_agent(job: Job) -> None:
    pid = job.any_node().agent_pid()
    tracing = threading.Thread(
        target=_attached, args=(job, "strace", "-f", "-o", "/dev/null", "-p", pid), kwargs={"seconds": 3}
    )
    tracing.start()
    time.sleep(0.5)
    job.kill_rank(job.any_rank())
    tracing.join()
    job.again()


@fault("strace killed", "strace is attached to a rank and is killed", needs="strace root")
def strace_killed(job: Job) -> None:
    life = job.any_rank()
    job.strike()
    tool = subprocess.Popen(["strace", "-f", "-o", "/dev/null", "-p", str(life.pid)], stderr=subprocess.DEVNULL)
    job.lasts(1)
    tool.kill()
    tool.wait()
    job.goes_on()


@fault("gdb on a rank 4 s", "a debugger holds a rank for 4 s, and lets it go", needs="gdb root")
def gdb_rank(job: Job) -> None:
    life = job.any_rank()
    job.strike()
    _attached(job, "gdb", "-p", life.pid, "-batch", "-ex", "shell sleep 4", seconds=5)
    job.goes_on()


@fault("all commands at once", "ten commands ask both agents at the same time, while a rank is killed", restarts=1)
def at_once(job: Job) -> None:
    asking = [_command(node, command) for node in job.nodes.values() for command in COMMANDS[:5]]
    job.kill_rank(job.any_rank())
    job.again()
    for one in asking:
        one.wait(30)


@fault(
    "stop, and a rank dies",
    "an operator stops the job, and a rank is killed at the same moment",
    outcome=Outcome.ENDS,
    restarts=(0, 1),
)
def stop_and_kill(job: Job) -> None:
    life = job.any_rank()
    asking = _command(job.nodes["n0"], "stop", "chaos")
    job.lasts(job.rng.uniform(0, 0.3))
    job.kill_rank(life)
    asking.wait(30)


@fault("follower of the log killed", "the process that shows an agent's output to a terminal (`| cat`) is killed, with --tee 3; then a rank is killed", restarts=1,
       starts=False,
    options=("--tee", 3))  # fmt: skip
def follower_killed(job: Job) -> None:
    job.start("n0")
    cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    job.start("n1", stdout=cat.stdin)
    assert cat.stdin
    cat.stdin.close()
    job.trains()
    send(cat.pid, signal.SIGKILL)
    cat.wait()
    job.kill_rank(next(life for life in job.alive() if life.node == "n0"))
    job.again()

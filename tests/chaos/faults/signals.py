# ruff: noqa: E501 (a row is a row: what is done stands in one line)
"""Signals to launchers, and terminals that close."""

from __future__ import annotations

import os
import pty
import signal
import threading

from chaos.fault import Outcome, fault
from chaos.job import Job
from chaos.node import send

DONE = (
    "a signal to the launcher: on the coordinator's node it ends the job, on another the node leaves; USR1, USR2 are the ranks'"
)
THREE = {"nodes": 3, "nnodes": "2:3"}


def ends_the_job(signum: signal.Signals, *, smoke: bool = False) -> None:
    name = signum.name

    @fault(f"{name} to n0", DONE, outcome=Outcome.ENDS, cause=(name,), smoke=smoke, **THREE)  # type: ignore[arg-type]
    def play(job: Job) -> None:
        job.strike()
        job.nodes["n0"].launcher.send_signal(signum)


def the_node_leaves(signum: signal.Signals, *, smoke: bool = False) -> None:
    name = signum.name

    @fault(f"{name} to n1", DONE, smoke=smoke, **THREE)  # type: ignore[arg-type]
    def play(job: Job) -> None:
        job.strike()
        job.nodes["n1"].is_lost = True
        job.nodes["n1"].launcher.send_signal(signum)
        job.ended("n1", patience_s=20)
        job.again()


def the_ranks_own(signum: signal.Signals, name: str) -> None:
    """Their default is to end: they are to be caught in the script."""
    script = f"import signal\nsignal.signal({int(signum)}, lambda *_: None)\n"

    @fault(f"{signum.name} to {name}", DONE, script=script, **THREE)  # type: ignore[arg-type]
    def play(job: Job) -> None:
        job.strike()
        job.nodes[name].launcher.send_signal(signum)
        job.goes_on(steps=20)


for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    ends_the_job(one, smoke=one == signal.SIGTERM)
    the_node_leaves(one, smoke=one == signal.SIGINT)
for one in (signal.SIGUSR1, signal.SIGUSR2):
    the_ranks_own(one, "n0")
    the_ranks_own(one, "n1")


def is_ignored(signum: signal.Signals) -> None:
    @fault(f"{signum.name} to an agent", "a signal that means nothing to a launcher; the agent gets it too", **THREE)  # type: ignore[arg-type]
    def play(job: Job) -> None:
        node = job.any_node()
        job.strike()
        for pid in (node.launcher.pid, node.agent_pid()):
            send(pid, signum)
        job.goes_on(steps=20)


for one in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGWINCH, signal.SIGCONT, signal.SIGURG):
    is_ignored(one)


@fault("SIGTERM twice", "SIGTERM to all launchers, and again 1.5 s later, while ranks are deaf to it", outcome=Outcome.ENDS, nproc=1,
       script="import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n")  # fmt: skip
def sigterm_twice(job: Job) -> None:
    job.strike()
    for _ in range(2):
        for node in job.nodes.values():
            if node.runs:
                node.launcher.send_signal(signal.SIGTERM)
        job.lasts(1.5)


@fault(
    "SIGTERM to all",
    "SIGTERM to all launchers in one moment, as a scheduler does",
    outcome=Outcome.ENDS,
    cause=("SIGTERM",),
    **THREE,
)
def sigterm_to_all(job: Job) -> None:
    job.strike()
    for node in job.nodes.values():
        node.launcher.send_signal(signal.SIGTERM)


@fault("SIGTERM to all processes", "SIGTERM to all processes of all nodes in one moment, as where a pod's or step's cgroup is ended",
       outcome=Outcome.ENDS, restarts=(0, 1), **THREE)  # fmt: skip
def sigterm_to_everything(job: Job) -> None:
    job.strike()
    for node in job.nodes.values():
        node.signal(signal.SIGTERM)


@fault("SIGTERM while starting", "to 1 s after the agents' start the job gets SIGTERM", outcome=Outcome.ENDS, starts=False)
def sigterm_while_starting(job: Job) -> None:
    job.start()
    job.lasts(job.rng.uniform(0.2, 1.0))
    job.strike()
    for node in job.nodes.values():
        node.launcher.send_signal(signal.SIGTERM)


@fault("SIGTERM during restart", "a rank is killed, and to 200 ms later the coordinator's launcher gets SIGTERM", outcome=Outcome.ENDS,
       restarts=(0, 1))  # fmt: skip
def sigterm_during_restart(job: Job) -> None:
    job.kill_rank(job.any_rank())
    job.lasts(job.rng.uniform(0, 0.2))
    job.nodes["n0"].launcher.send_signal(signal.SIGTERM)


@fault("SIGTERM to an agent", "SIGTERM to the agent itself, not to the process that was started", **THREE)
def sigterm_to_an_agent(job: Job) -> None:
    job.nodes["n1"].is_lost = True
    job.strike()
    send(job.nodes["n1"].agent_pid(), signal.SIGTERM)
    job.again()


# --- terminals ----------------------------------------------------------------------------------------------------------------


AT_TERMINAL = (
    "import fcntl, os, sys, termios\nos.setsid()\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\nos.execvp(sys.argv[1], sys.argv[1:])"
)


def _at_terminal(job: Job, name: str, *through: str) -> int:
    """Start its launcher in a session of its own at a terminal; returns the terminal's other end, which somebody reads."""
    mine, theirs = pty.openpty()
    node = job.nodes[name]
    words = ["python3", "-c", AT_TERMINAL, *through, *job.words(name)]
    node.start(words, {}, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    return mine


def _read(job: Job, terminal: int, into: str) -> None:
    """Whatever it shows, until it closes."""
    path = job.nodes[into].folder / "terminal.err"

    def read() -> None:
        with path.open("wb", buffering=0) as file:
            try:
                while data := os.read(terminal, 4096):
                    file.write(data)
            except OSError:
                pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    job.afterwards(lambda: thread.join(5))


@fault(
    "Ctrl-C at a terminal",
    "Ctrl-C at n0's terminal: the whole foreground group gets SIGINT",
    outcome=Outcome.ENDS,
    starts=False,
    cause=("SIGINT",),
)
def ctrl_c(job: Job) -> None:
    terminal = _at_terminal(job, "n0")
    _read(job, terminal, "n0")
    job.start("n1")
    job.trains()
    job.strike()
    os.write(terminal, b"\x03")
    job.ended()
    os.close(terminal)


@fault(
    "Ctrl-backslash at a terminal",
    "Ctrl-\\ at n0's terminal: the whole foreground group gets SIGQUIT",
    outcome=Outcome.ENDS,
    starts=False,
)
def ctrl_backslash(job: Job) -> None:
    terminal = _at_terminal(job, "n0")
    _read(job, terminal, "n0")
    job.start("n1")
    job.trains()
    job.strike()
    os.write(terminal, b"\x1c")
    job.ended()
    os.close(terminal)


@fault("terminal closes", "n1's terminal closes: its agent leaves the job", starts=False, **THREE)
def terminal_closes(job: Job) -> None:
    job.start("n0", "n2")
    terminal = _at_terminal(job, "n1")
    job.trains()
    job.wait(lambda: {life.node for life in job.alive()} == {"n0", "n1", "n2"}, "ranks on all")
    job.nodes["n1"].is_lost = True
    job.strike()
    os.close(terminal)
    job.ended("n1", patience_s=20)
    job.again()


@fault("terminal closes, nohup", "the same, started with nohup: it goes on", starts=False)
def terminal_closes_nohup(job: Job) -> None:
    job.start("n0")
    terminal = _at_terminal(job, "n1", "nohup")
    job.trains()
    job.strike()
    os.close(terminal)
    job.goes_on(steps=20)


@fault(
    "terminal stopped by Ctrl-S",
    "n1's terminal shows nothing for 5 s (Ctrl-S), while its ranks write; a rank is killed",
    restarts=1,
    starts=False,
)
def ctrl_s(job: Job) -> None:
    terminal = _at_terminal(job, "n1")
    _read(job, terminal, "n1")
    job.start("n0")
    job.trains()
    os.write(terminal, b"\x13")
    job.order("writes_on", 4, "a line for the terminal\n", rank=next(life.rank for life in job.alive() if life.node == "n1"))
    job.struck_at = float("inf")
    job.kill_rank(next(life for life in job.alive() if life.node == "n0"))
    job.lasts(5)
    os.write(terminal, b"\x11")
    job.again()
    job.afterwards(lambda: os.close(terminal))


@fault("in the background", "started with & from a shell with job control at a terminal with tostop; ranks read from stdin, and one is killed",
       restarts=1, starts=False, script="import sys, threading\nthreading.Thread(target=lambda: sys.stdin and sys.stdin.read(), daemon=True).start()\n")  # fmt: skip
def in_the_background(job: Job) -> None:
    mine, theirs = pty.openpty()
    node = job.nodes["n1"]
    shell = ["bash", "-c", 'set -m; stty tostop; "$@" >0.out 2>0.err & wait $!', "bash", *job.words("n1")]
    node.start(["python3", "-c", AT_TERMINAL, *shell], {}, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    _read(job, mine, "n1")
    job.start("n0")
    job.trains()
    job.kill_rank(next(life for life in job.alive() if life.node == "n0"))
    job.again()
    job.afterwards(lambda: os.close(mine))

"""However the agent ends, nothing is left; and the pid that the user started behaves as one program would."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from kit import SCRIPTS
from kit.waiting import PATIENCE_S, wait_for


def until(what: Callable[[], object], why: str) -> None:
    wait_for(what, what=why)


def state(pid: int) -> str:
    """R, S, T …; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0].strip("ZX")
    except OSError:
        return ""


class Small:
    """A small agent under its guardian, with everything it started."""

    def __init__(self, folder: Path, *words: str, through: Sequence[str] = (), **popen: object) -> None:
        self.folder = folder
        argv = [sys.executable, *through, str(SCRIPTS / "small_agent.py"), str(folder), *words]
        self.guardian = subprocess.Popen(argv, stderr=subprocess.PIPE, **popen)  # type: ignore[call-overload]
        until(self.has_begun, "the agent begins")
        self.agent = int((folder / "agent").read_text())
        self.below = [int(name) for name in os.listdir(folder / "pids")]
        assert len(self.below) == 6

    def has_begun(self) -> bool:
        assert self.guardian.poll() is None or (self.folder / "agent").exists(), self.guardian.stderr.read()
        return (self.folder / "agent").exists()

    def everything_is_gone(self) -> bool:
        return not any(state(pid) for pid in [self.agent, *self.below])

    def ends(self) -> int:
        """Its exit code; all descendants must be gone by then."""
        code: int = self.guardian.wait(PATIENCE_S)
        assert self.everything_is_gone()
        return code

    def signals(self) -> list[int]:
        try:
            return [int(line) for line in (self.folder / "signals").read_text().split()]
        except FileNotFoundError:
            return []


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[..., Small]]:
    started: list[Small] = []

    def start(*words: str, **popen: object) -> Small:
        started.append(Small(tmp_path, *words, **popen))
        return started[-1]

    yield start
    for one in started:
        for pid in [one.agent, *one.below]:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(pid, signal.SIGKILL)
        one.guardian.kill()
        one.guardian.communicate()


@pytest.mark.parametrize("code", [0, 7])
def test_a_normal_end_leaves_nothing_and_passes_the_code_on(small: Callable[..., Small], code: int) -> None:
    assert small("--worker-end", "exit", "--exit", str(code)).ends() == code


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGUSR1, signal.SIGALRM])
def test_an_agent_ended_by_a_signal_leaves_nothing_and_the_shell_sees_the_signal(
    small: Callable[..., Small], signum: signal.Signals
) -> None:
    one = small("--default-signals")
    os.kill(one.agent, signum)
    assert one.ends() == -signum
    said = f"the agent (pid {one.agent}) was killed by {signum.name}: ended its workers"
    asked = signum in (signal.SIGTERM, signal.SIGUSR1)  # it says so itself, where it can
    assert (said in one.guardian.stderr.read().decode()) is not asked


def test_a_signal_that_the_agent_does_not_handle_ends_both(small: Callable[..., Small]) -> None:
    one = small("--default-signals")
    os.kill(one.guardian.pid, signal.SIGUSR2)
    assert one.ends() == -signal.SIGUSR2


@pytest.mark.parametrize("deaf", [False, True])
def test_the_agent_ends_everything_when_the_guardian_is_killed(small: Callable[..., Small], deaf: bool) -> None:
    one = small(*(["--deaf"] if deaf else []))
    os.kill(one.guardian.pid, signal.SIGKILL)
    until(one.everything_is_gone, "agent and descendants go")


def test_a_sigkill_to_the_process_group_leaves_nothing(small: Callable[..., Small]) -> None:
    one = small(start_new_session=True)
    os.killpg(one.guardian.pid, signal.SIGKILL)
    until(one.everything_is_gone, "agent and descendants go")


@pytest.mark.parametrize("group", [False, True], ids=["pid", "process group"])
def test_each_signal_reaches_the_agent_once(small: Callable[..., Small], group: bool) -> None:
    # Whoever started us may have ignored it (nohup), and then it means that.
    one = small(start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    sent = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN + 5]
    for count, signum in enumerate(sent):
        (os.killpg if group else os.kill)(one.guardian.pid, signum)
        until(lambda count=count: len(one.signals()) > count, f"signal {signum} arrives")
    os.kill(one.guardian.pid, signal.SIGTERM)  # whatever came twice would be before this one
    until(lambda: len(one.signals()) > len(sent), "the last signal arrives")
    assert one.signals() == [*sent, signal.SIGTERM]


def test_nohup_is_respected(small: Callable[..., Small]) -> None:
    one = small(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    os.kill(one.guardian.pid, signal.SIGHUP)
    os.kill(one.guardian.pid, signal.SIGUSR1)
    until(one.signals, "a later signal arrives")
    assert one.signals() == [signal.SIGUSR1]


def test_exit_codes_survive_a_parent_that_ignores_sigchld(small: Callable[..., Small]) -> None:
    one = small("--worker-end", "exit", "--exit", "7", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert one.ends() == 7


@pytest.fixture
def job(small: Callable[..., Small], tmp_path: Path) -> Iterator[tuple[Small, int, int]]:
    """(what runs, the job's pid, the terminal's keyboard)."""
    keyboard, terminal = pty.openpty()
    file = tmp_path / "job"
    one = small("--lease", "0.5", through=[str(SCRIPTS / "shell_job.py"), str(file)], stdin=terminal)
    os.close(terminal)
    until(file.exists, "the shell knows its job's pid")
    yield one, int(file.read_text()), keyboard
    os.close(keyboard)


def test_ctrl_c_reaches_the_agent_once(job: tuple[Small, int, int]) -> None:
    one, pid, keyboard = job
    os.write(keyboard, b"\x03")
    until(one.signals, "SIGINT arrives")
    os.kill(pid, signal.SIGUSR1)
    until(lambda: len(one.signals()) > 1, "a later signal arrives")
    assert one.signals() == [signal.SIGINT, signal.SIGUSR1]


def test_ctrl_z_stops_both_for_as_long_as_one_likes_and_the_job_goes_on(job: tuple[Small, int, int]) -> None:
    one, pid, keyboard = job
    os.write(keyboard, b"\x1a")
    # The workers too: others count on this node, and go on without it.
    until(lambda: {state(stopped) for stopped in (pid, one.agent, *one.below)} == {"T"}, "all are stopped")
    time.sleep(2.0)  # well past the lease and the guardian's slack
    os.kill(pid, signal.SIGCONT)
    until(lambda: "T" not in {state(going) for going in (pid, one.agent, *one.below)}, "all go on, with the lease renewed")
    time.sleep(1.5)  # if the guardian was mistaken, it would strike by now
    assert all(state(below) for below in one.below)


def test_a_stopped_agent_whose_lease_is_over_is_ended_by_the_guardian(small: Callable[..., Small]) -> None:
    one = small("--lease", "0.5")
    os.kill(one.agent, signal.SIGSTOP)
    assert one.ends() == 1
    assert b"lease is over" in one.guardian.stderr.read()


def test_an_agent_that_is_not_stopped_outlives_the_workers_that_the_guardian_ends(small: Callable[..., Small]) -> None:
    one = small("--lease", "0.2", "--once", "--exit", "7")
    assert one.ends() == 7, "it saw its worker end, and why"


def test_a_stopped_agent_without_a_lease_is_left_alone(small: Callable[..., Small]) -> None:
    one = small()
    os.kill(one.agent, signal.SIGSTOP)
    os.kill(one.guardian.pid, signal.SIGUSR1)  # wakes the guardian, who must find nothing wrong
    until(lambda: state(one.agent) == "T", "the agent is stopped")
    os.kill(one.guardian.pid, signal.SIGCONT)
    until(one.signals, "it goes on and sees the signal")
    assert one.guardian.poll() is None


def test_a_pause_of_the_whole_machine_is_no_loss(small: Callable[..., Small]) -> None:
    one = small("--lease", "0.5")
    for pid in (one.guardian.pid, one.agent):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2.5)
    # The guardian first: the worst case. The agent right after it: nothing of ours may take the time that an agent has.
    for pid in (one.guardian.pid, one.agent):
        os.kill(pid, signal.SIGCONT)
    time.sleep(1.5)  # if the guardian was mistaken, it would strike by now
    assert one.guardian.poll() is None
    assert all(state(pid) for pid in one.below)

"""What every test can use: a `holdfast` command of its own, free ports, waiting for a condition, and a watch for orphans.

Every test that may start processes carries a mark in its environment (`HOLDFAST_TEST_MARK`), which whatever it starts
inherits, children of children included. Whoever still carries it after the test is an orphan, and the test fails.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
from infra.etcd import Etcd

hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")  # no test is timed: a busy machine is no defect

MARK = "HOLDFAST_TEST_MARK"
ORPHAN_GRACE_S = 1.0
"""What Holdfast promises: however its agent ends, a second later nothing is left."""
PATIENCE_S = 60.0
"""How long to wait for what should take no time: long enough for a busy machine, so that a timeout means a bug."""
QUIET_FOLDERS = ("unit", "contract", "sim")
"""Tests there start no process: no watch needed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine cannot run."""
    no_torch = None if importlib.util.find_spec("torch") else "PyTorch is not installed: pip install torch==2.13.0"
    no_root = None if os.geteuid() == 0 else "needs root"
    for item in items:
        for marker, reason in (("torch", no_torch), ("root", no_root)):
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def wait_for(predicate: Callable[[], Any], timeout: float = PATIENCE_S, what: str = "") -> Any:
    """The first true value of `predicate()`; fails the test after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (seen := predicate()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout:.0f} s for {what or getattr(predicate, '__name__', 'a condition')}", pytrace=True)
        time.sleep(0.01)
    return seen


def marked(mark: str) -> list[int]:
    """Pids of the live processes whose environment carries `mark`. A process being torn down has none, nor has a zombie."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return "ended"


@pytest.fixture(autouse=True)
def test_mark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """This test's mark. Afterwards: nothing that carries it may be alive."""
    mark = uuid.uuid4().hex
    if request.path.parent.name in QUIET_FOLDERS:
        yield mark
        return
    monkeypatch.setenv(MARK, mark)
    yield mark
    deadline = time.monotonic() + ORPHAN_GRACE_S
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    if left:
        named = {pid: _command_of(pid) for pid in left}
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        pytest.fail(f"left behind, {ORPHAN_GRACE_S:.0f} s after the test: {named}", pytrace=False)


@pytest.fixture
def alive(test_mark: str) -> Callable[[], list[int]]:
    """`alive()`: pids of all that this test has started, directly or not, and that still live."""
    return lambda: marked(test_mark)


class Finished(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


class Running:
    """A `holdfast` command that has been started. Its output goes to files, so that no full pipe can stop it."""

    def __init__(self, command: tuple[str, ...], env: dict[str, str], folder: Path, cwd: Path) -> None:
        folder.mkdir(parents=True)
        self._files = folder / "stdout", folder / "stderr"
        with self._files[0].open("wb") as out, self._files[1].open("wb") as err:
            self.process = subprocess.Popen(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> str:
        """What it has said so far."""
        return self._files[0].read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._files[1].read_text(errors="replace")

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Send a signal to the pid that the user sees, and to it alone."""
        self.process.send_signal(signum)

    def wait_for_output(self, text: str, timeout: float = PATIENCE_S) -> None:
        """Until `text` stands in stdout or stderr. Fails at once when the command has ended without it."""

        def said() -> bool:
            over = self.ended
            if text in self.stdout or text in self.stderr:
                return True
            if over:
                pytest.fail(f"ended with {self.process.returncode} without saying {text!r}:\n{self.stdout}{self.stderr}")
            return False

        wait_for(said, timeout, repr(text))

    def wait(self, timeout: float = PATIENCE_S) -> Finished:
        """Until it ends; fails after `timeout` seconds, showing what it said."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {timeout:.0f} s; it said:\n{self.stdout}{self.stderr}")
        return Finished(code, self.stdout, self.stderr)


class Holdfast:
    """`python -m holdfast` with a state directory of the test's own; `through`: the command that it is an argument of."""

    def __init__(self, folder: Path, through: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.through = through
        self.state_dir = folder / "state"
        self._started: list[Running] = []
        self._numbers = itertools.count()  # a stand-in for a cluster starts pods from threads of its own

    def start(self, *args: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> Running:
        """Start it; what is in `env` is added to this process's environment."""
        full = os.environ | {"HOLDFAST_STATE_DIR": str(self.state_dir)} | (env or {})
        where = self.folder / f"command-{next(self._numbers)}"
        command = (*self.through, sys.executable, "-m", "holdfast", *map(str, args))
        running = Running(command, full, where, cwd or self.folder)
        self._started.append(running)
        return running

    def run(self, *args: object, timeout: float = PATIENCE_S, **how: Any) -> Finished:
        """Start it and wait for its end. `how` is what `start` takes."""
        return self.start(*args, **how).wait(timeout)

    __call__ = run

    def jobs(self) -> list[Path]:
        """Folders of this test's jobs, oldest first."""
        return sorted((self.state_dir / "jobs").glob("*/"), key=lambda job: job.stat().st_mtime)

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """Events of all nodes of the newest job so far; only those called `name`, where it is given."""
        lines = [line for job in self.jobs()[-1:] for file in sorted(job.glob("events-*.jsonl")) for line in _whole_lines(file)]
        return [event for event in map(json.loads, lines) if name in (None, event.get("event"))]

    def stop_all(self) -> None:
        for running in self._started:
            if not running.ended:
                running.kill(signal.SIGTERM)
        for running in self._started:
            try:
                running.process.wait(10)
            except subprocess.TimeoutExpired:
                running.kill()
                running.process.wait()


def _whole_lines(file: Path) -> list[str]:
    text = file.read_text()
    return text[: text.rfind("\n") + 1].splitlines()


@pytest.fixture
def holdfast(tmp_path: Path, test_mark: str) -> Iterator[Holdfast]:
    """The command, with its own state directory; what it started is stopped at the end."""
    command = Holdfast(tmp_path)
    yield command
    command.stop_all()


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """`wait_until(predicate, timeout)`: the predicate's first true value, or the test fails."""
    return wait_for


@pytest.fixture
def free_port() -> int:
    """A TCP port that is free on this host now, and that the kernel gives to nobody's outgoing connection meanwhile."""
    for _ in range(1000):
        port = random.randrange(10_000, 20_000)  # below ip_local_port_range, and below the ports that go by Slurm's job ids
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("1,000 ports between 10,000 and 20,000 are taken")


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """`script("print(1)")`: a Python file of the test's own."""

    def write(source: str, name: str = "script.py") -> Path:
        path = tmp_path / name
        path.write_text(source)
        return path

    return write


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """A real one, which all tests of a module share: none of them may break it."""
    server = Etcd(tmp_path_factory.mktemp("etcd"))
    yield server
    server.stop()


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[Callable[..., Etcd]]:
    """`own_etcd(3)`: one of three members that the test may break."""
    started: list[Etcd] = []

    def start(size: int = 1, **how: Any) -> Etcd:
        started.append(Etcd(tmp_path / "etcd", size, **how))
        return started[-1]

    yield start
    for server in started:
        server.stop()

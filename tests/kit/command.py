"""The `holdfast` command as a user types it, with a state directory of the test's own."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kit.waiting import PATIENCE_S, wait_for

END_S = 10.0
"""How long a command has to end after SIGTERM."""

MOST_TOLD = 4_000
"""Letters of what a command has said that are shown where a test fails."""


HERE: weakref.WeakSet[Holdfast] = weakref.WeakSet()
"""All that there are: a job on several hosts has one for each."""


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
        HERE.add(self)
        self._numbers = itertools.count()  # a stand-in for a cluster starts pods from threads of its own

    def program(self, own: dict[str, str]) -> tuple[str, ...]:
        """What stands before its arguments. `own`: variables that it is to have."""
        return (*self.through, sys.executable, "-m", "holdfast")

    def start(self, *args: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> Running:
        """Start it; what is in `env` is added to this process's environment."""
        own = {"HOLDFAST_STATE_DIR": str(self.state_dir)} | (env or {})
        where = self.folder / f"command-{next(self._numbers)}"
        running = Running((*self.program(own), *map(str, args)), os.environ | own, where, cwd or self.folder)
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

    def told(self) -> str:
        """What its commands have been, and have said last: why a test has waited in vain often stands there."""
        parts = []
        for number, running in enumerate(self._started):
            ended = f"ended with {running.process.returncode}" if running.ended else "still runs"
            said = (running.stdout + running.stderr)[-MOST_TOLD:].rstrip()
            parts.append(f"{number}: {' '.join(map(str, running.process.args))}\n({ended})\n{said}")
        return "\n\n".join(parts)

    def stop_all(self) -> None:
        for running in self._started:
            if not running.ended:
                running.kill(signal.SIGTERM)
        deaf = []
        for running in self._started:
            try:
                running.process.wait(END_S)
            except subprocess.TimeoutExpired:
                is_stopped = "\nState:\tT" in Path(f"/proc/{running.process.pid}/status").read_text()
                deaf += [] if is_stopped else [" ".join(map(str, running.process.args))]
                running.kill()
                running.process.wait()
        assert not deaf, f"told to end by SIGTERM, and still there after {END_S} s: {deaf}"


def _whole_lines(file: Path) -> list[str]:
    text = file.read_text()
    return text[: text.rfind("\n") + 1].splitlines()

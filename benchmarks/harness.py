"""How the benchmarks start launchers, hear from workers, and repeat: A B A B, so that a busy moment strikes all alike."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

WORKERS = Path(__file__).parent / "workers"
PATIENCE_S = 60.0
HOLDFAST, TORCHRUN, PLAIN, FT_LAUNCHER = "holdfast", "torchrun", "python", "ft_launcher"


@dataclass(frozen=True)
class Note:
    """One event of one worker, at a monotonic time in seconds."""

    event: str
    rank: int
    pid: int
    at: float


@dataclass(frozen=True)
class Row:
    """One line of the table: samples of each contender, and what we want to reach."""

    what: str
    unit: str
    samples: Mapping[str, list[float]]
    reach: str = ""
    met: bool | None = None  # None: nothing to compare with
    note: str = ""

    def mid(self, contender: str) -> float | None:
        """The median; None if this contender was not measured."""
        values = self.samples.get(contender)
        return median(values) if values else None

    @property
    def ratio(self) -> float | None:
        """Holdfast's median over torchrun's."""
        ours, theirs = self.mid(HOLDFAST), self.mid(TORCHRUN)
        return ours / theirs if ours is not None and theirs else None


@dataclass
class Bench:
    """What every benchmark is given: how often to repeat, and the contenders at hand."""

    quick: bool = False
    contenders: list[str] = field(default_factory=lambda: [HOLDFAST] + [TORCHRUN] * bool(importlib.util.find_spec("torch")))

    def times(self, full: int) -> int:
        """How often to measure: `full`, or once in a quick run."""
        return 1 if self.quick else full

    def interleave(
        self, full: int, measure: Callable[[str], Mapping[str, float] | float], also: tuple[str, ...] = ()
    ) -> dict[str, dict[str, list[float]]]:
        """Measure every contender in turn, `full` times over. Returns {quantity: {contender: samples}}."""
        gathered: dict[str, dict[str, list[float]]] = {}
        for _ in range(self.times(full)):
            for contender in [*self.contenders, *also]:
                seen = measure(contender)
                for quantity, value in (seen if isinstance(seen, Mapping) else {"": seen}).items():
                    gathered.setdefault(quantity, {}).setdefault(contender, []).append(value)
        return gathered


def command(contender: str) -> list[str]:
    """How a user starts it. The console scripts stand beside this interpreter."""
    beside = Path(sys.executable).parent
    if contender == HOLDFAST:
        return [str(beside / "holdfast"), "run"]
    if contender == TORCHRUN:
        return [str(beside / "torchrun")]
    if contender == FT_LAUNCHER:  # NVRx's own: a script of that name may be ours
        return [sys.executable, "-m", "nvidia_resiliency_ext.fault_tolerance.launcher"]
    return [sys.executable]


def clean_environment() -> dict[str, str]:
    """Ours without Python's own variables: PYTHONDONTWRITEBYTECODE, say, would have every start compile an edited checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


class Launch:
    """One or several launchers (agents) of one job, and what its workers noted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes_dir = folder / "notes"
        self.notes_dir.mkdir()
        self.started_at = 0.0
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, argv: list[str], extra_env: Mapping[str, str] | None = None, **more: Any) -> int:
        """Start one launcher; returns its pid. `started_at` is the moment before the newest exec. `more`: as for Popen."""
        env = clean_environment() | {
            "HOLDFAST_STATE_DIR": str(self.folder / "state"),
            "BENCH_NOTES": str(self.notes_dir),
            "OMP_NUM_THREADS": "1",  # else both launchers warn about it
            **(extra_env or {}),
        }
        with (self.folder / f"output-{len(self.processes)}").open("wb") as output:
            self.started_at = time.monotonic()
            how = {"env": env, "stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, "start_new_session": True}
            process = subprocess.Popen(argv, **how, **more)
        self.processes.append(process)
        return process.pid

    def notes(self, event: str, after: float = 0.0) -> list[Note]:
        """What the workers have noted so far about `event`."""
        found = []
        for path in self.notes_dir.glob(f"{event}.*"):
            _, rank, pid = path.name.split(".")
            found.append(Note(event, int(rank), int(pid), float(path.read_text())))
        return [note for note in found if note.at > after]

    def wait_for(self, event: str, count: int, after: float = 0.0, patience_s: float = PATIENCE_S) -> list[Note]:
        """Until `count` workers have noted `event` later than `after`. RuntimeError: not within `patience_s`, or every
        launcher has ended before."""
        deadline, over = time.monotonic() + patience_s, False
        while len(found := self.notes(event, after)) < count:
            if over or time.monotonic() > deadline:
                when = "before the last launcher ended" if over else f"within {patience_s:g} s"
                raise RuntimeError(f"{count - len(found)} of {count} workers have not noted {event!r} {when}:\n{self.output()}")
            over = self._is_over()  # and then one look more, at what was noted meanwhile
            time.sleep(0.005)
        return found

    def _is_over(self) -> bool:
        """Every launcher has ended; whoever asks for its end later still finds it."""
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return all(one.returncode is not None or os.waitid(os.P_PID, one.pid, how) for one in self.processes)

    def announce(self, event: str) -> None:
        """Note something for the workers to see."""
        (self.notes_dir / f"{event}.-1.0").write_text("0")

    def wait_for_end(self, number: int = 0) -> float:
        """The moment (monotonic) at which a launcher ended; now, if that has been asked before."""
        process = self.processes[number]
        if process.returncode is not None:
            return time.monotonic()
        pidfd = os.pidfd_open(process.pid)
        try:
            ready, _, _ = select.select([pidfd], [], [], PATIENCE_S)
            ended_at = time.monotonic()
        finally:
            os.close(pidfd)
        if not ready:
            raise RuntimeError(f"{process.args} did not end:\n{self.output()}")
        process.wait()
        return ended_at

    def finish(self) -> None:
        """Wait for all launchers; complain if one failed."""
        for number, process in enumerate(self.processes):
            self.wait_for_end(number)
            if process.returncode != 0:
                raise RuntimeError(f"{process.args} ended with {process.returncode}:\n{self.output()}")

    def output(self) -> str:
        return "".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("output-*")))

    def events(self) -> list[dict[str, object]]:
        """Holdfast's own record of the job, all nodes together."""
        lines = [line for path in self.folder.glob("state/jobs/*/events-*.jsonl") for line in path.read_text().splitlines()]
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """End whatever is left: launchers first, so that they can clean up, then by force."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in self._left_behind():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _left_behind(self) -> list[int]:
        """Processes of this job that its launchers have left: those that still carry its notes folder in their environment."""
        mark, found = f"BENCH_NOTES={self.notes_dir}".encode(), []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found


@contextlib.contextmanager
def launch() -> Iterator[Launch]:
    """A place to launch in, which is cleared away afterwards."""
    started = Launch(Path(tempfile.mkdtemp(prefix="holdfast-bench-")))
    try:
        yield started
    finally:
        started.close()


def worker(name: str) -> str:
    """Path of a worker's script."""
    return str(WORKERS / f"{name}.py")


def two_nodes(port: int, nproc: int) -> list[str]:
    """Flags of one of two agents on this host; torchrun and Holdfast read the same."""
    flags = ["--nnodes", "2", "--nproc-per-node", str(nproc), "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}"]
    return [*flags, "--rdzv-id", "bench"]


def node_name(contender: str, number: int) -> list[str]:
    """Two agents on one host need two names; torchrun knows them by their pids."""
    return ["--node-name", f"node{number}"] if contender == HOLDFAST else []


def free_port() -> int:
    """A port that is free now, and that the kernel gives to nobody who asks for any."""
    for _ in range(1000):
        port = random.randrange(10_000, 20_000)  # below ip_local_port_range: two agents, with ports of their own, start at once
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("1,000 ports between 10,000 and 20,000 are taken")

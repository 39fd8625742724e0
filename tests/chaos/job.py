"""The job that a fault is played on: its nodes and ranks, what can be done to them, and what they have written down.

A kind of fault is a function of one `Job`. Chance comes from `job.rng` alone, so that a seed plays the same again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
import shlex
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kit.hosts.hung_mount import HungMount
from kit.network.netns import Switch
from kit.ports import ports

from chaos.fault import Fault
from chaos.node import Node, send, state_of

RANKS = Path(__file__).with_name("ranks")
HOLDFAST, TORCHRUN = "holdfast", "torchrun"
LEASE_S = 2
BUDGET = 9
"""Restarts that a job may have, unless its fault says otherwise."""
START_S = 60.0
"""How long a job may take to its first step."""
STEPS_AFTER = 8
"""Steps that a job has to make once it trains again."""


class Lost(Exception):
    """The job did not come through: what was waited for in vain."""


class Interrupted(Exception):
    """The campaign is to end."""


class Life(NamedTuple):
    """One process that was a rank. Times are monotonic."""

    rank: int
    world: int
    round: str
    pid: int
    node: str
    first: float
    last: float


class Save(NamedTuple):
    """One checkpoint."""

    at: float
    step: int
    round: str
    pid: int


class Job:
    """One try. `launcher`: Holdfast, or torchrun with the same ranks. `stop`: set when the campaign is to end."""

    def __init__(
        self,
        fault: Fault,
        seed: int,
        base: Path,
        *,
        launcher: str = HOLDFAST,
        cgroups: Path | None = None,
        shm: Path | None = None,
        mark: str = "",
        stop: threading.Event | None = None,
    ) -> None:
        self.fault, self.setup, self.launcher, self.base = fault, fault.setup, launcher, base
        self.rng = random.Random(f"{fault.name}:{seed}")
        self.stop = stop or threading.Event()
        self.folder = base / "job"
        (self.folder / "lives").mkdir(parents=True)
        self.script = self._script()
        names = [f"n{number}" for number in range(fault.setup.nodes)]
        self.switch = Switch(names, slow=dict(fault.setup.slow)) if fault.setup.network else None
        self.cgroups, self.shm = cgroups, shm
        for path in filter(None, (cgroups, shm)):
            path.mkdir()
        self.mark = mark or base.name
        self.nodes = {name: self._node(name) for name in names}
        self.port = 29400 if self.switch else ports(1)[0]
        self.endpoint = f"{self.nodes['n0'].address}:{self.port}"
        self.struck_at = math.inf
        self.returned_at: float | None = None  # When a launcher was started last, after the fault.
        self.notes: dict[str, object] = {}
        self.may_change_budget = True
        self._orders = itertools.count()
        self._clean: list[Callable[[], object]] = []

    def _node(self, name: str) -> Node:
        return Node(
            name,
            self.base / name,
            self.mark,
            cgroup=self.cgroups / name if self.cgroups else None,
            shm=self.shm / name if self.shm else None,
            place=self.switch.places[name] if self.switch else None,
        )

    def _script(self) -> Path:
        plain = RANKS / ("ddp.py" if self.setup.ddp else "light.py")
        if not self.setup.script:
            return plain
        for path in RANKS.glob("*.py"):
            (self.base / path.name).write_text(path.read_text())
        own = self.base / plain.name
        own.write_text(self.setup.script + "\n" + plain.read_text())
        return own

    # --- its agents -----------------------------------------------------------------------------------------------------

    def words(self, name: str, *more: object, script: object = None) -> list[object]:
        """The command line of a node's launcher."""
        setup = self.setup
        number = int(name[1:]) if name[1:].isdigit() else 0
        nproc = setup.nproc if isinstance(setup.nproc, int) else setup.nproc[number]
        common = ["--nnodes", setup.nnodes or setup.nodes, "--nproc-per-node", nproc, "--max-restarts", BUDGET]
        common += ["--rdzv-backend", "c10d", "--rdzv-id", "chaos", "--rdzv-endpoint", self.endpoint]
        # On one host each agent could take the endpoint: only n0's may, as where they are on hosts of their own.
        common += ["--rdzv-conf", "last_call_timeout=1" + ("" if number == 0 or self.switch else ",is_host=0")]
        ours = ["--node-name", name, "--lease", LEASE_S, "--backoff", 0, *setup.options, *more]
        module = "holdfast run" if self.launcher == HOLDFAST else "torch.distributed.run"
        if self.launcher == TORCHRUN:
            budget = [word for flag, word in zip(setup.options, setup.options[1:]) if flag == "--max-restarts"]
            ours = ["--local-addr", self.nodes[name].address, "--max-restarts", *(budget[-1:] or [BUDGET])]
        return [sys.executable, "-m", *module.split(), *common, *ours, script or self.script, self.folder]

    def start(self, *names: str, options: tuple[object, ...] = (), env: dict[str, str] | None = None, **how: Any) -> None:
        """Start the launchers of these nodes; of all, where none is named."""
        for name in names or self.nodes:
            given = dict(self.setup.env) | (env or {})
            if self.struck_at < math.inf:
                self.returned_at = time.monotonic()
            self.nodes[name].start(self.words(name, *options), given, **how)

    def begin(self) -> None:
        """Have it train, to a random step."""
        self.start()
        self.trains(self.rng.randint(4, 25))

    def trains(self, step: int = 3, patience_s: float = START_S) -> None:
        """Wait until a first checkpoint of that step is there."""
        self.wait(lambda: self.step() >= step, f"step {step}", patience_s)

    def add_node(self, name: str) -> Node:
        """One more, on this network's first host if there is a network."""
        self.nodes[name] = self._node(name)
        return self.nodes[name]

    # --- waiting --------------------------------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], Any], what: str, patience_s: float = 60.0) -> Any:
        """The first true value; `Lost` after so many seconds."""
        deadline = time.monotonic() + patience_s
        while not (found := condition()):
            if self.stop.is_set():
                raise Interrupted
            if time.monotonic() > deadline:
                raise Lost(f"waited {patience_s:.0f} s for {what}")
            time.sleep(0.02)
        return found

    def lasts(self, seconds: float) -> None:
        """Let the fault last so long."""
        if self.stop.wait(seconds):
            raise Interrupted

    def strike(self) -> None:
        """Now it happens. The first call counts."""
        self.struck_at = min(self.struck_at, time.monotonic())

    def note(self, **notes: object) -> None:
        """What the causes' patterns may name."""
        self.notes |= notes

    def again(self, *, steps: int = STEPS_AFTER) -> None:
        """Wait until it trains again, in processes that have begun since the fault."""
        what = f"{steps} steps of ranks that began after the fault"
        self.wait(lambda: len(self.fresh()) >= steps, what, self.fault.patience_s)

    def fresh(self) -> list[Save]:
        """The checkpoints of ranks that have begun since the fault."""
        since = self.struck_at
        return [save for save in self.saves() if save.at > since and self._began(save.pid) > since]

    def goes_on(self, *, steps: int = STEPS_AFTER) -> None:
        """Wait until it has made so many steps from now on, in whichever processes."""
        begun = time.monotonic()
        after = lambda: [save for save in self.saves() if save.at > begun]
        self.wait(lambda: len(after()) >= steps, f"{steps} more steps", self.fault.patience_s)

    def ended(self, *names: str, patience_s: float | None = None) -> None:
        """Wait until these nodes' launchers have ended; all that have been started, where none is named."""
        nodes = [self.nodes[name] for name in names or self.nodes if self.nodes[name].launched]
        self.wait(lambda: not any(node.runs for node in nodes), "the agents' end", patience_s or self.fault.patience_s)

    # --- what it has written down ---------------------------------------------------------------------------------------

    def saves(self) -> list[Save]:
        found = []
        with contextlib.suppress(FileNotFoundError):
            for line in (self.folder / "saves").read_text().splitlines():
                at, step, round, pid = line.split()
                found.append(Save(float(at), int(step), round, int(pid)))
        return found

    def step(self) -> int:
        """The newest that was kept."""
        return max((save.step for save in self.saves()), default=0)

    def lives(self) -> list[Life]:
        found = []
        for path in sorted((self.folder / "lives").glob("*.json")):
            told = json.loads(path.read_text())
            first, last = struct.unpack("dd", path.with_suffix(".stamps").read_bytes()[:16])
            found.append(Life(told["rank"], told["world"], told["round"], told["pid"], told["node"], first, last))
        return found

    def _began(self, pid: int) -> float:
        return max((life.first for life in self.lives() if life.pid == pid), default=0.0)

    # --- its ranks ------------------------------------------------------------------------------------------------------

    def alive(self) -> list[Life]:
        """The ranks that live, newest last."""
        return sorted((life for life in self.lives() if state_of(life.pid) not in "ZX"), key=lambda life: life.first)

    def rank(self, rank: int) -> Life:
        """The newest life of a rank."""
        named = lambda: [life for life in self.alive() if life.rank == rank]
        return self.wait(named, f"rank {rank}", 20.0)[-1]  # type: ignore[no-any-return]

    def any_rank(self, *nodes: str) -> Life:
        """One of the ranks, by chance; of these nodes, where any is named."""
        alive = self.wait(lambda: [life for life in self.alive() if not nodes or life.node in nodes], "a rank", 20.0)
        return self.rng.choice(sorted(alive, key=lambda life: life.rank))  # type: ignore[no-any-return]

    def any_node(self, *names: str) -> Node:
        return self.nodes[self.rng.choice(sorted(names or self.nodes))]

    def kill_rank(self, life: Life, signum: int = signal.SIGKILL) -> None:
        """And note who it was."""
        self.note(rank=life.rank, node=life.node)
        self.strike()
        send(life.pid, signum)

    def order(self, what: str, *arguments: object, rank: int | None = None) -> Life:
        """Have a rank do something of `ranks/misdeeds.py` to itself at its next step. One by chance, where none is named."""
        life = self.any_rank() if rank is None else self.rank(rank)
        self.note(rank=life.rank, node=life.node)
        self.strike()
        self._orders_to([life.rank], what, *arguments)
        return life

    def order_all(self, what: str, *arguments: object) -> None:
        """Have all ranks do it at the same step."""
        self.strike()
        self._orders_to([life.rank for life in self.alive()], what, *arguments)

    def _orders_to(self, ranks: list[int], what: str, *arguments: object) -> None:
        numbers = [next(self._orders) for _ in ranks]
        for rank, number in zip(ranks, numbers):
            text = json.dumps({"what": what, "arguments": arguments, "number": number})
            (self.folder / f"order.{rank}.tmp").write_text(text)
        for rank in ranks:
            (self.folder / f"order.{rank}.tmp").rename(self.folder / f"order.{rank}")
        taken = lambda: all((self.folder / f"taken.{number}").exists() for number in numbers)
        self.wait(taken, f"ranks {ranks} to take their orders", 20.0)

    # --- disks ----------------------------------------------------------------------------------------------------------

    def tmpfs(self, path: Path, options: str) -> Path:
        """A file system in memory at `path`, until the try is over."""
        path.mkdir(parents=True, exist_ok=True)
        sh("mount", "-t", "tmpfs", "-o", options, "chaos", path)
        self.afterwards(lambda: sh("umount", "-l", path))
        return path

    def disk(self, path: Path, megabytes: int = 48) -> Path:
        """A disk of its own at `path`, which can be frozen, until the try is over."""
        path.mkdir(parents=True, exist_ok=True)
        image = self.base / f"{path.name}-{next(self._orders)}.img"
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        sh("mkfs.ext4", "-q", "-F", "-m", "0", image)
        sh("mount", "-o", "loop", image, path)
        self.afterwards(lambda: sh("umount", "-l", path))
        return path

    def freeze(self, path: Path, seconds: float) -> threading.Timer:
        """Who writes there waits for so long. Thaws by itself, and at the end of the try."""
        sh("fsfreeze", "--freeze", path)
        thaw = lambda: subprocess.run(["fsfreeze", "--unfreeze", str(path)], capture_output=True)
        timer = threading.Timer(seconds, thaw)
        timer.daemon = True
        timer.start()
        self.afterwards(thaw)
        return timer

    def mount(self, name: str) -> HungMount:
        """A mount that can hang, for readers too, as a file server's does; until the try is over."""
        mount = HungMount(self.base / name)
        self.afterwards(mount.close)
        self.afterwards(mount.go)
        return mount

    def fill(self, folder: Path) -> None:
        """Leave no room there."""
        with contextlib.suppress(OSError), open(folder / "fills", "ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"\1" * size):
                        pass

    def limit(self, controller: str, name: str, **values: object) -> Path:
        """A cgroup of version 1, for a node's launchers to start in, until the try is over."""
        path = Path("/sys/fs/cgroup") / controller / f"{self.mark}-{name}"
        path.mkdir()
        self.afterwards(lambda: _remove_cgroup(path))
        for key, value in values.items():
            (path / f"{controller}.{key}").write_text(str(value))
        self.nodes[name].limits.append(path)
        return path

    # --- the end --------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Let the ranks end."""
        (self.folder / "finish").touch()

    def afterwards(self, clean: Callable[[], object]) -> None:
        """Do this when the try is over, whatever becomes of it; the newest first."""
        self._clean.append(clean)

    def close(self) -> None:
        """Nothing of it stays."""
        for clean in [lambda node=node: node.end() for node in self.nodes.values()]:
            clean()
        while self._clean:
            with contextlib.suppress(Exception):
                self._clean.pop()()
        for node in self.nodes.values():
            node.end()
        if self.switch:
            with contextlib.suppress(subprocess.TimeoutExpired):  # Its janitor goes on, and outlives us if it has to.
                self.switch.close()
        if self.cgroups:
            _remove_cgroup(self.cgroups)


def sh(*words: object) -> str:
    """Run a command to its end."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(map(str, words))}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _remove_cgroup(path: Path) -> None:
    """With what is below it. A process that has just ended keeps its own for a moment."""
    deadline = time.monotonic() + 10.0
    while path.exists() and time.monotonic() < deadline:
        for one in sorted((path, *path.rglob("*/")), key=lambda below: len(below.parts), reverse=True):
            with contextlib.suppress(OSError):
                one.rmdir()
        time.sleep(0.02)

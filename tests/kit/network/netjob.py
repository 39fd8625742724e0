"""One job on the hosts of a `netns.Switch`: starts its agents, waits for ranks, says whether any two rounds have overlapped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kit import SCRIPTS
from kit.jobs.succession import LOGS
from kit.network.netns import Switch

STAMPS = SCRIPTS / "stamps.py"
PORT = 29400
STOP, CONT = signal.SIGSTOP, signal.SIGCONT


class Life(NamedTuple):
    """One life of a rank, as `scripts/stamps.py` wrote it. Times are monotonic seconds of this machine."""

    round: int
    rank: int
    host: str
    pid: int
    started_at: str
    world: int
    attempt: int
    master: str
    port: int
    beside: list[str]
    first: float
    last: float


class Job:
    """`agents`: the same command on each host, with a state directory of the host's own, and an endpoint on the first host."""

    def __init__(
        self, switch: Switch, commands: dict[str, Any], folder: Path, wait_until: Callable[..., Any], *, endpoint: str = ""
    ) -> None:
        self.switch, self.commands, self.wait_until = switch, commands, wait_until
        self.folder = folder
        self.endpoint = endpoint or f"{next(iter(switch.places.values())).address}:{PORT}"
        self.agents: dict[str, Any] = {}

    # --- its agents -----------------------------------------------------------------------------------------------------

    def agent(
        self, name: str, nnodes: str = "2", *options: object, lease: float | None = 2.0, words: tuple[str, ...] = ()
    ) -> Any:
        """Start the agent of a host. `lease` None: the default."""
        return self.start(name, nnodes, *options, lease=lease, program=(STAMPS, self.folder, name, *words), env=LOGS)

    def start(
        self, name: str, nnodes: str, *options: object, lease: float | None = None, program: tuple[object, ...], **how: Any
    ) -> Any:
        """Start an agent with any program."""
        short = () if lease is None else ("--lease", lease)
        self.agents[name] = self.commands[name].start(
            *("run", "--nnodes", nnodes, "--nproc-per-node", 1, "--node-name", name, "--rdzv-id", "net"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", self.endpoint, "--rdzv-conf", "last_call_timeout=1"),
            *(*short, *options, *program),
            **how,
        )
        return self.agents[name]

    def running(
        self,
        *names: str,
        nnodes: str = "2",
        ranks: int = 0,
        spares: tuple[str, ...] = (),
        options: tuple[object, ...] = (),
        **how: Any,
    ) -> None:
        """Have a first round of just these hosts, or of `ranks` of them together with agents that run already, and these spares
        beside them."""
        for name in names:
            self.agent(name, nnodes, *options, **how)
        ranks = ranks or len(names)
        for rank in range(ranks):
            self.rank(rank, 1)
        for name in spares:
            self.agent(name, nnodes, *options, **how)
        self.joined(ranks + len(spares))

    def joined(self, times: int) -> None:
        """Wait until the coordinator, on the first host, has been joined so often."""
        self.wait_until(lambda: len(self.events("NodeJoined")) >= times, what=f"{times} nodes to have joined")

    def joined_elsewhere(self, node: str) -> None:
        """Wait until a node has joined a coordinator on another host than the first."""
        others = list(self.commands)[1:]
        joined = lambda: node in [event["name"] for host in others for event in self.events("NodeJoined", host)]
        self.wait_until(joined, what=f"{node} to have joined a successor")

    def agent_pid(self, name: str) -> int:
        return int(self.wait_until(lambda: self.commands[name].events("AgentStarted"))[-1]["pid"])

    def signal(self, signum: int, *pids: int) -> None:
        """To those that have not ended meanwhile, as a warm spare may have."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    def finish(self, *names: str, code: int = 0) -> None:
        """Let the ranks end; these hosts' agents must end with that code."""
        (self.folder / "finish").touch()
        ends = {name: self.agents[name].wait() for name in names}
        assert {name: end.returncode for name, end in ends.items()} == dict.fromkeys(names, code), ends

    # --- what happened --------------------------------------------------------------------------------------------------

    def events(self, name: str, host: str = "") -> list[dict[str, Any]]:
        """Events of one host, the first where none is named."""
        return list(self.commands[host or next(iter(self.commands))].events(name))

    def rounds(self) -> set[int]:
        """Numbers of all rounds that formed, as any host saw them."""
        return {event["round"] for host in self.commands for event in self.events("RoundFormed", host)}

    def lost(self) -> list[str]:
        """Nodes that the first host's coordinator has given up."""
        return [event["name"] for event in self.events("NodeLost")]

    def lives(self) -> list[Life]:
        """All lives of ranks so far."""
        return [self._read(path) for path in sorted(self.folder.glob("*.life"))]

    def has_ended(self, life: Life) -> bool:
        """Whether its process is gone."""
        return _state(life.pid) in "ZX"

    def is_stopped(self, name: str) -> bool:
        """Whether that host's agent does not run."""
        return _state(self.agent_pid(name)) == "T"

    def rank(self, rank: int, round: int) -> Life:
        """A rank's life, once it has begun."""
        found = self.wait_until(lambda: list(self.folder.glob(f"{round}.{rank}.*.life")), what=f"rank {rank} of round {round}")
        return self._read(found[0])

    def goes_on(self, life: Life, seconds: float) -> None:
        """Wait until it has run so much longer."""
        now = self.rank(life.rank, life.round)

        def went_on() -> bool:
            assert time.monotonic() < self.rank(life.rank, life.round).last + 5.0, f"{life} has stopped"
            return self.rank(life.rank, life.round).last > now.last + seconds

        self.wait_until(went_on, what=f"{life} to go on")

    def _read(self, path: Path) -> Life:
        first, last = struct.unpack("dd", path.with_suffix(".stamps").read_bytes())
        return Life(**json.loads(path.read_text()), first=first, last=last)

    def never_two_rounds(self) -> None:
        """No rank of any round lived when one of a later round did: by what the ranks wrote, by /proc, and by the events."""
        lives = self.lives()
        offset = time.time() - time.monotonic()
        starts = [
            (event["round"], event["at_unix"] - offset, f"rank {event['rank']} of round {event['round']} on {host}")
            for host in self.commands
            for event in self.events("WorkerStarted", host)
        ]
        starts += [(life.round, life.first, f"{life}") for life in lives]
        assert len({life.round for life in lives}) > 1, "there was one round: this shows nothing"
        for life in lives:
            assert not life.beside, life
            for number, at, what in starts:
                assert number <= life.round or life.last < at, f"{life} ran on for {life.last - at:.3f} s beside {what}"


def _state(pid: int) -> str:
    """As /proc has it; X: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"

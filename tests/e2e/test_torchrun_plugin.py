"""Does stock torchrun get our rendezvous by `--rdzv-backend=holdfast`? Two and three of its agents on this host, with gloo."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PATIENCE_S = 150.0
"""Stock torchrun and PyTorch's import cost seconds of CPU for each of up to ten processes here."""

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(4 * PATIENCE_S)]

TRAINS = """
import os, signal, sys, time
import torch, torch.distributed as dist
if os.environ.get("DEAF"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder, failures = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
total = torch.tensor([1.0])
dist.all_reduce(total)
dist.barrier()
rank = os.environ["RANK"]
lives = torch.tensor([len([name for name in os.listdir(folder) if name.startswith("life-0-")])])
dist.broadcast(lives, 0)
lives = int(lives)
mark = f"{folder}/life-{rank}-{lives}"
with open(mark + ".tmp", "w") as file:
    file.write(f"{os.getppid()} {os.getpid()} {int(total)} {os.environ['WORLD_SIZE']} {os.environ['MASTER_PORT']}")
os.rename(mark + ".tmp", mark)
while not all(os.path.exists(f"{folder}/life-{other}-{lives}") for other in range(dist.get_world_size())):
    time.sleep(0.01)
if lives < failures and int(rank) == lives % dist.get_world_size():
    sys.exit(3)
deadline = time.time() + 100
while not os.path.exists(f"{folder}/finish") and time.time() < deadline:
    time.sleep(0.02)
dist.destroy_process_group()
"""


class Life(NamedTuple):
    """What a worker of one life has written."""

    agent: int
    pid: int
    total: int
    world: int
    port: int


class Agent:
    """One stock torchrun."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def end(self, timeout: float = PATIENCE_S) -> int:
        """Its exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {timeout:.0f} s; it said:\n{self.said}")


class Job:
    """Agents that meet at one endpoint, and what their workers have written."""

    def __init__(self, folder: Path, port: int, program: Path, wait_until: Callable[..., Any]) -> None:
        self.folder, self.port, self.program, self.wait_until = folder, port, program, wait_until
        self.marks = folder / "marks"
        self.marks.mkdir()
        self.agents: list[Agent] = []

    def agent(self, name: str, nnodes: str, *options: str, failures: int = 0, conf: str = "", **env: str) -> Agent:
        """Start one."""
        conf = f"node_name={name},last_call_timeout=1{conf and ','}{conf}"
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", nnodes, "--nproc-per-node", "1"),
            *("--rdzv-backend=holdfast", "--rdzv-endpoint", f"localhost:{self.port}", "--rdzv-id", "stock"),
            *("--rdzv-conf", conf, *options, str(self.program), str(self.marks), str(failures)),
        ]
        quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        agent = Agent(command, os.environ | quiet | env, self.folder / f"{name}.log")
        self.agents.append(agent)
        return agent

    def said(self) -> str:
        return "\n".join(f"--- {agent.log.name}\n{agent.said}" for agent in self.agents)

    def life(self, number: int, world: int) -> list[Life]:
        """What the ranks of that life wrote, once all have."""
        return self.life_where(lambda one, _: one == number, world, f"life {number}")

    def life_where(self, wanted: Callable[[int, set[int]], bool], world: int, what: str) -> list[Life]:
        """The first whole life that is `wanted` by its number and its agents. On a busy host there may be others before it: a
        lease can run out for want of a CPU."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for number in sorted(int(path.name.split("-")[2]) for path in self.marks.glob("life-0-*[0-9]")):
                paths = [self.marks / f"life-{rank}-{number}" for rank in range(world)]
                if all(path.exists() for path in paths):
                    lives = [Life(*map(int, path.read_text().split())) for path in paths]
                    if wanted(number, {life.agent for life in lives}):
                        return lives
            if time.monotonic() > deadline:
                pytest.fail(f"no {what} of {world} ranks after {PATIENCE_S:.0f} s:\n{self.said()}")
            time.sleep(0.01)

    def finish(self) -> None:
        (self.marks / "finish").touch()

    def lose(self, agent: Agent, lives: list[Life]) -> float:
        """The node of that agent loses its power. Returns when."""
        for pid in (agent.process.pid, *(life.pid for life in lives if life.agent == agent.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return time.monotonic()


@pytest.fixture
def job(tmp_path: Path, free_port: int, script: Any, wait_until: Any, alive: Callable[[], list[int]]) -> Iterator[Job]:
    job = Job(tmp_path, free_port, script(TRAINS), wait_until)
    yield job
    for pid in alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for agent in job.agents:
        agent.process.wait()


def test_failed_workers_are_restarted_again_and_again_and_a_surplus_node_ends_with_0(job):
    agents = [job.agent(name, "2", "--max-restarts", "2", failures=2) for name in ("a", "b")]
    job.life(0, 2)
    spare = job.agent("spare", "2")
    job.wait_until(lambda: "waiting as a spare: " in spare.said, PATIENCE_S, "the surplus node to be one")
    lives = [job.life(number, 2) for number in range(3)]
    assert all((life.total, life.world) == (2, 2) for ranks in lives for life in ranks)
    assert len({life[0].port for life in lives}) == 3
    assert all({life.agent for life in ranks} == {agent.process.pid for agent in agents} for ranks in lives)
    job.finish()
    assert [agent.end() for agent in (*agents, spare)] == [0, 0, 0], job.said()
    assert "Traceback" not in job.said()


def test_a_lost_node_is_noticed_the_survivor_goes_on_alone_and_a_newcomer_is_taken_in(job):
    first = job.agent("a", "1:2", "--max-restarts", "0", conf="last_call_timeout=20")
    second = job.agent("b", "1:2", "--max-restarts", "0", conf="last_call_timeout=20")
    lives = job.life(0, 2)
    lost, left = (second, first) if _listens(first, job.port) else (first, second)
    mine = next(life for life in lives if life.agent == left.process.pid)
    lost_at = job.lose(lost, lives)
    job.wait_until(lambda: not _alive(mine.pid), 20, "the survivor's worker to be stopped")
    stopped_s = time.monotonic() - lost_at
    (alone,) = job.life_where(lambda number, agents: number > 0 and agents == {left.process.pid}, 1, "life without it")
    print(f"lost → stopped {stopped_s:.2f} s, → training again {time.monotonic() - lost_at:.2f} s")
    assert (alone.total, alone.world, alone.agent) == (1, 1, left.process.pid)
    assert alone.port not in {life.port for life in lives}
    newcomer = job.agent("c", "1:2")
    job.life_where(lambda _, agents: agents == {left.process.pid, newcomer.process.pid}, 2, "life with a newcomer")
    job.finish()
    assert (left.end(), newcomer.end()) == (0, 0), job.said()


def _listens(agent: Agent, port: int) -> bool:
    """Whether it holds the coordinator."""
    wanted = f":{port:04X} 00000000:0000 0A"
    inodes = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines() if wanted in line}
    return any(f"socket:[{inode}]" in links(agent.process.pid) for inode in inodes)


def links(pid: int) -> set[str]:
    """What its descriptors are."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(os.readlink(fd))
    return found


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_a_spare_takes_a_lost_node_s_place_and_a_node_that_is_told_to_stop_says_so(job):
    agents = [job.agent(name, "2", "--max-restarts", "1") for name in ("a", "b")]
    lives = job.life(0, 2)
    host = next(agent for agent in agents if _listens(agent, job.port))
    lost = next(agent for agent in agents if agent is not host)
    spares = [job.agent(name, "2", "--max-restarts", "1") for name in ("c", "d")]
    for spare in spares:
        job.wait_until(lambda spare=spare: _links(spare, job.port), what="a spare to be there")
    lost_at = job.lose(lost, lives)
    seated, gone = host.process.pid, lost.process.pid
    again = job.life_where(lambda _, agents: seated in agents and gone not in agents, 2, "life with a spare")
    print(f"lost → training again with a spare {time.monotonic() - lost_at:.2f} s, default lease")
    (taken,) = {life.agent for life in again} - {seated}
    first = next(spare for spare in spares if spare.process.pid == taken)
    first.process.terminate()
    other = next(spare for spare in spares if spare is not first)
    job.life_where(lambda _, agents: agents == {seated, other.process.pid}, 2, "life with the other spare")
    assert first.end() != 0 and "left: its launcher was stopped" in host.said, job.said()
    job.finish()
    assert (host.end(), other.end()) == (0, 0), job.said()


def test_a_node_without_restarts_closes_the_job_for_all(job):
    agents = [job.agent(name, "2", "--max-restarts", "0", failures=1) for name in ("a", "b")]
    assert [agent.end() for agent in agents] == [1, 1]
    assert any("is closed: " in agent.said and "its workers had not succeeded" in agent.said for agent in agents), job.said()
    assert any("ChildFailedError" in agent.said for agent in agents)


def test_without_its_coordinator_a_node_s_workers_end_with_the_lease_even_if_they_ignore_sigterm(job):
    agents = [job.agent(name, "2", conf="lease=2", DEAF="1") for name in ("a", "b")]
    lives = job.life(0, 2)
    host = next(agent for agent in agents if _listens(agent, job.port))
    deaf = next(life for life in lives if life.agent != host.process.pid)
    host.process.kill()
    killed_at = time.monotonic()
    job.wait_until(lambda: not _alive(deaf.pid), 20, "a deaf worker's end")
    print(f"coordinator lost → a deaf worker ended {time.monotonic() - killed_at:.2f} s, lease 2 s")


def _links(agent: Agent, port: int) -> bool:
    """Whether it has a connection to the coordinator."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"}
    return any(f"socket:[{inode}]" in links(agent.process.pid) for inode in inodes)

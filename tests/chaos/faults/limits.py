# ruff: noqa: E501 (a row is a row: what is done stands in one line)
"""What a node may use: memory, processes, processors, descriptors."""

from __future__ import annotations

import contextlib
import resource
import signal
from pathlib import Path

from chaos.fault import fault
from chaos.job import Job
from chaos.node import send

WHO = ("rank {rank} .*on {node}",)


@fault("out of memory in a cgroup", "n1 may have 600 MB (cgroup v1), and a rank there takes more", needs="memory", restarts=1, starts=False,
       cause=(*WHO, "SIGKILL"))  # fmt: skip
def out_of_memory(job: Job) -> None:
    job.limit("memory", "n1", limit_in_bytes=600 << 20)
    job.start()
    job.trains(job.rng.randint(4, 25))
    rank = next(life.rank for life in job.alive() if life.node == "n1")
    job.order("takes_memory", 2048, rank=rank)
    job.again()


@fault("no more processes", "n1 may start no further process or thread (pids cgroup); then its rank is killed", needs="pids", restarts=(0, 9),
       starts=False, nodes=3, nnodes="2:3")  # fmt: skip
def no_more_processes(job: Job) -> None:
    group = job.limit("pids", "n1")
    job.start()
    job.trains(job.rng.randint(4, 25))
    (group / "pids.max").write_text((group / "pids.current").read_text())
    job.kill_rank(next(life for life in job.alive() if life.node == "n1"))
    job.lasts(3)
    (group / "pids.max").write_text("max")
    job.nodes["n1"].is_lost = not job.nodes["n1"].runs
    job.again()


@fault(
    "agent starved",
    "n1's whole node gets 3 % of a processor for 4 s (cpu cgroup)",
    needs="cpu",
    starts=False,
    nodes=3,
    nnodes="2:3",
)
def agent_starved(job: Job) -> None:
    group = job.limit("cpu", "n1")
    job.start()
    job.trains(job.rng.randint(4, 25))
    job.strike()
    (group / "cpu.cfs_quota_us").write_text("3000")
    job.lasts(4)
    (group / "cpu.cfs_quota_us").write_text("-1")
    job.lasts(0.5)
    job.nodes["n1"].is_lost = not job.nodes["n1"].runs
    job.goes_on()


@fault("node in a freezer 5 s", "n1's whole node is frozen for 5 s (freezer cgroup, version 1)", needs="freezer", starts=False, nodes=3,
       nnodes="2:3")  # fmt: skip
def frozen(job: Job) -> None:
    group = job.limit("freezer", "n1")
    job.start()
    job.trains(job.rng.randint(4, 25))
    job.strike()
    (group / "freezer.state").write_text("FROZEN")
    job.afterwards(lambda: (group / "freezer.state").write_text("THAWED"))
    job.lasts(5)
    (group / "freezer.state").write_text("THAWED")
    job.lasts(0.5)
    job.nodes["n1"].is_lost = not job.nodes["n1"].runs
    job.goes_on()


def _limit(pid: int, what: int, value: int) -> None:
    resource.prlimit(pid, what, (value, resource.prlimit(pid, what)[1]))


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@fault("agent out of descriptors", "one agent may open no file more; then a rank is killed", needs="root", restarts=1, cause=(*WHO, "SIGKILL"),
       smoke=True)  # fmt: skip
def no_descriptors(job: Job) -> None:
    pid = job.any_node().agent_pid()
    _limit(pid, resource.RLIMIT_NOFILE, _open_files(pid))
    job.kill_rank(job.any_rank())
    job.again()


@fault(
    "agent out of descriptors, then not",
    "one agent may open no file more for 3 s, in which a rank is killed",
    needs="root",
    restarts=1,
)
def no_descriptors_for_a_while(job: Job) -> None:
    pid = job.any_node().agent_pid()
    _limit(pid, resource.RLIMIT_NOFILE, _open_files(pid))
    job.kill_rank(job.any_rank())
    job.lasts(3)
    _limit(pid, resource.RLIMIT_NOFILE, 1024)
    job.again()


@fault("few descriptors from the start", "all start with ulimit -n 64; a rank is killed", restarts=1, starts=False, nproc=4)
def few_descriptors(job: Job) -> None:
    for name, node in job.nodes.items():
        node.start(["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *job.words(name)], {})
    job.trains()
    job.kill_rank(job.any_rank())
    job.again()


@fault(
    "no locked memory, no core files",
    "all start with ulimit -l 0 -c 0 -q 0 -s 2048; a rank is killed",
    restarts=1,
    starts=False,
)
def small_limits(job: Job) -> None:
    for name, node in job.nodes.items():
        node.start(["sh", "-c", 'ulimit -l 0; ulimit -c 0; ulimit -s 2048; exec "$@"', "sh", *job.words(name)], {})
    job.trains()
    job.kill_rank(job.any_rank())
    job.again()


@fault(
    "agent may write no file", "an agent's files may not grow (RLIMIT_FSIZE 0); then a rank is killed", needs="root", restarts=1
)
def no_file_size(job: Job) -> None:
    _limit(job.any_node().agent_pid(), resource.RLIMIT_FSIZE, 0)
    job.kill_rank(job.any_rank())
    job.again()


@fault("agent has no more memory", "an agent's address space may not grow for 5 s (RLIMIT_AS), in which a rank is killed", needs="root",
       restarts=(0, 1), nodes=3, nnodes="2:3")  # fmt: skip
def no_agent_memory(job: Job) -> None:
    node = job.any_node("n1", "n2")
    pid = node.agent_pid()
    _limit(pid, resource.RLIMIT_AS, int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * 4096)
    job.kill_rank(next(life for life in job.alive() if life.node == node.name))
    job.lasts(5)
    if node.runs:
        with contextlib.suppress(ProcessLookupError):
            _limit(pid, resource.RLIMIT_AS, resource.RLIM_INFINITY)
    node.is_lost = not node.runs
    job.again()


@fault(
    "out of memory, agent first",
    "the kernel's choice falls on an agent: it is killed, and the rank with it 100 ms later",
    nodes=3,
    nnodes="2:3",
)
def agent_first(job: Job) -> None:
    node = job.any_node("n1", "n2")
    node.is_lost = True
    life = next(life for life in job.alive() if life.node == node.name)
    job.strike()
    send(node.agent_pid(), signal.SIGKILL)
    job.lasts(0.1)
    send(life.pid, signal.SIGKILL)
    job.again()


@fault("load of 50", "fifty processes compute beside the job for 5 s, in which a rank is killed", restarts=1)
def busy(job: Job) -> None:
    node = job.nodes["n1"]
    burn = "import os, time\nend = time.time() + 5\nfor _ in range(49):\n    if not os.fork(): break\nwhile time.time() < end: pass\n"
    mine = node.launcher
    burning = node.start(["nice", "-n", "0", "python3", "-c", burn], {})
    node.launched.remove(burning)
    assert node.launcher is mine
    job.kill_rank(job.any_rank())
    job.again()
    job.afterwards(lambda: burning.wait(20))
    burning.wait(20)

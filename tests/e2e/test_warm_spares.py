"""A restart finds interpreters that have imported already; where it must not use them, it starts cold and says why."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from kit.command import Holdfast

TRAIN = """
import email.message, os, sys, time
{more}
import holdfast.client
holdfast.client.heartbeat()
said = " ".join(["begun", os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], str(os.getpid()), *sys.argv[1:]])
os.write(1, (said + "\\n").encode())
while not os.path.exists("done"):
    time.sleep(0.01)
"""
EARLY = 5
"""The life in which all that an agent ever opens is open."""


class Job:
    """A job whose ranks stay until they are told, or killed."""

    def __init__(self, holdfast, wait_until, folder: Path, *flags: str, nproc: int = 2, more: str = "", env=None) -> None:
        (folder / "train.py").write_text(TRAIN.format(more=more))
        self.holdfast, self.wait_until, self.folder, self.nproc = holdfast, wait_until, folder, nproc
        words = ["run", "--nproc-per-node", nproc, "--max-restarts", 1000, "--backoff", 0, *flags, "train.py", "word"]
        self.running = holdfast.start(*words, env=env, cwd=folder)

    def begun(self, life: int) -> dict[int, int]:
        """Rank → pid, once all ranks of a life have begun."""
        found = lambda: {
            int(rank): int(pid) for rank, pid in re.findall(rf"begun (\d) {life} (\d+) word", self.running.stdout)
        }
        self.wait_until(lambda: len(found()) == self.nproc or self.running.ended, what=f"life {life}")
        assert len(found()) == self.nproc, self.running.stdout + self.running.stderr
        return found()

    def spares(self, count: int) -> list[int]:
        """Pids of all that were ready so far, once there have been so many."""
        ready = lambda: self.holdfast.events("SpareReady")
        self.wait_until(lambda: len(ready()) >= count, what=f"{count} spares")
        return [event["pid"] for event in ready()]

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def starts(self, life: int) -> list[tuple[bool, str]]:
        """Of each rank of that life: whether a spare became it, and why none did."""
        found = lambda: [one for one in self.holdfast.events("WorkerStarted") if one["attempt"] == life]
        self.wait_until(lambda: len(found()) == self.nproc)
        return [(one["spare"], one["cold_because"]) for one in found()]

    def finish(self) -> None:
        (self.folder / "done").touch()
        assert self.running.wait().returncode == 0


@pytest.mark.parametrize("mode", ["spawn", "fork"])
def test_a_restart_takes_spares_and_they_are_made_again(holdfast, wait_until, tmp_path: Path, mode: str) -> None:
    job = Job(holdfast, wait_until, tmp_path, "--warm-mode", mode)
    first, each = job.begun(0), 2 if mode == "spawn" else 0
    assert job.starts(0) == [(False, "")] * 2
    for life in (1, 2):
        ahead = job.spares(max(1, each * life))
        job.kill(first[1])
        first = job.begun(life)
        assert job.starts(life) == [(True, "")] * 2
        if mode == "spawn":
            assert sorted(first.values()) == sorted(ahead[-2:])
    job.finish()
    booted = [event["booted_s"] for event in holdfast.events("RanksBegun")]
    assert len(booted) == 3 and all(took > 0 for took in booted), "since the start of its round's processes, a spare's too"


def test_what_an_import_prints_stands_in_the_log_of_its_worker(holdfast, wait_until, tmp_path: Path) -> None:
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "chatty.py").write_text("import sys\nprint('hello')\nprint('hullo', file=sys.stderr)\n")
    env = {"PYTHONPATH": str(tmp_path / "libraries")}
    job = Job(holdfast, wait_until, tmp_path, "--redirects", "3", "--tee", "0", more="import chatty", env=env, nproc=1)
    logs = lambda name: [path.read_text() for path in sorted(holdfast.state_dir.glob(f"jobs/*/logs/*/attempt_*/0/{name}"))]
    wait_until(lambda: "begun" in "".join(logs("stdout.log")))
    job.spares(1)
    job.kill(int(logs("stdout.log")[0].split()[-2]))
    wait_until(lambda: len(logs("stdout.log")) == 2 and "begun 0 1" in logs("stdout.log")[1])
    assert job.starts(1) == [(True, "")]
    assert logs("stdout.log")[1].startswith("hello\nbegun") and logs("stderr.log")[1] == "hullo\n"
    job.finish()


def test_an_import_that_fails_in_a_spare_costs_the_job_nothing(holdfast, wait_until, tmp_path: Path) -> None:
    (tmp_path / "libraries").mkdir()
    once = "import os\nif 'HOLDFAST_SPARE' in os.environ:\n    1 / 0\n"
    (tmp_path / "libraries" / "fickle.py").write_text(once)
    env = {"PYTHONPATH": str(tmp_path / "libraries")}
    job = Job(holdfast, wait_until, tmp_path, more="import fickle", env=env, nproc=1)
    pids = job.begun(0)
    lost = wait_until(lambda: holdfast.events("SpareLost"))
    why = "importing fickle failed: ZeroDivisionError: division by zero"
    assert lost[0]["reason"] == why
    job.kill(pids[0])
    job.begun(1)
    assert job.starts(1) == [(False, why)]
    assert f"no warm spare for local rank 0: {why}" in job.running.stderr
    job.finish()


def test_a_variable_that_an_import_has_read_makes_the_start_cold(holdfast, wait_until, tmp_path: Path) -> None:
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "reader.py").write_text("import os\nlife = os.environ.get('TORCHELASTIC_RESTART_COUNT')\n")
    env = {"PYTHONPATH": str(tmp_path / "libraries")}
    job = Job(holdfast, wait_until, tmp_path, more="import reader", env=env, nproc=1)
    pids = job.begun(0)
    job.spares(1)
    job.kill(pids[0])
    job.begun(1)
    why = "TORCHELASTIC_RESTART_COUNT, which its imports have read, was '0' and is '1' now"
    assert job.starts(1) == [(False, why)]
    job.finish()


UNFIT = {
    "opener.py": ("import socket\nkept = socket.socket()\n", "import opener", "an import has opened a socket"),
    "torch/cuda.py": ("is_initialized = lambda: True\n", "import torch.cuda", "an import has initialised CUDA"),
}


@pytest.mark.parametrize("file", UNFIT)
def test_an_import_that_no_spare_may_make_makes_the_start_cold(holdfast, wait_until, tmp_path: Path, file: str) -> None:
    source, more, why = UNFIT[file]
    library = tmp_path / "libraries" / file
    library.parent.mkdir(parents=True)
    (library.parent / "__init__.py").touch()
    library.write_text(source)
    job = Job(holdfast, wait_until, tmp_path, more=more, env={"PYTHONPATH": str(tmp_path / "libraries")}, nproc=1)
    pids = job.begun(0)
    assert wait_until(lambda: holdfast.events("SpareLost"))[0]["reason"] == why
    job.kill(pids[0])
    job.begun(1)
    assert job.starts(1) == [(False, why)] and f"no warm spare for local rank 0: {why}" in job.running.stderr
    job.finish()


UNFORKABLE = {
    "threads": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n",
        "it cannot be forked: its imports have started 1 threads",
    ),
    "processes": (
        "import subprocess\nhelper = subprocess.Popen(['sleep', '1000'])\n",
        "it cannot be forked: its imports have started 1 process",
    ),
    "locks": (
        "import multiprocessing\nlock = multiprocessing.Lock()\n",
        "it cannot be forked: its imports have made a lock that forked processes share (multiprocessing.Lock)",
    ),
}


@pytest.mark.parametrize("has", UNFORKABLE)
def test_what_ranks_must_not_share_is_not_forked_from(holdfast, wait_until, tmp_path: Path, has: str) -> None:
    source, why = UNFORKABLE[has]
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "busy.py").write_text(source)
    env = {"PYTHONPATH": str(tmp_path / "libraries")}
    job = Job(holdfast, wait_until, tmp_path, "--warm-mode", "fork", more="import busy", env=env, nproc=1)
    pids = job.begun(0)
    assert wait_until(lambda: holdfast.events("SpareLost"))[0]["reason"] == why
    job.kill(pids[0])
    job.begun(1)
    assert job.starts(1) == [(False, why)]
    job.finish()


COLLECTIVE = """
import torch, torch.distributed as dist
assert os.getsid(0) == os.getpid(), "a worker has a session of its own"
dist.init_process_group("gloo")
total = torch.tensor([float(os.environ["RANK"]) + 1])
dist.all_reduce(total)
assert total.item() == 3
"""


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["spawn", "fork"])
def test_warm_workers_of_torch_meet_and_reduce(holdfast, wait_until, tmp_path: Path, mode: str) -> None:
    job = Job(holdfast, wait_until, tmp_path, "--warm-mode", mode, more=COLLECTIVE)
    pids = job.begun(0)
    for life in (1, 2):
        job.spares(1 if mode == "fork" else 2 * life)
        job.kill(pids[1])
        pids = job.begun(life)
        assert job.starts(life) == [(True, "")] * 2
    job.finish()


def draws_of_two_lives(job: Job) -> list[str]:
    """Lines of what two ranks drew, in a life of their own and in one that was forked."""
    pids = job.begun(0)
    job.spares(1)
    job.kill(pids[0])
    job.begun(1)
    assert job.starts(1) == [(True, "")] * 2
    job.finish()
    return [line for line in job.running.stdout.splitlines() if "drew" in line]


def test_forked_ranks_draw_different_random_numbers(holdfast, wait_until, tmp_path: Path) -> None:
    pytest.importorskip("numpy", reason="numpy is not installed")
    draws = "import numpy.random, random\nos.write(1, f'drew {numpy.random.random()} {random.random()}\\n'.encode())"
    job = Job(holdfast, wait_until, tmp_path, "--warm-mode", "fork", more=draws)
    drawn = [line.split()[-2:] for line in draws_of_two_lives(job)]
    assert len({number for numbers in drawn for number in numbers}) == 8


def test_threads_that_a_library_ends_at_a_fork_prevent_none(holdfast, wait_until, tmp_path: Path) -> None:
    pytest.importorskip("numpy", reason="numpy is not installed")
    calculates = "import numpy\nos.write(1, f'sum {numpy.ones((300, 300)).dot(numpy.ones((300, 300))).sum():.0f}\\n'.encode())"
    env = {"OPENBLAS_NUM_THREADS": "4"}
    job = Job(holdfast, wait_until, tmp_path, "--warm-mode", "fork", more=calculates, env=env, nproc=1)
    pids = job.begun(0)
    job.spares(1)
    job.kill(pids[0])
    job.begun(1)
    assert job.starts(1) == [(True, "")]
    job.finish()
    assert job.running.stdout.count("sum 27000000\n") == 2


TORCH_DRAWS = """
import threading, torch
assert threading.main_thread().native_id == os.getpid()
os.write(1, f'drew {torch.rand(1, dtype=torch.float64).item()}\\n'.encode())
"""


@pytest.mark.torch
def test_forked_ranks_draw_different_random_numbers_from_torch_in_each_life(holdfast, wait_until, tmp_path: Path) -> None:
    job = Job(holdfast, wait_until, tmp_path, "--warm-mode", "fork", more=TORCH_DRAWS)
    pids = job.begun(0)
    job.spares(1)
    for life in (1, 2):
        job.kill(pids[0])
        pids = job.begun(life)
        assert job.starts(life) == [(True, "")] * 2
    job.finish()
    assert len({line for line in job.running.stdout.splitlines() if "drew" in line}) == 6


@pytest.mark.torch
def test_a_seed_that_an_import_has_chosen_is_left_to_forked_ranks(holdfast, wait_until, tmp_path: Path) -> None:
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "seeded.py").write_text("import torch\ntorch.manual_seed(7)\n")
    more, env = "import seeded" + TORCH_DRAWS, {"PYTHONPATH": str(tmp_path / "libraries")}
    job = Job(holdfast, wait_until, tmp_path, "--warm-mode", "fork", more=more, env=env)
    drawn = draws_of_two_lives(job)
    assert len(drawn) == 4 and len(set(drawn)) == 1


def test_a_library_that_has_changed_since_makes_the_start_cold(holdfast, wait_until, tmp_path: Path) -> None:
    (tmp_path / "libraries").mkdir()
    library = tmp_path / "libraries" / "mine.py"
    library.write_text("version = 1\n")
    job = Job(holdfast, wait_until, tmp_path, more="import mine", env={"PYTHONPATH": str(library.parent)}, nproc=1)
    pids = job.begun(0)
    job.spares(1)
    library.write_text("version = 2  # mended\n")
    job.kill(pids[0])
    job.begun(1)
    assert job.starts(1) == [(False, f"{library} has changed since it was imported")]
    job.finish()


def test_a_spare_that_dies_is_replaced_and_disturbs_nobody(holdfast, wait_until, tmp_path: Path) -> None:
    job = Job(holdfast, wait_until, tmp_path, nproc=1)
    pids = job.begun(0)
    job.kill(job.spares(1)[0])
    job.spares(2)
    assert holdfast.events("SpareLost")[0]["reason"] == "it ended with -9"
    assert holdfast.events("FailureSeen") == []
    job.kill(pids[0])
    job.begun(1)
    assert job.starts(1) == [(True, "")]
    job.finish()


SLOW_TO_END = """
import signal
def leave(*_):
    os.write(1, b"leaving\\n")
    while not os.path.exists("go"):
        time.sleep(0.01)
    os._exit(1)
signal.signal(signal.SIGTERM, leave)
"""


def test_spares_that_are_lacking_are_made_while_ranks_are_slow_to_end(holdfast, wait_until, tmp_path: Path) -> None:
    job = Job(holdfast, wait_until, tmp_path, more=SLOW_TO_END)
    pids = job.begun(0)
    early = job.spares(2)
    job.kill(pids[0])
    job.running.wait_for_output("leaving")
    for spare in early:
        job.kill(spare)
    late = job.spares(4)[2:]
    assert job.begun(0).keys() == {0, 1} and holdfast.events("WorkersStopped") == []
    (tmp_path / "go").touch()
    assert sorted(job.begun(1).values()) == sorted(late)
    assert job.starts(1) == [(True, "")] * 2
    job.finish()


def test_spares_that_do_not_answer_cost_a_second_together(holdfast, wait_until, tmp_path: Path) -> None:
    job = Job(holdfast, wait_until, tmp_path)
    pids = job.begun(0)
    for spare in job.spares(2):
        os.kill(spare, signal.SIGSTOP)
    job.kill(pids[0])
    job.begun(1)
    (first, one), (second, other) = job.starts(1)
    assert not first and not second
    assert (one, other) == ("it did not answer within 1 s", "it did not answer within 0.05 s")
    job.finish()


@pytest.mark.parametrize("mode", ["spawn", "fork"])
def test_spares_die_with_the_agent(holdfast, wait_until, tmp_path: Path, alive, mode: str) -> None:
    job = Job(holdfast, wait_until, tmp_path, "--warm-mode", mode)
    job.begun(0)
    job.spares(1)
    agent = holdfast.events("AgentStarted")[0]["pid"]
    os.kill(agent, signal.SIGKILL)
    job.running.wait()
    wait_until(lambda: not alive())


@pytest.mark.parametrize("flags", [["--warm-spares", "off"], ["--max-restarts", "0"]], ids=" ".join)
def test_no_spares_where_none_are_wanted(holdfast, wait_until, tmp_path: Path, flags: list[str]) -> None:
    job = Job(holdfast, wait_until, tmp_path, *flags, more="print(sys.modules['_holdfast_bootstrap'].words[10] & 2)", nproc=1)
    job.begun(0)
    assert job.running.stdout.startswith("0\n"), "nobody notes its modules"
    job.finish()


@pytest.mark.parametrize("mode", ["spawn", "fork"])
def test_consecutive_kills_leave_nothing_behind(holdfast, wait_until, tmp_path: Path, mode: str, alive) -> None:
    job = Job(holdfast, wait_until, tmp_path, "--warm-mode", mode, nproc=1)
    pids, few = job.begun(0), 0
    left = lambda: len(os.listdir(f"/proc/{agent}/fd")) + len(alive())
    for life in range(1, 21):
        job.spares(life if mode == "spawn" else 1)
        agent = holdfast.events("AgentStarted")[0]["pid"]
        if life == EARLY:
            few = left()
        job.kill(pids[0])
        pids = job.begun(life)
        assert job.starts(life) == [(True, "")]
    job.spares(21 if mode == "spawn" else 1)
    wait_until(lambda: left() <= few + 3)  # one more in each life would be 15
    job.finish()


def test_a_node_that_waits_for_a_place_is_told_what_to_import(holdfast, wait_until, tmp_path: Path, free_port) -> None:
    of_c = Holdfast(tmp_path / "of-c")  # it shares no directory with the others
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "reader.py").write_text("import os\nworld = os.environ.get('WORLD_SIZE')\n")
    (tmp_path / "train.py").write_text(TRAIN.format(more="import reader; assert reader.world == '2'"))
    agents, env = {}, {"PYTHONPATH": str(tmp_path / "libraries")}
    for number, name in enumerate("abc"):
        meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-id", "job", "--node-name", name]
        own = ["--state-dir", of_c.state_dir] if name == "c" else []
        what = ["--nnodes", "2", "--max-restarts", "3", *meet, *own, "train.py", "word"]
        agents[name] = holdfast.start("run", *what, env=env, cwd=tmp_path)
        if number == 0:
            wait_until(lambda: holdfast.events("NodeJoined"))  # so that it is this one that the job ends with
        if number == 1:
            wait_until(lambda: all("begun" in agents[one].stdout for one in "ab"))
    ready = wait_until(lambda: of_c.events("SpareReady"))
    agents["b"].kill(signal.SIGTERM)
    (started,) = wait_until(lambda: of_c.events("WorkerStarted"))
    assert (started["spare"], started["cold_because"], started["pid"]) == (True, "", ready[0]["pid"])
    agents["c"].wait_for_output("begun")
    (tmp_path / "done").touch()
    assert [agents[one].wait().returncode for one in "ac"] == [0, 0]


KEEPS = """
import os, signal, time
from holdfast import client
from holdfast.client import stash

rank, life = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
found = stash.latest()
step, state = found or (0, {"rank": rank})
os.write(1, f"life {life} goes on after {step} as {state['rank']} of {rank}\\n".encode())
client.heartbeat()
stash.save(step + 1, state, blocking=True)
open(f"kept.{life}.{rank}", "w").close()
while life < 2 and not os.path.exists(f"die.{life}"):
    time.sleep(0.01)
if life < 2 and rank == "0":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(30 * (life < 2))
"""


def test_a_spare_finds_what_the_rank_before_it_has_stashed(holdfast, wait_until, tmp_path: Path) -> None:
    (tmp_path / "keeps.py").write_text(KEEPS)
    job = holdfast.start("run", "--nproc-per-node", 2, "--max-restarts", 2, "keeps.py", cwd=tmp_path)
    for life in range(2):
        wait_until(lambda: len(list(tmp_path.glob(f"kept.{life}.*"))) == 2)  # noqa: B023
        wait_until(lambda: len(holdfast.events("SpareReady")) >= 2 * (life + 1))  # noqa: B023
        (tmp_path / f"die.{life}").touch()
    assert job.wait().returncode == 0
    said = sorted(line for line in job.stdout.splitlines() if line.startswith("life"))
    assert said == [f"life {life} goes on after {life} as {rank} of {rank}" for life in range(3) for rank in range(2)]
    assert [event["spare"] for event in holdfast.events("WorkerStarted")] == [False] * 2 + [True] * 4

"""client.run_in_place: a rank comes out of whatever it does as another one fails, or is ended at the limit."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest
from kit import LIGHT_TORCH
from kit.jobs.lockstep import lose

SLEEPS = """
import os, resource, select, signal, socket, sys, threading, time, types
from holdfast import client
folder, how = sys.argv[1:]
rank, pid = int(os.environ["RANK"]), os.getpid()

def reached():
    open(folder + "-reached", "w").close()

def wait(life):
    number = os.environ["HOLDFAST_ROUND"]
    open(f"{folder}/{number}.{rank}.{os.getpid()}.{os.environ['TORCHELASTIC_RESTART_COUNT']}", "w").close()
    if number == "2":
        return
    if rank == 1:
        while not os.path.exists(folder + "-reached"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "deaf":
        signal.pthread_sigmask(signal.SIG_BLOCK, [59])
    if how == "gpu":
        def refuse():  # CUDA's errors stick: each later call fails with them
            raise RuntimeError("CUDA error: an illegal memory access was encountered\\nand more")
        stream = types.SimpleNamespace(query=refuse)
        cuda = types.SimpleNamespace(synchronize=refuse, current_stream=lambda: stream)
        cuda.is_initialized, cuda.is_current_stream_capturing = lambda: True, lambda: False
        sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
    if how != "swallowed":
        reached()
    if how in ("sleep", "gpu"):
        time.sleep(100)
    elif how == "finally":
        try:
            time.sleep(100)
        finally:
            raise RuntimeError("the group that this needs is aborted")
    elif how == "no signals":
        resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, 0))
        time.sleep(100)
    elif how == "lock":
        lock = threading.Lock(); lock.acquire(); lock.acquire()
    elif how == "socket":
        pair = socket.socketpair()
        select.select([pair[0]], [], [])
    elif how == "python":
        while True:
            pass
    elif how == "swallowed":
        while True:
            try:
                reached()
                time.sleep(100)
            except BaseException:
                how_often.append(1)
                if len(how_often) > 1:
                    raise
    elif how == "finaliser":
        stays = Stays()
        time.sleep(100)
    elif how == "deaf":
        time.sleep(100)

class Stays:
    def __del__(self):
        time.sleep(100)

how_often = []
client.run_in_place(wait)
assert how != "swallowed" or rank == 1 or len(how_often) == 2
"""


def pids_of(folder: Any, number: int) -> dict[int, int]:
    found = [path.name.split(".") for path in folder.iterdir()]
    return {int(rank): int(pid) for of, rank, pid, _ in found if of == str(number)}


@pytest.mark.parametrize("how", ["sleep", "finally", "lock", "socket", "python", "swallowed", "finaliser", "no signals"])
def test_a_rank_comes_out_of_whatever_it_does(holdfast: Any, script: Any, tmp_path: Any, how: str) -> None:
    folder = tmp_path / "seen"
    folder.mkdir()
    ran = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 1, script(SLEEPS), folder, how, timeout=60)
    assert ran.returncode == 0, ran.output
    first, second = pids_of(folder, 1), pids_of(folder, 2)
    assert first[0] == second[0] and first[1] != second[1]


CATCHES = """
import os, signal, sys, time
from holdfast import client
folder, rank = sys.argv[1], int(os.environ["RANK"])

def train(life):
    if os.environ["HOLDFAST_ROUND"] == "2":
        return
    if rank == 1:
        while not os.path.exists(folder):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        try:
            open(folder, "w").close()
            time.sleep(100)
        except BaseException:
            pass

client.run_in_place(train)
"""


def test_one_that_catches_everything_is_told_where(holdfast: Any, script: Any, tmp_path: Any) -> None:
    path, options = script(CATCHES), ("--nproc-per-node", 2, "--max-restarts", 1, "--regroup-timeout", 3)
    ran = holdfast("run", *options, path, tmp_path / "reached", timeout=60)
    assert ran.returncode == 0, ran.output
    line = 1 + next(number for number, text in enumerate(CATCHES.splitlines()) if "time.sleep(100)" in text)
    said = f"Regroup was raised 2 times, and the script runs on ({path}:{line}): "
    assert ran.output.count(said) == 1, ran.output


ERRS = """
import os, signal, subprocess, sys, time
from holdfast import client
folder, how, rank = sys.argv[1], sys.argv[2], int(os.environ["RANK"])

def train(life):
    number = os.environ["HOLDFAST_ROUND"]
    if number == "4":
        return
    if rank == 1:
        while not os.path.exists(folder + number):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "handles":
        signal.signal(59, lambda *_: None)
    if how == "starts":
        subprocess.Popen(["sleep", "100"])
    if how == "keeps":
        kept.append(kept or subprocess.Popen(["sleep", "100"]))
    open(folder + number, "w").close()
    time.sleep(100)

kept = []
client.run_in_place(train)
"""


@pytest.mark.parametrize(
    "how, said",
    [
        ("handles", "the script handles signal 59 since its life began, so that Regroup cannot be raised in it"),
        ("starts", "each life leaves processes that the script has started: 3 run on (the newest: sleep, pid "),
        ("keeps", ""),
    ],
)
def test_a_script_is_told_what_does_not_go_with_another_life(
    holdfast: Any, script: Any, tmp_path: Any, how: str, said: str
) -> None:
    options = ("--nproc-per-node", 2, "--max-restarts", 3, "--regroup-timeout", 1)
    ran = holdfast("run", *options, script(ERRS), tmp_path / "reached", how, timeout=60)
    assert ran.returncode == 0, ran.output
    assert said in ran.output and (said or "each life leaves" not in ran.output), ran.output


WAITS = """
import os, sys, time
from holdfast import client

def train(life):
    rank, number = os.environ["RANK"], os.environ["HOLDFAST_ROUND"]
    open(f"{sys.argv[1]}/{number}.{rank}.{os.getpid()}.0", "w").close()
    if number == "1":
        time.sleep(100)

client.run_in_place(train)
"""


def test_a_restart_that_an_operator_asks_for_is_one_with_new_processes(
    holdfast: Any, script: Any, tmp_path: Any, wait_until: Any
) -> None:
    """Who has changed the script, or mistrusts what it has in memory, asks for that."""
    folder = tmp_path / "seen"
    folder.mkdir()
    job = holdfast.start("run", "--rdzv-id", "real", "--nproc-per-node", 2, "--max-restarts", 1, script(WAITS), folder)
    wait_until(lambda: len(pids_of(folder, 1)) == 2)
    wait_until(lambda: holdfast.run("restart", "real").returncode == 0)
    assert job.wait().returncode == 0
    assert not {*pids_of(folder, 1).values()} & {*pids_of(folder, 2).values()}


def test_one_that_does_not_come_out_is_killed_at_the_limit_and_started_anew(holdfast: Any, script: Any, tmp_path: Any) -> None:
    folder = tmp_path / "seen"
    folder.mkdir()
    limit = ("--regroup-timeout", "0.3")
    ran = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 1, *limit, script(SLEEPS), folder, "deaf", timeout=60)
    assert ran.returncode == 0, ran.output
    first, second = pids_of(folder, 1), pids_of(folder, 2)
    assert sorted(second) == [0, 1] and first[0] != second[0]
    assert "rank 0 did not let go of the round within 0.3 s (--regroup-timeout)" in " ".join(ran.stderr.split())


DAWDLES = """
import os, signal, sys, time
from holdfast import client
folder, rank = sys.argv[1], int(os.environ["RANK"])
for life in client.lives():
    if rank == 0 and not life.is_first:
        time.sleep(100)  # the next life has been given, and the script does something else
    with life:
        number = os.environ["HOLDFAST_ROUND"]
        open(f"{folder}/{number}.{rank}.{os.getpid()}.0", "w").close()
        while number == "1" and rank == 0:
            time.sleep(0.01)
        if number == "1":
            while len(os.listdir(folder)) < 2:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        while len([name for name in os.listdir(folder) if name[0] == "3"]) < 2:
            time.sleep(0.01)
"""


def test_one_that_does_not_begin_its_next_life_is_ended_at_the_limit_and_started_anew(
    holdfast: Any, script: Any, tmp_path: Any
) -> None:
    """No other limit of the job's would find it: it has been given none."""
    folder = tmp_path / "seen"
    folder.mkdir()
    options = ("--nproc-per-node", 2, "--max-restarts", 2, "--regroup-timeout", "0.5")
    ran = holdfast("run", *options, script(DAWDLES), folder, timeout=60)
    assert ran.returncode == 0, ran.output
    first, third = pids_of(folder, 1), pids_of(folder, 3)
    assert sorted(third) == [0, 1] and first[0] != third[0] and 0 not in pids_of(folder, 2)
    [hung] = holdfast.events("RankHung")
    assert hung["rank"] == 0 and hung["reason"] == "it did not begin the round in place within 0.5 s (--regroup-timeout)"


def test_one_whose_gpu_is_of_no_more_use_starts_anew(holdfast: Any, script: Any, tmp_path: Any) -> None:
    folder = tmp_path / "seen"
    folder.mkdir()
    ran = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 1, script(SLEEPS), folder, "gpu", timeout=60)
    assert ran.returncode == 0, ran.output
    first, second = pids_of(folder, 1), pids_of(folder, 2)
    assert sorted(second) == [0, 1] and first[0] != second[0]
    said = "GPU takes no more work of this process, so a new one follows: CUDA error: an illegal memory access"
    assert said in " ".join(ran.stderr.split())


HALF_MET = LIGHT_TORCH + """
import datetime, os, threading, torch, torch.distributed as dist
from holdfast.client.in_place import groups

os.environ["WORLD_SIZE"] = "2"
store, limit = dist.HashStore(), datetime.timedelta(seconds=600)

class Half(dist.Store):  # of a rank that tells where it is, and does nothing more
    def __init__(self, name):
        super().__init__()
        self.name = name
    def set(self, key, value):
        store.set(f"{self.name}/{key}", value)
        threading.Event().wait()

def meet(name):
    before, over = groups.sockets(), threading.Event()
    def answer():
        while not over.wait(0.2):
            groups.answer_for_others(before)
    for what in (lambda: dist.ProcessGroupGloo(Half(name), 1, 2, limit), answer):
        threading.Thread(target=what, daemon=True).start()
    try:
        dist.ProcessGroupGloo(dist.PrefixStore(name, store), 0, 2, limit)
        return "connected"  # whose port is the lower one connects: half of them
    except RuntimeError as error:
        return "was waiting" if "closed by peer" in str(error) else str(error)
    finally:
        over.set()

print(*{meet(str(number)) for number in range(16)}, sep=", ", flush=True)
os._exit(0)
"""


@pytest.mark.torch
def test_a_rank_comes_out_that_waits_for_one_that_has_died_before_it_connected(holdfast: Any, script: Any) -> None:
    ran = holdfast("run", script(HALF_MET), timeout=60)
    assert ran.returncode == 0, ran.output
    assert set(ran.stdout.strip().split(", ")) == {"connected", "was waiting"}, ran.output


STORE_GONE = LIGHT_TORCH + """
import datetime, os, sys, threading, torch, torch.distributed as dist
from holdfast.client.in_place import groups

os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": sys.argv[1]}
threading.Timer(0.5, groups.answer_for_others, [frozenset()]).start()
store = dist.TCPStore("localhost", int(sys.argv[1]), 2, False, datetime.timedelta(seconds=600))
groups.interrupt(frozenset())
try:
    store.get("the first rank's word")
except dist.DistNetworkError:
    print("out", flush=True)
os._exit(0)
"""


@pytest.mark.torch
def test_a_rank_comes_out_that_looks_for_the_store_of_one_that_has_died(holdfast: Any, script: Any, free_port: int) -> None:
    """Torch tries again until its time-out: there is no connection that could be shut."""
    ran = holdfast("run", script(STORE_GONE), free_port, timeout=60)
    assert ran.returncode == 0 and ran.stdout.strip() == "out", ran.output


ENDS_LATE = LIGHT_TORCH + """
import datetime, os, sys, time, torch, torch.distributed as dist
from holdfast.client.in_place import groups

rank = int(os.environ["RANK"])
store = dist.FileStore(sys.argv[1], 2)
group = dist.ProcessGroupGloo(store, rank, 2, datetime.timedelta(seconds=600))
if rank == 1:
    while not os.path.exists(sys.argv[1] + "-ends"):
        time.sleep(0.01)
    os._exit(0)
group.allreduce([torch.zeros(4)])  # a thread of gloo's is lost in it, as long as the other rank lives
groups._held.append(group)
del group
groups.let_go(0.1)

class Last:  # what is left as Python ends
    def __del__(self, mark=sys.argv[1] + "-ends", write=open, now=time.monotonic, sleep=time.sleep):
        write(mark, "w").close()
        until = now() + 1
        while now() < until:
            sleep(0.01)

sys.modules["last"] = Last()
print("over", flush=True)
"""


@pytest.mark.torch
def test_a_group_that_ends_as_late_as_python_itself_costs_a_rank_nothing(holdfast: Any, script: Any, tmp_path: Any) -> None:
    """A thread of ours is within its destructor, in C++, and wants to go on in Python, which ends."""
    ran = holdfast("run", "--nproc-per-node", 2, script(ENDS_LATE), tmp_path / "store", timeout=60)
    assert ran.returncode == 0 and "over" in ran.stdout and "terminate called" not in ran.output, ran.output


SENDS = LIGHT_TORCH + """
import os, signal, sys, time, torch, torch.distributed as dist
from holdfast import client
folder, rank = sys.argv[1], int(os.environ["RANK"])

def send(life):
    dist.init_process_group("gloo")
    open(f"{folder}/{os.environ['HOLDFAST_ROUND']}.{rank}.{os.getpid()}.0", "w").close()
    if life.number or os.environ["HOLDFAST_ROUND"] == "2":
        return
    many = torch.zeros(1 << 26)  # more than any socket takes at once
    if rank == 1:
        awaited = dist.irecv(many, 0)
        dist.barrier()
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()
    dist.send(many, 1)

client.run_in_place(send)
"""


@pytest.mark.torch
def test_a_rank_comes_out_that_sends_to_one_that_is_killed(
    holdfast: Any, script: Any, tmp_path: Any, wait_until: Any
) -> None:
    """Gloo does not tell it of the connection's end. Who is killed has read a part of what is sent, and is stopped then."""
    folder = tmp_path / "seen"
    ran = killed_once_stopped(holdfast, wait_until, folder, script(SENDS))
    assert ran.returncode == 0, ran.output
    assert pids_of(folder, 1)[0] == pids_of(folder, 2)[0], ran.output


RECEIVES = LIGHT_TORCH + """
import os, signal, sys, torch, torch.distributed as dist
from holdfast import client
folder, rank = sys.argv[1], int(os.environ["RANK"])

def receive(life):
    dist.init_process_group("gloo")
    open(f"{folder}/{os.environ['HOLDFAST_ROUND']}.{rank}.{os.getpid()}.0", "w").close()
    if os.environ["HOLDFAST_ROUND"] == "2":
        return
    many = torch.zeros(1 << 26)
    if rank == 0:
        awaited = dist.irecv(many, 1)
        dist.barrier()
        awaited.wait()
        open(f"{folder}/came.0.0.0", "w").close()
    dist.barrier()
    sent = dist.isend(many, 0)
    os.kill(os.getpid(), signal.SIGSTOP)

client.run_in_place(receive)
"""


@pytest.mark.torch
def test_a_rank_that_has_got_half_of_a_message_ends_at_the_limit_and_never_takes_it_for_whole(
    holdfast: Any, script: Any, tmp_path: Any, wait_until: Any
) -> None:
    """Gloo (torch 2.13) tells it nothing of the sender's end. Where a later one does, it keeps its process."""
    folder = tmp_path / "seen"
    ran = killed_once_stopped(holdfast, wait_until, folder, "--regroup-timeout", 1, script(RECEIVES))
    assert ran.returncode == 0 and sorted(pids_of(folder, 2)) == [0, 1], ran.output
    is_held = pids_of(folder, 1)[0] != pids_of(folder, 2)[0]
    assert is_held == ("rank 0 did not let go of the round within 1 s" in " ".join(ran.stderr.split())), ran.output
    assert not (folder / "came.0.0.0").exists()


def killed_once_stopped(holdfast: Any, wait_until: Any, folder: Any, *words: object) -> Any:
    """How a job of two ranks ended, of which the second stops itself in its first life and is killed then."""
    folder.mkdir()
    job = holdfast.start("run", "--nproc-per-node", 2, "--max-restarts", 1, *words, folder)
    wait_until(lambda: len(pids_of(folder, 1)) == 2 and stopped(pids_of(folder, 1)[1]), what="one that is stopped")
    os.kill(pids_of(folder, 1)[1], signal.SIGKILL)
    return job.wait()


def stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


WRAPPED = """
import os, signal, sys, time
from holdfast import inprocess
folder, rank = sys.argv[1], int(os.environ["RANK"])
said = []

class Says(inprocess.finalize.Finalize):
    def __call__(self, state):
        said.append((state.iteration, state.rank, state.world_size))
        return state

@inprocess.Wrapper(finalize=Says(), initialize=inprocess.initialize.RetryController(max_iterations=3))
def train(what, call: inprocess.CallWrapper | None = None):
    number = os.environ["HOLDFAST_ROUND"]
    open(f"{folder}/{number}.{rank}.{os.getpid()}.{call.iteration}", "w").close()
    call.ping()
    with call.atomic(), call.disable_hang_protection():
        pass
    if number == "1":
        while len(os.listdir(folder)) < 2:
            time.sleep(0.01)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(100)
    return what, call.iteration, said

print(rank, train("done"))
"""


@pytest.mark.torch
def test_nvrx_s_wrapper_is_led_by_the_agent(holdfast: Any, script: Any, tmp_path: Any) -> None:
    folder = tmp_path / "seen"
    folder.mkdir()
    ran = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 1, script(WRAPPED), folder, timeout=90)
    assert ran.returncode == 0, ran.output
    first, second = pids_of(folder, 1), pids_of(folder, 2)
    assert first[0] == second[0] and first[1] != second[1]
    assert sorted(ran.stdout.splitlines()) == ["0 ('done', 1, [(0, 0, 2)])", "1 ('done', 1, [])"]


NODE = LIGHT_TORCH + """
import os, sys, time, torch, torch.distributed as dist
from holdfast import client

def train(life):
    dist.init_process_group("gloo")
    state = life.state
    model = state.keep("model", lambda: torch.nn.Linear(4, 1))
    optimizer = state.keep("optimizer", lambda: torch.optim.Adam(model.parameters()))
    first = state.begin()
    os.write(1, f"round {os.environ['HOLDFAST_ROUND']} pid {os.getpid()} from {state.came_from}\\n".encode())
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    over = torch.zeros(1)
    while not over:
        optimizer.zero_grad()
        ddp(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        over += os.path.exists(sys.argv[1])
        dist.all_reduce(over)
        time.sleep(0.01)
    dist.destroy_process_group()

client.run_in_place(train)
"""


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_who_hears_of_a_lost_node_by_its_connections_keeps_its_process_and_its_state(
    holdfast: Any, script: Any, free_port: int, wait_until: Any, tmp_path: Any
) -> None:
    """A container that is killed shuts its connections at once, and its node's lease ends seconds later."""
    agents = {}
    for name in "abc":
        agents[name] = holdfast.start(
            *("run", "--nnodes", 2, "--node-name", name, "--rdzv-id", "lost", "--rdzv-backend", "c10d"),
            *("--rdzv-endpoint", f"localhost:{free_port}", "--max-restarts", 3, script(NODE), tmp_path / "over"),
        )
        wait_until(lambda name=name: any(event["node"] == name for event in holdfast.events("AgentStarted")))

    def lives(name: str, source: str) -> list[str]:
        return re.findall(rf"round \d+ pid (\d+) from {source}", agents[name].stdout)

    wait_until(lambda: any(lives(name, "script") for name in "bc"))
    other, spare = ("b", "c") if lives("b", "script") else ("c", "b")
    wait_until(lambda: lives("a", "script"))
    lose(agents[other])
    wait_until(lambda: lives(spare, "rank \\d"))
    assert lives("a", "memory") == lives("a", "script"), agents["a"].output
    (tmp_path / "over").touch()
    assert [agents[name].wait().returncode for name in ("a", spare)] == [0, 0]

"""Ranks that hang, each in another way: seen, looked at, killed, and the job goes on. Real processes, real torch."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit import SCRIPTS
from kit.descriptors import open_here
from kit.ports import ports

from holdfast.agent.group.messages import LookAtWorkers
from holdfast.agent.workers.stacks import Stacks, py_spy
from holdfast.runtime.host import Child, Host
from holdfast.runtime.process.process import Process, state

PLAIN, TOLD, LOADER = (SCRIPTS / f"hang_{how}.py" for how in ("plain", "told", "loader"))

PATIENCE_S = 150.0
"""Two lives of a script that imports torch, on a host that has other things to do."""

pytestmark = pytest.mark.timeout(200)

LIMITS = ("--ft-initial-rank-heartbeat-timeout", 90, "--ft-rank-heartbeat-timeout", 8)
SECTIONS = ("--ft-rank-section-timeouts", "data:2")

KINDS = {
    "stopped": "stopped (SIGSTOP)",
    "dead_loop": "in dead_loop (hanging.py:",
    "loading": "in loading (hanging.py:",
    "blocked": "in blocked (hanging.py:",
    "asleep": "uninterruptible in the kernel",
}
"""How a rank hangs, and what must be said of it."""


def hung(holdfast: Any) -> dict[str, Any]:
    """The failure with which it was decided to begin anew, of rank 1; all that hung are recorded as such."""
    (decided,) = [event for event in holdfast.events("Decided") if event["decision"] == "restart"]
    seen = [event["failure"] for event in holdfast.events("FailureSeen") if event["failure"]["cause"] == "hung"]
    blamed = [one for one in seen if decided["reason"].startswith(f"rank {one['rank']} (local")]
    assert blamed, f"{decided['reason']}; seen: {[event['failure']['message'] for event in holdfast.events('FailureSeen')]}"
    return blamed[-1]


def stacks(failure: dict[str, Any]) -> dict[int, str]:
    """What is kept of the ranks, by rank, in the incident's folder, in which each node has one."""
    files = Path(failure["stacks_path"]).parents[1].glob("*/rank-*.txt")
    return {int(re.findall(r"\d+", file.name)[0]): file.read_text() for file in files}


def check(holdfast: Any, done: Any, kind: str) -> None:
    """It was seen, who it was and where is said, and all began anew, once."""
    assert done.returncode == 0, done.output
    assert sorted(done.stdout.split("\n"))[-2:] == ["rank 0 is done", "rank 1 is done"]
    failure = hung(holdfast)
    assert failure["rank"] == 1 and KINDS[kind] in failure["message"], failure["message"]
    assert set(stacks(failure)) == {0, 1}
    assert "most recent call first" in stacks(failure)[0], "the innocent one's"
    assert not any(event["killed"] for event in holdfast.events("WorkersStopped")), "no grace was waited for"
    assert len({event["round"] for event in holdfast.events("RoundFormed")}) == 2
    why = holdfast("why").stdout
    assert f"rank 1 (local 1) on {failure['node']} hung: " in why and failure["stacks_path"] in why
    assert failure["stacks_path"] in holdfast("report").stdout


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
def test_a_script_that_knows_nothing_of_it(holdfast: Any, kind: str) -> None:
    options = ("--nproc-per-node", 2, "--max-restarts", 1, *LIMITS)
    done = holdfast("run", *options, PLAIN, kind, env={"OMP_NUM_THREADS": "1"}, timeout=PATIENCE_S)
    check(holdfast, done, kind)
    assert "at step 3" in hung(holdfast)["message"]
    assert "all_reduce" in stacks(hung(holdfast))[0] or "_engine_run_backward" in stacks(hung(holdfast))[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_that_tells_what_it_does(holdfast: Any, kind: str) -> None:
    done = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 1, *SECTIONS, TOLD, kind)
    check(holdfast, done, kind)
    (lasted_s,) = re.findall(r"hung: in section data for (\S+) s \(limit 2 s\); at step 2", hung(holdfast)["message"])
    assert float(lasted_s) >= 2.0


@pytest.mark.torch
@pytest.mark.parametrize(("how", "limits"), [("plain", LIMITS), ("told", ("--ft-rank-section-timeouts", "data:8"))])
def test_a_process_of_the_data_loader_hangs_and_shows_where(holdfast: Any, how: str, limits: tuple[object, ...]) -> None:
    options = ("--nproc-per-node", 2, "--max-restarts", 1, *limits)
    done = holdfast("run", *options, LOADER, how, env={"OMP_NUM_THREADS": "1"}, timeout=PATIENCE_S)
    assert done.returncode == 0, done.output
    assert sorted(done.stdout.split("\n"))[-2:] == ["rank 0 is done", "rank 1 is done"]
    failure = hung(holdfast)
    assert failure["rank"] == 1 and "called in <module> (hang_loader.py:" in failure["message"], failure["message"]
    below, own = stacks(failure)[1].split("the rank itself:")
    assert "which it has forked:" in below and "in loading" in below and "in __getitem__" in below
    assert "in __next__" in own and "in loading" not in own
    assert not any(event["killed"] for event in holdfast.events("WorkersStopped"))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("script", "limits"), [(PLAIN, LIMITS), (TOLD, ("--ft-rank-section-timeouts", "data:8"))], ids=["plain", "told"]
)
def test_a_deadlock_in_which_nobody_is_to_blame(holdfast: Any, script: Path, limits: tuple[object, ...]) -> None:
    done = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 1, *limits, script, "deadlocked", timeout=PATIENCE_S)
    assert done.returncode == 0, done.output
    failure = hung(holdfast)
    assert "hung: " in failure["message"]
    found = stacks(failure)
    assert "in deadlocked" in found[1] and "recv" in found[1] and set(found) == {0, 1}


DEADLOCKS = """
import os, sys
import torch
from torch import distributed
from holdfast import client
distributed.init_process_group("gloo")
rank, first = distributed.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
groups = [distributed.new_group() for _ in range(distributed.get_world_size())]
for step in range(3):
    client.heartbeat()
    if first and step == 2 and sys.argv[1] == "out-of-place" and rank == 1:
        distributed.broadcast(torch.zeros(1), src=0)
    own = groups[rank] if first and step == 2 and sys.argv[1] == "alike" else None
    distributed.all_reduce(torch.ones(1), group=own)
client.heartbeat()
os._exit(0)
"""


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["out-of-place", "alike"])
def test_a_deadlock_of_collectives_is_blamed_on_who_is_out_of_place_and_else_on_nobody(
    holdfast: Any, script: Any, kind: str
) -> None:
    """Rank 1 calls another collective than the others; or each is in an all_reduce of another group of all."""
    limits = ("--ft-initial-rank-heartbeat-timeout", 90, "--ft-rank-heartbeat-timeout", 4)
    options = ("--nproc-per-node", 3, "--max-restarts", 1, *limits, script(DEADLOCKS), kind)
    done = holdfast("run", *options, env={"OMP_NUM_THREADS": "1"}, timeout=PATIENCE_S)
    assert done.returncode == 0, done.output
    (reason,) = [event["reason"] for event in holdfast.events("Decided") if event["decision"] == "restart"]
    unsure = [event for event in holdfast.events("FailureSeen") if event["failure"]["undecided"]]
    if kind == "alike":
        assert "all 3 ranks wait in the same collective" in reason and len(unsure) == 1, reason
    else:
        assert reason.startswith("rank 1 (local 1) on ") and not unsure, reason
        assert "the others wait for it elsewhere, in all_reduce (distributed_c10d.py:" in reason


@pytest.mark.torch
def test_on_two_nodes_the_stacks_of_both_are_kept_and_the_culprit_is_found(holdfast: Any, free_port: int) -> None:
    common = ("run", "--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-id", "two")
    options = (*common, "--max-restarts", 1, *LIMITS)
    agents = [holdfast.start(*options, "--node-rank", rank, "--node-name", f"n{rank}", PLAIN, "dead_loop") for rank in range(2)]
    assert [agent.wait(PATIENCE_S).returncode for agent in agents] == [0, 0], agents[0].stderr + agents[1].stderr
    failure = hung(holdfast)
    assert "in dead_loop (hanging.py:" in failure["message"], "whichever of the two exceeded its limit first"
    assert "in dead_loop" in "".join(stacks(failure).values()) and set(stacks(failure)) == {0, 1}
    assert not any(event["killed"] for event in holdfast.events("WorkersStopped")), "it is deaf to SIGTERM"


ALONE = """
import os, socket, sys, time
from contextlib import suppress
from holdfast import client
rank, first, address = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0", ("127.0.0.1", int(sys.argv[2]))
if rank == 0:
    server = socket.create_server(address)
    others = [server.accept()[0] for _ in range(3)]
else:
    others = []
    while not others:
        with suppress(ConnectionRefusedError):
            others.append(socket.create_connection(address))

def hear(other):
    if not other.recv(1):
        sys.exit("the other end is gone")

def answer(other):
    other.sendall(b"x")

def all_reduce():  # rank 0 hears all others, and then answers them
    for turn in (hear, answer) if rank == 0 else (answer, hear):
        for other in others:
            turn(other)

for step in range(4):
    if first and step == 3 and rank == int(sys.argv[1]):
        with client.section("data"):
            time.sleep(1000)
    all_reduce()
"""
"""Ranks that wait for each other and break when another one ends, as with torch, which takes them seconds to import."""


@pytest.mark.parametrize("hangs", [0, 2], ids=["beside the coordinator", "on the other node"])
def test_every_node_shows_all_its_ranks_before_any_of_them_ends(
    holdfast: Any, script: Any, hangs: int
) -> None:
    """One rank exceeds a limit, the others have none: each node looks because it is asked to, and before it stops its own. They
    do break on the end of the one that hangs."""
    free_port, port = ports(2)
    common = ("run", "--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-id", "all")
    options = (*common, "--nproc-per-node", 2, "--max-restarts", 1, *SECTIONS)
    start = lambda rank: holdfast.start(*options, "--node-rank", rank, "--node-name", f"n{rank}", script(ALONE), hangs, port)
    agents = [start(rank) for rank in range(2)]
    assert [agent.wait(PATIENCE_S).returncode for agent in agents] == [0, 0], agents[0].stderr + agents[1].stderr
    failure = hung(holdfast)
    assert failure["rank"] == hangs and [event["rank"] for event in holdfast.events("RankHung")] == [hangs]
    shown = stacks(failure)
    assert set(shown) == {0, 1, 2, 3}
    for rank, text in shown.items():
        assert "most recent call first" in text and ("in all_reduce" in text) == (rank != hangs), text


def test_the_termination_signal_is_the_user_s_and_a_job_without_restarts_ends(holdfast: Any) -> None:
    options = ("--nproc-per-node", 2, "--ft-rank-termination-signal", "SIGABRT", *SECTIONS)
    done = holdfast("run", *options, TOLD, "blocked")
    assert done.returncode == 1
    (job,) = holdfast.jobs()
    first = json.loads((job / "report.json").read_text())["first_failure"]
    assert (first["rank"], first["cause"], first["signal"]) == (1, "hung", "SIGABRT")
    assert f"job {job.name} failed: rank 1 (local 1) on " in done.stderr and "hung: in section data for " in done.stderr
    assert first["stacks_path"] in done.stderr.replace("\n", "")


RECORDER = """
import _thread, os, select, time
from holdfast import client

rank = os.environ["RANK"]
path = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + rank + ".pipe"
os.mkfifo(path)
pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

def watch():  # as torch's monitor thread in the first process group of NCCL
    select.select([pipe], [], [])
    time.sleep(0.3)  # longer than any stacks take
    with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + rank, "w") as file:
        file.write("collectives")

_thread.start_new_thread(watch, ())
while True:
    client.heartbeat()
    time.sleep(1000 if rank == "1" else 0.01)
"""


def test_the_flight_recorder_s_records_are_asked_for_and_waited_for(holdfast: Any, script: Any, tmp_path: Path) -> None:
    """torch with NCCL needs a GPU: a thread of the script stands in for the part of it that reads the pipe."""
    env = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_",
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/record_",
    }
    done = holdfast("run", "--nproc-per-node", 2, "--ft-rank-heartbeat-timeout", 1, script(RECORDER), env=env)
    assert done.returncode == 1
    for rank in range(2):
        assert (tmp_path / f"record_{rank}").read_text() == "collectives", "both, and they had the time for it"
    (folder,) = (holdfast.jobs()[0] / "incidents").glob("round-1/*")
    assert f"torch's flight recorder: {tmp_path}/record_0\n" in (folder / "rank-0.txt").read_text()


COLLECTIVES = """
import os, time
import torch
from torch import distributed
from holdfast import client
distributed.init_process_group("gloo")
rank, first = distributed.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

def ended(work):
    while not work.is_completed():
        time.sleep(0.01)

for step in range(3):
    client.heartbeat()
    if first and step == 2 and rank == 2:
        time.sleep(1000)
    ended(distributed.all_reduce(torch.ones(4 + step), async_op=True))
client.heartbeat()
os._exit(0)
"""


@pytest.mark.torch
def test_the_rank_that_never_came_to_a_collective_is_found_by_torch_s_own_record_of_a_running_job(
    holdfast: Any, script: Any, tmp_path: Path
) -> None:
    """No stack tells: all sleep in Python. Nothing is to be set for it: torch keeps its record by default."""
    limits = ("--ft-initial-rank-heartbeat-timeout", 90, "--ft-rank-heartbeat-timeout", 4)
    options = ("--nproc-per-node", 3, "--max-restarts", 1, *limits, script(COLLECTIVES))
    done = holdfast("run", *options, env={"OMP_NUM_THREADS": "1"}, timeout=PATIENCE_S)
    assert done.returncode == 0, done.output
    (reason,) = [event["reason"] for event in holdfast.events("Decided") if event["decision"] == "restart"]
    assert reason.startswith("rank 2 (local 2) on ")
    assert "it never reached all_reduce [[6]] Float, number 3 of its group, in which others wait for it" in reason
    (folder,) = (holdfast.jobs()[0] / "incidents").glob("round-1/*")
    assert "group 0: all_reduce [[6]] Float, number 3; it waits there\n" in (folder / "rank-0.txt").read_text()
    assert "group 0: all_reduce [[5]] Float, number 2; which has ended\n" in (folder / "rank-2.txt").read_text()
    found = json.loads(holdfast("diagnose", "--json", *sorted(folder.glob("record-rank-*"))).stdout)
    assert found["rank"] == 2 and "never reached all_reduce [[6]] Float, number 3" in found["sentence"], found


@pytest.mark.skipif(py_spy() is None, reason="py-spy is not installed: pip install 'holdfast[diagnosis]'")
def test_py_spy_shows_the_stacks_of_a_rank_that_cannot(holdfast: Any) -> None:
    done = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 1, *SECTIONS, TOLD, "asleep")
    check(holdfast, done, "asleep")
    assert "in asleep (hanging.py:" in hung(holdfast)["message"]
    assert "asleep (" in stacks(hung(holdfast))[1] and "what the kernel shows" in stacks(hung(holdfast))[1]


def test_a_py_spy_that_cannot_be_started_costs_its_stacks_only(tmp_path: Path) -> None:
    program, pid, host = tmp_path / "py-spy", os.getpid(), Host(print)
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    host.children[pid] = Child(Process(pid, None), None)
    deaf = {"dump": lambda ranks: {0: "it is deaf"}, "dumped": lambda rank: ""}
    workers = SimpleNamespace(host=host, local_ranks={pid: 0}, injected={}, **deaf)
    looking = Stacks(workers, lambda round: str(tmp_path), spy=lambda: str(program))  # type: ignore[arg-type]
    looking.begin(LookAtWorkers(round=1, base_rank=0, within_s=2.0), None)
    while not (found := looking.due()):
        host.wait(looking.due_at)
    assert [position.pid for position in found[0].positions] == [pid]
    looking.keeper("rank 0 hung")()
    assert "what the kernel shows" in (tmp_path / "rank-0.txt").read_text()
    host.close()


def test_a_node_leaves_others_time_to_look_before_it_says_that_it_has_looked(tmp_path: Path) -> None:
    """What it does next may kill a rank, and on that the other nodes' ranks break."""
    host = Host(print)
    workers = SimpleNamespace(host=host, local_ranks={}, injected={}, dump=lambda ranks: {}, dumped=lambda rank: "")
    looking = Stacks(workers, lambda round: str(tmp_path), others_s=0.2)  # type: ignore[arg-type]
    began = host.now()
    looking.begin(LookAtWorkers(round=1, base_rank=0, within_s=2.0), None)
    while not looking.due():
        host.wait(looking.due_at)
    assert host.now() - began >= 0.2
    host.close()


def test_a_rank_that_answers_while_py_spy_is_asked_is_believed_and_py_spy_is_given_up(
    tmp_path: Path, wait_until: Any
) -> None:
    program, started, pid, host = tmp_path / "py-spy", tmp_path / "started", os.getpid(), Host(print)
    program.write_text(f"#!/bin/sh\necho $$ > {started}.new && mv {started}.new {started}\nexec sleep 1000\n")
    program.chmod(0o755)
    host.children[pid] = Child(Process(pid, None), None)
    own = 'Current thread 0x1 (most recent call first):\n  File "train.py", line 7 in <module>\n'

    def dumped(rank: int) -> str:
        return own if started.exists() else ""

    deaf = {"dump": lambda ranks: {0: "it is deaf"}, "dumped": dumped}
    workers = SimpleNamespace(host=host, local_ranks={pid: 0}, injected={}, **deaf)
    spying = {"spy": lambda: str(program), "spy_s": 1000.0}
    looking = Stacks(workers, lambda round: str(tmp_path), **spying)  # type: ignore[arg-type]
    before = open_here()
    looking.begin(LookAtWorkers(round=1, base_rank=0, within_s=2000.0), None)
    while not (found := looking.due()):
        host.wait(looking.due_at)
    assert found[0].positions[0].where == "<module> (train.py:7)"
    assert open_here() <= before
    spy = int(started.read_text())
    wait_until(lambda: state(spy) in (None, "Z"), what="the end of py-spy")
    host.close()


def test_a_rank_that_cannot_show_its_stacks_is_described_by_the_kernel(holdfast: Any, script: Any) -> None:
    source = """
import os, signal, time
from holdfast import client
for signum in range(signal.SIGRTMIN, signal.SIGRTMAX + 1):
    signal.signal(signum, signal.SIG_DFL)  # as some MPI's start-up does
client.heartbeat()
time.sleep(1000)
"""
    done = holdfast("run", "--ft-rank-heartbeat-timeout", 1, script(source))
    assert done.returncode == 1 and "hung: no heartbeat for " in done.stderr
    (file,) = (holdfast.jobs()[0] / "incidents").glob("round-1/*/rank-0.txt")
    said = file.read_text()
    assert "it cannot show its stacks itself: the script has reset the signal" in said
    assert "what the kernel shows:" in said and re.search(r"thread \d+ python\S*: S", said)


def test_whoever_is_behind_in_its_log_is_behind(holdfast: Any, script: Any) -> None:
    source = """
import os, time
rank, first = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in range(6):
    if first and step == (2 if rank == "1" else 4):
        time.sleep(1000)
    print("step", step, flush=True)
    time.sleep(0.05)
"""
    options = ("--progress-regex", r"step (?P<step>\d+)", "--ft-rank-heartbeat-timeout", 2)
    done = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 1, *options, script(source))
    assert done.returncode == 0, done.output
    assert hung(holdfast)["rank"] == 1 and "; at step 1, in " in hung(holdfast)["message"], hung(holdfast)["message"]

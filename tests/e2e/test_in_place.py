"""client.run_in_place on real jobs: who has not failed keeps its process."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from kit import LIGHT_TORCH

DDP = LIGHT_TORCH + """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from holdfast import client
from holdfast.client import stash

STEPS = 12

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 600), torch.nn.Linear(600, 600), torch.nn.Linear(600, 1))

def loss(model, step, rank):
    torch.manual_seed(step * 100 + rank)
    return model(torch.randn(4, 8)).pow(2).mean()

def undisturbed():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(2):
            (loss(model, step, rank) / 2).backward()
        optimizer.step()
    return model.state_dict()

def from_stash(model, optimizer):
    found = stash.latest()
    if found is None:
        return 0
    model.load_state_dict(found[1]["model"])
    optimizer.load_state_dict(found[1]["optimizer"])
    return found[0] + 1

def train(life):
    dist.init_process_group("gloo")
    rank, number = dist.get_rank(), int(os.environ["HOLDFAST_ROUND"])
    if HOW == "memory":
        model = life.state.keep("model", network)
        optimizer = life.state.keep("optimizer", lambda: torch.optim.Adam(model.parameters(), 0.01))
        first = life.state.begin()
    else:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        first = from_stash(model, optimizer)
    assert life.agreed_step == (first if HOW == "memory" and number > 1 else None)
    say("round", number, "rank", rank, "pid", os.getpid(), "life", life.number, "step", first)
    ddp = DistributedDataParallel(model)
    for step in range(first, STEPS):
        optimizer.zero_grad()
        loss(ddp, step, rank).backward()
        with life.update():
            optimizer.step()
            if (number, step, rank) in DEATHS:
                os.kill(os.getpid(), 9)
        if HOW == "stash":
            stash.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    dist.barrier()
    dist.destroy_process_group()
    expected = undisturbed()
    return all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())

say("as undisturbed", client.run_in_place(train))
"""


@pytest.mark.torch
@pytest.mark.parametrize("how", ["memory", "stash"])
def test_who_has_not_failed_keeps_its_process_and_the_loss_is_that_of_an_undisturbed_run(
    holdfast: Any, script: Any, how: str
) -> None:
    source = f"DEATHS, HOW = {[(1, 5, 1), (2, 8, 0)]!r}, {how!r}\n" + DDP
    ran = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 2, "--warm-mode", "fork", script(source), timeout=120)
    assert ran.returncode == 0, ran.output
    assert re.findall(r"as undisturbed (.*)", ran.stdout) == ["True", "True"], ran.stdout
    pids: dict[int, dict[int, int]] = {}
    for number, rank, pid in re.findall(r"round (\d+) rank (\d+) pid (\d+)", ran.stdout):
        pids.setdefault(int(number), {})[int(rank)] = int(pid)
    # C code may hold a rank beyond the limit, on a busy machine: it is said to, and is started again like the one that died.
    held = len(re.findall(r"rank \d did not let go of the round", ran.stderr))
    anew = [(number, rank) for number in (2, 3) for rank in range(2) if pids[number - 1][rank] != pids[number][rank]]
    assert {(2, 1), (3, 0)} <= set(anew) and len(anew) == 2 + held < 4
    assert len([event for event in holdfast.events("WorkerStarted") if event.get("in_place")]) == 2 - held
    if how == "memory" and not held:
        begun = {event["round"]: event for event in holdfast.events("RanksBegun")}
        came_from = [begun[number]["state_from"] for number in (1, 2, 3)]
        assert came_from == [["script", "script"], ["memory", "rank 0"], ["rank 1", "memory"]]
        # Who lives has come to the end of that step, or not quite.
        assert begun[2]["state_step"] in (5, 6) and begun[3]["state_step"] in (8, 9)
        # It was agreed before they began, and is what they did.
        assert agreed(holdfast) == {n: (begun[n]["state_step"], begun[n]["state_from"]) for n in (2, 3)}


MANY = LIGHT_TORCH + """
import contextlib, hashlib, os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from holdfast import client

STEPS = 14

def network(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Dropout(), torch.nn.Linear(16, 1))

def batch(*numbers):
    torch.manual_seed(int("".join(map(str, numbers))))
    return torch.randn(4, 4)

def digest(value):
    if isinstance(value, torch.Tensor):
        return hashlib.sha256(value.detach().numpy().tobytes()).hexdigest()
    return {name: digest(one) for name, one in value.items()} if isinstance(value, dict) else repr(value)

def train(life):
    dist.init_process_group("gloo")
    rank, number, state = dist.get_rank(), int(os.environ["HOLDFAST_ROUND"]), life.state
    body, head = state.keep("body", lambda: network(0)), state.keep("head", lambda: network(1))
    first_optimizer = state.keep("first", lambda: torch.optim.AdamW(body.parameters(), 0.01))
    second_optimizer = state.keep("second", lambda: torch.optim.SGD(head.parameters(), 0.01, momentum=0.9))
    schedule = state.keep("schedule", lambda: torch.optim.lr_scheduler.OneCycleLR(first_optimizer, 0.02, total_steps=STEPS + 1))
    scaler = state.keep("scaler", lambda: torch.amp.GradScaler("cpu", growth_interval=2))
    copy = state.keep("copy", lambda: AveragedModel(body, multi_avg_fn=get_ema_multi_avg_fn(0.9)))
    first = state.begin()
    one, two = DistributedDataParallel(body), DistributedDataParallel(head)
    body.register_forward_hook(lambda module, given, returned: 0.9 * returned)
    def dies(step, place):
        if (number, step, rank, place) in DEATHS:
            os.kill(os.getpid(), 9)
    for step in range(first, STEPS):
        for part in range(3):  # gradients are added up, and all ranks meet in the last part
            with one.no_sync() if part < 2 else contextlib.nullcontext():
                scaler.scale(one(batch(1, step, rank, part)).square().mean()).backward()
            dies(step, f"part {part}")
        two(batch(2, step, rank)).square().mean().backward()
        with life.update():
            scaler.step(first_optimizer)
            dies(step, "between")
            second_optimizer.step()
            scaler.update()
            schedule.step()
            dies(step, "before the copy")
            copy.update_parameters(body)
        first_optimizer.zero_grad()
        second_optimizer.zero_grad()
        if step % 4 == 3:
            body.eval()
            torch.set_grad_enabled(False)
            dist.barrier()
            dies(step, "evaluation")
            dist.barrier()
            torch.set_grad_enabled(True)
            body.train()
    kept = {name: digest(one.state_dict()) for name, one in [
        ("body", body), ("head", head), ("first", first_optimizer), ("second", second_optimizer), ("schedule", schedule),
        ("scaler", scaler), ("copy", copy)]}
    os.write(1, f"ends with {hashlib.sha256(repr(kept).encode()).hexdigest()}\\n".encode())
    dist.barrier()
    dist.destroy_process_group()

client.run_in_place(train)
"""


@pytest.mark.torch
def test_all_that_one_update_changes_ends_as_undisturbed(holdfast: Any, script: Any) -> None:
    """Gradients that are added up, two optimizers, a schedule, a scaler, an EMA, an evaluation; ranks die between any two."""
    ends = []
    deadly = [(1, 3, 1, "part 1"), (2, 6, 0, "between"), (3, 7, 1, "evaluation"), (4, 9, 1, "before the copy")]
    for deaths in ([], deadly):
        flags = "--nproc-per-node", 2, "--max-restarts", 4, "--backoff", 0, "--warm-mode", "fork"
        ran = holdfast("run", *flags, script(f"DEATHS = {deaths!r}\n" + MANY), timeout=240)
        assert ran.returncode == 0, ran.output
        ends += re.findall(r"ends with (\w+)", ran.stdout)
        assert len(holdfast.events("RoundFormed")) == 1 + len(deaths)
        assert [event["failure"]["exitcode"] for event in holdfast.events("FailureSeen")] == [-signal.SIGKILL] * len(deaths)
    assert len(ends) == 4 and len(set(ends)) == 1


def agreed(holdfast: Any) -> dict[int, tuple[int | None, list[str]]]:
    """By round: which step all were to go on from, and where each rank was to have it from."""
    return {event["round"]: (event["step"], event["state_from"]) for event in holdfast.events("StateAgreed")}


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_no_state_is_trained_on_that_was_torn_by_a_kill_at_any_moment(holdfast: Any, script: Any, wait_until: Any) -> None:
    """Of two ranks, in training or as they meet: one is lost, or shortly after the other too, and then all begin anew."""
    source = "DEATHS, HOW = [], 'memory'\n" + DDP.replace("STEPS = 12", "STEPS = 800").replace("600", "60")
    options = ("--nproc-per-node", 2, "--max-restarts", 30, "--backoff", 0, "--warm-mode", "fork", "--warm-spares", 1)
    job = holdfast.start("run", *options, script(source))
    chance = random.Random(1)
    seen = 0

    def begun() -> list[tuple[str, str]]:
        return re.findall(r"rank (\d+) pid (\d+)", job.stdout)

    for _ in range(12):
        wait_until(lambda before=seen: job.ended or len(begun()) > before, what="a rank of the next round")
        time.sleep(chance.random() * 0.3)  # at any moment
        newest, seen = dict(begun()), len(begun())
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(newest[chance.choice(sorted(newest))]), signal.SIGKILL)
    ran = job.wait(120)
    assert ran.returncode == 0, ran.output
    assert set(re.findall(r"as undisturbed (.*)", ran.stdout)) == {"True"}, ran.output


SHARDED = """
import os, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from holdfast import client

torch.set_num_threads(1)

def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 600), torch.nn.Linear(600, 600), torch.nn.Linear(600, 1))

def loss(model, step, rank):
    return model(torch.randn(4, 8, generator=torch.Generator().manual_seed(step * 100 + rank))).pow(2).mean()

def train(life):
    dist.init_process_group("gloo")
    rank, number = dist.get_rank(), int(os.environ["HOLDFAST_ROUND"])
    mesh = init_device_mesh("cpu", MESH, mesh_dim_names=("replicate", "shard")[-len(MESH):])

    def build():
        model = network()
        for layer in model:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    model = life.state.keep("model", build)
    optimizer = life.state.keep("optimizer", lambda: torch.optim.SGD(model.parameters(), 0.01, momentum=0.9))
    for step in range(life.state.begin(stash_every=STASH), 8):
        optimizer.zero_grad()
        loss(model, step, rank).backward()
        optimizer.step()
        if (number, step) == (1, 5):
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), 9)
    found = [one.full_tensor() for one in model.parameters()]
    dist.barrier()
    dist.destroy_process_group()
    return all(torch.allclose(one, other, atol=1e-5) for one, other in zip(found, undisturbed()))

def undisturbed():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for step in range(8):
        optimizer.zero_grad()
        for rank in range(4):
            (loss(model, step, rank) / 4).backward()
        optimizer.step()
    return model.parameters()

os.write(1, f"as undisturbed {client.run_in_place(train)}\\n".encode())
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("mesh", "stash", "step", "came_from"),
    [
        ((2, 2), 0, 6, "memory rank 3 memory memory"),
        ((4,), 1, 6, "stash stash stash stash"),
        ((4,), 0, 0, "script script script script"),
    ],
    ids=["a replica has it", "the stash has it", "nobody has it"],
)
def test_a_lost_part_of_a_sharded_model_comes_from_whoever_has_it(
    holdfast: Any, script: Any, mesh: tuple[int, ...], stash: int, step: int, came_from: str
) -> None:
    source = f"MESH, STASH = {mesh!r}, {stash}\n" + SHARDED
    ran = holdfast("run", "--nproc-per-node", 4, "--max-restarts", 1, "--warm-mode", "fork", script(source), timeout=120)
    assert ran.returncode == 0, ran.output
    found = {event["round"]: event for event in holdfast.events("RanksBegun")}
    if "did not let go" not in ran.stderr:  # else C code held another one, which is gone with its part
        assert found[2]["state_step"] == step and " ".join(found[2]["state_from"]) == came_from, (found[2], ran.output)
        assert agreed(holdfast) == {2: (None if came_from.startswith("script") else step, came_from_each(came_from))}
    assert set(re.findall(r"as undisturbed (.*)", ran.stdout)) == {"True"}, ran.stdout


def came_from_each(said: str) -> list[str]:
    return re.findall(r"rank \d+|\w+", said)


def test_without_an_agent_it_is_called_once() -> None:
    source = "from holdfast import client\nprint(client.run_in_place(lambda life: (life.number, life.is_first)))"
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout == "(0, True)\n"


@pytest.mark.torch
def test_no_life_s_end_looks_through_what_torch_has_imported(holdfast: Any, script: Any) -> None:
    """The first optimizer imports torch's compiler: 0.1 s of looking for garbage, for which others would wait."""
    source = """
import gc, torch
from holdfast import client

def train(life):
    model = torch.nn.Linear(2, 2)
    torch.optim.SGD(model.parameters(), 0.1)
    return len(gc.get_objects())

print("objects", client.run_in_place(train))
"""
    ran = holdfast("run", script(source), timeout=120)
    assert ran.returncode == 0, ran.output
    assert int(ran.stdout.split()[-1]) < 20_000


def test_a_script_s_own_error_ends_it_as_ever(holdfast: Any, script: Any) -> None:
    source = "from holdfast import client\ndef train(life):\n    raise ValueError('mine')\nclient.run_in_place(train)"
    ran = holdfast("run", "--max-restarts", 0, script(source))
    assert ran.returncode == 1 and "ValueError: mine" in ran.output

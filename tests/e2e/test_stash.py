"""A state that is stashed outlives its rank, whole; all ranks go on from the same step; and its memory is given back."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kit import LIGHT_TORCH

from holdfast.client import stash as client
from holdfast.client.stash_memory import Region, Slot, allowed_bytes, copy, memory_bytes, read
from holdfast.core.page import stash as layout
from holdfast.core.value import replace
from holdfast.runtime.shm.pages import nameless_file
from holdfast.runtime.shm.stash import held

LOCKSTEP = LIGHT_TORCH + """
import os, sys
import torch
import torch.distributed as dist
from holdfast.client import stash

dist.init_process_group("gloo")
rank, life = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
model = torch.nn.Linear(8, 8)
momentum = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
done, found = -1, stash.latest()
if found:
    done, state = found
    model.load_state_dict(state["model"])
    momentum = state["momentum"]
    assert state["rank"] == rank and (state["marks"] == done).all(), state
said = torch.tensor([done])
dist.all_reduce(said, op=dist.ReduceOp.MAX)
assert int(said) == done, "the ranks go on from different steps"
os.write(1, f"life {life} rank {rank} goes on after {done}\\n".encode())
for step in range(done + 1, 40):
    total = torch.ones(1)
    dist.all_reduce(total)
    model(torch.ones(1, 8)).sum().backward()
    with torch.no_grad():
        for name, value in model.named_parameters():
            value -= 0.1 * momentum[name].mul_(0.9).add_(value.grad)
    model.zero_grad()
    state = {"model": model.state_dict(), "momentum": momentum, "rank": rank, "marks": torch.full((1000,), step)}
    assert stash.save(step, state)
    if step == 10 * (life + 1) and rank == life % 2 and life < int(sys.argv[1]):
        os.kill(os.getpid(), 9)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def file() -> Iterator[int]:
    """A stash as an agent has it."""
    fd = nameless_file("holdfast-stash")
    yield fd
    os.close(fd)


@pytest.fixture
def stashed(file: int, monkeypatch: pytest.MonkeyPatch) -> Callable[..., client.Stash]:
    """`stashed(round=1)`: that of the one rank there is, in one of its lives."""

    def live(round: int = 1, agreed: str = "", limit: str = "1000000000", **env: object) -> client.Stash:
        told = {"HOLDFAST_ROUND": round, "RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, layout.AGREED_VARIABLE: agreed}
        for name, value in (told | env).items():
            monkeypatch.setenv(name, str(value))
        return client.Stash(Region(f"/proc/self/fd/{file}", 0, limit, 1))

    return live


def memory_of(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def goes_on_after(stdout: str) -> list[list[int]]:
    """By life, what each rank found."""
    lives: dict[str, list[int]] = {}
    for line in stdout.splitlines():
        words = line.split()
        lives.setdefault(words[1], []).append(int(words[-1]))
    return [lives[life] for life in sorted(lives)]


@pytest.mark.torch
@pytest.mark.parametrize("kills", [1, 2])
def test_ranks_that_are_killed_lose_no_step_that_all_have_made(holdfast: Any, script: Any, kills: int) -> None:
    done = holdfast("run", "--nproc-per-node", 2, "--max-restarts", kills, script(LOCKSTEP), kills, timeout=120)
    assert done.returncode == 0, done.output
    first, *later = goes_on_after(done.stdout)
    assert first == [-1, -1]
    for killed_at, found in zip((10, 20)[:kills], later, strict=True):
        assert found[0] == found[1] and killed_at - 1 <= found[0] <= killed_at  # the other may not have got to save it


@pytest.mark.torch
def test_two_nodes_go_on_from_a_step_that_both_have(holdfast: Any, script: Any, free_port: int) -> None:
    program = script(LOCKSTEP)
    agents = [
        holdfast.start(
            *("run", "--nnodes", 2, "--nproc-per-node", 1, "--node-name", name, "--max-restarts", 3, "--rdzv-id", "stash"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}", program, 1),
        )
        for name in ("a", "b")
    ]
    ends = [agent.wait(120) for agent in agents]
    assert [end.returncode for end in ends] == [0, 0], ends
    first, (one, other) = goes_on_after("".join(end.stdout for end in ends))
    assert first == [-1, -1] and one == other and one in (9, 10)


def test_whenever_it_is_killed_an_older_state_is_whole(file: int) -> None:
    source = """
import itertools, os, sys
from holdfast.client import stash
for step in itertools.count(int(sys.argv[1])):
    parts = [bytes([step % 251]) * 300_000 for _ in range(7)]
    assert stash.save(step, {"step": step, "parts": parts, "more": [1] * (step % 997)})
    if step == int(sys.argv[1]) + 1:
        os.write(1, b".")
"""
    env = os.environ | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "HOLDFAST_ROUND": "1"}
    env[layout.VARIABLE] = f"/proc/{os.getpid()}/fd/{file}:0:100000000"
    rng, newest = random.Random(4), 0
    for life in range(25):
        env["HOLDFAST_ROUND"] = str(life + 1)
        command = [sys.executable, "-c", source, str(newest + 1)]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as worker:
            assert worker.stdout is not None and worker.stdout.read(1) == b"."
            time.sleep(rng.uniform(0, 0.02))
            worker.kill()
        ((_, *steps),) = [[0, *(step for _, step, _, _ in held(file, 1))]]
        assert steps, f"nothing is left after life {life}"
        os.environ[layout.AGREED_VARIABLE] = f"{life + 1}:{max(steps)}"
        try:
            survivor = client.Stash(Region(f"/proc/self/fd/{file}", 0, "100000000", 1))
        finally:
            del os.environ[layout.AGREED_VARIABLE]
        survivor.round, survivor.world_size = life + 2, 1
        found = survivor.latest(None, None)
        assert found is not None
        newest, state = found
        assert state["step"] == newest and len(state["more"]) == newest % 997
        assert all(part == bytes([newest % 251]) * 300_000 for part in state["parts"])


def test_what_all_ranks_can_restore_is_the_last_to_be_overwritten(stashed: Any, file: int) -> None:
    first = stashed()
    assert first.save(8, "eight", False) and first.save(9, "nine", False)
    second = stashed(round=2, agreed="1:8")
    assert second.latest(None, None) == (8, "eight")
    assert second.save(9, "nine again", False)
    assert [(round, step) for round, step, _, _ in held(file, 1)] == [(1, 8), (2, 9)]


def test_a_state_that_not_all_can_restore_is_not_used_and_that_is_said(stashed: Any) -> None:
    assert stashed().save(8, "eight", False)
    with pytest.warns(RuntimeWarning, match="step 8 is not used: not all ranks"):
        assert stashed(round=2).latest(None, None) is None
    with pytest.warns(RuntimeWarning, match="that of rank 0 of 1, and this is rank 0 of 4"):
        assert stashed(round=2, WORLD_SIZE=4).latest(None, None) is None


@pytest.mark.parametrize("ask", ["latest", "latest_step"])
def test_that_it_is_not_used_is_said_of_the_script_s_own_line(stashed: Any, monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    assert stashed().save(8, "eight", False)
    later = stashed(round=2)
    monkeypatch.setattr(client, "_stash", later)
    monkeypatch.setattr(later, "pid", os.getpid())
    with pytest.warns(RuntimeWarning, match="further apart than the generations that are kept") as warned:
        assert getattr(client, ask)() is None
    assert warned[0].filename == __file__


def test_a_state_that_was_damaged_is_not_used_again(stashed: Any, file: int) -> None:
    first = stashed()
    assert first.save(8, "eight", False)
    first.region.slots[0].map[1] ^= 1
    with pytest.raises(RuntimeError, match="step 8 is damaged"):
        stashed(round=2, agreed="1:8").latest(None, None)
    assert held(file, 1) == ()


FORGED = {
    "longer": ["N", 0, 64_000_000, "<f8", [8_000_000]],
    "beyond the end": ["N", 4096, 8, "<f8", [1]],
    "before the beginning": ["N", -4096, 8, "<f8", [1]],
    "another size": ["N", 0, 16, "<f8", [1]],
    "a shape of more": ["N", 0, 8, "<f8", [1_000_000_000]],
    "a shape below nothing": ["N", 0, 8, "<f8", [-1, -1]],
    "objects": ["N", 0, 8, "|O", [1]],
    "no number": ["N", "0", 8, "<f8", [1]],
    "no kind": ["?", 0, 8],
    "bytes beyond the end": ["b", 0, 1 << 50, 1 << 50],
}


@pytest.mark.parametrize("told", FORGED.values(), ids=FORGED)
@pytest.mark.parametrize("into", [False, True], ids=["new", "into"])
def test_what_a_forged_state_says_of_its_arrays_is_never_copied(stashed: Any, file: int, told: list[Any], into: bool) -> None:
    """A member of the job may have kept it, or who can write to the disk: its checksums are right."""
    numpy = pytest.importorskip("numpy")
    first = stashed()
    assert first.save(8, [numpy.ones(1)], False)
    header = json.dumps(["l", [told]]).encode()
    (made,) = layout.generations(first.region.words)
    first.region.slots[made.slot].map[: len(header)] = header
    layout.seal(first.region.words, replace(made, header_bytes=len(header), header_crc=layout.crc(header)))
    here = numpy.zeros(1)
    with pytest.raises(RuntimeError, match="step 8 is damaged"):
        stashed(round=2, agreed="1:8").latest([here] if into else None, None)
    assert here.tolist() == [0] and held(file, 1) == (), "it is not used again"


@pytest.mark.parametrize(
    "change", [{"size": 1 << 39}, {"bytes_at": 1 << 39}, {"header_bytes": 1 << 39}, {"bytes_at": 0}], ids=str
)
def test_a_descriptor_of_more_than_there_is_reads_nothing(stashed: Any, file: int, change: dict[str, int]) -> None:
    first = stashed()
    assert first.save(8, b"eight", False)
    (made,) = layout.generations(first.region.words)
    layout.seal(first.region.words, replace(made, **change))
    with pytest.raises(RuntimeError, match="step 8 is damaged"):
        stashed(round=2, agreed="1:8").latest(None, None)
    assert held(file, 1) == ()


def test_a_state_beyond_the_limit_is_refused_once_in_words_and_costs_nothing(stashed: Any, file: int) -> None:
    stash = stashed(limit="10000000")
    assert stash.save(1, b"x" * 4_000_000, False)
    with pytest.warns(RuntimeWarning, match=r"this rank's share of the stash, 10.0MB: give --stash-limit 12.0MB or more"):
        assert not stash.save(2, b"x" * 6_000_000, False)
    assert not stash.save(3, b"x" * 6_000_000, False)
    assert [step for _, step, _, _ in held(file, 1)] == [1]


def test_memory_is_bounded_and_given_back(stashed: Any, file: int) -> None:
    stash = stashed()
    for step in range(9):
        assert stash.save(step, b"x" * 50_000_000, False)
    assert memory_of(file) < 102_000_000
    for step in range(2):
        assert stash.save(step, b"small", False)
    assert memory_of(file) < 1_000_000
    stash.save(3, b"x" * 50_000_000, False)
    stash.drop()
    assert memory_of(file) < 1_000_000 and held(file, 1) == ()
    assert stash.save(4, "again", False)


def test_a_rank_that_makes_room_takes_none_from_another(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = (Slot(file, layout.slot_at(local_rank, 0)) for local_rank in range(2))
    fstat = os.fstat

    def another_makes_room_then(fd: int) -> os.stat_result:
        seen = fstat(fd)
        monkeypatch.undo()
        other.reserve(1_000_000)
        return seen

    monkeypatch.setattr(os, "fstat", another_makes_room_then)
    first.reserve(1_000_000)
    assert os.fstat(file).st_size >= other.at + other.capacity > first.at + first.capacity


def test_memory_is_made_ready_behind_the_scripts_back(stashed: Any, file: int) -> None:
    stash = stashed()
    stash.prepare(b"x" * 50_000_000)
    stash.wait()
    assert 100_000_000 <= memory_of(file) < 102_000_000
    assert stash.save(1, b"x" * 50_000_000, False) and held(file, 1) == ((1, 1, 0, 1),)
    stashed(limit="1000").prepare(b"x" * 50_000_000)  # who saves is told that it does not fit


def test_a_signal_handler_does_not_tear_the_state_that_it_interrupts(stashed: Any) -> None:
    stash = stashed()
    answers: list[bool] = []

    def handler(*_: object) -> None:
        answers.append(stash.save(2, "from the handler", False))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        os.kill(os.getpid(), signal.SIGUSR1)  # between two
        assert answers == [True]
        stash.busy = True  # as in the midst of one
        with pytest.warns(RuntimeWarning, match="another stash is in progress"):
            os.kill(os.getpid(), signal.SIGUSR1)
        stash.busy = False
        assert stash.save(3, "after it", False)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert answers == [True, False]


def test_children_of_a_worker_have_no_stash(holdfast: Any, script: Any) -> None:
    source = """
import os, subprocess, sys
from holdfast.client import stash
ask = "from holdfast.client import stash; print('spawned', stash.save(1, 'x'), flush=True)"
subprocess.run([sys.executable, "-c", ask], check=True)
pid = os.fork()
if not pid:
    os.write(1, f"forked {stash.save(1, 'x')}\\n".encode())
    os._exit(0)
os.waitpid(pid, 0)
print("worker", stash.save(1, "x"), stash.wait(), stash.drop(), flush=True)
"""
    assert holdfast("run", script(source)).stdout.split("\n") == ["spawned False", "forked False", "worker True None None", ""]


def test_by_hand_and_where_it_is_switched_off_nothing_is_stashed(holdfast: Any, script: Any) -> None:
    program = script("from holdfast.client import stash; print(stash.save(1, {}), stash.latest(), stash.every(2)(4, dict))")
    assert subprocess.run([sys.executable, program], capture_output=True, text=True).stdout == "False None False\n"
    assert holdfast("run", "--stash-limit", 0, program).stdout == "False None False\n"


def files_of(pid: int) -> Iterator[os.stat_result]:
    """What a process has open."""
    with suppress(OSError):  # it has ended
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield os.stat(f"/proc/{pid}/fd/{fd}")


def test_nothing_has_a_name_that_could_be_left_behind(holdfast: Any, script: Any, wait_until: Any, alive: Any) -> None:
    source = "import time; from holdfast.client import stash; assert stash.save(1, b'x' * 9**7); print('kept'); time.sleep(600)"
    running = holdfast.start("run", script(source))
    running.wait_for_output("kept")
    opened = [file for pid in alive() for file in files_of(pid)]
    large = [file for file in opened if stat.S_ISREG(file.st_mode) and file.st_blocks * 512 >= 9**7]
    assert large and {file.st_nlink for file in large} == {0}
    running.kill(signal.SIGKILL)
    wait_until(lambda: running.ended)  # what is left of its processes fails every test


def test_a_share_is_of_the_memory_that_there_is() -> None:
    assert allowed_bytes("50%") == memory_bytes() // 2 and allowed_bytes("123") == 123


@pytest.mark.parametrize("count", [1, 3])
def test_copies_by_several_threads_are_whole(count: int) -> None:
    import ctypes

    source = ctypes.create_string_buffer(os.urandom(20_000_001), 20_000_001)
    target = ctypes.create_string_buffer(20_000_001)
    copy([(ctypes.addressof(target), ctypes.addressof(source), 20_000_001)], count, 3_000_000)
    assert target.raw == source.raw


@pytest.mark.parametrize("count", [1, 3])
def test_what_several_threads_read_is_whole_or_an_error(count: int) -> None:
    import ctypes

    file, content = nameless_file("read"), os.urandom(20_000_001)
    os.write(file, content)
    target = ctypes.create_string_buffer(20_000_001)
    read(file, [(ctypes.addressof(target) + 1, 1, 20_000_000), (ctypes.addressof(target), 0, 1)], count, 3_000_000)
    assert target.raw == content
    with pytest.raises(OSError, match="it is shorter than expected"):
        read(file, [(ctypes.addressof(target), 2, 20_000_000)], count, 3_000_000)


@pytest.mark.torch
def test_tensors_come_back_as_they_were(stashed: Any) -> None:
    import torch

    weight = torch.arange(24.0).reshape(2, 3, 4)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    state: dict[str, Any] = {
        "weight": weight,
        "turned": weight.transpose(0, 2),
        "shared": (weight, weight),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 5),
        "kinds": [torch.ones(3, dtype=kind) for kind in (torch.bfloat16, torch.bool, torch.complex64, torch.float8_e4m3fn)],
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "size": weight.shape,
        "dtype": torch.float16,
        "device": torch.device("cpu"),
        "model": model.state_dict(),
    }
    assert stashed().save(5, state, False)
    step, back = stashed(round=2, agreed="1:5").latest(None, None)
    assert step == 5 and back["size"] == weight.shape and back["dtype"] is torch.float16 and back["device"].type == "cpu"
    for name in ("weight", "turned", "scalar", "empty", "parameter", "conjugate"):
        assert torch.equal(back[name], state[name]), name
    assert [str(one.dtype) for one in back["kinds"]] == [str(one.dtype) for one in state["kinds"]]
    model.load_state_dict(back["model"])
    versions: Any = model.state_dict()
    assert back["model"]._metadata == versions._metadata
    back["weight"].add_(1)  # it is the caller's own
    assert torch.equal(stashed(round=2, agreed="1:5").latest(None, None)[1]["weight"], weight)


@pytest.mark.torch
@pytest.mark.parametrize("kernel_can", [True, False], ids=["lent", "copied at once"])
def test_what_was_restored_is_not_changed_by_what_is_saved_next(
    stashed: Any, monkeypatch: pytest.MonkeyPatch, kernel_can: bool
) -> None:
    import torch

    if not kernel_can:
        monkeypatch.setattr("holdfast.client.stash_tensors.can_populate", lambda: False)
    assert stashed().save(5, {"a": torch.full((3_000_000,), 5.0), "b": torch.full((7,), 5.0)}, False)
    second = stashed(round=2, agreed="1:5")
    _, held = second.latest(None, None)
    _, again = second.latest(None, None)  # a loan of a slot that is lent already
    held["b"][0] = 8.0  # what the script writes is not ours to overwrite, either
    for step in range(6, 12):
        assert second.save(step, {"a": torch.full((3_000_000,), float(step)), "b": torch.full((7,), float(step))}, False)
    second.drop()
    assert (held["a"] == 5).all() and held["b"].tolist() == [8.0, *6 * [5.0]] and (again["a"] == 5).all()
    assert (torch.full_like(held["a"], 5) + held["a"]).sum() == 30_000_000


@pytest.mark.torch
def test_a_child_keeps_what_was_restored_before_it_was_forked(stashed: Any) -> None:
    import torch

    pytest.importorskip("numpy", reason="numpy is not installed")
    assert stashed().save(5, torch.full((3_000_000,), 5.0), False)
    second = stashed(round=2, agreed="1:5")
    _, held = second.latest(None, None)
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.read(reader, 1)
        os._exit(int(set(held.numpy().tobytes()) != set(torch.tensor(5.0).numpy().tobytes())))  # torch's threads are not there
    for step in range(6, 9):
        assert second.save(step, torch.full((3_000_000,), float(step)), False)
    os.write(writer, b".")
    assert os.waitpid(pid, 0)[1] == 0
    os.close(reader), os.close(writer)


def test_to_have_memory_made_ready_costs_nothing_that_was_saved(stashed: Any, file: int) -> None:
    assert stashed().save(5, b"x" * 50_000_000, False)
    second = stashed(round=2, agreed="1:5")
    second.prepare(b"small")
    second.wait()
    assert second.latest(None, None) == (5, b"x" * 50_000_000)


@pytest.mark.torch
def test_tensors_that_are_there_are_filled_in_place(stashed: Any) -> None:
    import torch

    assert stashed().save(5, {"a": torch.ones(3), "b": [torch.ones(4), torch.ones(2)]}, False)
    here: Any = {"a": torch.zeros(3), "b": [torch.zeros(4, dtype=torch.int64), torch.zeros(3, 2).T[:1].squeeze()[:2]]}
    _, back = stashed(round=2, agreed="1:5").latest(here, None)
    assert back["a"] is here["a"] and here["a"].tolist() == [1, 1, 1]
    assert back["b"][0] is not here["b"][0] and back["b"][0].dtype == torch.float32
    assert back["b"][1].tolist() == [1, 1]


@pytest.mark.torch
def test_a_tensor_that_is_no_plain_one_is_refused(stashed: Any) -> None:
    import torch

    with pytest.raises(client.Unstashable, match="give its local, dense part"):
        stashed().save(1, {"sparse": torch.eye(3).to_sparse()}, False)


@pytest.mark.torch
def test_tensors_that_lie_in_the_same_memory_are_told_apart(stashed: Any) -> None:
    import torch

    number = torch.tensor([1 + 2j, 3 - 4j])
    state = {"it": number, "conjugate": number.conj(), "part": number.imag, "negative": number.conj().imag, "again": number}
    assert stashed().save(5, state, False)
    _, back = stashed(round=2, agreed="1:5").latest(None, None)
    assert all(torch.equal(back[name], state[name]) for name in state)
    assert back["it"].data_ptr() == back["again"].data_ptr()


@pytest.mark.torch
def test_a_tensor_without_content_is_refused_before_anything_is_lost(stashed: Any, file: int) -> None:
    import torch

    first = stashed()
    assert first.save(5, "five", False) and first.save(6, "six", False)
    with pytest.raises(client.Unstashable, match=r"state\['a'\] is a tensor on the meta device"):
        first.save(7, {"a": torch.empty(2, device="meta")}, False)
    assert [step for _, step, _, _ in held(file, 1)] == [5, 6]


@pytest.mark.torch
def test_a_schedule_comes_back_as_it_was(stashed: Any) -> None:
    import torch

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 5])
    assert stashed().save(5, schedule.state_dict(), False)
    _, back = stashed(round=2, agreed="1:5").latest(None, None)
    assert back == schedule.state_dict() and sorted(back["milestones"].elements()) == [2, 2, 5]


def test_an_array_that_is_more_than_its_numbers_is_refused(stashed: Any) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    with pytest.raises(client.Unstashable, match=r"state is a numpy\.ma"):
        stashed().save(5, numpy.ma.masked_array([1, 2], [True, False]), False)


def test_where_no_more_threads_are_allowed_it_takes_longer(stashed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("holdfast.client.stash_memory.start_new_thread", refused)
    monkeypatch.setattr("holdfast.client.stash_memory.threads", lambda: 4)
    first = stashed()
    first.prepare(b"x" * 140_000_000)
    assert all(first.save(step, b"x" * 140_000_000, False) for step in range(3))
    assert stashed(round=2, agreed="1:2").latest(None, None) == (2, b"x" * 140_000_000)


RECORD: Any = [("a", "i1"), ("b", "f8", (2,)), ("c", [("d", "S3")])]


def test_arrays_come_back_as_they_were(stashed: Any) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    state = {
        "array": numpy.arange(6.0).reshape(2, 3),
        "turned": numpy.arange(6).reshape(2, 3).T,
        "number": numpy.float32(1.5),
        "text": numpy.array(["a", "bcd"]),
        "time": numpy.array(["2026-01-01"], dtype="datetime64[D]"),
        "none": numpy.empty((0, 3)),
        "records": numpy.array([(1, [2.5, 3], (b"x",))], numpy.dtype(RECORD, align=True)),
        "raw": numpy.zeros(2, "V4"),
    }
    assert stashed().save(numpy.int64(5), state, False)
    _, back = stashed(round=2, agreed="1:5").latest({"array": (mine := numpy.zeros((2, 3)))}, None)
    assert back["array"] is mine and type(back["number"]) is numpy.float32
    assert all((back[name] == state[name]).all() and back[name].dtype == state[name].dtype for name in state)
    with pytest.raises(client.Unstashable, match="an array of object"):
        stashed().save(6, numpy.array([object()]), False)


def test_the_client_without_a_stash_loads_none_of_it() -> None:
    ask = "import sys, holdfast.client; print([name for name in sys.modules if 'stash' in name or name in ('mmap', 'ctypes')])"
    assert subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True).stdout == "[]\n"


def test_the_example_loses_a_step_at_most(holdfast: Any) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    example = Path(__file__).parents[2] / "examples" / "train_stashed.py"
    done = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 3, example, "--steps", 30, "--kill-each", 20, timeout=120)
    assert done.returncode == 0, done.output
    lost = [int(line.split("lost ")[1].split()[0]) for line in done.stdout.splitlines() if "lost " in line]
    assert lost in ([0], [1]), done.stdout

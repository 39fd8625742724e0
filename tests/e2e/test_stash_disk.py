"""What a job's ranks have stashed is on a disk too, and the next job of its name goes on from there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from kit.jobs.lockstep import LOCKSTEP, Said, lose

from holdfast.agent.states.state_disk import StateDisk, held_by_all, stored
from holdfast.client import stash as client
from holdfast.client.stash_memory import Region
from holdfast.core.page import stash as layout
from holdfast.core.value import replace
from holdfast.core.wire.messages import Assigned
from holdfast.runtime.shm.pages import nameless_file
from holdfast.runtime.shm.stash import words


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`rank(fd, round=1)`: the stash of a node's only rank, whose states go to the disk every second step."""

    def live(fd: int, round: int = 1, agreed: str = "") -> client.Stash:
        told = {"HOLDFAST_ROUND": round, "RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, layout.AGREED_VARIABLE: agreed}
        for name, value in told.items():
            monkeypatch.setenv(name, str(value))
        return client.Stash(Region(f"/proc/self/fd/{fd}", 0, "1000000000", 1), 0, 2)

    return live


def assigned(round: int = 1, **more: Any) -> Assigned:
    place = {"restart_count": 0, "group_rank": 0, "group_world_size": 1, "base_rank": 0, "world_size": 1}
    role = {"role_base_rank": 0, "role_world_size": 1, "master_addr": "", "master_port": 0, "nodes": (), "reason": ""}
    return Assigned(round=round, **place, **role, **more)


def disk(folder: Path, said: list[str] | None = None) -> StateDisk:
    return StateDisk(str(folder), nproc=1, complain=(said if said is not None else []).append)


def test_the_last_two_that_are_due_are_there_and_another_life_reads_them(rank: Any, wait_until: Any, tmp_path: Path) -> None:
    file, one = nameless_file("a"), disk(tmp_path / "job")
    assert one.first() == [] and not (tmp_path / "job").exists()
    one.begin(assigned(life="first"), file)
    stash = rank(file)
    for step in range(7):
        assert stash.save(step, {"step": step, "much": bytes([step]) * 2_000_000}, False)
    wait_until(lambda: [found[2] for found in one.held()] == [4, 6])
    assert sorted(os.listdir(tmp_path / "job")) == [f"first-1-{step}-0-1-0-1.state" for step in (4, 6)]
    (tmp_path / "job" / "first-1-8-0-1-0-1.state.part").touch()  # of an agent that was killed
    again, other = disk(tmp_path / "job"), nameless_file("b")
    on_disk, sat = again.first()
    assert [found[:5] for found in on_disk.stash_on_disk] == [
        ("first", 1, step, 0, 1) for step in (4, 6)
    ] and sat.group_rank == 0
    agreed = layout.agreed([((), on_disk.stash_on_disk, 0, 1)], 1, life="second")
    assert agreed == ((0, 6), {}, {0: ("first", 1, 6)})
    again.begin(assigned(life="second", stash=(0, 6), stash_disk=("first", 1, 6)), other)
    stash = rank(other, agreed="0:6")
    assert stash.latest(None, None) == (6, {"step": 6, "much": b"\6" * 2_000_000})
    for step in (7, 8):
        assert stash.save(step, step, False)
    wait_until(lambda: [found[:3] for found in again.held()] == [("first", 1, 6), ("second", 1, 8)])
    assert not (tmp_path / "job" / "first-1-8-0-1-0-1.state.part").exists()


@pytest.mark.parametrize("steps", [(4, 6), (6, 4)], ids=str)
def test_of_states_of_one_second_the_older_comes_first_however_they_are_listed(steps: tuple[int, int], tmp_path: Path) -> None:
    for age, step in enumerate(steps):
        path = tmp_path / f"first-1-{step}-0-1-0-1.state"
        path.touch()
        os.utime(path, ns=(0, 10**18 + age))
    on_disk, _ = disk(tmp_path).first()
    assert tuple(found[2] for found in on_disk.stash_on_disk) == steps


def test_what_is_being_written_is_not_overwritten_and_the_next_one_that_is_due_waits(rank: Any, wait_until: Any) -> None:
    file = nameless_file("a")
    stash = rank(file)  # nobody writes
    assert stash.save(0, b"due" * 1000, False)
    for step in (1, 3, 5):
        stash.was_due = step  # and is none
        assert stash.save(step, step, False)
    assert 0 in {one.step for one in stash._whole()} and len(stash._whole()) == 3
    page = words(file, 0)
    page[layout.ON_DISK] = page[layout.DUE]
    assert stash.save(6, 6, False) and page[layout.DUE] != page[layout.ON_DISK]
    assert stash.save(7, 7, False) and 0 not in {one.step for one in stash._whole()}


@pytest.mark.parametrize("harm", ["cut", "changed", "gone"])
def test_a_file_that_is_not_whole_is_said_and_not_offered_again(rank: Any, wait_until: Any, tmp_path: Path, harm: str) -> None:
    file, one = nameless_file("a"), disk(tmp_path)
    one.begin(assigned(life="first"), file)
    assert rank(file).save(0, b"x" * 100_000, False)
    wait_until(one.held)
    (path,) = tmp_path.iterdir()
    said: list[str] = []
    again, other = disk(tmp_path, said), nameless_file("b")
    again.first()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:50_000] if harm == "cut" else b"\1" * 200_000)
    again.begin(assigned(life="second", stash=(0, 0), stash_disk=("first", 1, 0)), other)
    with pytest.raises(RuntimeError, match="could not be fetched from another node, or read from the disk"):
        rank(other, agreed="0:0").latest(None, None)
    again.due()
    assert len(said) == 1 and said[0].startswith(f"--stash-dir: {tmp_path} has no whole state of step 0") and again.held() == ()


def test_a_disk_that_cannot_be_written_to_is_said_once_and_holds_up_nobody(rank: Any, wait_until: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said: list[str] = []
    file, one = nameless_file("a"), disk(tmp_path / "file" / "job", said)
    one.begin(assigned(life="first"), file)
    stash = rank(file)
    for step in range(6):
        assert stash.save(step, step, False)
    wait_until(lambda: words(file, 0)[layout.ON_DISK] == words(file, 0)[layout.DUE])
    one.due()
    assert len(said) == 1 and "cannot be" in said[0] and one.held() == ()


def test_names_tell_what_is_in_them() -> None:
    one = stored("abc-1-20-3-4-1-2.state", 7)
    assert (
        one is not None
        and one.name == "abc-1-20-3-4-1-2.state"
        and (one.life, one.step, one.rank, one.ranks) == ("abc", 20, 3, 2)
    )
    for name in ("abc-1-20-3-4-1-2.state.part", "abc-1-20.state", "notes.txt", "abc-1-x-3-4-1-2.state"):
        assert stored(name, 7) is None
    other = replace(one, local_rank=0, rank=2, saved_s=9)
    assert held_by_all([one], 2) == () and held_by_all([one, other], 4) == ()
    assert held_by_all([one, other], 2) == (("abc", 1, 20, 2, 4, 9),)


def test_two_nodes_that_are_both_lost_go_on_from_their_disks(
    holdfast: Any, script: Any, free_port: int, wait_until: Any, tmp_path: Path
) -> None:
    program = script(LOCKSTEP)

    def start(run: int, names: str) -> tuple[dict[str, Any], Path]:
        folder = tmp_path / f"ranks{run}"
        folder.mkdir()
        agents: dict[str, Any] = {}
        for name in names:
            agents[name] = holdfast.start(
                *("run", "--nnodes", "2", "--nproc-per-node", 2, "--node-name", name, "--rdzv-id", "kept", "--max-restarts", 3),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}"),
                *("--stash-dir", tmp_path / name, "--stash-dir-every", 5, program, folder),
            )
            wait_until(lambda: holdfast.events("NodeJoined"))
        return agents, folder

    agents, _ = start(1, "ab")
    said = Said(agents)
    wait_until(lambda: said.steps_of_all(1) >= 30)
    for agent in agents.values():
        lose(agent)
    made = said.steps_of_all(1)
    agents, folder = start(2, "ba")  # the other one is started first
    said = Said(agents)
    wait_until(lambda: said.steps_of_all(1) >= 0)
    found = {steps[0] for steps in said.of(1, "found").values()}
    assert len(found) == 1 and made - 12 <= found.pop(), (found, made)
    (folder / "end").touch()
    for agent in agents.values():
        assert agent.wait().returncode == 0, agent.wait().output

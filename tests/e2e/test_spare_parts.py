"""What a warm spare refuses, and the parts of it that a whole job shows only by its speed."""

from __future__ import annotations

import os
import site
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from types import ModuleType

import pytest

from holdfast.client import spare, spare_imports
from holdfast.runtime.hardware.memory import private_bytes, room_bytes

MiB = 1 << 20


# --- ahead of time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("enabled", "refused"), [(True, True), (False, False)])
def test_a_python_with_a_usercustomize_has_no_spares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: bool, refused: bool
) -> None:
    (tmp_path / "usercustomize.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(site, "ENABLE_USER_SITE", enabled)
    assert ("usercustomize" in spare_imports.prepare([])) == refused


def test_an_import_that_has_initialised_cuda_or_opened_a_socket_is_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    before = spare_imports.sockets()
    assert spare_imports.unfit(before) == ""
    with socket.socket():
        assert spare_imports.unfit(before) == "an import has opened a socket"
    cuda = ModuleType("torch.cuda")
    cuda.is_initialized = lambda: True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    assert spare_imports.unfit(before) == "an import has initialised CUDA"


def test_an_import_that_has_opened_the_driver_is_unfit(tmp_path: Path) -> None:
    driver = tmp_path / "nvidia-uvm"
    driver.touch()
    with driver.open():
        assert spare_imports.unfit(spare_imports.sockets(), [str(driver)]) == f"an import has opened {driver}"


# --- forking ----------------------------------------------------------------------------------------------------------------


class Parked:
    """A spare, as far as forking one goes."""

    def __init__(self) -> None:
        self.said: list[tuple[object, ...]] = []

    def say(self, *words: object) -> None:
        self.said.append(words)


def test_a_process_with_threads_is_not_forked_and_what_it_was_sent_is_closed() -> None:
    parked, over = Parked(), Event()
    given, kept = os.pipe()
    Thread(target=over.wait).start()
    try:
        assert not spare._fork(parked, [given])  # type: ignore[arg-type]
    finally:
        over.set()
    ((word, why),) = parked.said
    assert word == "no" and str(why).startswith("the process to fork from has ")
    with pytest.raises(OSError):
        os.fstat(given)
    os.close(kept)


# --- rank 0 first -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The port that is held for rank 0, by a node whose rank 1 we are."""
    monkeypatch.setitem(sys.modules, "torch.distributed", ModuleType("torch.distributed"))
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.settimeout(10)
        for name, value in {"RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.getsockname()[1])}.items():
            monkeypatch.setenv(name, value)
        yield held


def test_other_ranks_wait_until_rank_0_listens(master: socket.socket) -> None:
    paused: list[float] = []

    def pause(length_s: float) -> None:
        paused.append(length_s)
        master.listen()

    spare._await_store(pause)
    assert paused == [spare.LET_FIRST_S[0]]
    master.accept()[0].close()


def test_whoever_waits_in_vain_goes_on(master: socket.socket) -> None:
    pauses: list[float] = []
    spare._await_store(pauses.append)
    assert tuple(pauses) == spare.LET_FIRST_S


@pytest.mark.parametrize("name", ["RANK", "MASTER_PORT", "torch"])
def test_rank_0_waits_for_nobody_nor_who_has_no_store(
    master: socket.socket, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pauses: list[float] = []
    if name == "torch":
        monkeypatch.delitem(sys.modules, "torch.distributed")
    else:
        monkeypatch.delenv(name)
    spare._await_store(pauses.append)
    assert pauses == []


# --- memory -----------------------------------------------------------------------------------------------------------------


def test_what_a_process_has_alone_is_counted() -> None:
    before = private_bytes(os.getpid())
    much = bytearray(os.urandom(64 * MiB))
    assert 60 * MiB < private_bytes(os.getpid()) - before < 100 * MiB and much
    assert private_bytes(1 << 30) == 0


def test_a_container_has_what_it_is_allowed_less_what_it_uses(tmp_path: Path) -> None:
    def room(**group: str) -> tuple[int, int]:
        for name, text in {
            "proc/meminfo": f"MemTotal: {4096 * MiB // 1024} kB\nMemAvailable: {1024 * MiB // 1024} kB\n",
            "proc/self/cgroup": "0::/\n",
            **{f"sys/fs/cgroup/memory.{file}": text for file, text in group.items()},
        }.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return room_bytes(str(tmp_path))

    assert room(max="max\n", current="5\n", stat="") == (1024 * MiB, 4096 * MiB)
    limit, used, dropped = 100 * MiB, 70 * MiB, 20 * MiB
    assert room(max=str(limit), current=str(used), stat=f"anon 1\ninactive_file {dropped}\n") == (50 * MiB, limit)
    assert room(max=str(limit), current=str(limit + MiB), stat="") == (0, limit)
    assert room_bytes()[1] > 100 * MiB

"""What `client.commit` writes takes another's place whole or not at all, and never that of something newer."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from types import SimpleNamespace

import pytest

from holdfast import client
from holdfast.client import NotCommitted
from holdfast.core.page import layout
from holdfast.core.page.asides import aside_name, outdated

code = sys.modules["holdfast.client.commit"]  # `holdfast.client.commit` is the function


@pytest.fixture
def round_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """This process is a rank of that round."""

    def begin(number: int) -> None:
        monkeypatch.setenv("HOLDFAST_JOB", "job-7")
        monkeypatch.setenv("HOLDFAST_ROUND", str(number))

    return begin


@pytest.fixture
def lease(monkeypatch: pytest.MonkeyPatch) -> memoryview:
    """The page of a rank, whose lease is good."""
    words = memoryview(bytearray(layout.FIELDS_BYTES)).cast("Q")
    words[layout.LEASE_NS] = monotonic_ns() + 10**12
    monkeypatch.setattr(code, "_page", lambda: words)
    return words


def text_of(path: Path) -> str:
    return (path / "part" if path.is_dir() else path).read_text()


def write_file(path: str, text: str) -> None:
    Path(path).write_text(text)


def write_folder(path: str, text: str) -> None:
    Path(path).mkdir()
    (Path(path) / "part").write_text(text)


KINDS = pytest.mark.parametrize("write", [write_file, write_folder])


@KINDS
def test_it_is_made_and_replaced_and_nothing_else_is_left(tmp_path: Path, write: Callable[[str, str], None]) -> None:
    for text in ("one", "two"):
        with client.commit(tmp_path / "last.pt") as path:
            assert path.endswith("last.pt") and not os.path.exists(path)
            write(path, text)
        assert text_of(tmp_path / "last.pt") == text
    assert os.listdir(tmp_path) == ["last.pt"]


def test_a_function_can_write_it(tmp_path: Path) -> None:
    client.commit(tmp_path / "last.pt", lambda path: write_file(path, "one"))
    assert text_of(tmp_path / "last.pt") == "one"


def test_a_file_and_a_folder_take_each_other_s_place(tmp_path: Path) -> None:
    for write in (write_file, write_folder, write_file):
        with client.commit(tmp_path / "last") as path:
            write(path, write.__name__)
    assert text_of(tmp_path / "last") == "write_file" and os.listdir(tmp_path) == ["last"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "step-1").write_text("one")
    for step in ("step-1", "step-2"):
        with client.commit(tmp_path / "latest") as path:
            os.symlink(step, path)
    assert os.readlink(tmp_path / "latest") == "step-2" and (tmp_path / "step-1").read_text() == "one"


@KINDS
def test_an_exception_leaves_all_as_it_was(tmp_path: Path, write: Callable[[str, str], None]) -> None:
    write(str(tmp_path / "last"), "one")
    with pytest.raises(ZeroDivisionError), client.commit(tmp_path / "last") as path:
        write(path, "two")
        raise ZeroDivisionError
    assert text_of(tmp_path / "last") == "one" and os.listdir(tmp_path) == ["last"]


def test_nothing_written_is_an_error_and_leaves_all_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "last").write_text("one")
    with pytest.raises(FileNotFoundError, match="nothing was written"), client.commit(tmp_path / "last"):
        pass
    assert text_of(tmp_path / "last") == "one"


def test_a_name_of_any_length_has_room_for_the_mark(tmp_path: Path) -> None:
    with client.commit(tmp_path / ("ü" * 120)) as path:
        write_file(path, "one")
    assert len(os.listdir(tmp_path)) == 1


@KINDS
def test_where_names_cannot_be_exchanged_a_folder_is_moved_out_of_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str, str], None]
) -> None:
    monkeypatch.setattr(code, "_exchanged", lambda one, other: False)
    write_folder(str(tmp_path / "last"), "one")
    with client.commit(tmp_path / "last") as path:
        write(path, "two")
    assert text_of(tmp_path / "last") == "two" and os.listdir(tmp_path) == ["last"]


def test_while_the_lease_is_over_nothing_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lease: memoryview, round_of: Callable[[int], None]
) -> None:
    round_of(1)
    monkeypatch.setattr(code, "PATIENCE_S", 0.0)
    (tmp_path / "last").write_text("newer")
    lease[layout.LEASE_NS] = monotonic_ns() - 1
    with pytest.raises(NotCommitted, match="others may hold this rank"), client.commit(tmp_path / "last") as path:
        write_file(path, "older")
    assert text_of(tmp_path / "last") == "newer" and os.listdir(tmp_path) == ["last"]


def test_a_lease_that_is_renewed_meanwhile_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lease: memoryview, round_of: Callable[[int], None]
) -> None:
    round_of(1)
    good, lease[layout.LEASE_NS] = lease[layout.LEASE_NS], 1

    def renewed(seconds: float) -> None:
        lease[layout.LEASE_NS] = good

    monkeypatch.setattr(code, "sleep", renewed)
    client.commit(tmp_path / "last", lambda path: write_file(path, "one"))
    assert text_of(tmp_path / "last") == "one"


@KINDS
@pytest.mark.parametrize("exchanges", [True, False])
def test_stopped_between_look_and_rename_it_replaces_nothing_that_its_successors_have_committed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lease: memoryview,
    round_of: Callable[[int], None],
    write: Callable[[str, str], None],
    exchanges: bool,
) -> None:
    if not exchanges:
        monkeypatch.setattr(code, "_exchanged", lambda one, other: False)
    write(str(tmp_path / "last"), "oldest")
    rename = code._rename

    def stopped(aside: str, path: str) -> None:
        monkeypatch.setattr(code, "_rename", rename)
        round_of(2)
        client.commit(path, lambda aside: write(aside, "newer"))
        rename(aside, path)

    monkeypatch.setattr(code, "_rename", stopped)
    round_of(1)
    with pytest.raises(NotCommitted), client.commit(tmp_path / "last") as path:
        write(path, "older")
    assert text_of(tmp_path / "last") == "newer" and os.listdir(tmp_path) == ["last"]


def test_only_what_other_rounds_of_the_job_left_for_the_same_target_is_taken_away(
    tmp_path: Path, round_of: Callable[[int], None]
) -> None:
    round_of(3)
    theirs = [aside_name("last", "job-7", str(number), "9.a") for number in (2, 3, 4)]
    kept = [theirs[1], aside_name("last", "other", "2", "9.a"), aside_name("first", "job-7", "2", "9.a"), "last-2"]
    for name in [*theirs, *kept]:
        (tmp_path / name).write_text("")
    client.commit(tmp_path / "last", lambda path: write_file(path, "one"))
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "last"])
    assert outdated(theirs, "last", "", "") == [], "without a job nobody can tell"


def test_lightning_s_checkpoints_are_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[str] = []

    class TorchCheckpointIO:
        def save_checkpoint(self, checkpoint: str, path: str, storage_options: object = None) -> None:
            saved.append(path)
            if "://" not in path:
                Path(path).write_text(checkpoint)

    monkeypatch.setitem(sys.modules, "lightning.pytorch.plugins.io", SimpleNamespace(TorchCheckpointIO=TorchCheckpointIO))  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, "pytorch_lightning", raising=False)
    io = importlib.import_module("holdfast.integrations.lightning_checkpoints").CommittedCheckpointIO()
    monkeypatch.delitem(sys.modules, "holdfast.integrations.lightning_checkpoints")
    io.save_checkpoint("one", tmp_path / "new" / "last.ckpt")
    io.save_checkpoint("one", "s3://bucket/last.ckpt")
    assert (tmp_path / "new" / "last.ckpt").read_text() == "one"
    assert saved[0] != str(tmp_path / "new" / "last.ckpt") and saved[1] == "s3://bucket/last.ckpt"

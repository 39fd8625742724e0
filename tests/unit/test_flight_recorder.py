"""torch's flight recorder: which rank has one that can be asked, where its record goes, and asking it, over a real pipe."""

from __future__ import annotations

import os
import select
from pathlib import Path
from unittest.mock import Mock

import pytest

from holdfast.agent.workers.flight_recorder import WRITE_S, Records, ask, patience_s, pipe_of, record_of

ENABLED = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/tmp/fr_pipe_", "TORCH_FR_DUMP_TEMP_FILE": "/logs/fr_"}


def test_a_rank_is_asked_through_the_pipe_that_torch_names_after_it() -> None:
    assert pipe_of(ENABLED, 13) == "/tmp/fr_pipe_13.pipe"
    assert record_of(ENABLED, 13) == "/logs/fr_13"


@pytest.mark.parametrize(
    "off",
    [
        {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": ""},
        {"TORCH_FR_BUFFER_SIZE": "0"},
        {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"},
        {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"},
    ],
)
def test_nobody_is_asked_where_torch_would_not_look(off: dict[str, str]) -> None:
    assert pipe_of(ENABLED | off, 0) is None
    assert patience_s(ENABLED | off) == 0.0


def test_it_is_waited_for_as_long_as_torch_takes_to_look() -> None:
    assert patience_s(ENABLED) == 1.0 + WRITE_S
    assert patience_s(ENABLED | {"TORCH_NCCL_COORD_CHECK_MILSEC": "200"}) == 0.2 + WRITE_S
    assert patience_s({}) == 0.0


def test_without_a_name_the_record_goes_to_torch_s_cache() -> None:
    assert record_of({"HOME": "/home/me"}, 3) == "/home/me/.cache/torch/comm_lib_trace_rank_3"
    assert record_of({"HOME": "/home/me", "XDG_CACHE_HOME": "/cache"}, 3) == "/cache/torch/comm_lib_trace_rank_3"
    assert record_of({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/old/name_"}, 3) == "/old/name_3"


def test_asking_never_waits(tmp_path: Path) -> None:
    pipe = str(tmp_path / "0.pipe")
    assert not ask(pipe), "there is none"
    os.mkfifo(pipe)
    assert not ask(pipe), "nobody reads"
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert ask(pipe) and os.read(reader, 128)
        while ask(pipe):
            pass  # until it is full: whoever reads is stuck
    finally:
        os.close(reader)


def test_without_room_for_a_thread_nobody_is_asked_and_nobody_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("_thread.start_new_thread", Mock(side_effect=RuntimeError("can't start new thread")))
    records = Records(ENABLED, [0], now=0.0)
    assert not records.look(0.0) and not records.look(1.0) and records.look(patience_s(ENABLED)) and not records.paths


def test_the_records_of_those_that_were_asked_are_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    environ = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/record_"}
    os.mkfifo(tmp_path / "pipe_0.pipe")
    reader = os.open(tmp_path / "pipe_0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    (tmp_path / "record_0").write_text("of a hang before")
    records = Records(environ, [0, 1], now=0.0)
    now = 0.0
    while not select.select([reader], [], [], 0.0)[0]:
        assert not records.look(now)
    while not records.paths:
        assert not records.look(now)
    assert records.paths == {0: f"{tmp_path}/record_0"}, "nobody reads the pipe of rank 1"
    (tmp_path / "record_0").write_text("of this one")
    while not records.look(now := now + 1e-6):
        assert now < patience_s(environ), "it is there"
    assert records.written == {0}
    assert Records(environ, [0], now=0.0).look(patience_s(environ)), "however long it takes"
    assert Records({}, [0, 1], now=0.0).look(0.0), "nobody to wait for"
    os.close(reader)

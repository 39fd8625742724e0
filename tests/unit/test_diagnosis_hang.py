# ruff: noqa: E501
"""Who was not where all others waited: by their stacks, by torch's flight recorder, by the numbers of collectives."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.value import replace
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.evidence import Evidence, merged
from holdfast.diagnosis.gather import gather
from holdfast.diagnosis.hangs import recorder_file
from holdfast.diagnosis.hangs.stack_groups import grouped, outlier
from holdfast.diagnosis.rule import load

WAITS = """Current thread 0x00007f0000000{rank:02d}0 (most recent call first):
  File "/env{rank}/site-packages/torch/distributed/distributed_c10d.py", line 3245 in all_reduce
  File "/env{rank}/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/work/train.py", line {line} in step
  File "/work/train.py", line 99 in <module>
"""
LOADS = """Process 4711: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    read (/work/data.py:31)
    load (/work/data.py:88)
    <module> (/work/train.py:99)
"""


def stacks(ranks: int, odd: int) -> dict[int, str]:
    return {rank: LOADS if rank == odd else WAITS.format(rank=rank, line=40 + rank % 3) for rank in range(ranks)}


def test_stacks_are_the_same_whatever_their_lines_addresses_and_folders() -> None:
    groups = grouped(stacks(8, odd=5))
    assert [group.ranks for group in groups] == [(0, 1, 2, 3, 4, 6, 7), (5,)]
    assert groups[0].waits and not groups[1].waits


def test_the_rank_that_does_not_wait_where_the_others_do_is_named() -> None:
    found = outlier(stacks(8, odd=5))
    assert found is not None and found.rank == 5 and "read (data.py:31)" in found.sentence


def test_nobody_is_blamed_when_all_wait() -> None:
    assert outlier(stacks(8, odd=-1)) is None


def entry(seq: int, *, what: str = "nccl:all_reduce", state: str = "completed", sizes: object = ((4,),)) -> dict[str, Any]:
    return {
        "collective_seq_id": seq, "process_group": ("0", "default_pg"), "profiling_name": what, "input_sizes": sizes,
        "input_dtypes": ["Float"], "state": state, "is_p2p": False,
        "frames": [{"name": "step", "filename": "/work/train.py", "line": 7}],
    }  # fmt: skip


def record(rank: int, *entries: dict[str, Any], size: int = 4) -> recorder_file.Record:
    ranks = str(list(range(size)))
    said = {"version": "2.10", "entries": list(entries), "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}}
    return recorder_file.parse(pickle.dumps(said), rank)


def test_the_rank_that_never_joined_is_told_from_those_that_joined_and_are_stuck() -> None:
    here = [record(rank, entry(6), entry(7, state="started")) for rank in (0, 1, 3)]
    found = recorder_file.compare([*here, record(2, entry(6))])
    assert found is not None and (found.rank, found.kind) == (2, "unknown") and "never reached all_reduce" in found.sentence


def test_joined_and_stuck_is_nobody_s_fault() -> None:
    found = recorder_file.compare([record(rank, entry(6), entry(7, state="started")) for rank in range(4)])
    assert found is not None and (found.rank, found.kind) == (None, "fabric") and "all ranks reached" in found.sentence


def test_who_has_not_come_to_a_later_one_is_named_though_an_earlier_one_is_not_said_to_be_over() -> None:
    begun = entry(6, state="scheduled")
    found = recorder_file.compare([record(0, begun, entry(7, state="scheduled"), size=2), record(1, begun, size=2)])
    assert found is not None and found.rank == 1 and "never reached all_reduce" in found.sentence


def test_a_collective_that_only_one_has_called_is_a_mismatch() -> None:
    those = [record(rank, entry(7, state="started")) for rank in (0, 2, 3)]
    found = recorder_file.compare([*those, record(1, entry(7, what="nccl:_all_gather_base", state="started"))])
    assert found is not None and (found.rank, found.kind) == (1, "user-code") and "step (train.py:7)" in found.sentence


def test_sizes_that_differ_are_a_mismatch() -> None:
    those = [record(rank, entry(7, state="started")) for rank in (0, 1, 2)]
    found = recorder_file.compare([*those, record(3, entry(7, sizes=((5,),), state="started"))])
    assert found is not None and (found.rank, found.kind) == (3, "user-code")


def test_old_collectives_that_fell_out_of_one_rank_s_record_accuse_nobody() -> None:
    whole = [record(rank, *(entry(seq) for seq in range(1, 9))) for rank in (0, 1, 2)]
    assert recorder_file.compare([*whole, record(3, *(entry(seq) for seq in range(5, 9)))]) is None


def test_a_rank_without_a_file_is_named_while_the_others_wait() -> None:
    found = recorder_file.compare([record(rank, entry(7, state="started")) for rank in (0, 1, 2)])
    assert found is not None and found.rank == 3 and "left no record" in found.sentence


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("/tmp/holdfast-was-here",)


def test_a_pickle_that_calls_something_is_refused_and_calls_nothing() -> None:
    with pytest.raises(ValueError, match="GLOBAL, which plain values do not need"):
        recorder_file.parse(pickle.dumps({"entries": [Evil()]}), 0)
    assert not os.path.exists("/tmp/holdfast-was-here")


@pytest.mark.parametrize("raw", [b"", b"\x80\x04.", b"{", b"[]", b'{"entries": 3}', b"\x80\x05K\x01.", b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f"])
def test_what_is_no_record_is_said_to_be_none(raw: bytes) -> None:
    with pytest.raises(ValueError, match="not a flight recorder"):
        recorder_file.parse(raw, 0)


def test_a_folder_of_stacks_and_records_is_understood(tmp_path: Path) -> None:
    for rank, text in stacks(4, odd=2).items():
        (tmp_path / f"rank-{rank}.txt").write_text(text)
    found = attribute(gather([str(tmp_path)], load()))
    assert found.rank == 2 and found.rule == "stack-outlier"
    said = {"entries": [entry(7, state="started")], "pg_config": {"0": {"ranks": "[0, 1, 2, 3]"}}}
    for rank in (0, 1, 2):
        (tmp_path / f"comm_lib_trace_rank_{rank}").write_text(json.dumps(said))
    (tmp_path / "comm_lib_trace_rank_3").write_text(json.dumps(said | {"entries": [entry(6)]}))
    assert attribute(gather([str(tmp_path)], load())).rank == 3


def test_what_another_has_gathered_is_added_with_its_stacks_records_and_size(tmp_path: Path) -> None:
    for rank, text in stacks(4, odd=2).items():
        (tmp_path / f"rank-{rank}.txt").write_text(text)
    (tmp_path / "comm_lib_trace_rank_0").write_text(json.dumps({"entries": [entry(7)], "pg_config": {}}))
    there = replace(gather([str(tmp_path)], load()), world_size=4)
    both = merged(Evidence(), there)
    assert (both.stacks, both.records, both.world_size, both.sources) == (there.stacks, there.records, 4, there.sources)
    assert attribute(both).rank == 2, attribute(both)
    own = merged(replace(Evidence(), stacks={2: "mine"}, world_size=8), there)
    assert own.stacks[2] == "mine" and own.world_size == 8

"""What is kept of a failure: how ranks ended, the kernel's log around that moment, and what the memory groups say."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from holdfast.diagnosis import incident
from holdfast.diagnosis.incident import keep, kernel_log, memory


def test_the_kernel_s_records_are_read_one_by_one_and_those_of_another_time_left_out() -> None:
    reader, writer = os.pipe2(os.O_DIRECT)  # a read gives one record, as of /dev/kmsg
    xid = b"4,2,99000000,-;NVRM: Xid (PCI:0000:1b:00): 79, gone\n SUBSYSTEM=pci\n"
    for record in (b"6,1,1000000,-;long ago\n", xid, b"odd\n", b"6,3,161000000,-;another failure\n"):
        os.write(writer, record)
    assert list(kernel_log(50.0, 160.0, f"/proc/self/fd/{reader}")) == ["[   99.000000] NVRM: Xid (PCI:0000:1b:00): 79, gone"]
    os.close(reader)
    os.close(writer)


def test_where_the_kernel_s_log_cannot_be_read_it_is_said_why(tmp_path: Path) -> None:
    assert list(kernel_log(0.0, 1.0, str(tmp_path / "kmsg"))) == ["the kernel's log cannot be read: No such file or directory"]


def test_the_kernel_s_records_are_looked_for_by_the_clock_that_no_time_server_corrects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def looks(since: float, until: float) -> list[str]:
        asked.extend([since, until])
        return []

    clocks = {time.CLOCK_MONOTONIC_RAW: 8_000.0, time.CLOCK_MONOTONIC: 9_000.0}
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)
    monkeypatch.setattr(incident, "kernel_log", looks)
    keep(str(tmp_path / "kept"), age_s=100.0, stacks={}, records={})
    assert asked == [8_000.0 - 100.0 - incident.BEFORE_S, 8_000.0 - 100.0 + incident.AFTER_S]


def test_every_memory_group_up_to_the_root_is_asked(tmp_path: Path) -> None:
    inner = tmp_path / "sys/fs/cgroup/slice/job"
    inner.mkdir(parents=True)
    (inner / "memory.events").write_text("low 0\noom_kill 2\n")
    (inner.parent / "memory.max").write_text("1024\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/slice/job\n")
    own = "/sys/fs/cgroup/slice/job"
    assert list(memory(str(tmp_path))) == [f"{own}/memory.events: low 0 oom_kill 2", "/sys/fs/cgroup/slice/memory.max: 1024"]


def test_a_flight_recorder_s_file_is_kept_and_one_that_is_not_there_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "trace3").write_bytes(b"\x80\x04.")
    keep(str(tmp_path / "kept"), age_s=0.0, stacks={}, records={3: str(tmp_path / "trace3"), 4: str(tmp_path / "trace4")})
    assert sorted(os.listdir(tmp_path / "kept")) == ["dump-rank-3", "kernel.txt", "memory.txt"]


def test_where_a_rank_was_is_kept_unless_more_of_it_is(tmp_path: Path) -> None:
    (tmp_path / "rank-1.txt").write_text("all its threads\n")
    keep(str(tmp_path), age_s=0.0, stacks={0: "its main thread\nwas here", 1: "its main thread"}, records={})
    assert (tmp_path / "rank-0.txt").read_text() == "its main thread\nwas here\n"
    assert (tmp_path / "rank-1.txt").read_text() == "all its threads\n"

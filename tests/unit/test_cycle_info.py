"""Files about cycles: what is in them, what a successor finds, and what a folder that cannot be written costs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.agent.reporting.cycles import CycleInfo
from holdfast.core.job.cycles import InfoNames, log_path
from holdfast.core.resolve.hostlist import compress, expand
from holdfast.telemetry.record.io_thread import IoThread


def info_of(names: InfoNames, complain: Callable[[str], None]) -> CycleInfo:
    """One that waits for every file, however busy the machine is: what `begin` and `end` write is read at once here."""
    return CycleInfo(names, None, complain, IoThread(patience_s=60.0))


def told(folder: Path, number: int) -> dict[str, object]:
    return json.loads((folder / f"cycle_info.job.0.{number}").read_text())


def test_a_successor_ends_what_its_predecessor_could_not(tmp_path):
    names, complaints = InfoNames(str(tmp_path), "job", {}), []
    lost = info_of(names, complaints.append)
    lost.begin(0, 1000.0, active=["n1", "n2"], standby=["n3"])
    assert told(tmp_path, 0)["cycle_end_time"] == ""
    heir = info_of(names, complaints.append)
    heir.begin(1, 2000.5, active=["n2", "n3"], standby=[])
    assert told(tmp_path, 0) == told(tmp_path, 0) | {"cycle_end_time": "1970-01-01T00:33:20.500Z", "generation": 1}
    heir.end(3000.0)
    heir.end(4000.0)
    assert told(tmp_path, 1)["cycle_end_time"] == "1970-01-01T00:50:00.000Z"
    assert (told(tmp_path, 0)["active_nodes"], told(tmp_path, 0)["standby_nodes"]) == ("n[1-2]", "n3")
    assert told(tmp_path, 0)["active_ranks"] == "0-1"
    assert not complaints and sorted(os.listdir(tmp_path)) == [
        "cycle_info.job.0.0",
        "cycle_info.job.0.1",
        "cycle_info.job.current",
    ]


def test_what_others_have_made_of_a_file_holds_nobody_up(tmp_path):
    names, complaints = InfoNames(str(tmp_path), "job", {}), []
    info_of(names, complaints.append).begin(0, 1000.0, active=["n1"], standby=[])
    (tmp_path / "cycle_info.job.0.0").write_text('{"generation": "edited"}')
    info_of(names, complaints.append).begin(1, 2000.0, active=["n1"], standby=[])
    assert told(tmp_path, 0) == {"generation": 1, "cycle_end_time": "1970-01-01T00:33:20.000Z"}
    assert not complaints and told(tmp_path, 1)["active_nodes"] == "n1"


@pytest.mark.parametrize("is_pipe", [False, True], ids=["a file elsewhere", "a pipe"])
def test_a_link_of_somebody_else_s_has_nothing_changed_elsewhere_and_holds_nobody_up(tmp_path, is_pipe):
    names, complaints, settings = InfoNames(str(tmp_path / "infos"), "job", {}), [], tmp_path / "settings.json"
    (tmp_path / "infos").mkdir()
    settings.write_text('{"mine": 1}')
    if is_pipe:
        os.mkfifo(tmp_path / "infos" / "pipe")
    os.symlink("pipe" if is_pipe else settings, tmp_path / "infos" / "cycle_info.job.current")
    CycleInfo(names, None, complaints.append, IoThread(patience_s=5.0)).begin(0, 1000.0, active=["n1"], standby=[])
    assert told(tmp_path / "infos", 0)["active_nodes"] == "n1"
    assert settings.read_text() == '{"mine": 1}' and not complaints


def test_a_full_disk_is_left_no_half_file(tmp_path):
    names, complaints = InfoNames(str(tmp_path), "job", {}), []
    (tmp_path / "cycle_info.job.0.0").mkdir()
    (tmp_path / "cycle_info.job.0.0" / "in the way").touch()
    info_of(names, complaints.append).begin(0, 1000.0, active=["n1"], standby=[])
    assert len(complaints) == 1 and os.listdir(tmp_path) == ["cycle_info.job.0.0"]


def test_the_ranks_are_the_nodes_own_in_the_order_in_which_those_are_listed(tmp_path):
    info_of(InfoNames(str(tmp_path), "job", {}), print).begin(0, 1.0, active=["n3", "n1", "x", "n2"], standby=[])
    assert (told(tmp_path, 0)["active_nodes"], told(tmp_path, 0)["active_ranks"]) == ("n[1-3],x", "1,3,0,2")


def test_a_folder_that_cannot_be_written_costs_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    complaints: list[str] = []
    info = info_of(InfoNames(str(tmp_path / "file"), "job", {}), complaints.append)
    info.begin(0, 1.0, active=["a"], standby=[])
    info.begin(1, 2.0, active=["a"], standby=[])
    info.close()
    assert len(complaints) == 1 and "cannot write about cycles" in complaints[0]


def test_the_names_are_slurms_where_it_has_some():
    slurm = InfoNames("/info", "job", {"SLURM_JOB_ID": "42", "SLURM_RESTART_COUNT": "3"})
    assert (slurm.of(5), slurm.current) == ("/info/cycle_info.42.3.5", "/info/cycle_info.42.current")
    assert InfoNames("/info", "job", {"SLURM_ARRAY_JOB_ID": "40", "SLURM_JOB_ID": "42"}).job == "40"
    assert InfoNames("/info", "a/b", {}).of(0) == "/info/cycle_info.a_b.0.0"


@pytest.mark.parametrize(
    ("prefix", "path"), [("/l/job.log", "/l/job_cycle3.log"), ("/l/job", "/l/job_cycle3"), ("/l.d/job", "/l.d/job_cycle3")]
)
def test_a_cycles_log_is_named_after_it(prefix, path):
    assert log_path(prefix, 3) == path


@pytest.mark.parametrize(
    ("hosts", "short"),
    [
        (["n1"], "n1"),
        (["n01", "n02", "n03", "n07"], "n[01-03,07]"),
        (["n9", "n10", "n11"], "n9,n[10-11]"),
        (["a", "b"], "a,b"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        ([], ""),
    ],
)
def test_a_host_list_is_short_and_means_the_same(hosts, short):
    assert compress(hosts) == short
    assert expand(short) == hosts

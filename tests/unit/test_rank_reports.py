"""What an agent tells the host daemon of its ranks, from its events; and what the `GCP_*` variables make of a workload."""

from __future__ import annotations

import types
from typing import Any

import pytest

from holdfast.agent.reporting import google_rank_reports
from holdfast.agent.reporting.google_rank_reports import RankReports, rank_reports, workload
from holdfast.core.job.events import FailureSeen, WorkerExited, WorkersStopped, WorkerStarted
from holdfast.core.job.failure import Failure
from holdfast.core.wire.google_wire import state_name


class Heard:
    """In the place of a daemon that takes up everything at once."""

    def __init__(self, port: int) -> None:
        self.port, self.trouble = port, ""
        self.told: dict[str, int] = {}
        self.lines: list[str] = []
        self.left: list[int] = []

    def register(self, address: str, workload: Any) -> None:
        self.lines.append(f"{workload.workload_name} at {address}")

    def say(self, worker: Any) -> None:
        self.told[worker.worker_address] = worker.state
        self.lines.append(f"{worker.global_rank} {state_name(worker.state)}")

    def leave(self, worker: Any) -> None:
        self.left.append(worker.global_rank)

    def close(self) -> None:
        pass


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> RankReports:
    monkeypatch.setattr(google_rank_reports, "DaemonClient", Heard)
    made = at_port("50051", said)
    assert made is not None
    return made


def at_port(port: str, said: list[str]) -> RankReports | None:
    config: Any = types.SimpleNamespace(max_restarts=3)
    return rank_reports(config, {"GCP_HOST_DAEMON_PORT": port}, "train", said.append, said.append, lambda: 0.0)


def heard(reports: RankReports) -> list[str]:
    """What was told since the last call."""
    assert isinstance(reports.reports, Heard)
    lines, reports.reports.lines = reports.reports.lines, []
    return [line for line in lines if " at " not in line]


def start(reports: RankReports, *ranks: int) -> None:
    for local_rank, rank in enumerate(ranks):
        reports.recorded(WorkerStarted(rank=rank, local_rank=local_rank, pid=1, argv=(), log_dir=None), 0.0)


def fails(local_rank: int, cause: str = "exit") -> FailureSeen:
    failure = Failure(node="n", rank=4 + local_rank, local_rank=local_rank, at_unix=0.0, cause=cause)
    return FailureSeen(failure=failure)


def ends(local_rank: int, exitcode: int = 0) -> WorkerExited:
    return WorkerExited(rank=4 + local_rank, local_rank=local_rank, pid=1, exitcode=exitcode)


def beat(reports: RankReports) -> list[str]:
    """What is told when the next heartbeat is due."""
    heard(reports)
    reports.beat_at = 0.0
    reports.due()
    return heard(reports)


def test_ranks_that_start_are_registered_and_told_as_running(reports: RankReports, said: list[str]) -> None:
    start(reports, 4, 5)
    assert isinstance(reports.reports, Heard) and "train at localhost:50052" in reports.reports.lines
    assert heard(reports) == ["4 RUNNING", "5 RUNNING"]
    reports.due()
    assert said == ["setup_goodput_client for rank 4 successful", "setup_goodput_client for rank 5 successful"]
    assert beat(reports) == ["4 RUNNING", "5 RUNNING"]


def test_who_failed_is_told_and_not_those_who_were_stopped_for_it(reports: RankReports) -> None:
    start(reports, 4, 5, 6)
    heard(reports)
    for event in (fails(1), ends(1, 3), fails(0, "stopped"), ends(0, -15), fails(2, "stopped"), ends(2, -15)):
        reports.recorded(event, 0.0)
    reports.recorded(WorkersStopped(took_s=0.1, killed=()), 0.0)
    assert heard(reports) == ["5 FAILED"] and beat(reports) == []
    start(reports, 4, 5, 6)
    assert heard(reports) == ["4 RUNNING", "5 RUNNING", "6 RUNNING"]


def test_the_end_of_all_is_complete_and_until_then_who_is_done_is_not_missed(reports: RankReports) -> None:
    start(reports, 4, 5)
    reports.recorded(ends(0), 0.0)
    assert beat(reports) == ["4 RUNNING", "5 RUNNING"]
    reports.recorded(ends(1), 0.0)
    assert heard(reports) == ["4 COMPLETE", "5 COMPLETE"] and beat(reports) == []


def test_ranks_that_are_others_after_a_restart_are_told_by_their_new_names(reports: RankReports, said: list[str]) -> None:
    start(reports, 4, 5)
    reports.recorded(WorkersStopped(took_s=0.1, killed=()), 0.0)
    reports.due()
    start(reports, 0, 1)
    reports.due()
    assert beat(reports) == ["0 RUNNING", "1 RUNNING"] and said[-1].endswith("rank 1 successful")


def test_at_the_end_who_only_stopped_says_goodbye_and_a_failure_stays(reports: RankReports) -> None:
    start(reports, 4, 5)
    reports.recorded(fails(1), 0.0)
    reports.close()
    assert isinstance(reports.reports, Heard) and reports.reports.left == [4]


def test_a_daemon_that_is_out_of_reach_is_complained_of_once(reports: RankReports, said: list[str]) -> None:
    start(reports, 4)
    assert isinstance(reports.reports, Heard)
    reports.reports.trouble, reports.reports.told = "Connection refused", {}
    reports.due()
    reports.due()
    assert len(said) == 1 and "port 50051" in said[0] and "Connection refused" in said[0]


@pytest.mark.parametrize("port", ["", "x", "0", "65536", "-1", "²"])
def test_a_wrong_port_costs_a_line_and_not_the_job(port: str, said: list[str]) -> None:
    assert at_port(port, said) is None
    assert len(said) == 1 and "is not a port number" in said[0]


def test_every_variable_of_google_s_launcher_is_read() -> None:
    given = {
        "GCP_WORKLOAD_NAME": "w",
        "GCP_JOB_NAME": "j",
        "GCP_CONTAINER_NAME": "c",
        "GCP_NUM_DP_REPLICAS": "2",
        "GCP_MAX_NUM_DP_REPLICAS": "3",
        "GCP_MIN_NUM_DP_REPLICAS": "1",
        "GCP_NUM_NODES_PER_DP": "18",
        "GCP_CONTAINER_TERMINATION_THRESHOLD_S": "61",
        "GCP_WORKLOAD_DOWNTIME_THRESHOLD_S": "181",
        "GCP_MAX_IN_JOB_RESTARTS": "4",
        "GCP_MAX_WORKLOAD_RESTARTS": "5",
        "GCP_ENABLE_WORKLOAD_SCALING": "True",
    }
    info, troubles = workload(given, "train", 3)
    values = [getattr(info, name) for name in info.__fields__]
    assert (values, troubles) == (["w", "j", "c", 2, 3, 1, 18, 61, 181, 4, 5, True], [])
    default, _ = workload({}, "train", 3)
    assert [getattr(default, name) for name in default.__fields__] == ["train", "", "", 0, 0, 0, 0, 60, 180, 3, 1, False]


def test_a_number_that_is_none_is_complained_of_and_left_out() -> None:
    info, troubles = workload({"GCP_MAX_WORKLOAD_RESTARTS": "many"}, "train", 0)
    assert info.max_workload_restarts == 1 and troubles == ["GCP_MAX_WORKLOAD_RESTARTS=many is not a number: 1 is used"]

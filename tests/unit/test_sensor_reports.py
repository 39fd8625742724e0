"""What a daemon says to Google's sensor, and when: no socket, no clock."""

from __future__ import annotations

import socket

import pytest

from holdfast.core.wire.google_sensor import ACTUATOR, CONTROLLER, SENSOR, HostNames
from holdfast.core.wire.google_wire import COMPLETE, FAILED, RUNNING, SPARE, WorkerInfo, WorkloadInfo
from holdfast.core.wire.protobuf import fields
from holdfast.supervisor.daemon.host_table import HostTable, RpcHeard, TroubleHeard, Worker
from holdfast.supervisor.daemon.sensor_reports import AGAIN_S, Call, GoogleServices, SensorReports

HOST = HostNames(address="10.0.0.1:60011", name="n1")
EVERY_S = 15.0


def table(*workers: tuple[str, int, str]) -> HostTable:
    """Of workload, state and trouble of each worker."""
    rows = [
        Worker(
            info=WorkerInfo(worker_address=f"localhost:{number}", worker_id=f"gpu{number}", local_rank=number, state=state),
            workload=workload, since_unix=0.0, heard_at=0.0, owed=owed, is_silent=owed == "silent",
        )
        for number, (workload, state, owed) in enumerate(workers)
    ]  # fmt: skip
    names = {row.workload: WorkloadInfo(workload_name=row.workload) for row in rows}
    return HostTable(workers={row.key: row for row in rows}, workloads=names)


def known(*others: str) -> SensorReports:
    """All services know this host, and nothing is to be said."""
    reports = SensorReports(HOST, others, EVERY_S)
    for _ in range(2):
        for call in reports.calls(0.0):
            reports.answered(call, True, 0.0)
    assert reports.calls(0.1) == []
    return reports


def said(calls: list[Call]) -> list[tuple[str, str]]:
    return [(call.service, call.method) for call in calls]


def host(data: bytes) -> tuple[object, object, list[str], str]:
    """Name, state, ranks' names and workload of a HostInfo."""
    found = list(fields(data))
    one = dict(found)
    workers = [WorkerInfo.decode(value) for field, value in found if field == 9 and isinstance(value, bytes)]
    workload = one.get(10, b"")
    assert isinstance(workload, bytes)
    return one[4], one[8], [each.worker_id for each in workers], WorkloadInfo.decode(workload).workload_name


def test_all_are_told_who_we_are_and_then_the_sensor_hears_heartbeats() -> None:
    reports = SensorReports(HOST, (CONTROLLER, ACTUATOR), EVERY_S)
    calls = reports.calls(0.0)
    assert said(calls) == [(one, "RegisterHost") for one in (SENSOR, CONTROLLER, ACTUATOR)]
    assert dict(fields(calls[0].data))[1] == b"10.0.0.1:60011" and host(calls[0].data) == (b"n1", SPARE, [], "")
    for call in calls:
        reports.answered(call, True, 0.0)
    (beat,) = reports.calls(0.0)
    assert (beat.service, beat.method) == (SENSOR, "Heartbeat")
    reports.answered(beat, True, 0.0)
    assert reports.calls(EVERY_S - 0.1) == [] and reports.deadline() == EVERY_S
    assert said(reports.calls(EVERY_S)) == [(SENSOR, "Heartbeat")]


def test_a_change_is_told_at_once() -> None:
    reports = known()
    for state in (RUNNING, COMPLETE):
        reports.shows(table(("train", state, "")))
        (beat,) = reports.calls(1.0)
        assert host(beat.data) == (b"n1", state, ["gpu0"], "train")
        reports.answered(beat, True, 1.0)


def test_a_failure_is_an_event_until_the_sensor_has_heard_it_and_then_no_more() -> None:
    reports = known()
    failed = table(("train", RUNNING, ""), ("train", FAILED, "rank 1 has failed"))
    reports.shows(failed)
    event, beat = reports.calls(1.0)
    assert (event.method, host(beat.data)[1]) == ("ReportEvent", RUNNING), "of the host: the others run"
    report = dict(fields(dict(fields(event.data))[1]))  # type: ignore[arg-type]
    assert (report[1], report[2], report[5]) == (1, b"rank 1 has failed", b"gpu1")
    assert host(report[3]) == (b"n1", FAILED, ["gpu0", "gpu1"], "train")  # type: ignore[arg-type]
    reports.answered(beat, True, 1.0)
    assert said(reports.calls(1.1)) == [(SENSOR, "ReportEvent")]
    assert reports.answered(event, True, 1.2) == [TroubleHeard(key="worker/train/localhost:1", what="rank 1 has failed")]
    reports.shows(failed)  # a copy from before the table knew that
    assert reports.calls(1.3) == []
    reports.shows(table(("train", RUNNING, ""), ("train", RUNNING, "")))
    reports.shows(failed)
    assert [call.method for call in reports.calls(1.4)] == ["ReportEvent"], "it has failed once more"


def test_a_host_whose_ranks_are_silent_does_not_run() -> None:
    reports = known()
    reports.shows(table(("train", RUNNING, "silent")))
    assert host(reports.calls(1.0)[-1].data)[1] == FAILED


def test_of_two_workloads_the_one_that_was_heard_last_is_told_of() -> None:
    reports = known()
    reports.shows(table(("one", RUNNING, ""), ("other", RUNNING, "")))
    assert host(reports.calls(1.0)[0].data)[2:] == (["gpu1"], "other")


def test_a_sensor_that_was_away_is_told_first_who_we_are() -> None:
    reports = known()
    reports.shows(table(("train", FAILED, "rank 0 has failed")))
    for call in reports.calls(1.0):
        assert reports.answered(call, False, 1.0) == []
    assert reports.calls(1.0 + AGAIN_S / 2) == [] and reports.deadline() == 1.0 + AGAIN_S
    (introduction,) = reports.calls(1.0 + AGAIN_S)
    assert introduction.method == "RegisterHost"
    reports.answered(introduction, True, 2.0)
    assert [call.method for call in reports.calls(2.0)] == ["ReportEvent", "Heartbeat"]


def test_a_controller_that_is_away_holds_up_nothing() -> None:
    reports = SensorReports(HOST, (CONTROLLER,), EVERY_S)
    for call in reports.calls(0.0):
        reports.answered(call, call.service == SENSOR, 0.0)
    assert said(reports.calls(0.0)) == [(CONTROLLER, "RegisterHost"), (SENSOR, "Heartbeat")]


def test_of_each_service_that_is_away_it_is_said_once() -> None:
    pytest.importorskip("grpc")
    from holdfast.supervisor.daemon.sensor_link import SensorLink

    lines: list[str] = []
    with socket.socket() as closed:  # nobody listens there
        closed.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        services = GoogleServices(addresses=dict.fromkeys((SENSOR, CONTROLLER, ACTUATOR), nobody), name="n1")
        link = SensorLink(services, "10.0.0.1:60011", lines.append, lambda seen: None)
        for _ in range(3):
            link._make([Call(service=one, method="RegisterHost", data=b"") for one in services.addresses])
    assert [line.split()[1] for line in lines] == ["SensorService", "ControllerService", "ActuatorService"], lines


def test_what_the_table_makes_of_a_rank_s_failure_is_what_is_told() -> None:
    heard = HostTable()
    worker = WorkerInfo(worker_address="localhost:1", state=RUNNING)
    for state in (RUNNING, FAILED):
        message = WorkerInfo(worker_address=worker.worker_address, state=state)
        heard.observe(RpcHeard(peer="a", method="Heartbeat", message=message, at_unix=1.0), 1.0)
    reports = known()
    reports.shows(heard)
    assert "has failed" in reports.calls(1.0)[0].what

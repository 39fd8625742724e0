"""The client with Google's name: what a daemon hears of it, and that no daemon, in whatever state, makes it wait or raise.

Its own HTTP/2 speaks to real gRPC here; that it speaks to Google's own daemon is in test_google_supervisor.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'holdfast[grpc]'")

from kit.hosts.host_service import HostService  # noqa: E402

from holdfast.google import DeviceState, GoogleCloudResiliencyClient, client, install  # noqa: E402

RUNNING, FAILED, COMPLETE = DeviceState.RUNNING, DeviceState.FAILED, DeviceState.COMPLETE


@pytest.fixture
def services() -> Iterator[list[HostService]]:
    """Those that a test has started, which are stopped at its end, as is every connection of the client's."""
    started: list[HostService] = []
    yield started
    for reports in client._shared.values():
        reports.close()
    client._shared.clear()
    for service in started:
        service.close()


@pytest.fixture
def service(services: list[HostService], free_port: int) -> HostService:
    services.append(HostService(free_port))
    return services[0]


def rank(port: int, local_rank: int = 0, **more: Any) -> GoogleCloudResiliencyClient:
    return GoogleCloudResiliencyClient(port + local_rank + 1, port, local_rank, local_rank, **more)


def test_the_workload_is_registered_first_and_the_states_follow(service: HostService, wait_until: Any) -> None:
    worker = rank(service.port, workload_name="train", max_in_job_restarts=2)
    for number, state in enumerate((RUNNING, FAILED, RUNNING, COMPLETE), 1):
        worker.update_state(state)
        wait_until(lambda number=number: len(service.states()) == number)
    assert service.states() == ["RUNNING", "FAILED", "RUNNING", "COMPLETE"] and service.methods[0] == "RegisterWorkload"
    (workload,) = service.workloads()
    assert (workload.workload_name, workload.max_in_job_restarts, workload.workload_downtime_threshold_s) == ("train", 2, 180)


def test_a_failure_is_told_though_a_restart_follows(services: list[HostService], free_port: int, wait_until: Any) -> None:
    worker = rank(free_port)
    for state in (RUNNING, FAILED, RUNNING, RUNNING):
        worker.update_state(state)
    services.append(HostService(free_port))
    wait_until(lambda: services[0].states()[-2:] == ["FAILED", "RUNNING"])


def test_of_a_thousand_states_the_newest_is_told(services: list[HostService], free_port: int, wait_until: Any) -> None:
    worker = rank(free_port)
    for number in range(1000):
        worker.global_rank = number
        worker.send_heartbeat()
    worker.update_state(COMPLETE)
    services.append(HostService(free_port))
    wait_until(lambda: services[0].states() == ["COMPLETE"])
    assert services[0].methods == ["RegisterWorkload", "Heartbeat"]


def test_a_daemon_that_was_restarted_hears_the_workload_again(
    services: list[HostService], service: HostService, wait_until: Any
) -> None:
    worker = rank(service.port, workload_name="train")
    worker.update_state(RUNNING)
    wait_until(lambda: service.states() == ["RUNNING"])
    service.close()
    services.append(HostService(service.port))
    worker.update_state(COMPLETE)
    wait_until(lambda: services[1].states() == ["COMPLETE"])
    assert services[1].methods == ["RegisterWorkload", "Heartbeat"]


def test_the_ranks_of_a_process_share_a_connection_and_a_registration(service: HostService, wait_until: Any) -> None:
    workers = [rank(service.port, number, workload_name="train") for number in range(8)]
    for worker in workers:
        worker.update_state(RUNNING)
    wait_until(lambda: all(service.states(number) == ["RUNNING"] for number in range(8)))
    assert len(service.workloads()) == 1 and len(client._shared) == 1


def hung(port: int) -> socket.socket:
    """Takes connections, and never says a word."""
    return socket.create_server(("127.0.0.1", port))


def test_a_daemon_that_never_answers_is_given_up_and_another_tried(
    services: list[HostService], free_port: int, wait_until: Any
) -> None:
    with hung(free_port) as listener:
        worker = rank(free_port)
        worker.update_state(FAILED)
        reports = client._shared[free_port, ""]
        wait_until(lambda: "no answer" in reports.trouble)
        connection, _ = listener.accept()
        connection.close()
    services.append(HostService(free_port))
    wait_until(lambda: services[0].states() == ["FAILED"] and not reports.trouble)


def test_a_daemon_that_answers_with_errors_is_told_again_once_it_does_not(services: list[HostService], wait_until: Any) -> None:
    services.append(HostService(error=grpc.StatusCode.NOT_FOUND))
    worker = rank(services[0].port)
    worker.update_state(FAILED)
    wait_until(lambda: "error" in client._shared[services[0].port, ""].trouble)
    services[0].error = None
    wait_until(lambda: services[0].states() == ["FAILED"] and not client._shared[services[0].port, ""].trouble)


def test_who_speaks_no_http2_at_that_port_is_no_harm(
    wait_until: Any, services: list[HostService], free_port: int
) -> None:
    with hung(free_port) as listener:
        worker = rank(free_port)
        worker.update_state(RUNNING)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            wait_until(lambda: "HTTP/2" in client._shared[free_port, ""].trouble)


def test_a_caller_never_waits_for_a_daemon_that_hangs(services: list[HostService]) -> None:
    """A call that waited would wait for ever here: nobody answers until the test is over."""
    services.append(HostService(hangs=True))
    worker = rank(services[0].port)
    for _ in range(1000):
        worker.update_state(RUNNING)
    worker.close()


def test_goodbye_is_said_and_a_daemon_that_does_not_know_it_is_asked_once(service: HostService, wait_until: Any) -> None:
    worker = rank(service.port)
    worker.update_state(RUNNING)
    worker.close()
    wait_until(lambda: "Goodbye" in service.methods)
    other = rank(service.port, 1)
    other.update_state(RUNNING)
    wait_until(lambda: service.states(1) == ["RUNNING"])
    assert service.methods.count("Goodbye") == 1


LAST_WORD = """
import sys
from holdfast import google
google.install()
import supervisor
port = int(sys.argv[1])
client = supervisor.GoogleCloudResiliencyClient(port + 1, port, 0, 0)
client.update_state(supervisor.DeviceState.COMPLETE)
"""


def test_the_last_word_of_a_script_is_heard_though_it_ends_at_once(service: HostService, script: Any) -> None:
    subprocess.run([sys.executable, script(LAST_WORD), str(service.port)], check=True, timeout=60)
    assert service.states() == ["COMPLETE"]


FORKS = """
import os, sys
from holdfast.google import DeviceState, GoogleCloudResiliencyClient
port = int(sys.argv[1])
client = GoogleCloudResiliencyClient(port + 1, port, 0, 0)
client.update_state(DeviceState.RUNNING)
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
other = GoogleCloudResiliencyClient(port + 2, port, 1, 1)
other.update_state(DeviceState.RUNNING)
"""


def test_a_forked_child_has_its_own_voice(service: HostService, script: Any) -> None:
    subprocess.run([sys.executable, script(FORKS), str(service.port)], check=True, timeout=60)
    assert (service.states(0), service.states(1)) == (["RUNNING"], ["RUNNING"])


def test_only_states_that_a_worker_can_say_of_itself_are_taken(free_port: int, services: list[HostService]) -> None:
    worker = rank(free_port)
    for state in (DeviceState.SPARE, DeviceState.UNDEFINED, 1, "RUNNING"):
        with pytest.raises(ValueError):
            worker.update_state(state)  # type: ignore[arg-type]
    assert worker.state == DeviceState.UNDEFINED


def test_what_it_is_told_of_worker_and_workload_is_shown_and_taken_over(service: HostService, wait_until: Any) -> None:
    worker = rank(service.port, 3, workload_name="train", job_name="j", max_workload_restarts=7)
    host = os.uname().nodename
    assert (worker.local_rank, worker.global_rank, worker.job_name, worker.max_workload_restarts) == (3, 3, "j", 7)
    assert worker.worker_name.startswith(f"{host}-") and worker.worker_info.worker_address == f"localhost:{service.port + 4}"
    theirs = types.SimpleNamespace(**{name: getattr(worker.export_info(), name) for name in worker.export_info().__fields__})
    theirs.state, theirs.worker_id = FAILED, "00000000:04:00.0"
    worker.update_info(theirs)
    assert (worker.state, worker.worker_id) == (FAILED, "00000000:04:00.0")
    plain = worker.export_workload_info()
    workload = types.SimpleNamespace(**{name: getattr(plain, name) for name in plain.__fields__})
    workload.workload_name = "other"
    worker.update_workload_info(workload)
    wait_until(lambda: [one.workload_name for one in service.workloads()][-1:] == ["other"])


def test_another_supervisor_that_is_there_already_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "supervisor", types.ModuleType("supervisor"))
    with pytest.raises(ImportError, match="another `supervisor`"):
        install()

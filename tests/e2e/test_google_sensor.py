"""What stands where Google's sensor has been: a real process, and a daemon of nobody's.

Google's own daemon: test_google_daemon_to_supervisor.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'holdfast[grpc]'")

from kit.hosts.host_service import HostService  # noqa: E402
from kit.ports import port_of  # noqa: E402

from holdfast.core.wire.google_sensor import ACTUATOR, CONTROLLER, SENSOR, HostNames, host_info, worker_event  # noqa: E402
from holdfast.core.wire.google_wire import FAILED, RUNNING, SPARE, WorkerInfo, WorkloadInfo  # noqa: E402


def test_a_host_is_known_by_its_daemon_s_words_its_daemon_is_called_and_what_cannot_be_read_ends_nothing(
    holdfast: Any, tmp_path: Path, wait_until: Any
) -> None:
    state, token = tmp_path / "fleet", tmp_path / "token"
    holdfast.run("token", "--write", token)
    flags = "--listen", "127.0.0.1:0", "--http", "off", "--state", state, "--token-file", token
    supervisor = holdfast.start("supervisor", *flags)
    where = "--supervisor", f"127.0.0.1:{port_of(supervisor)}", "--supervisor-token-file", token
    sensor = holdfast.start("google-sensor", "--listen", "127.0.0.1:0", *where)
    daemon = HostService()

    def nodes() -> dict[str, tuple[str, list[str]]]:
        told = json.loads(holdfast.run("nodes", "--json", "--state", state).stdout)
        return {one["name"]: (one["state"], [job["job"] for job in one["jobs"] if job["ranks"]]) for one in told}

    def deeds() -> list[tuple[str, str]]:
        told = json.loads(holdfast.run("why", "n1", "--json", "--state", state).stdout)
        return [(deed["trouble"], deed["seen"]) for deed in told["deeds"]]

    def host(state: int) -> bytes:
        worker = WorkerInfo(worker_address="localhost:1", worker_id="gpu3", worker_name="n1-gpu3", global_rank=3, state=state)
        names = HostNames(address=f"127.0.0.1:{daemon.port}", name="n1")
        return host_info(names, state, [worker], WorkloadInfo(workload_name="train"))

    try:
        with grpc.insecure_channel(f"127.0.0.1:{port_of(sensor)}") as channel:

            def say(method: str, data: bytes, service: str = SENSOR) -> None:
                assert channel.unary_unary(f"/{service}/{method}")(data, timeout=30)

            for garbage in (b"", b"\xff", b"\x0a", host(RUNNING)[:-1]):
                say("Heartbeat", garbage)
                say("ReportEvent", garbage)
            for address in ("", "unix:///tmp/socket", "nowhere.invalid:1", f"127.0.0.1:{'9' * 200}"):
                say("Heartbeat", host_info(HostNames(address=address, name=f"at {address}"), SPARE, [], None))
            for service in (SENSOR, CONTROLLER, ACTUATOR):
                say("RegisterHost", host(RUNNING), service)
            say("Heartbeat", host(RUNNING))
            wait_until(lambda: nodes().get("n1") == ("fit", ["train"]), what=nodes)
            wait_until(lambda: "Goodbye" in daemon.methods, what="it is called to see that it is there")
            say("ReportEvent", worker_event("Worker n1-gpu3 failed", "gpu3", host(FAILED)))
            wait_until(lambda: deeds() == [("worker", "rank 3 (localhost:1) of train has failed")], what=deeds)
    finally:
        daemon.close()

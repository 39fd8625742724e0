"""Google's own sensor, controller, actuator and host daemons on loopback, run by a Python that has its package.

    google_stack.py POLL_S TIMEOUT_S PATIENCE_S FIRST_PORT

Three hosts with a worker each; at one moment the first worker says FAILED, the second falls silent, and the third one's
daemon is killed. One line of JSON: seconds from there until the controller hands each to its policy, which does nothing here:
what it would call Kubernetes for comes on top. null: not within PATIENCE_S.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import supervisor_core as core

HOSTS = "failed", "silent", "dead"


def ready(*components: object) -> None:
    """Until all of them serve."""
    while not all(one.is_ready() for one in components):
        time.sleep(0.01)


def config(poll_s: int, timeout_s: int, first: int) -> core.SupervisorConfig:
    """Actuator, sensor and controller are at the first three ports."""
    made = core.SupervisorConfig(*(f"localhost:{first + number}" for number in range(3)), "default", poll_s, timeout_s)
    made.actuator_address, made.sensor_address, made.controller_address = (f"localhost:{first + each}" for each in range(3))
    return made


def brain(settings: core.SupervisorConfig, first: int) -> None:
    """Sensor, controller and actuator, in one process. Each event is a line: its moment, kind and host."""

    def events(reports: core.EventReports) -> None:
        for report in reports.event_reports:
            print(time.monotonic(), report.event_type.name, report.host_info.host_name, flush=True)

    nothing = {"command_handle_fn": lambda command: None, "update_handle_fn": lambda state: None}
    actuator = core.Actuator(port=first, num_grpc_threads=4, config=settings)
    sensor = core.Sensor(port=first + 1, num_grpc_threads=4, config=settings)
    controller = core.Controller(port=first + 2, num_grpc_threads=4, config=settings, event_handle_fn=events, **nothing)
    for component in (actuator, controller, sensor):
        component.start()
    ready(actuator, controller, sensor)
    print("ready", flush=True)
    sys.stdin.read()


def host(settings: core.SupervisorConfig, port: int, name: str) -> None:
    """A host's daemon; its Python wrapper would ask the metadata server of Google's cloud."""
    info = core.HostInfo()
    info.host_address, info.host_name, info.host_id, info.host_serial_number = f"localhost:{port}", name, name, name
    daemon = core.Host(port=port, num_grpc_threads=2, num_workers_per_host=1, host_info=info, config=settings)
    daemon.start_server()
    ready(daemon)
    daemon.start_heartbeat()
    print("ready", flush=True)
    sys.stdin.read()


def child(*role: object) -> subprocess.Popen[str]:
    """This script again, in another role, once it is ready."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    process = subprocess.Popen([sys.executable, __file__, *sys.argv[1:5], *map(str, role)], **pipes)
    while process.stdout.readline().strip() != "ready":
        if process.poll() is not None:
            raise SystemExit(f"Google's {role[0]} has ended with {process.returncode}")
    return process


def faults(poll_s: int, patience_s: float, first: int) -> dict[str, float | None]:
    """Start all, break three things, and read what the controller hears."""
    import threading

    centre = child("brain")
    daemons = [child("host", first + 10 * (number + 1), name) for number, name in enumerate(HOSTS)]
    clients = []
    for number, name in enumerate(HOSTS):
        port = first + 10 * (number + 1)
        info = core.WorkerInfo(worker_address=f"localhost:{port + 1}", worker_id=name, worker_name=name)
        info.global_rank, info.state = number, core.DeviceState.RUNNING
        clients.append((core.Worker(worker_info=info, host_address=f"localhost:{port}"), info))
    told: dict[str, float] = {}
    began = [float("inf")]

    def hear() -> None:
        for line in centre.stdout:
            at, _, name = line.split(" ", 2)
            if float(at) > began[0]:
                told.setdefault(name.strip(), float(at) - began[0])

    threading.Thread(target=hear, daemon=True).start()
    quiet_until = time.monotonic() + 3 * poll_s + 1  # all have been heard, and a poll of everything has passed
    while time.monotonic() < quiet_until:
        for client, info in clients:
            client.send_heartbeat(info)
        time.sleep(0.5)
    daemons[2].kill()
    began[0] = time.monotonic()
    failed, info = clients[0]
    info.state = core.DeviceState.FAILED
    failed.send_heartbeat(info)
    while len(told) < len(HOSTS) and time.monotonic() < began[0] + patience_s:
        time.sleep(0.05)
    for process in (centre, *daemons):
        process.kill()
    return {name: told.get(name) for name in HOSTS}


poll, timeout, patience, base = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
match sys.argv[5:]:
    case ["brain"]:
        brain(config(poll, timeout, base), base)
    case ["host", port, name]:
        host(config(poll, timeout, base), int(port), name)
    case _:
        print(json.dumps(faults(poll, patience, base)), flush=True)

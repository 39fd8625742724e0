"""Google's own sensor, controller and actuator, for tests: run by a Python that has google-cloud-resiliency-supervisor.

    python google_brain.py SENSOR_PORT CONTROLLER_PORT ACTUATOR_PORT

Each line of stdin is answered by a line: `events`, those that the controller has handed to its policy, as JSON; `hosts`, how
many run and how many are spare, once all three say the same; `reset HOST` and `cordon HOST` have the controller do that.
"""

from __future__ import annotations

import json
import sys
import time

import supervisor_core as core

PERIOD_S, TIMEOUT_S = 1, 5  # whole seconds: its floor

events: list[tuple[str, str, str]] = []
hosts: dict[str, core.HostInfo] = {}


def heard(reports: core.EventReports) -> None:
    """In the place of Google's policy, which would call Kubernetes."""
    for one in reports.event_reports:
        hosts[one.host_info.host_name] = one.host_info
        events.append((one.event_type.name, one.host_info.host_name, one.host_info.workload.workload_name))


def main(sensor_port: int, controller_port: int, actuator_port: int) -> None:
    """Serve until stdin ends."""
    settings = core.SupervisorConfig("", "", "", "default", PERIOD_S, TIMEOUT_S)
    settings.sensor_address, settings.controller_address = f"localhost:{sensor_port}", f"localhost:{controller_port}"
    settings.actuator_address = f"localhost:{actuator_port}"
    nothing = {"command_handle_fn": lambda command: None, "update_handle_fn": lambda state: None}
    actuator = core.Actuator(port=actuator_port, num_grpc_threads=4, config=settings)
    sensor = core.Sensor(port=sensor_port, num_grpc_threads=4, config=settings)
    controller = core.Controller(controller_port, 4, settings, event_handle_fn=heard, **nothing)
    for part in (actuator, controller, sensor):
        part.start()
    while not all(part.is_ready() for part in (actuator, controller, sensor)):
        time.sleep(0.01)
    print("ready", flush=True)
    for line in sys.stdin:
        what, _, name = line.strip().partition(" ")
        if what == "events":
            print(json.dumps(events), flush=True)
        elif what == "hosts":
            known = {(part.num_running_hosts(), part.num_spare_hosts()) for part in (sensor, controller, actuator)}
            print(*known.pop() if len(known) == 1 else ["they differ"], flush=True)
        else:
            if what == "cordon":
                controller.trigger_cordon_host(name)
            else:
                controller.trigger_in_job_reset(hosts[name])
            print("done", flush=True)


main(*map(int, sys.argv[1:4]))

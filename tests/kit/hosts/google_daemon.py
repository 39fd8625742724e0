"""Google's own host daemon, for tests: run by a Python that has google-cloud-resiliency-supervisor, and not by ours.

    python google_daemon.py PORT SENSOR_PORT

The C++ object is run directly: its Python wrapper asks the metadata server of Google's cloud. Each line of stdin is answered
by one of JSON: the workers that it knows. `xid 79`: its watchdog has seen that in the kernel's log, of the second GPU.
"""

from __future__ import annotations

import json
import os
import sys

import supervisor_core as core


def main(port: int, sensor_port: int) -> None:
    """Serve until stdin ends."""
    nowhere = f"127.0.0.1:{sensor_port}"
    config = core.SupervisorConfig(nowhere, nowhere, nowhere, "default", 1, 5)
    info = core.HostInfo()
    info.host_address, info.host_name, info.host_id = f"127.0.0.1:{port}", os.uname().nodename, "id"
    host = core.Host(port, 4, 2, info, config)
    host.start_server()
    host.start_heartbeat()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.startswith("xid"):
            host.report_event(seen(int(line.split()[1])))
        print(json.dumps([shown(worker) for worker in host.export_info().workers]), flush=True)


def seen(xid: int) -> core.EventReports:
    """What its watchdog makes of a line of the driver's."""
    report = core.EventReport()
    report.event_type, report.xid_code, report.device_id = core.EventType.XID, xid, "00000000:01:00.0"
    report.message = f"NVRM: Xid (PCI:0000:01:00): {xid}"
    reports = core.EventReports()
    reports.event_reports = [report]
    return reports


def shown(worker: core.WorkerInfo) -> dict[str, object]:
    """A worker as the daemon has it."""
    fields = {name: getattr(worker, name) for name in ("worker_address", "worker_name", "local_rank", "global_rank")}
    return {**fields, "state": worker.state.name}


main(int(sys.argv[1]), int(sys.argv[2]))

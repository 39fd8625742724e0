"""A script that imports NVRx itself, and not our names for it, is watched and heard all the same. The real NVRx."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(200)]

PATIENCE_S = 150.0
"""NVRx imports torch."""


@pytest.fixture(autouse=True)
def nvrx() -> None:
    pytest.importorskip("nvidia_resiliency_ext", reason="there is no NVRx: make nvrx")


TELLS = """
import os, sys, time
from nvidia_resiliency_ext import fault_tolerance as ft
from nvidia_resiliency_ext.fault_tolerance import RankMonitorClientError

client = ft.RankMonitorClient()
try:
    client.send_heartbeat()
except RankMonitorClientError:
    pass
client.init_workload_monitoring()
assert client.section_timeouts.section == {"step": 1.0} and not client.hb_timeouts.are_valid, client.section_timeouts
for step in range(3):
    client.send_heartbeat()
    client.start_section("step")
    if step == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(600)
    client.end_section("step")
assert client.state_dict() == {"current_timeouts": {}}
client.shutdown_workload_monitoring()
print("done")
"""


def test_what_its_client_says_is_heard_and_a_hang_found(holdfast: Any, script: Any) -> None:
    options = ("--max-restarts", 1, "--ft-rank-section-timeouts", "step:1")
    done = holdfast("ft_launcher", *options, script(TELLS), timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.output
    (hung,) = holdfast.events("RankHung")
    assert re.match(r"in section step for [1-9]\d*\.\d s \(limit 1 s", hung["reason"]), hung


ASKS = """
import sys
from nvidia_resiliency_ext import fault_tolerance as ft

client = ft.RankMonitorClient()
client.init_workload_monitoring()
client.send_workload_control_request(ft.WorkloadControlRequest(ft.WorkloadAction.ShutdownWorkload, "the loss is not a number"))
sys.exit(7)
"""


def test_what_it_asks_for_is_done(holdfast: Any, script: Any) -> None:
    done = holdfast("ft_launcher", "--max-restarts", 3, script(ASKS), timeout=PATIENCE_S)
    assert done.returncode == 1
    (decided,) = holdfast.events("Decided")
    assert decided["decision"] == "stop" and "asked to stop the job: the loss is not a number" in decided["reason"]


OWN = """
import os, tempfile
from nvidia_resiliency_ext import fault_tolerance as ft

if __name__ == "__main__":
    path = os.environ["FT_RANK_MONITOR_IPC_SOCKET"] = tempfile.mkdtemp() + "/socket"
    monitor = ft.RankMonitorServer.run_in_subprocess(ft.FaultToleranceConfig(rank_heartbeat_timeout=123.0), path)
    client = ft.RankMonitorClient()
    client.init_workload_monitoring()
    client.send_heartbeat()
    print(client.cfg.rank_heartbeat_timeout, type(client).__module__)
    client.shutdown_workload_monitoring()
    monitor.terminate()
    monitor.join()
"""


def test_a_script_with_a_monitor_of_its_own_talks_to_that(holdfast: Any, script: Any) -> None:
    done = holdfast("run", script(OWN), timeout=PATIENCE_S)
    assert done.stdout == "123.0 nvidia_resiliency_ext.fault_tolerance.rank_monitor_client\n", done.output

"""A rank beside a standalone RankMonitorServer of the package named, or the same that hangs. Prints what it measured, as JSON.

usage: nvrx_rank.py PACKAGE calls|hang LIMIT_S
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time

BATCHES, CALLS = 30, 100


def each_us(act) -> float:
    """Microseconds per call, the median of batches."""
    taken = []
    for _ in range(BATCHES):
        begun = time.perf_counter()
        for _ in range(CALLS):
            act()
        taken.append((time.perf_counter() - begun) / CALLS)
    return 1e6 * sorted(taken)[BATCHES // 2]


def calls(ft, server) -> dict[str, float]:
    """What a call costs, and the server's own memory meanwhile."""
    client = ft.RankMonitorClient()
    client.init_workload_monitoring()

    def section() -> None:
        client.start_section("step")
        client.end_section("step")

    result = {"heartbeat_us": each_us(client.send_heartbeat), "section_us": each_us(section)}
    with open(f"/proc/{server.pid}/smaps_rollup") as file:
        fields = {words[0]: int(words[1]) for words in map(str.split, file) if len(words) > 1 and words[1].isdigit()}
    client.shutdown_workload_monitoring()
    return result | {"server_mb": (fields["Private_Clean:"] + fields["Private_Dirty:"]) / 1024}


def hang(ft, limit_s: float) -> dict[str, float]:
    """How long after its limit a rank, a child of ours, is killed."""
    read_end, write_end = os.pipe()
    rank = os.fork()
    if rank == 0:
        client = ft.RankMonitorClient()
        client.init_workload_monitoring()
        client.send_heartbeat()
        os.write(write_end, json.dumps(time.monotonic()).encode() + b"\n")
        time.sleep(3600)
    beat_at = json.loads(os.read(read_end, 100))
    os.waitpid(rank, 0)
    return {"late_ms": 1000 * (time.monotonic() - beat_at - limit_s)}


def main() -> None:
    package, what, limit_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
    ft = importlib.import_module(package)
    with tempfile.TemporaryDirectory() as folder:
        path = os.environ["FT_RANK_MONITOR_IPC_SOCKET"] = f"{folder}/monitor"
        limits = {} if what == "calls" else {"rank_heartbeat_timeout": limit_s}
        config = ft.FaultToleranceConfig(rank_section_timeouts={"step": None}, rank_termination_signal=signal.SIGKILL, **limits)
        # spawn, since a fork would carry our modules into the server.
        context = multiprocessing.get_context("spawn")
        server = ft.RankMonitorServer.run_in_subprocess(config, path, False, context)
        try:
            result = calls(ft, server) if what == "calls" else hang(ft, limit_s)
        finally:
            server.terminate()
            server.join()
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""Does a rank that keeps to its limits live, under ft_launcher? 200 real ranks, each in a phase of its own.

Ranks begin to be monitored before, at and long after the initial limit, counted from their start, and give signs of life at
every part of their limit that leaves a busy host some time. The races between two words of a page are played in
`unit/test_healthy_ranks.py`.
"""

from __future__ import annotations

import json

import pytest

JOBS, RANKS = 10, 20
LIMIT_S = 1.5
SCRIPT = """
import json, os, sys, time
from holdfast.fault_tolerance import RankMonitorClient
delay_s, every_s, way = json.loads(sys.argv[1])[int(os.environ["RANK"])]
time.sleep(delay_s)
client = RankMonitorClient()
client.init_workload_monitoring()
ends = time.monotonic() + 3 * float(sys.argv[2])
while time.monotonic() < ends:
    if way != "beats":
        client.start_section("step")
    time.sleep(every_s)
    if way != "beats":
        client.end_section("step")
    client.send_heartbeat()
    if way == "calculates" and client.timeouts_calc.can_get_hb_timeouts():
        client.load_state_dict({"current_timeouts": {"heartbeat": {
            "initial": float(sys.argv[2]), "subsequent": float(sys.argv[2]), "were_calculated": True}}})
    if way == "again":
        client.shutdown_workload_monitoring()
        time.sleep(every_s)
        client.init_workload_monitoring()
client.shutdown_workload_monitoring()
"""
WAYS = "beats", "sections", "calculates", "again"


@pytest.mark.parametrize("job", range(JOBS))
def test_of_ranks_in_all_phases_of_start_beat_and_limit_none_is_killed(holdfast, script, job):
    phases = []
    for rank in range(RANKS):
        phase = (job * RANKS + rank) / (JOBS * RANKS)
        phases.append((2.5 * LIMIT_S * phase, LIMIT_S * (0.05 + 0.45 * (phase * 37 % 1)), WAYS[rank % len(WAYS)]))
    limits = "--ft-initial-rank-heartbeat-timeout", LIMIT_S, "--ft-rank-heartbeat-timeout", LIMIT_S
    sections = "--ft-rank-section-timeouts", f"step:{LIMIT_S}", "--ft-rank-out-of-section-timeout", LIMIT_S
    words = "--nproc-per-node", RANKS, "--max-restarts", 0, *limits, *sections, script(SCRIPT), json.dumps(phases), LIMIT_S
    done = holdfast.run("ft_launcher", *words, timeout=120)
    assert not holdfast.events("RankHung")
    assert done.returncode == 0, done.output

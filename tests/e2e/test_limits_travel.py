"""Does a job carry the limits that its script has calculated? Real agents and ranks, a node that is killed, a spare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kit.jobs.ranks import WAITS, Cluster
from kit.jobs.succession import begin, lose

pytestmark = [pytest.mark.torch, pytest.mark.timeout(200)]

CALCULATES = """
import json, os, sys, time
from holdfast import fault_tolerance as ft

client = ft.RankMonitorClient()
client.init_workload_monitoring()
if os.environ["HOLDFAST_ROUND"] == "1":
    import torch.distributed as dist
    dist.init_process_group("gloo")
    for _ in range(2):
        client.send_heartbeat()
        client.start_section("step")
        time.sleep(0.01 * dist.get_rank())
        client.end_section("step")
    client.calculate_and_set_hb_timeouts()
    client.calculate_and_set_section_timeouts()
    dist.barrier()
    dist.destroy_process_group()  # gloo's threads would abort a rank whose peer is killed
with open(f"{sys.argv[1]}/limits.{os.environ['RANK']}.{os.environ['HOLDFAST_ROUND']}", "w") as file:
    json.dump(client.state_dict(), file)
"""
"""In the first round. In later ones it tells what it knows from the start."""


@pytest.fixture
def job(holdfast: Any, free_port: int, tmp_path: Path, script: Any, wait_until: Any) -> Cluster:
    return Cluster(holdfast, free_port, tmp_path / "ranks", script(CALCULATES + WAITS), wait_until)


def known(job: Cluster, rank: int, round: int) -> dict[str, float]:
    """The limits that were calculated, as far as that rank knew, once it runs."""
    job.rank(rank, 0, round)
    state = json.loads((job.folder / f"limits.{rank}.{round}").read_text())["current_timeouts"]
    beats, sections = state["heartbeat"], state["section"]
    assert beats["were_calculated"] and sections["is_out_of_section_calculated"]
    inside = {name: sections["section"][name] for name in sections["calculated_sections"]}
    return {"first": beats["initial"], "beat": beats["subsequent"], "out": sections["out_of_section"], **inside}


@pytest.mark.parametrize("hosting", [True, False], ids=["the coordinator's node", "another node"])
def test_a_spare_that_takes_a_killed_nodes_place_begins_with_the_limits_that_were_calculated(
    job: Cluster, hosting: bool
) -> None:
    agents = begin(job, "abc", "2", "--ft-rank-section-timeouts", "step:60")
    (lost,) = [event["node"] for event in job.started(2) if (event["node"] == "a") == hosting]
    calculated = known(job, 0, 1)
    assert calculated.keys() == {"first", "beat", "out", "step"} and known(job, 1, 1) == calculated
    told = lambda: [event["limits_s"].keys() for event in job.holdfast.events("LimitsCalculated")]
    job.wait_until(lambda: {"first", "beat", "out", "section step"} in told(), what="the coordinator's record of them")
    lose(job, agents, lost)
    assert [known(job, rank, 2) for rank in range(2)] == [pytest.approx(calculated)] * 2
    job.finish()
    assert [agent.wait().returncode for name, agent in agents.items() if name != lost] == [0, 0]
    assert {event["node"] for event in job.started(4) if event["round"] == 2} == {"a", "b", "c"} - {lost}

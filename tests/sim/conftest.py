"""`start`: a simulated job whose scripts do what a story wants."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from kit.stages.stories import Acts, Start

from holdfast.sim.cluster import Cluster, Job
from holdfast.sim.world import Clock, Life


@pytest.fixture
def start() -> Start:
    """`start("ab", acts={...}, **job)`: agents at places a (it hosts) and b, one worker each, running for a second already."""

    def begin(
        places: str,
        acts: Mapping[tuple[int, int], Life] | None = None,
        *,
        runs_s: float = 20.0,
        clocks: Mapping[str, Clock] | None = None,
        **job: object,
    ) -> Cluster:
        given = {"nproc": 1, "min_nodes": len(places), "max_nodes": len(places), **job}
        cluster = Cluster(Job(**given), script=Acts(acts or {}, Life(runs_s=runs_s)), clocks=clocks)  # type: ignore[arg-type]
        for number, place in enumerate(places):
            cluster.start(place, host=number == 0, rank=number if job.get("ranks_given") else None)
        cluster.run(1.0)
        return cluster

    return begin

"""A job forms where its endpoint's port is another program's at first, or again after a loss: its agents try again."""

from __future__ import annotations

import pytest
from kit.stages.stories import rounds

from holdfast.sim.cluster import Cluster, Job
from holdfast.sim.network import ENDPOINT, SimLinks
from holdfast.sim.world import Life

PORT_S = 4.0  # Seconds for which the port is another's.


def cluster_of(**job: object) -> Cluster:
    given = {"nproc": 1, "min_nodes": 2, "max_nodes": 2, "max_restarts": 0, **job}
    return Cluster(Job(**given), script=lambda place, env: Life(runs_s=20.0))  # type: ignore[arg-type]


def take_port(cluster: Cluster, place: str) -> SimLinks:
    """A program there that says nothing has the endpoint's port."""
    stranger = SimLinks(cluster.ether, cluster.agents[place].world if place in cluster.agents else None, place, lambda: False)  # type: ignore[arg-type]
    stranger.silent = True
    cluster.ether.serving[ENDPOINT] = stranger
    return stranger


@pytest.mark.parametrize("job", [{}, {"ranks_given": True}], ids=["chosen", "given"])
def test_a_port_that_is_another_s_at_the_start_is_served_when_it_is_free(job: dict[str, object]) -> None:
    cluster = cluster_of(**job)
    stranger = take_port(cluster, "a")
    for rank, place in enumerate("ab"):
        cluster.start(place, host=place == "a", rank=rank if job else None)
    cluster.run(PORT_S)
    stranger.close()
    cluster.finish()
    assert rounds(cluster, "a") == ["ab"] and cluster.codes == {"a": 0, "b": 0}


def test_a_port_that_another_takes_after_a_loss_is_served_when_it_is_free_and_the_job_goes_on() -> None:
    cluster = cluster_of()
    for place in "ab":
        cluster.start(place, host=place == "a")
    cluster.run(5.0)
    cluster.kill_agent("a")
    stranger = take_port(cluster, "a")
    cluster.start("a", host=True)
    cluster.run(PORT_S)
    stranger.close()
    cluster.finish()
    assert [sorted(one) for one in rounds(cluster, "b")] == [["a", "b"]] * 2 and cluster.codes == {"a": 0, "b": 0}

"""Simulated jobs whose nodes choose who leads them, and what their nodes have recorded of that."""

from __future__ import annotations

from kit.stages import stories

from holdfast.agent.leader.peer_elected_node import PeerElectedNode
from holdfast.sim.cluster import Cluster, Job
from holdfast.sim.world import Clock, Life


def begin(
    places: str,
    *,
    runs_s: float = 30.0,
    clocks: dict[str, Clock] | None = None,
    deaf: str = "",
    until: str = "",
    **job: object,
) -> Cluster:
    """Agents at these places (the first hosts), one worker each (at those in `deaf` they ignore SIGTERM), that have run for
    three seconds, or those in `until` for none yet."""
    given = {"nproc": 1, "min_nodes": 1, "max_nodes": len(places), "max_restarts": 0, **job}
    lives = {place: Life(runs_s=runs_s, on_sigterm=None) for place in deaf}
    script = lambda place, env: lives.get(place, Life(runs_s=runs_s))
    cluster = Cluster(Job(**given), script=script, clocks=clocks)  # type: ignore[arg-type]
    for number, place in enumerate(places):
        cluster.start(place, host=number == 0)
    while until and not all(cluster.agents[place].world.live for place in until):
        assert cluster.timeline.step(3.0)
    if not until:
        cluster.run(3.0)
    return cluster


def rounds(cluster: Cluster, place: str) -> list[str]:
    """The nodes of each round that a place was in, in alphabetical order."""
    return ["".join(sorted(nodes)) for nodes in stories.rounds(cluster, place)]


def leaders(cluster: Cluster) -> list[str]:
    """Who took over, in order."""
    return [place for _, place, what in cluster.transcript.entries if "this agent leads the job now" in str(what)]


def holds_a_roster(cluster: Cluster, place: str) -> bool:
    node = cluster.agents[place].node
    assert isinstance(node, PeerElectedNode)
    return node.election.roster is not None


def said(cluster: Cluster, place: str, words: str) -> bool:
    return any(place == where and words in str(what) for _, where, what in cluster.transcript.entries)

"""What becomes of a job whose hosts have clocks that are set, slow disks, and links whose last words come late and twice?"""

from __future__ import annotations

import pytest
from kit.stages.stories import FAILS, Start, decisions, formed_at, recorded, rounds, told

from holdfast.core.job.events import NodeLost
from holdfast.core.wire.links import Arrived
from holdfast.core.wire.messages import Assigned, Stopped
from holdfast.sim.cluster import Cluster


@pytest.mark.parametrize("by_s", [-3600.0, 1e6])
@pytest.mark.parametrize("place", ["a", "b"])
def test_a_wall_clock_that_is_set_costs_nothing(start: Start, place: str, by_s: float) -> None:
    cluster = start("ab")
    cluster.step_clock(place, by_s)
    assert cluster.agents[place].world.unix() - cluster.timeline.now - 1_700_000_000.0 == pytest.approx(by_s)
    cluster.finish()
    assert rounds(cluster) == ["ab"] and decisions(cluster) == ["finish"]


def heard(cluster: Cluster, place: str) -> list[object]:
    """Everything that comes over the links of a place, from now on."""
    messages: list[object] = []
    host = cluster.agents[place].world
    see = host.see

    def listen(seen: object) -> None:
        if isinstance(seen, Arrived):
            messages.append(seen.message)
        see(seen)

    host.see = listen  # type: ignore[method-assign, assignment]
    return messages


def test_what_was_said_over_a_link_that_broke_comes_twice_and_out_of_order_and_costs_nothing(start: Start) -> None:
    cluster = start("ab", {(0, 0): FAILS})
    cluster.run(4.9)
    messages = heard(cluster, "a")
    cluster.let_stray("b", lag_s=0.3, late_s=1.5)
    cluster.finish()
    stopped = [message for message in messages if isinstance(message, Stopped) and message.round == 1]
    assert len(stopped) == 2, "it has come over either link"
    assert messages.index(stopped[0]) + 1 < messages.index(stopped[1]), "the second after newer words"
    assert rounds(cluster) == ["ab", "ab"] and decisions(cluster) == ["restart", "finish"]
    assert formed_at(cluster)[1] < 6.5, "nobody has waited for the late ones"


def test_log_files_that_take_longer_than_a_lease_cost_no_membership_and_delay_the_workers_little(start: Start) -> None:
    cluster = start("a", min_nodes=1, max_nodes=2, grow="at-once", runs_s=40.0)
    cluster.start("b")
    while not any(isinstance(message, Assigned) for message in [cluster.agents["b"].node.group.assigned]):
        cluster.rng.uniform = lambda low, high: high  # type: ignore[method-assign]
        cluster.slow_disk("b", 20.0)
        cluster.run_for(0.001)
    cluster.finish()
    assert not recorded(cluster, NodeLost) and "guardian" not in told(cluster)
    assert rounds(cluster)[-1] == "ab" and decisions(cluster) == ["finish"]


def test_a_disk_that_is_slow_at_every_write_costs_no_membership(start: Start) -> None:
    cluster = start("ab", {(0, 0): FAILS})
    for place in "ab":
        cluster.slow_disk(place, 0.5)
    cluster.finish()
    assert rounds(cluster) == ["ab", "ab"] and decisions(cluster) == ["restart", "finish"]

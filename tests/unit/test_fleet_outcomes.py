"""What came of what was done: the supervisor's record is closed, in whatever order the news arrives."""

from __future__ import annotations

import pytest

from holdfast.core.wire.fleet import FleetMessage, Standing, Trouble
from holdfast.supervisor.fleet.machine import Fleet
from holdfast.supervisor.fleet.messages import Said
from holdfast.supervisor.fleet.policies import policy

LEASE_S = 2.0


def standing(node: str, number: int, round: int) -> Standing:
    return Standing(node=f"{node}-1", number=number, name=node, job="train", life="1", state="running", round=round)


TROUBLE = Trouble(node="a-1", number=2, kind="worker", round=1, rank=0, what="rank 0 was killed by SIGKILL")
"""Of node a, before it says that it runs in round 2."""


@pytest.mark.parametrize(
    "news",
    [
        (TROUBLE, standing("a", 3, 2), standing("b", 2, 2)),
        (standing("b", 2, 2), TROUBLE, standing("a", 3, 2)),
    ],
    ids=["the trouble first", "another node's next round first"],
)
def test_a_restart_that_the_job_did_itself_is_its_own_outcome(news: tuple[FleetMessage, ...]) -> None:
    fleet = Fleet(policy("default"), generation=1, lease_s=LEASE_S, now=0.0, now_unix=1000.0)
    for message in (standing("a", 1, 1), standing("b", 1, 1)):
        fleet.observe(Said(message=message), 0.5)
    for at, message in enumerate(news):
        fleet.observe(Said(message=message), LEASE_S + 0.1 + at / 100)
    (deed,) = fleet.state.action_log.deeds.values()
    assert (deed.act, deed.outcome) == ("restart-workers", "round 2 runs")

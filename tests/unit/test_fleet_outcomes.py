"""What came of what was done: the supervisor's record is closed, in whatever order the news arrives."""

from __future__ import annotations

import pytest

from holdfast.core.value import replace
from holdfast.core.wire.fleet import Bye, Deed, FleetMessage, RankSaid, Standing, Trouble
from holdfast.supervisor.fleet.machine import Fleet
from holdfast.supervisor.fleet.messages import Call, Called, Said
from holdfast.supervisor.fleet.policies import policy
from holdfast.supervisor.fleet.policies.case import Standby
from holdfast.supervisor.fleet.state import Gives, Kept

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


def test_a_node_that_its_job_needs_is_waited_for_until_the_job_has_ended() -> None:
    """A reporter says first that it has ended, and then goodbye."""
    fleet = Fleet(policy("default"), generation=1, lease_s=LEASE_S, now=0.0, now_unix=1000.0)
    host = replace(standing("a", 1, 1), is_watcher=True, ranks=(RankSaid(rank=0, local_rank=0, state="running"),))
    fleet.observe(Said(message=host), 0.1)
    broken = replace(TROUBLE, kind="device", xid=79, device="gpu0", what="Xid 79")
    tasks = [one.task for one in fleet.observe(Said(message=broken), LEASE_S + 0.1) if isinstance(one, Call)]
    while tasks:
        called = Called(task=tasks.pop(), ok=True, text="done")
        tasks += [one.task for one in fleet.observe(called, LEASE_S + 0.2) if isinstance(one, Call)]
    (deed,) = fleet.state.action_log.deeds.values()
    assert (deed.act, deed.outcome) == ("replace", "")
    fleet.observe(Said(message=replace(host, number=3, state="ended")), LEASE_S + 0.3)
    fleet.observe(Said(message=Bye(node="a-1", reason="no rank is left")), LEASE_S + 0.3)
    (deed,) = fleet.state.action_log.deeds.values()
    assert (deed.outcome, fleet.state.nodes["a"].state) == ("its job has ended", "unfit")


def test_how_long_the_orchestrator_takes_is_learned_of_those_nodes_that_came_unless_it_was_said() -> None:
    def known(*took: tuple[str, float, str], gives: Gives | None = None) -> Standby | None:
        deeds = tuple(
            Deed(id=f"1-{number}", at_unix=number, ended_at_unix=number + seconds, node="a", job="train", trouble="lost",
                 seen="", policy="default", act="replace", reason="", outcome=outcome, done=(note,))
            for number, (outcome, seconds, note) in enumerate(took)
        )  # fmt: skip
        kept = Kept(deeds=deeds)
        fleet = Fleet(policy("default"), generation=2, lease_s=LEASE_S, now=0.0, now_unix=1000.0, kept=kept, gives=gives)
        return fleet.state.standby()

    came = [("c has taken over in round 2", 20.0, ""), ("the job goes on with 2 nodes in round 2", 41.5, "")]
    others = [("its job has ended", 900.0, ""), ("a is back: …", 1.0, ""), ("the job goes on with 1 node", 90.0, "await: none")]
    assert known(*came, *others) is None, "two are too few"
    learned = known(*came, *others, came[0])
    assert learned == Standby(within_s=42.0, by="as long as the longest of the last 3 took")
    said = known(*came, came[0], gives=Gives(within_s=5.0, evicts=True))
    assert said == Standby(within_s=5.0, by="as the operator has said", evicts=True)
    slow = ("c has taken over in round 2", 500.0, "")
    assert known(slow, *[came[0]] * 5) == Standby(within_s=20.0, by="as long as the longest of the last 5 took")

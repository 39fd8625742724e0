"""How much can be invented by who knows the supervisor's token? Names and texts up to a bound, and who is here stays known."""

from __future__ import annotations

from typing import Any

import pytest
from kit.fleet.hall import NOW, Hall, standing

from holdfast.agent.reporting.supervisor_link import MEMBERS
from holdfast.core.errors import ProtocolError
from holdfast.core.machine import Action, Tick
from holdfast.core.wire.fleet import Act, Alive, Did, FleetMessage, Heard, Heed, NodeKept, RankSaid, Repair, RepairStep, Trouble
from holdfast.core.wire.links import LinkDown, Transmit
from holdfast.runtime.net.codec import STANDING_BYTES, decode, encode
from holdfast.supervisor.change_log import MOST, ChangeLog
from holdfast.supervisor.fleet import state
from holdfast.supervisor.fleet.messages import Asked, Call, Called, Keep, Wish
from holdfast.supervisor.fleet.reporting import forgetting
from holdfast.supervisor.fleet.state import Kept, Most, RepairRules

FEW = 16


@pytest.fixture
def hall() -> Hall:
    """It remembers few names. a and b are here, c was drained and has gone, d has gone."""
    hall = Hall()
    hall.fleet.state.most_nodes, hall.fleet.state.most_jobs = Most(FEW), Most(FEW)
    for name in ("a", "b", "c", "d"):
        hall.link(standing(name))
    hall.see(Asked(ask=1, wish=Wish.DRAIN, node="c", reason="its fan"), NOW)
    for name in ("c", "d"):
        gone(hall, hall.connections.links[f"{name}-1"])
    return hall


def gone(hall: Hall, link: int) -> None:
    hall.see(LinkDown(link=link, reason="gone"), NOW)


def invented(hall: Hall, count: int = 20 * FEW, **how: Any) -> None:
    """One name after the other, over one link at a time."""
    for number in range(count):
        gone(hall, hall.link(standing(f"x{number}", job=f"y{number}", **how)))


def test_invented_names_are_forgotten_in_memory_and_on_disk_and_those_that_are_here_or_held_are_not(hall):
    invented(hall)
    fleet = hall.fleet.state
    assert {"a", "b", "c"} <= set(fleet.nodes) and "train" in fleet.jobs
    assert len(fleet.nodes) <= FEW + 1 and len(fleet.jobs) <= FEW + 1 and len(fleet.reporters) <= FEW + 4
    assert set(hall.of("nodes")) == set(fleet.nodes) and set(hall.of("jobs")) == set(fleet.jobs)
    assert set(hall.killed().fleet.state.nodes) == set(fleet.nodes)


def test_a_node_that_is_being_repaired_is_not_forgotten():
    tried = Repair(act=Act.PROBATION, step=RepairStep.PROBATION, id="1-1", waits="its scheduler")
    hall = Hall(Kept(nodes=(NodeKept(name="r", state="lost", standing="fit", reason="", repair=tried),)))
    hall.fleet.state.most_nodes = Most(FEW)
    invented(hall)
    assert "r" in hall.fleet.state.nodes and len(hall.fleet.state.nodes) <= FEW + 1
    hall.see(Tick(), NOW + 100.0)
    hall.see(Tick(), NOW + 100.5)


def test_nodes_in_repair_that_are_not_here_are_kept_up_to_a_number_those_first_of_which_something_has_begun(monkeypatch):
    monkeypatch.setattr(forgetting, "REPAIRS", 2)
    begun = Repair(act=Act.REBOOT, step=RepairStep.RUN, id="0-1")
    kept = NodeKept(name="r", state="lost", standing="unfit", reason="?", by="policy", repair=begun)
    hall = Hall(Kept(nodes=(kept,)), RepairRules(labels={Act.RESET_GPU: "", Act.REBOOT: ""}))
    fleet = hall.fleet.state
    fleet.most_nodes, most = Most(FEW), 0

    def answered(actions: list[Action]) -> None:
        """The scheduler drains whatever it is told to."""
        for call in (one for one in actions if isinstance(one, Call)):
            answered(hall.see(Called(task=call.task, ok=True, text="done"), NOW))

    for number in range(20 * FEW):
        link = hall.link(standing(f"x{number}", job="", ranks=(), state="joining"))
        trouble = Trouble(node=f"x{number}-1", number=1, kind="device", what="fell off the bus", xid=79, device="0")
        answered(hall.say(link, trouble))
        gone(hall, link)
        most = max(most, len(fleet.repairs))
    assert 10 < most <= len(fleet.nodes) + FEW <= 3 * FEW and "r" in fleet.repairs and set(fleet.repairs) <= set(fleet.nodes)
    assert len([line for line in hall.told if "may invent names" in line]) == 1
    hall.see(Tick(), NOW + 100.0)


def test_troubles_of_one_node_are_decided_about_at_a_pace_and_all_are_heard(hall):
    link = hall.connections.links["a-1"]

    def is_decided_about(number: int, now: float = NOW) -> bool:
        did = hall.say(link, Trouble(node="a-1", number=number, kind="worker", what="?", handled=True), now)
        assert Heard(number=number) in [one.message for one in did if isinstance(one, Transmit)], "it is not said again"
        return any(isinstance(one, Keep) for one in did)

    assert sum(is_decided_about(number) for number in range(1, 1000)) == 64
    assert len([line for line in hall.told if "more troubles than are decided about" in line]) == 1
    assert is_decided_about(1000, NOW + 1.5)


def test_a_node_whose_job_is_forgotten_may_fall_silent(hall):
    link = hall.link(standing("x", job="y"))
    for later in (0.0, 50.0, 99.0, 500.0, 500.5):
        hall.see(Tick(), NOW + later)
    assert hall.fleet.state.nodes["x"].is_lost
    hall.fleet.state.jobs["y"].heard_at_unix = 0.0
    invented(hall)
    assert "y" not in hall.fleet.state.jobs and "x" in hall.fleet.state.nodes
    hall.say(link, Alive(node="x-1"), NOW + 501.0)
    assert not hall.fleet.state.nodes["x"].is_lost
    for later in (502.0, 503.0, 503.5, 504.0):
        hall.see(Tick(), NOW + later)
    assert hall.fleet.state.nodes["x"].is_lost


def test_nodes_that_are_all_here_are_not_forgotten_however_many_they_are(hall):
    for number in range(3 * FEW):
        hall.link(standing(f"x{number}", job=f"y{number}"))
    assert {f"x{number}" for number in range(3 * FEW)} <= set(hall.fleet.state.nodes)


def test_reports_of_reporters_that_have_gone_are_kept_up_to_a_weight_and_who_comes_back_is_known_anew(hall, monkeypatch):
    monkeypatch.setattr(state, "ABSENT_BYTES", 200_000)
    heavy = tuple(RankSaid(rank=rank, local_rank=rank, state="running") for rank in range(100))
    hall.fleet.state.most_nodes = hall.fleet.state.most_jobs = Most(1 << 20)
    invented(hall, ranks=heavy)
    kept = [report for node in hall.fleet.state.nodes.values() for report in node.reports.values()]
    assert len(kept) <= 2 + 200_000 // 40_000 and len(hall.fleet.state.reporters) == len(kept)
    link = hall.link()
    (heed,) = hall.say(link, Alive(node="d-1"))
    assert isinstance(heed, Transmit) and isinstance(heed.message, Heed), "told this, it says anew how it stands"
    hall.say(link, standing("d"))
    assert "d-1" in hall.fleet.state.reporters


def test_texts_that_are_kept_are_cut(hall):
    link = hall.connections.links["a-1"]
    hall.say(link, Trouble(node="a-1", number=9, kind="device", what="x" * 60_000, device="y" * 60_000, xid=79))
    hall.say(link, Did(node="a-1", order="nobody's", ok=True, text="z" * 60_000))
    hall.say(link, standing("a", state="ended", outcome="w" * 60_000))
    assert len(repr(list(hall.stored.values()))) < 40_000


def test_troubles_that_come_before_all_are_here_are_kept_up_to_what_a_reporter_keeps():
    hall = Hall()
    link = hall.link(standing("a"))
    for number in range(10_000):
        hall.say(link, Trouble(node="a-1", number=number, kind="worker", what="?"), 1.0)
    assert len(hall.fleet.state.take_early()) == state.EARLY


def test_only_a_report_may_be_long_and_it_may_not_be_of_any_length():
    ranks = tuple(RankSaid(rank=1 << 40, local_rank=1 << 40, state="running", step=1 << 40) for _ in range(1024))
    members = tuple(f"node-{number:0>60}" for number in range(MEMBERS))
    assert decode(encode(standing("a", ranks=ranks, members=members)), FleetMessage)
    assert len(members) >= 10_000, "all of a large job's: who is not named is taken for lost to it"
    for said in (
        Trouble(node="a-1", number=1, kind="worker", what="x" * (1 << 17)),
        standing("a", outcome="x" * STANDING_BYTES),
        standing("a", ranks=(*ranks, ranks[0])),
        standing("a", members=(*members, "one more")),
        standing("a", waits="x" * 2001),
    ):
        with pytest.raises(ProtocolError):
            decode(encode(said), FleetMessage)


def test_a_log_of_changes_that_forgets_some_tells_who_knows_too_little_all_of_it():
    log = ChangeLog()
    log.mark("nodes", "first")
    knows = log.version
    for number in range(MOST + 1):
        log.mark("nodes", f"x{number}")
    assert not log.knows(knows) and log.knows(log.version - 1)
    assert log.since(log.version - 1) == {"nodes": [f"x{MOST}"]} and len(log.since(0)["nodes"]) == MOST

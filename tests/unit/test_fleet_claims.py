"""Who may speak for a job, of all that know the supervisor's token? Who proves the job's own secret, while the job is alive."""

from __future__ import annotations

from typing import Any

import pytest
from kit.fleet.hall import LEASE_S, NOW, Hall, standing

from holdfast.core.machine import Tick
from holdfast.core.value import replace
from holdfast.core.wire.fleet import Alive, Bye, NotHeard, Order, Trouble
from holdfast.core.wire.links import HangUp, LinkDown, Transmit
from holdfast.runtime.net.frames import Identity
from holdfast.supervisor.fleet.job import HELD_S
from holdfast.supervisor.fleet.messages import Asked, Wish

OURS, THEIRS = (Identity("train", secret).name_proof for secret in (b"one secret", b"another"))


def ours(name: str, **how: Any) -> Any:
    return standing(name, proof=OURS, **how)


def refused(hall: Hall, said: Any, now: float = NOW, **came: Any) -> str:
    """Why a new link that says this is not heard. Empty: it is."""
    link = hall.link(**came)
    actions = hall.say(link, said, now)
    told = [one.message.reason for one in actions if isinstance(one, Transmit) and isinstance(one.message, NotHeard)]
    job = hall.fleet.state.jobs[said.job]
    assert bool(told) is (HangUp(link=link) in actions) and (job.reports.get(said.node) == said) is not bool(told)
    return "".join(told)


@pytest.mark.parametrize("proof", ["", THEIRS], ids=["no secret", "another secret"])
def test_who_has_not_the_job_s_secret_cannot_report_trouble_in_its_name_nor_get_its_orders(proof):
    hall = Hall()
    hall.link(ours("a"), peer="10.0.0.1")
    thief = hall.link(peer="10.0.0.6")
    hall.say(thief, standing("x", proof=proof))
    said = hall.say(thief, Trouble(node="x-1", number=9, kind="unfit", what="its fan, believe me"))
    assert said == [] and not hall.fleet.state.action_log.deeds and "x" not in hall.fleet.state.nodes
    actions = hall.see(Asked(ask=1, wish=Wish.STOP, job="train", reason="enough"), NOW)
    (order,) = [one for one in actions if isinstance(one, Transmit)]
    assert isinstance(order.message, Order) and order.link == hall.connections.links["a-1"]


def test_another_node_of_the_job_and_another_agent_of_the_same_node_are_heard():
    hall = Hall()
    hall.link(ours("a", members=("a", "b")))
    assert not refused(hall, ours("b"))
    hall.say(hall.connections.links["a-1"], Bye(node="a-1", reason="the coordinator's host goes"))
    assert not refused(hall, ours("c", members=("b", "c"))), "the next coordinator"
    assert "no secret" in refused(hall, standing("x"))


def test_the_supervisor_s_next_life_knows_whose_the_name_is_before_the_job_is_back():
    hall = Hall()
    hall.link(ours("a"))
    (kept,) = hall.of("jobs").values()
    assert OURS not in repr(kept), "who reads the store could speak for the job"
    again = hall.killed()
    assert "another secret" in refused(again, standing("x", proof=THEIRS))
    assert not refused(again, ours("a"))


def test_a_job_without_a_secret_is_heard_as_ever_and_gives_way_to_who_has_one():
    hall = Hall()
    for name in ("a", "b"):
        assert not refused(hall, standing(name))
    assert not refused(hall, standing("c", proof=THEIRS))
    assert {"a-1", "b-1"}.isdisjoint(hall.fleet.state.reporters) and set(hall.fleet.state.jobs["train"].reports) == {"c-1"}
    assert "no secret" in refused(hall, standing("a"))


@pytest.mark.parametrize("ends", ["it says how", "it is silent for long"])
def test_once_the_job_has_ended_its_name_is_free_for_a_run_with_another_secret(ends):
    hall, now = Hall(), NOW
    link = hall.link(ours("a"))
    if ends == "it says how":
        hall.say(link, ours("a", state="ended", outcome="failed", ranks=()))
    else:
        hall.see(LinkDown(link=link, reason="gone"), NOW)
        for quarter in range(1, 9):
            hall.see(Tick(), NOW + quarter * LEASE_S / 4)
        assert hall.fleet.state.nodes["a"].is_lost and "another secret" in refused(hall, standing("x", proof=THEIRS))
        now = NOW + 2 * LEASE_S + HELD_S
    assert not refused(hall, standing("x", proof=THEIRS, life="2"), now)
    assert "another secret" in refused(hall, ours("a"), now)


def beside() -> tuple[Hall, int]:
    """The agent of a job, whose link is gone, and its host's daemon, over that link."""
    hall = Hall()
    host = standing("a", job="", is_watcher=True, state="joining", round=0, ranks=())
    daemon = hall.link(replace(host, node="daemon"))
    hall.see(LinkDown(link=hall.link(ours("a")), reason="gone"), NOW)
    return hall, daemon


def test_agents_that_were_killed_hold_no_name_though_their_host_s_daemon_lives():
    hall, daemon = beside()
    job = hall.fleet.state.jobs["train"]
    for quarter in range(5):
        assert job.is_running and "another secret" in refused(hall, standing("x", proof=THEIRS), NOW + quarter * LEASE_S / 4)
        hall.say(daemon, Alive(node="daemon"), NOW + quarter * LEASE_S / 4)
        hall.see(Tick(), NOW + quarter * LEASE_S / 4)
    assert not job.is_running and not job.reports and hall.fleet.state.nodes["a"].state == "spare"
    assert "another secret" in refused(hall, standing("x", proof=THEIRS), NOW + HELD_S)
    assert not refused(hall, standing("x", proof=THEIRS, life="2"), NOW + LEASE_S + HELD_S)


@pytest.mark.parametrize("away_s", [LEASE_S / 2, 3 * LEASE_S])
def test_an_agent_that_is_back_counts_as_before(away_s):
    hall, daemon = beside()
    back = hall.link()
    for half in range(1, 10):
        now = NOW + half * LEASE_S / 2
        hall.say(daemon, Alive(node="daemon"), now)
        if now >= NOW + away_s:
            hall.say(back, ours("a") if now == NOW + away_s else Alive(node="a-1"), now)
        hall.see(Tick(), now)
    assert set(hall.fleet.state.jobs["train"].reports) == {"a-1"} and hall.fleet.state.nodes["a"].state == "fit"


def test_a_link_speaks_for_one_node_and_one_job():
    for other in ({"node": "b"}, {"node": "a", "job": "other"}):
        hall = Hall()
        link = hall.link(standing("a"))
        assert HangUp(link=link) in hall.say(link, replace(standing(**other), node="a-1"))
        assert set(hall.fleet.state.nodes) == {"a"} and set(hall.fleet.state.jobs) == {"train"}


def test_a_reporter_that_comes_back_as_another_counts_once():
    hall = Hall()
    hall.see(LinkDown(link=hall.link(standing("a")), reason="gone"), NOW)
    hall.link(standing("a", job="other"))
    assert not hall.fleet.state.jobs["train"].reports and set(hall.fleet.state.jobs["other"].reports) == {"a-1"}


def test_a_proof_says_neither_the_secret_nor_another_job_s_proof():
    names = {Identity(job, b"one secret").name_proof for job in ("train", "other")}
    assert len(names) == 2 and OURS in names and not Identity("train", b"").name_proof

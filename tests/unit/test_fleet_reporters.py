"""What can an agent say that knows the token, and means it ill? Nothing that ends the supervisor, or is another's to say."""

from __future__ import annotations

import random
from typing import Any

import pytest
from kit.fleet.hall import LEASE_S, NOW, Hall, standing

from holdfast.core.machine import Tick
from holdfast.core.wire.fleet import Alive, Bye, Did, FleetMessage, Heard, Heed, Order, RankSaid, Standing, Trouble
from holdfast.core.wire.links import HangUp, LinkDown, Transmit
from holdfast.supervisor.fleet.messages import Asked, Call, Called, CallVerb, Need, Wish


def drained() -> tuple[Hall, dict[str, int], Order, Call]:
    """A job of a, b and the spare c; an agent of another job, x; b is being drained, and the orchestrator called."""
    hall = Hall()
    waits: dict[str, Any] = {"ranks": (), "state": "joining", "spare_because": "there are enough"}
    links = {name: hall.link(standing(name, **(waits if name == "c" else {}))) for name in ("a", "b", "c")}
    links["x"] = hall.link(standing("x", job="other"))
    actions = hall.connections.observe(Asked(ask=1, wish=Wish.DRAIN, node="b", reason="its fan"), NOW)
    (order,) = [one.message for one in actions if isinstance(one, Transmit)]
    assert isinstance(order, Order) and order.verb == "exclude"
    task = order.order.replace("exclude", "drain")
    return hall, links, order, Call(task=task, verb=CallVerb.DRAIN, target="b", need=Need(reason=""))


def test_an_agent_of_another_job_answers_no_order_and_nobody_answers_for_the_orchestrator():
    hall, links, order, call = drained()
    assert hall.say(links["x"], Did(node="x-1", order=order.order, ok=True, text="done, believe me")) == []
    called = hall.say(links["a"], Did(node="a-1", order=order.order, ok=True, text="b is excluded"))
    assert [one.verb for one in called if isinstance(one, Call)] == ["drain"]
    for name in ("a", "b", "x"):
        assert hall.say(links[name], Did(node=f"{name}-1", order=call.task, ok=True, text="drained, believe me")) == []
    (swap,) = hall.fleet.state.open_swaps
    assert hall.fleet.state.open_swaps[swap].swap.step == "drain"
    hall.connections.observe(Called(task=call.task, ok=True, text="b is noted as drained"), NOW)
    assert hall.fleet.state.open_swaps[swap].swap.step != "drain"


def test_a_link_speaks_for_one_reporter():
    hall, links, *_ = drained()
    refused = hall.say(links["x"], Bye(node="a-1", reason="a goes, believe me"))
    assert HangUp(link=links["x"]) in refused and "a-1" in hall.fleet.state.reporters


def test_a_node_that_is_heard_from_one_address_is_not_taken_from_another_until_it_is_lost():
    hall = Hall()
    first = hall.link(standing("a"), peer="10.0.0.1")
    thief = hall.link(peer="10.0.0.2")
    stolen = Standing(node="thief", number=1, name="a", job="train", state="running")
    said, _, hung_up = hall.say(thief, stolen, 1.0)
    assert hung_up == HangUp(link=thief) and "10.0.0.2 says that it is a, which is heard from 10.0.0.1" in said.text
    assert "a-1" in hall.fleet.state.reporters and not hall.fleet.state.nodes["a"].is_lost
    again = hall.link(standing("a"), peer="10.0.0.1")
    assert hall.connections.links["a-1"] == again > first, "its own agent comes over a newer link whenever it likes"
    hall.connections.observe(Tick(), hall.connections.deadline())
    moved = hall.link(peer="10.0.0.2")
    hall.say(moved, stolen, 60.0)
    assert hall.fleet.state.reporters == {"thief": "a"}, "a pod that has moved, after its lease"


def test_a_certificate_has_to_be_for_the_node_where_that_is_demanded():
    hall = Hall()
    hall.connections.named = True
    link = hall.link(peer="10.0.0.2", names=("b.example", "c"))
    said, _, hung_up = hall.say(link, standing("a"), 1.0)
    assert hung_up == HangUp(link=link) and "has a certificate for b.example, c" in said.text and not hall.fleet.state.nodes
    for name in ("b", "c"):
        hall.link(standing(name), peer="10.0.0.2", names=("b.example", "c"))
    assert sorted(hall.fleet.state.nodes) == ["b", "c"]


def test_nothing_that_an_agent_can_say_ends_the_supervisor():
    for seed in range(300):
        rng, hall = random.Random(seed), Hall()
        links: list[int] = []
        for step in range(60):
            now = LEASE_S * step / 20
            if not links or rng.random() < 0.1:
                links.append(hall.link())
            if rng.random() < 0.05:
                hall.connections.observe(LinkDown(link=links.pop(rng.randrange(len(links))), reason="gone"), now)
                continue
            hall.say(rng.choice(links), made_up(rng), now)
            if now >= hall.connections.deadline():
                hall.connections.observe(Tick(), now)
            for task in list(hall.fleet.state.queues.host_of):
                if rng.random() < 0.3:
                    hall.connections.observe(Called(task=task, ok=rng.random() < 0.5, text="?"), now)


def made_up(rng: random.Random) -> FleetMessage:
    """Anything that has the form of a message."""
    nodes, odd = ("a", "b", "c", "", "\n\x1b[2J", "x" * 300), (-1, 0, 1, 2, 1 << 62)
    node, name, job = rng.choice(nodes), rng.choice(nodes), rng.choice(("train", "other", ""))
    kinds = ("worker", "hang", "device", "unfit", "lost", "operator", "", "?")
    match rng.randrange(7):
        case 0 | 1:
            return Standing(
                node=node,
                number=rng.choice(odd),
                name=name,
                job=job,
                life=rng.choice(("", "1", "2")),
                state=rng.choice(("joining", "running", "stopping", "ended", "?")),
                round=rng.choice(odd),
                attempt=rng.choice(odd),
                ranks=tuple(RankSaid(rank=rng.choice(odd), local_rank=0, state="?") for _ in range(rng.randrange(3))),
                spare_because=rng.choice(("", "why not")),
                least=rng.choice(odd),
                members=rng.choice((None, (), ("a", "b"), ("", "c"))),
                unfit=rng.choice(("", "its fan")),
                outcome=rng.choice(("", "failed")),
            )
        case 2:
            kind, xid, handled = rng.choice(kinds), rng.choice((*odd, 13, 79, 94)), rng.random() < 0.5
            number, round = rng.choice(odd), rng.choice(odd)
            return Trouble(node=node, number=number, kind=kind, what="?", xid=xid, handled=handled, round=round)
        case 3:
            order = f"1-{rng.randrange(5)}.{rng.choice(('exclude', 'drain', 'restart', 'replace', ''))}"
            return Did(node=node, order=order, ok=rng.random() < 0.5, text="?")
        case 4:
            return Bye(node=node, reason="?")
        case 5:  # what only a supervisor says, under the name of nobody
            return rng.choice((Heed(lease_s=1.0, generation=1), Heard(number=1)))
    return Alive(node=node)


@pytest.mark.parametrize(
    ("trouble", "act", "outcome"),
    [
        ({"kind": "worker", "what": "rank 0 has failed"}, "restart-workers", "the job ended before it could be done"),
        ({"kind": "device", "what": "GPU 0 has fallen off the bus", "xid": 79, "device": "0"}, "swap", ""),
    ],
)
def test_what_was_told_before_all_were_here_is_acted_on_though_who_told_it_has_left(
    trouble: dict[str, Any], act: str, outcome: str
):
    """As of a short job that fails and ends in a supervisor's first seconds, or of a broken GPU's."""
    hall = Hall()
    link = hall.link(standing("a"))
    hall.say(link, Trouble(node="a-1", number=2, **trouble), 1.0)
    hall.say(link, Bye(node="a-1", reason="its job has ended"), 1.1)
    assert not hall.of("deeds")
    hall.see(Tick(), NOW)
    (deed,) = hall.of("deeds").values()
    assert (deed.node, deed.act, deed.outcome, deed.seen) == ("a", act, outcome, trouble["what"])
    assert (hall.of("nodes")["a"].state == "draining") == (act == "swap")


def test_a_decision_about_a_job_that_no_agent_of_ours_has_started_is_over_with_it():
    """Its host's daemon tells of no life, and so of no outcome that could be kept."""
    hall = Hall()
    how: dict[str, Any] = {"life": "", "is_watcher": True}
    link = hall.link(standing("a", **how))
    hall.say(link, Trouble(node="a-1", number=2, kind="worker", what="rank 0 has failed", handled=True))
    hall.say(link, standing("a", state="ended", ranks=(), outcome="failed", **how))
    hall.say(link, Bye(node="a-1", reason="no rank is left"))
    (deed,) = hall.of("deeds").values()
    assert (deed.act, deed.outcome) == ("restart-workers", "the job ended")

"""An operator's question how all nodes are: to whom it goes, what comes back, and who is named that is silent."""

from __future__ import annotations

from typing import Any

from kit.stages.group_stage import JOIN, Stage
from kit.stages.round_stage import Job, kinds

from holdfast.agent.control.health_query import Examination
from holdfast.agent.group.messages import FromCoordinator, ToCoordinator
from holdfast.core.wire.messages import EVERY_NODE, Checked, Reply, Request, RequestKind
from holdfast.rendezvous.coordinator.pending_requests import MOST

FOUND = (Checked(check="memory", state="fit", reason="97 % free"),)


class Client:
    """Whoever waits at the control socket."""

    def __init__(self) -> None:
        self.said: Any = None

    def reply(self, answer: Any) -> None:
        self.said = answer

    def refuse(self, error: str) -> None:
        self.said = error


def test_a_node_passes_a_question_on_and_answers_one():
    stage = Stage()
    stage.run()
    question = Request(node=JOIN.node, kind=RequestKind.CHECK, target=EVERY_NODE, ask=3, checks=("memory",))
    stage.see(ToCoordinator(message=question))
    assert stage.said == [question]
    for heard in (
        Request(kind=RequestKind.CHECK, target=EVERY_NODE, ask=8, checks=("memory",)),
        Reply(ask=3, name="n2", verdicts=FOUND),
    ):
        assert stage.told(heard) == [FromCoordinator(message=heard)]


def test_it_is_over_when_all_have_answered():
    client = Client()
    examination = Examination(client, until=10.0)  # type: ignore[arg-type]
    examination.hear(Reply(ask=1, name="a", verdicts=FOUND))
    assert not examination.is_over(5.0)
    examination.names = ["a", "b"]
    assert not examination.is_over(5.0)
    examination.hear(Reply(ask=1, name="b", ok=False, text="there is no check 'x'"))
    assert examination.is_over(5.0)
    examination.reply()
    assert [one["reason"] for name in "ab" for one in client.said["nodes"][name]] == ["97 % free", "there is no check 'x'"]


def test_who_is_silent_is_named_when_it_is_too_late():
    client = Client()
    examination = Examination(client, until=10.0)  # type: ignore[arg-type]
    examination.names = ["a", "b"]
    examination.hear(Reply(ask=1, name="a", verdicts=FOUND))
    assert not examination.is_over(9.9) and examination.is_over(10.0)
    examination.reply()
    assert client.said["nodes"]["b"][0]["state"] == "degraded" and "not answered" in client.said["nodes"]["b"][0]["reason"]


def test_a_coordinator_that_is_silent_is_named():
    client = Client()
    Examination(client, until=10.0).reply()  # type: ignore[arg-type]
    assert "the coordinator has not answered" in client.said


def test_the_coordinator_asks_all_and_nobody_learns_who_asked():
    job = Job()
    job.join("a", "b", "c")
    said = job.hear(Request(node="b", kind=RequestKind.CHECK, target=EVERY_NODE, ask=7, checks=("memory",)))
    assert kinds(said) == ["Reply", "Request", "Request", "Request"]
    assert Reply(ask=7, ok=True, text="a\nb\nc") in said
    passed_on = [message for message in said if isinstance(message, Request)]
    assert len({message.ask for message in passed_on}) == 1 and {message.node for message in passed_on} == {""}
    ticket = passed_on[0].ask
    job.hear(Reply(node="c", ask=ticket, verdicts=FOUND))
    assert job.said[-1] == ("b", Reply(ask=7, name="c", verdicts=FOUND))


def test_an_answer_to_nobody_s_question_goes_nowhere():
    job = Job()
    job.join("a", "b")
    assert job.hear(Reply(node="b", ask=99, verdicts=FOUND)) == []
    job.hear(Request(node="a", kind=RequestKind.CHECK, target=EVERY_NODE, ask=1, checks=()))
    for ask in range(2, MOST + 2):
        job.hear(Request(node="a", kind=RequestKind.CHECK, target=EVERY_NODE, ask=ask, checks=()), 100.0 * ask)
    assert job.hear(Reply(node="b", ask=1, verdicts=FOUND)) == [], "it was too long ago"

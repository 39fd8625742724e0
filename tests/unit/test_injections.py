"""An operator's wish for a fault: how it reaches another node of the job, and how the answer comes back."""

from __future__ import annotations

from kit.stages.group_stage import JOIN, Stage
from kit.stages.round_stage import Job

from holdfast.agent.group.messages import FromCoordinator, ToCoordinator
from holdfast.core.job.injection import Fault, Injection
from holdfast.core.wire.messages import Reply, Request, RequestKind

KILL = Injection(fault=Fault.KILL, rank=1, by="you")


def test_a_node_passes_a_wish_on_and_answers_one():
    stage = Stage()
    stage.run()
    wish = Request(node=JOIN.node, kind=RequestKind.INJECT, target="n2", ask=3, injection=KILL)
    stage.see(ToCoordinator(message=wish))
    assert stage.said == [wish]
    asked = Request(kind=RequestKind.INJECT, target="n1", ask=8, injection=KILL)
    assert stage.told(asked) == [FromCoordinator(message=asked)]


def test_the_coordinator_asks_that_node_only_and_tells_who_asked():
    job = Job()
    job.join("a", "b", "c")
    (asked,) = job.hear(Request(node="b", kind=RequestKind.INJECT, target="c", ask=7, injection=KILL))
    assert isinstance(asked, Request) and job.said[-1] == ("c", asked) and asked.injection == KILL
    job.hear(Reply(node="c", ask=asked.ask, ok=True, text="injected"))
    assert job.said[-1] == ("b", Reply(ask=7, name="c", ok=True, text="injected"))


def test_a_node_that_is_not_there_is_named_with_those_that_are():
    job = Job()
    job.join("a", "b")
    (noted,) = job.hear(Request(node="b", kind=RequestKind.INJECT, target="z", ask=7, injection=KILL))
    assert not noted.ok and noted.text == "the job has no node z, or does not hear it; it knows a, b"
    assert job.hear(Reply(node="a", ask=99, ok=True, text="?")) == []

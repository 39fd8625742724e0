"""How much can a member ask of the coordinator, and it of a node? No more than `core.wire.demands` says: number, size, rate."""

from __future__ import annotations

from typing import Any

import pytest
from kit.network.security_peer import Job as RealJob
from kit.stages.group_stage import Stage
from kit.stages.round_stage import Job

from holdfast.agent.faults.machine import MOST_PLAYED, Answered, Asked, Injector
from holdfast.agent.group.messages import FromCoordinator
from holdfast.core.job.events import ExcludedBy
from holdfast.core.job.injection import Fault, Injection
from holdfast.core.machine import Say
from holdfast.core.value import replace
from holdfast.core.wire.demands import ALLOWED, IMPORTS, MOST_ABSENT, MOST_CHECKS, REASON_CHARS
from holdfast.core.wire.messages import EVERY_NODE, Imports, Join, Renew, Reply, Request, RequestKind, ToImport, Waiting
from holdfast.health.check import Check, Wanted
from holdfast.health.examiner import MOST_KNOWN, Examiner
from holdfast.rendezvous.coordinator.exclusion import MOST_OWN, Excluded
from holdfast.rendezvous.coordinator.pending_requests import ASKERS, MembersDemands

NONE = Injection(fault=Fault.XID)
MANY_PATHS = tuple(f"paths=/{i}" for i in range(1500))


@pytest.fixture
def stage() -> Job:
    """a and b are in round 1."""
    stage = Job()
    stage.join("a", "b")
    return stage


def ask(kind: RequestKind, *, node: str = "b", number: int = 1, **more: Any) -> Request:
    return Request(node=node, kind=kind, round=1, ask=number, **more)


def replies(said: list[Any]) -> list[Reply]:
    return [one for one in said if isinstance(one, Reply)]


# --- the coordinator --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "much",
    [
        pytest.param({"checks": MANY_PATHS}, id="checks"),
        pytest.param({"checks": ("paths=/" + "a" * 5000,)}, id="a long check"),
        pytest.param({"reason": "x" * (REASON_CHARS + 1)}, id="a long reason"),
    ],
)
def test_what_is_too_large_is_not_passed_on(stage: Job, much: dict[str, Any]) -> None:
    (reply,) = stage.hear(ask(RequestKind.CHECK, target=EVERY_NODE, **much))
    assert isinstance(reply, Reply) and not reply.ok and not reply.name


@pytest.mark.parametrize("kind", [RequestKind.CHECK, RequestKind.INJECT])
def test_what_is_asked_too_often_is_not_passed_on(stage: Job, kind: RequestKind) -> None:
    allowed, wanted = ALLOWED[kind], ask(kind, target="a", injection=NONE)
    passed = [[type(one) for one in stage.hear(wanted, 1.0)] == [Request] for _ in range(3 * allowed.at_once)]
    assert sum(passed) == allowed.at_once and not any(passed[allowed.at_once :])
    assert isinstance(stage.hear(replace(wanted, node="a"), 1.0)[0], Request), "others may ask all the same"
    (later,) = stage.hear(wanted, 1.0 + allowed.every_s)
    assert isinstance(later, Request)


def test_a_refusal_is_said_once() -> None:
    demands = MembersDemands()
    assert [demands.is_news("b", "why") for _ in range(3)] == [True, False, False]


def test_nobody_s_demands_are_remembered_for_ever() -> None:
    demands = MembersDemands()
    for i in range(2 * ASKERS):
        assert demands.admit(f"n{i}", RequestKind.CHECK, 0.0) and demands.is_news(f"n{i}", "why")
    assert len(demands._of) == len(demands._refused) == ASKERS


def test_invented_nodes_are_not_excluded_without_end(stage: Job) -> None:
    for i in range(2 * MOST_ABSENT):
        stage.hear(ask(RequestKind.EXCLUDE, target=f"nobody-{i}", reason="because"), float(i) * 2)
        stage.renew("a", "b")
    assert len(stage.machine.excluded) == MOST_ABSENT
    stage.hear(ask(RequestKind.EXCLUDE, target="a", reason="because"))
    assert "1 of the 2 nodes needed" in replies([one for _, one in stage.said])[-1].text, "one that is here is decided about"


def test_nodes_that_call_themselves_unfit_are_not_remembered_without_end() -> None:
    excluded = Excluded()
    excluded.add("a", "an operator's", ExcludedBy.OPERATOR, 0.0)
    for i in range(2 * MOST_OWN):
        excluded.add(f"n{i}", "a GPU is lost", ExcludedBy.ITSELF, 0.0)
    assert len(excluded) == MOST_OWN + 1 and excluded.why("a")


def test_a_reply_is_no_longer_than_a_request_may_be(stage: Job) -> None:
    (passed,) = stage.hear(ask(RequestKind.CHECK, target="a", checks=("memory",)))
    assert isinstance(passed, Request) and passed.ask is not None
    (reply,) = replies(stage.hear(Reply(node="a", ask=passed.ask, text="x" * 1_000_000)))
    assert len(reply.text) == REASON_CHARS


# --- imports ahead ----------------------------------------------------------------------------------------------------------


def imports(node: str, count: int) -> Imports:
    return Imports(node=node, python="/python", modules=tuple(f"m{i}" for i in range(count)))


def test_what_is_imported_ahead_is_the_first_node_s_word_and_comes_at_a_pace(stage: Job) -> None:
    usual: dict[str, Any] = {"name": "c", "addr": "c", "master_port": 9, "nproc": 2, "role": "default", "warm": "/python"}
    stage.hear(Join(node="c", known_round=1, **usual))
    first, other = stage.members()
    assert stage.hear(imports(other, 100)) == []
    told = [bool(stage.hear(imports(first, count))) for count in range(1, 2 * ALLOWED[IMPORTS].at_once)]
    assert told == [True] * ALLOWED[IMPORTS].at_once + [False] * (ALLOWED[IMPORTS].at_once - 1)


def test_a_node_imports_ahead_at_a_pace_whoever_leads() -> None:
    stage, told = Stage(), ToImport(python="/python", modules=("os",))
    stage.told(Waiting(round=1, reason="no place"))
    allowed = ALLOWED[IMPORTS]
    passed = [FromCoordinator(message=told) in stage.told(told, 1.0) for _ in range(2 * allowed.at_once)]
    assert sum(passed) == allowed.at_once
    assert stage.told(told, 1.0 + allowed.every_s) == [FromCoordinator(message=told)]


# --- the node ---------------------------------------------------------------------------------------------------------------


def test_a_node_refuses_what_is_too_much_whoever_leads() -> None:
    stage = Stage()
    stage.run()
    large = Request(kind=RequestKind.CHECK, target=EVERY_NODE, ask=7, checks=MANY_PATHS)
    stage.told(large)
    assert [(reply.ask, reply.ok) for reply in replies(stage.said)] == [(7, False)] and stage.does(Say)
    stage.told(large)
    assert replies(stage.said) and not stage.does(Say), "it is said once"
    small = replace(large, checks=("memory",))
    passed = [FromCoordinator(message=small) in stage.told(small) for _ in range(100)]
    assert sum(passed) == ALLOWED[RequestKind.CHECK].at_once


def test_what_others_ask_about_is_not_kept_for_ever() -> None:
    examiner, check = Examiner(60.0), Check(name="paths", target="x:y", help="")
    examiner.know([Wanted(check=check, argument="/ours")])
    for i in range(3 * MOST_KNOWN):
        examiner.know([Wanted(check=check, argument=f"/{i}")], counts=False)
    assert len(examiner.standings) <= MOST_KNOWN + 1 and "paths=/ours" in examiner.standings


def test_so_many_faults_are_played_at_a_time_and_no_more() -> None:
    injector = Injector()
    asked = Asked(injection=NONE, ranks={}, looks_s={"xid": 1.0})
    answers = [one.ok for _ in range(100) for one in injector.observe(asked, 0.0) if isinstance(one, Answered)]
    assert answers == [True] * MOST_PLAYED + [False] * (100 - MOST_PLAYED)


# --- a real one -------------------------------------------------------------------------------------------------------------


def test_a_member_that_asks_for_1500_checks_is_refused_and_the_job_trains_on(job: RealJob) -> None:
    job.begin(nnodes="1:1")
    peer = job.peer()
    peer.prove("secure")
    peer.say(Join(node="b-1-aa", name="b", addr="127.0.0.1", master_port=1, nproc=1, role="default"))
    said: list[Any] = []
    for checks in (MANY_PATHS, *[("memory",) * MOST_CHECKS] * 40):
        peer.say(Request(node="b-1-aa", kind=RequestKind.CHECK, target="a", ask=1, checks=checks))
    while len(replies(said)) < 41:
        said.append(peer.told())
        if isinstance(said[-1], Reply):
            peer.say(Renew(node="b-1-aa", round=0))
    texts = [reply.text for reply in replies(said)]
    assert "1500 checks at once" in texts[0] and sum("too many requests to check" in text for text in texts) >= 20
    job.said("b: refused: 1500 checks at once")
    job.finish()

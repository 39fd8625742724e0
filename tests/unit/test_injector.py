"""When is a fault played that an operator asks for, and when is it over?"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.agent.faults.machine import (
    HALT_S,
    RUN_S,
    Answered,
    Asked,
    Injector,
    Plant,
    RankOver,
    RoundOver,
    Strike,
)
from holdfast.core.errors import UsageError
from holdfast.core.job.events import FaultInjected, FaultOver
from holdfast.core.job.injection import Fault, Injection, injection
from holdfast.core.machine import NEVER, Record, Tick
from holdfast.core.signals import signal
from holdfast.health.checks.kernel_log import XID

KILL = "injected by you (holdfast inject kill)"
HANG = "injected by you (holdfast inject hang)"


class Stage:
    """An injector on a node with ranks 2 and 3, of which the checks `xid` and `gpu` look every 60 s."""

    def __init__(self) -> None:
        self.injector, self.now = Injector(), 100.0
        self.ranks = {2: (0, 4712), 3: (1, 4713)}
        self.looks_s: dict[str, float | None] = {"xid": 60.0, "gpu": 60.0}

    def ask(self, fault: str, **rest: Any) -> list[Any]:
        wanted = Injection(fault=Fault(fault), by="you", **rest)
        return list(self.injector.observe(Asked(injection=wanted, ranks=self.ranks, looks_s=self.looks_s), self.now))

    def show(self, seen: Any) -> list[Any]:
        return list(self.injector.observe(seen, self.now))

    def run(self, seconds: float) -> list[Any]:
        """Ticks when it wants one; what it asks for."""
        until, found = self.now + seconds, []
        while self.injector.deadline() <= until:
            self.now = self.injector.deadline()
            found += self.show(Tick())
        self.now = until
        return found


@pytest.fixture
def stage() -> Stage:
    return Stage()


def of(kind: type, actions: list[Any]) -> list[Any]:
    found = [action for action in actions if isinstance(action, kind)]
    return found + [action.event for action in actions if isinstance(action, Record) and isinstance(action.event, kind)]


def refusal(actions: list[Any]) -> str:
    (answer,) = actions
    assert isinstance(answer, Answered) and not answer.ok
    return answer.text


def test_a_rank_is_killed_after_that_is_recorded(stage):
    asked = stage.ask("kill", rank=3)
    assert isinstance(asked[0], Record) and asked[-1] == Strike(local_rank=1, signum=signal.SIGKILL, what=KILL)
    (event,) = of(FaultInjected, asked)
    assert (event.fault, event.rank, event.by) == ("kill", 3, "you")
    assert event.what == "rank 3 (local 1, pid 4713) is killed (SIGKILL)"
    assert stage.injector.deadline() == NEVER


def test_a_hang_is_undone_when_its_time_is_over(stage):
    assert of(Strike, stage.ask("hang", for_s=5.0)) == [Strike(local_rank=0, signum=signal.SIGSTOP, what=HANG)]
    assert stage.run(4.9) == []
    over = stage.run(0.2)
    assert of(Strike, over) == [Strike(local_rank=0, signum=signal.SIGCONT)]
    assert of(FaultOver, over)[0].reason == "its time is over"
    assert stage.injector.deadline() == NEVER


@pytest.mark.parametrize("seen", [RankOver(local_rank=0), RoundOver()])
@pytest.mark.parametrize("fault", ["hang", "slow"])
def test_whatever_happens_to_the_ranks_ends_what_is_played_on_them(stage, fault, seen):
    stage.ask(fault)
    stage.run(RUN_S)
    assert of(FaultOver, stage.show(seen)) and not stage.injector.state.played
    assert stage.injector.deadline() == NEVER


def test_what_was_played_is_to_blame_for_an_end_while_it_lasts_and_for_none_after(stage):
    stage.ask("hang", rank=2, for_s=5.0)
    stage.ask("slow", rank=3, for_s=5.0)
    over = of(Strike, stage.run(6.0))
    assert {one.local_rank: one.what for one in over} == {0: "", 1: ""}
    stage.ask("hang", rank=2)
    assert [one.what for one in of(Strike, stage.show(RoundOver()))] == [HANG]


def test_another_rank_s_end_ends_nothing(stage):
    stage.ask("hang", rank=2)
    assert stage.show(RankOver(local_rank=1)) == []


def test_a_slow_rank_runs_a_quarter_of_its_time_and_is_left_running(stage):
    stage.ask("slow", for_s=2.0)
    began, halted_s, halted_at = stage.now, 0.0, None
    while stage.injector.deadline() < NEVER:
        stage.now = stage.injector.deadline()
        for action in stage.show(Tick()):
            if isinstance(action, Strike) and action.signum == signal.SIGSTOP:
                halted_at = stage.now
            elif isinstance(action, Strike) and halted_at is not None:
                halted_s, halted_at = halted_s + stage.now - halted_at, None
    assert halted_at is None and stage.now - began == pytest.approx(2.0)
    assert halted_s / 2.0 == pytest.approx(HALT_S / (HALT_S + RUN_S), abs=0.02)


def test_two_things_are_not_played_on_one_rank(stage):
    stage.ask("hang", rank=2)
    assert "already" in refusal(stage.ask("slow", rank=2))
    assert of(Strike, stage.ask("hang", rank=3)) == [Strike(local_rank=1, signum=signal.SIGSTOP, what=HANG)]


def test_an_xid_is_a_record_as_the_kernel_s_that_the_check_reads(stage):
    (plant,) = of(Plant, stage.ask("xid", code=48))
    head, _, text = plant.kmsg[0].partition(";")
    match = XID.search(text)
    assert head == "3,1,100000000,-" and match is not None and match[2] == "48"


def test_what_checks_read_is_taken_back_when_its_time_is_over(stage):
    stage.ask("xid", for_s=5.0)
    stage.ask("ecc", rank=3)
    (plant,) = of(Plant, stage.run(5.0))
    assert (plant.kmsg, plant.ecc) == ((), {"1": 1})
    assert stage.injector.deadline() == NEVER, "an error of the GPU stays"


@pytest.mark.parametrize(
    ("code", "word"),
    [(79, "found unfit"), (63, "degraded"), (43, "nothing follows"), (94, "nothing follows"), (999, "degraded")],
)
def test_it_is_said_what_to_expect_of_an_xid(stage, code, word):
    (answer,) = of(Answered, stage.ask("xid", code=code))
    assert answer.ok and word in answer.text and "every 60 s" in answer.text


def test_what_a_real_fault_would_not_show_is_not_played(stage):
    stage.looks_s = {}
    assert "--check-during xid" in refusal(stage.ask("xid"))
    assert "--check-during gpu" in refusal(stage.ask("ecc"))


def test_a_rank_that_is_not_here_is_named_with_those_that_are(stage):
    assert refusal(stage.ask("kill", rank=7)) == "rank 7 does not run on this node: ranks 2, 3 run here"
    assert "rank 7 does not run" in refusal(stage.ask("ecc", rank=7))
    stage.ranks = {}
    assert refusal(stage.ask("hang")) == "no ranks run here now"


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ({"fault": "burn"}, "there is no fault 'burn'"),
        ({"fault": ["kill"]}, "there is no fault ['kill']"),
        ({"fault": "hang", "for_s": -1}, "--for: -1 is not a duration"),
        ({"fault": "hang", "for_s": "soon"}, "--for: soon"),
        ({"fault": "kill", "for_s": 1}, "a killed rank cannot be revived"),
        ({"fault": "xid", "code": -3}, "--code: -3 is not an Xid"),
        ({"fault": "kill", "rank": "first"}, "--rank: first is not a rank"),
    ],
)
def test_what_makes_no_sense_is_refused(said, word):
    with pytest.raises(UsageError) as refused:
        injection(said)
    assert word in str(refused.value)

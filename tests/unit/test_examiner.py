"""Which check runs when, told step by step: questions, answers, and the time between two looks."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.job.events import HealthChanged
from holdfast.core.machine import NEVER, Record, Say, Tick
from holdfast.health.check import Check, Wanted
from holdfast.health.examiner import WATCHED, Answered, Asked, Examined, Examiner, StartCheck, Watch
from holdfast.health.verdict import Verdict, degraded, fit, unfit

EVERY_S = 60.0


class Stage:
    """An examiner that knows three checks; `flap` needs two bad answers in a row."""

    def __init__(self) -> None:
        self.now = 0.0
        self.examiner = Examiner(EVERY_S)
        checks = [Check(name=name, target="x:y", help="", bad_in_a_row=1 + (name == "flap")) for name in ("gpu", "nic", "flap")]
        self.examiner.know([Wanted(check=check) for check in checks])

    def see(self, seen: Any, now: float | None = None) -> list[Any]:
        self.now = self.now if now is None else now
        return self.examiner.observe(seen, self.now)

    def ask(self, *labels: str, purpose: str = "join") -> list[str]:
        return started(self.see(Asked(purpose=purpose, labels=labels)))

    def answer(self, label: str, verdict: Verdict, now: float | None = None) -> list[Any]:
        return self.see(Answered(label=label, verdict=verdict), now)


def started(actions: list[Any]) -> list[str]:
    return [action.label for action in actions if isinstance(action, StartCheck)]


def examined(actions: list[Any]) -> list[tuple[str, str]]:
    return [(action.purpose, action.unfit) for action in actions if isinstance(action, Examined)]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_question_is_answered_when_the_last_check_has(stage):
    assert stage.ask("gpu", "nic") == ["gpu", "nic"]
    assert examined(stage.answer("gpu", fit("8"))) == []
    assert examined(stage.answer("nic", fit("4"))) == [("join", "")]


def test_a_question_about_nothing_is_answered_at_once_with_what_stands(stage):
    assert examined(stage.see(Asked(purpose="join", labels=()))) == [("join", "")]


def test_two_questions_share_one_run(stage):
    stage.ask("gpu")
    assert stage.ask("gpu", "nic", purpose="7") == ["nic"]
    assert examined(stage.answer("gpu", fit("8"))) == [("join", "")]
    assert examined(stage.answer("nic", fit("4"))) == [("7", "")]


def test_what_is_unfit_names_the_check_and_its_reason(stage):
    stage.ask("gpu", "nic")
    stage.answer("gpu", unfit("GPU 3 is gone"))
    assert examined(stage.answer("nic", fit("4"))) == [("join", "gpu: GPU 3 is gone")]


def test_an_unfit_check_is_asked_again_until_it_is_fit_and_each_answer_is_told_unasked(stage):
    stage.ask("gpu")
    stage.answer("gpu", unfit("GPU 3 is gone"))
    assert stage.examiner.deadline() == EVERY_S
    assert started(stage.see(Tick(), EVERY_S)) == ["gpu"] and stage.examiner.deadline() == NEVER
    again = stage.answer("gpu", unfit("GPU 3 is gone"), EVERY_S + 1)
    assert examined(again) == [(WATCHED, "gpu: GPU 3 is gone")] and len(again) == 1, "the same again is not recorded"
    assert started(stage.see(Tick(), 2 * EVERY_S + 1)) == ["gpu"]
    assert examined(stage.answer("gpu", fit("8"))) == [(WATCHED, "")]
    assert stage.examiner.deadline() == NEVER


def test_what_is_watched_is_looked_at_every_so_often_and_nothing_else_is(stage):
    stage.ask("gpu", "nic")
    stage.answer("gpu", fit("8"))
    stage.answer("nic", fit("4"))
    stage.see(Watch(labels=("nic",)))
    assert stage.examiner.deadline() == EVERY_S
    assert started(stage.see(Tick(), EVERY_S)) == ["nic"]
    assert examined(stage.answer("nic", unfit("mlx5_0 is DOWN"))) == [(WATCHED, "nic: mlx5_0 is DOWN")]
    stage.answer("nic", fit("4"))
    stage.see(Watch(labels=()))
    assert stage.examiner.deadline() == NEVER


def test_a_check_that_may_have_a_bad_day_is_degraded_first(stage):
    stage.ask("flap")
    assert examined(stage.answer("flap", unfit("down"))) == [("join", "")]
    stage.ask("flap")
    assert examined(stage.answer("flap", unfit("down"))) == [("join", "flap: down")]


def test_a_check_is_given_what_it_kept_at_its_last_look(stage):
    stage.ask("nic")
    stage.answer("nic", fit("4", downed=3))
    (again,) = stage.see(Asked(purpose="join", labels=("nic",)))
    assert again == StartCheck(label="nic", before={"downed": 3})


def test_what_is_only_asked_about_says_nothing_against_the_node(stage):
    stage.examiner.know([Wanted(check=Check(name="paths", target="x:y", help=""), argument="/gone")], counts=False)
    stage.ask("paths=/gone", purpose="7")
    actions = stage.answer("paths=/gone", unfit("no such file"))
    assert examined(actions) == [("7", "")] and len(actions) == 1
    assert [one.reason for action in actions for one in action.verdicts] == ["no such file"]
    assert stage.examiner.deadline() == NEVER


def test_the_same_again_is_silence(stage):
    def told(verdict: Verdict) -> list[tuple[str, str]]:
        stage.ask("gpu")
        actions = stage.answer("gpu", verdict)
        records = [action.event for action in actions if isinstance(action, Record)]
        assert len(records) == sum(isinstance(action, Say) for action in actions)
        assert all(isinstance(event, HealthChanged) for event in records)
        return [(event.before, event.state) for event in records]

    assert told(fit("8 GPUs")) == []
    assert told(degraded("hot")) == [("fit", "degraded")]
    assert told(degraded("hot")) == []
    assert told(degraded("hotter")) == [("degraded", "degraded")]
    assert told(fit("8 GPUs")) == [("degraded", "fit")]
    assert told(fit("9 GPUs")) == []

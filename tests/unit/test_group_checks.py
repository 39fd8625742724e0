"""A node that checks its health before it joins, told step by step."""

from __future__ import annotations

from typing import Any

import pytest
from kit.stages.group_stage import Stage, assigned

from holdfast.agent.group.messages import CheckNode, Exit, NodeChecked, StartWorkers
from holdfast.core.machine import Say
from holdfast.core.wire.messages import OWN_ASK, Join, Reply, Request, RequestKind, Stop, Waiting


def joins(stage: Stage) -> list[Join]:
    return [message for message in stage.said if isinstance(message, Join)]


@pytest.fixture
def stage() -> Stage:
    return Stage(checks=True, backend="embedded")


def test_nothing_is_asked_for_before_the_checks_have_answered(stage):
    assert stage.only(CheckNode).after_failure is False and not stage.said
    stage.see(NodeChecked(unfit="", asked=True))
    assert [join.unhealthy for join in joins(stage)] == [""]


def test_an_unfit_node_joins_with_its_reason(stage):
    stage.see(NodeChecked(unfit="gpu: GPU 3 is gone", asked=True))
    assert [join.unhealthy for join in joins(stage)] == ["gpu: GPU 3 is gone"]
    stage.see(NodeChecked(unfit=""))
    assert [join.unhealthy for join in joins(stage)] == [""], "it is fit again"
    stage.told(assigned())
    assert stage.does(StartWorkers)


def test_it_does_not_join_while_it_is_checked_whatever_the_coordinator_says(stage):
    stage.told(Waiting(round=3, reason="it is full"))
    stage.told(Stop(round=0, reason="who are you?", rejoin=True))
    assert not stage.said
    stage.see(NodeChecked(unfit="", asked=True))
    assert [join.known_round for join in joins(stage)] == [3]


def test_a_reason_is_cut_to_what_a_coordinator_takes(stage):
    stage.see(NodeChecked(unfit="x" * 2000, asked=True))
    assert [len(join.unhealthy) for join in joins(stage)] == [500]


def test_after_a_failure_it_is_checked_as_after_one(stage):
    stage.see(NodeChecked(unfit="", asked=True))
    stage.run()
    stage.end(0, 1)
    stage.end(1, -15)
    stage.told(Stop(round=1, reason="rank 4 failed", rejoin=True))
    assert stage.only(CheckNode).after_failure is True and not joins(stage)


def test_a_job_of_one_node_ends_where_that_is_unfit():
    stage = Stage(checks=True, backend="memory", hosting=True)
    stage.see(NodeChecked(unfit="gpu: GPU 3 is gone", asked=True))
    exit = stage.only(Exit)
    assert exit.code == 1 and "gpu: GPU 3 is gone" in exit.complaint


def test_a_node_that_becomes_unfit_while_it_trains_asks_to_be_left_out_and_says_if_it_cannot(stage):
    stage.see(NodeChecked(unfit="", asked=True))
    stage.run()
    stage.see(NodeChecked(unfit="nic: mlx5_0 is DOWN"))
    (asked,) = stage.said
    assert asked == Request(
        node="n1-id", kind=RequestKind.EXCLUDE, target="n1", ask=OWN_ASK, reason="nic: mlx5_0 is DOWN", by="itself"
    )
    refused = Reply(ask=OWN_ASK, ok=False, text="n1 is not excluded, since the job cannot go on without it")
    stage.told(refused)
    assert "cannot go on without it" in stage.only(Say).text
    stage.see(NodeChecked(unfit="nic: mlx5_0 is DOWN"))
    assert stage.said == [asked], "a spare may have come meanwhile"
    stage.told(refused)
    assert not stage.does(Say), "the same again is silence"


def test_a_node_that_became_unfit_is_checked_again_before_it_joins_again():
    stage = Stage(backend="embedded")
    stage.run()
    stage.see(NodeChecked(unfit="nic: mlx5_0 is DOWN"))
    stage.end(0, 1)
    stage.end(1, -15)
    stage.told(Stop(round=1, reason="rank 4 failed", rejoin=True))
    assert stage.does(CheckNode) and not joins(stage)
    stage.see(NodeChecked(unfit="", asked=True))
    assert [join.unhealthy for join in joins(stage)] == [""]


def test_without_checks_it_joins_at_once():
    stage: Any = Stage(backend="embedded")
    assert len(joins(stage)) == 1 and not stage.does(CheckNode)

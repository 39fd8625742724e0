"""Limits that a script has calculated: who tells them, who keeps them, and who begins with them."""

from __future__ import annotations

import json

import pytest
from kit.stages.group_stage import JOIN, Stage, assigned
from kit.stages.round_stage import Job

from holdfast.agent.group.messages import LimitsKnown
from holdfast.agent.workers import launch
from holdfast.core.config.config import RunConfig
from holdfast.core.job.events import LimitsCalculated
from holdfast.core.value import replace
from holdfast.core.wire.messages import Assigned, Calculated, Join, Leave, Message, Past, Stopped
from holdfast.rendezvous.coordinator.pace import CHARS, KINDS, Paces

OLD, NEW = {"first": 90.0, "beat": 20.0}, {"first": 70.0, "beat": 10.5, "section save": 60.0}


def said_by(group_rank: int) -> Stage:
    stage = Stage()
    stage.told(replace(assigned(), group_rank=group_rank, group_world_size=2, calculated_s=OLD))
    stage.see(LimitsKnown(limits_s=NEW))
    return stage


def join(node: str, *, round: int, **more: dict[str, float]) -> Join:
    return Join(node=node, name=node, addr=node, master_port=9, nproc=2, role="default", round=round, **more)


def given(job: Job) -> dict[str, dict[str, float]]:
    """What each node was told in the newest round."""
    newest = job.machine.round
    return {node: said.calculated_s for node, said in job.said if isinstance(said, Assigned) and said.round == newest}


# --- the node's side --------------------------------------------------------------------------------------------------------


def test_one_node_tells_at_once_and_all_do_when_they_join_again() -> None:
    told: list[Message] = [Calculated(node=JOIN.node, round=1, limits_s=NEW)]
    assert (said_by(0).said, said_by(1).said) == (told, [])
    assert said_by(0).group.join.calculated_s == said_by(1).group.join.calculated_s == NEW


def test_a_node_passes_on_what_it_was_told_though_its_own_ranks_calculate_nothing() -> None:
    stage = Stage()
    stage.told(replace(assigned(), calculated_s=OLD))
    assert stage.group.join.calculated_s == OLD


@pytest.mark.parametrize("calculated_s", [{}, NEW])
def test_a_worker_finds_them_in_its_environment(calculated_s: dict[str, float]) -> None:
    config = RunConfig(training_script="train.py", state_dir="/nowhere")
    env = launch.environment(config, {}, replace(assigned(), calculated_s=calculated_s), 0, error_file="", paged=True)
    assert json.loads(env.get("HOLDFAST_CALCULATED_LIMITS", "{}")) == calculated_s


# --- the coordinator's side -------------------------------------------------------------------------------------------------


def test_whoever_starts_next_has_them_a_spare_too() -> None:
    job = Job("2:2")
    job.join("a", "b", "c")
    job.hear(Calculated(node="a", round=1, limits_s=NEW))
    job.hear(Leave(node="b", round=1, reason="told to"))
    job.hear(Stopped(node="b", round=1))
    job.stopped_and_back("a")
    assert given(job) == {"a": NEW, "c": NEW}
    assert [event.limits_s for event in job.events if isinstance(event, LimitsCalculated)] == [NEW]


def test_the_newest_round_s_word_counts_and_what_is_no_news_is_not_recorded() -> None:
    paces = Paces()
    assert paces.calculated(OLD, 3)
    assert not paces.calculated(OLD, 3)
    assert paces.calculated(NEW, 3), "calculated again"
    assert not paces.calculated(OLD, 2), "by a node that was away since"
    assert not paces.calculated({}, 4), "a node that knows nothing"
    assert paces.calculated_s == NEW


def test_a_coordinator_that_is_new_has_them_from_its_predecessor_or_from_those_who_join() -> None:
    job = Job("2:2")
    job.machine.resume(Past(life="", round=3, restarts=0, calculated_s=OLD), now=0.0)
    for each in (join("b", round=3, calculated_s=NEW), join("c", round=2, calculated_s=OLD)):
        job.hear(each)
    job.tick(100.0)
    assert given(job) == {"b": NEW, "c": NEW}


def test_what_is_kept_is_bounded() -> None:
    paces = Paces()
    paces.calculated({f"section {number}": 1.0 for number in range(1000)}, 1)
    assert len(paces.calculated_s) == KINDS
    paces.calculated({"x" * (CHARS + 1): 1.0, "beat": float("nan"), "out": float("inf"), "first": -1.0, "section a": 2.0}, 1)
    assert paces.calculated_s == {"section a": 2.0}

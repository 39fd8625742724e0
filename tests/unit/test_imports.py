"""Who tells what the job's script imports, and who is told."""

from __future__ import annotations

from typing import Any

import pytest
from kit.stages.group_stage import JOIN, Stage, assigned
from kit.stages.round_stage import Job

from holdfast.agent.group.messages import FromCoordinator, ImportsKnown
from holdfast.core.value import replace
from holdfast.core.wire.messages import IMPORTS_CHARS, Assigned, Imports, Join, Message, ToImport, Waiting
from holdfast.runtime.net.codec import decode, encode
from holdfast.runtime.net.frames import FRAME_BYTES

PYTHON = "/opt/bin/python"


def join(node: str, *, known_round: int = 0, warm: str = PYTHON) -> Join:
    usual: dict[str, Any] = {"name": node, "addr": node, "master_port": 9, "nproc": 2, "role": "default"}
    return Join(node=node, known_round=known_round, warm=warm, **usual)


def imports(*modules: str, node: str = "a", python: str = PYTHON) -> Imports:
    return Imports(node=node, python=python, modules=modules)


def to_import(*modules: str) -> ToImport:
    return ToImport(python=PYTHON, modules=modules)


@pytest.fixture
def job() -> Job:
    """a and b are in round 1; c waits, and has said that it knows."""
    job = Job()
    job.hear(join("a"))
    job.hear(join("b"))
    assert [type(answer) for answer in job.hear(join("c"))] == [Waiting]
    assert job.hear(join("c", known_round=1)) == []
    return job


def test_whoever_waits_is_told_at_once(job: Job) -> None:
    assert job.hear(imports("os", "torch")) == [to_import("os", "torch")] and job.said[-1][0] == "c"


def test_whoever_comes_to_wait_later_is_told_when_it_says_that_it_does(job: Job) -> None:
    job.hear(imports("os", "torch"))
    assert [type(answer) for answer in job.hear(join("d"))] == [Waiting]
    assert job.hear(join("d", known_round=1)) == [to_import("os", "torch")]


def test_what_went_down_with_a_link_is_said_again(job: Job) -> None:
    job.hear(imports("os", "torch"))
    assert job.hear(join("c", known_round=1)) == [to_import("os", "torch")]


def test_more_is_told_and_the_same_again_is_not(job: Job) -> None:
    assert job.hear(imports("os"))
    assert job.hear(imports("os")) == []
    assert job.hear(imports("os", "torch")) == [to_import("os", "torch")]


@pytest.mark.parametrize("warm", ["", "/usr/bin/python3"], ids=["no spares", "another interpreter"])
def test_whoever_has_no_use_for_it_is_not_told(job: Job, warm: str) -> None:
    job.hear(join("c", known_round=1, warm=warm))
    assert job.hear(imports("os", "torch")) == []


def test_who_does_not_run_has_nothing_to_tell(job: Job) -> None:
    assert job.hear(imports("os", node="c")) == []


def test_too_much_is_not_kept(job: Job) -> None:
    assert job.hear(imports(*("m" * 1000 for _ in range(1 + IMPORTS_CHARS // 1000)))) == []


def test_between_two_rounds_nobody_is_told_for_they_may_all_take_part(job: Job) -> None:
    job.hear(imports("os"))
    job.fail("a")
    assert job.hear(join("c", known_round=1)) == []


def test_as_much_as_may_be_said_fits_into_a_frame_and_comes_whole() -> None:
    most = imports(*("pkg.module" for _ in range(IMPORTS_CHARS // 10)))
    assert decode(encode(most, FRAME_BYTES)) == most
    told = to_import(*most.modules)
    assert decode(encode(told, FRAME_BYTES)) == told


# --- the node's side --------------------------------------------------------------------------------------------------------


def told_by(group_rank: int, join: Join) -> list[Message]:
    stage = Stage(join=join)
    stage.told(replace(assigned(), group_rank=group_rank, group_world_size=2))
    stage.see(ImportsKnown(modules=("os", "torch")))
    return stage.said


def test_one_node_s_word_is_enough() -> None:
    warm = replace(JOIN, warm=PYTHON)
    assert told_by(0, warm) == [imports("os", "torch", node=warm.node)]
    assert told_by(1, warm) == []
    assert told_by(0, JOIN) == []


def test_a_node_that_waits_learns_and_one_that_has_its_place_does_not() -> None:
    stage = Stage()
    assert stage.told(to_import("os")) == [FromCoordinator(message=to_import("os"))]
    stage.run()
    assert isinstance(assigned(), Assigned) and stage.told(to_import("os")) == []

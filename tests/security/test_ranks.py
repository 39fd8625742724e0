"""What can a rank do to its agent, and to the job, by what the two share? It may write anything into its page and its files."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.workers.progress_iteration import ProgressIteration
from holdfast.core.job.failure import Failure, Position
from holdfast.core.page import layout
from holdfast.core.processes import ProcessGone
from holdfast.core.wire.messages import Failed, Join, Message, Positions
from holdfast.monitor.log_progress import LogProgress
from holdfast.runtime.net.codec import MEMBERS_VALUES, decode, encode
from holdfast.runtime.shm.pages import Page, create_page
from holdfast.telemetry.record.io_thread import IoThread

ODD = (0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
"""Words that a rank may have written by mistake: a step of -1 is the last."""


@pytest.fixture
def page() -> Iterator[Page]:
    made = create_page()
    yield made
    made.close()


def crosses(said: Message) -> bool:
    """Whether others take it: they hang up on a node that says anything else, each time that it comes again."""
    decode(encode(said), values=MEMBERS_VALUES)
    return True


def position(step: int | None, sections: int = 0) -> Positions:
    return Positions(node="a", round=1, positions=(Position(rank=0, local_rank=0, pid=1, step=step, sections=sections),))


def joining(held: tuple[int, int, int, int], reached: int | None = None) -> Join:
    memory = ((0, 0, 0, *held),)
    return Join(node="a", name="a", addr="a", master_port=1, nproc=1, role="r", in_memory=memory, reached=reached)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_rank_writes_into_its_page_others_take_what_its_node_says_of_it(page: Page, seed: int) -> None:
    chance = random.Random(seed)
    for at in range(layout.PID, layout.FIELDS_BYTES // 8):
        page.words[at] = chance.choice(ODD) if seed % 2 else chance.getrandbits(64)
    page.words[layout.HELD] = chance.choice(ODD) | layout.HELD_KEPT
    signs, moments = page.signs(), page.moments
    for step in (signs.step, moments.first_step, moments.state_step, page.last_step[0], signs.beats):
        assert crosses(position(step))
    assert all(crosses(position(None, one.count)) for one in signs.sections)
    assert moments.held is not None and crosses(joining(moments.held))
    page.asked(), page.calculated(), page.life(), page.modules(), page.collectives()  # nothing is raised


def test_a_module_without_a_name_is_none(page: Page) -> None:
    said = layout.LOADED + b"\n" + layout.LOADED + b"torch\n" + layout.CHANGED
    page.map[layout.MODULES * 8 : layout.MODULES * 8 + len(said)] = said
    page.words[layout.MODULES_END] = len(said)
    assert page.modules() == ("torch", "=")


SHORTENS = """
import os, sys
names = [sys.modules["_holdfast_bootstrap"].stash.split(":")[0], *(f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))]
for name in names:
    if (file := os.path.realpath(name)).startswith("/memfd:holdfast-"):
        try:
            os.truncate(name, 4 << 20)
            os.truncate(name, 0)
        except PermissionError:
            print("kept", file)
"""


def test_a_rank_cannot_make_what_its_agent_maps_shorter(holdfast: Any, script: Any) -> None:
    """Whoever reads what is no longer there ends by SIGBUS."""
    done = holdfast("run", script(SHORTENS))
    assert done.returncode == 0
    assert done.stdout.split("\n") == ["kept /memfd:holdfast-stash (deleted)", "kept /memfd:holdfast-page (deleted)", ""]


def test_a_rank_that_makes_its_page_longer_costs_no_memory(page: Page) -> None:
    page.ask_for_stacks()
    os.ftruncate(page.fd, 1 << 42)
    assert len(page.stacks()) <= 4 << 20


def test_a_step_in_a_log_and_an_iteration_in_a_file_may_be_any_number(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"step {10**30}\n")
    progress = LogProgress([str(log)], r"step (?P<step>\d+)")
    progress.look()
    progress.close()
    assert crosses(position(progress.step))
    for number in (10**30, -(10**30)):
        log.write_text(str(number))
        assert crosses(joining((0, 0, 0, 0), ProgressIteration(str(log), IoThread(), print).reached().reached))
    counted = ProgressIteration(None, IoThread(), print)
    for _ in range(2):
        counted.ended(ProcessGone(pid=1, exitcode=1, step=(1 << 63) - 1, step_told=False))
        assert crosses(joining((0, 0, 0, 0), counted.reached().reached))


@pytest.mark.parametrize("more", [[1e300] * 1000, [1] * 300_000], ids=["odd numbers", "many values"])
def test_an_error_file_that_others_would_not_decode_costs_its_content_and_not_the_node(more: list[float]) -> None:
    record = {"message": {"message": "it failed", "extraInfo": {"more": more}}}
    failure = Failure(node="a", rank=0, at_unix=1.0, message="it failed", error_record=record)
    said = decode(encode(Failed(node="a", round=1, failure=failure)), values=MEMBERS_VALUES)
    assert isinstance(said, Failed) and said.failure.message == "it failed" and said.failure.error_record is None

"""When does a node say that its ranks write a checkpoint?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kit.stages.made_up import assigned, started

from holdfast.agent.group.messages import SavesSeen
from holdfast.agent.workers.checkpoint_writes import LOOK_S, Saves
from holdfast.core.machine import NEVER


class Ranks:
    """Two of a node, and what their pages show: whether each writes, and how often it has."""

    def __init__(self) -> None:
        self.at = 100.0
        self.pages: dict[int, Any] = {pid: SimpleNamespace(saves=(False, 0)) for pid in (1, 2)}
        self.hand = Saves(self)  # type: ignore[arg-type]
        self.hand.begin_round(assigned(), started(*self.pages))

    def now(self) -> float:
        return self.at

    @property
    def children(self) -> dict[int, Any]:
        return {pid: SimpleNamespace(page=page) for pid, page in self.pages.items()}

    def look(self, **shown: tuple[bool, int]) -> list[Any]:
        """What is said at the next look, after `first` and `second` have come to show that."""
        for pid, name in enumerate(("first", "second"), 1):
            if name in shown:
                self.pages[pid].saves = shown[name]
        assert self.at < self.hand.due_at, "it is too early"
        self.at += LOOK_S
        return self.hand.due()


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


def test_the_first_that_begins_and_the_last_that_is_done_are_told_once(ranks: Ranks) -> None:
    assert ranks.look() == []
    assert ranks.look(first=(True, 0)) == [SavesSeen(open=True)]
    assert ranks.look(first=(False, 1), second=(True, 0)) == []
    assert ranks.look(first=(True, 1), second=(False, 1)) == []
    assert ranks.look(first=(False, 2)) == [SavesSeen(open=False)]
    assert ranks.look() == []


def test_one_that_began_and_was_done_between_two_looks_is_told(ranks: Ranks) -> None:
    assert ranks.look(first=(False, 1)) == [SavesSeen(open=False)]
    assert ranks.look() == []


def test_a_rank_that_ends_has_written_nothing_by_that(ranks: Ranks) -> None:
    ranks.look(first=(False, 1), second=(False, 1))
    del ranks.pages[2]
    assert ranks.look() == []


def test_nobody_is_looked_at_when_all_are_gone_or_cannot_be_seen(ranks: Ranks) -> None:
    ranks.pages[1] = ranks.pages[2] = None
    assert ranks.look() == [] and ranks.hand.due_at < NEVER
    ranks.pages.clear()
    assert ranks.look() == [] and ranks.hand.due_at == NEVER

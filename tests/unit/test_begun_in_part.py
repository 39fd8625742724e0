"""A rank in which our bootstrap could not do its whole work: it runs, and somebody hears what is lacking."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kit.stages.made_up import assigned, started

from holdfast.agent.workers.rank_lives import FIRST_LOOK_S, RankLives
from holdfast.core.job.events import RanksBegun
from holdfast.core.page import layout
from holdfast.core.page.signs import Moments
from holdfast.core.processes import ProcessDying, ProcessGone
from holdfast.core.value import replace
from holdfast.runtime.shm.pages import create_page


def test_what_the_bootstrap_could_not_do_is_told() -> None:
    pages = [create_page(), create_page()]
    text = b"OSError: [Errno 38] Function not implemented"
    pages[1].map[layout.TROUBLE * 8 : layout.TROUBLE * 8 + len(text)] = text
    told: list[str] = []
    times = iter((10.0, 10.0 + FIRST_LOOK_S))
    children = {pid: SimpleNamespace(page=page) for pid, page in enumerate([*pages, None])}
    host: Any = SimpleNamespace(children=children, complain=told.append, now=lambda: next(times))
    lives = RankLives(host, lambda event: None, lambda *told: None)
    lives.begin_round(assigned(), started(*children))
    assert lives.due() == []
    assert told == [f"a rank runs, but is not fully monitored: {text.decode()}"]
    for page in pages:
        page.close()


def test_a_rank_that_had_booted_before_all_were_started_has_booted_in_the_time_since_its_own_start() -> None:
    page = create_page()
    page.words[layout.BOOTED_NS] = 2_500_000_000
    told: list[Any] = []
    host: Any = SimpleNamespace(children={7: SimpleNamespace(page=page)}, now=lambda: 3.0)
    lives = RankLives(host, told.append, lambda *told: None)
    (begun,) = started(7)
    lives.begin_round(assigned(), [replace(begun, at=2.0)])
    lives.saw(ProcessGone(pid=7, exitcode=0, moments=page.moments))
    assert [event.booted_s for event in told if isinstance(event, RanksBegun)] == [0.5]
    page.close()


Two = tuple[RankLives, dict[int, Any], Moments, list[Any]]


@pytest.fixture
def two() -> Iterator[Two]:
    """(lives, pages, moments of 8, what is told) of ranks 7 and 8 that have stepped; 8 has gone since."""
    pages = {pid: create_page() for pid in (7, 8)}
    for page in pages.values():
        page.words[layout.BOOTED_NS] = page.words[layout.FIRST_STEP_NS] = 1_000_000_000
        page.words[layout.STATE_FROM] = layout.FROM_SCRIPT
    told: list[Any] = []
    children = {pid: SimpleNamespace(page=page) for pid, page in pages.items()}
    host: Any = SimpleNamespace(children=children, now=lambda: 3.0)
    lives = RankLives(host, told.append, lambda *told: None)
    lives.begin_round(assigned(), started(*pages))
    del children[8]
    yield lives, pages, pages[8].moments, told
    for page in pages.values():
        page.close()


def test_how_all_began_is_told_though_one_has_gone_whose_end_is_yet_to_be_told(two: Two) -> None:
    """Where the disk of its log is slow: the looks that come meanwhile see the others only."""
    lives, _, moments, told = two
    lives.due()
    lives.saw(ProcessDying(pid=7, exitcode=1))
    assert told == []
    lives.saw(ProcessGone(pid=8, exitcode=-9, moments=moments))
    assert [event.state_from for event in told] == [("script", "script")]


def test_how_all_began_is_told_of_who_has_let_go_of_the_round_before_the_end_of_another_is_known(two: Two) -> None:
    """A busy agent learns at once that a rank is dying and that it is gone, and has the others let go in between."""
    lives, pages, moments, told = two
    lives.saw(ProcessDying(pid=8, exitcode=-9))
    pages[7].words[layout.STATE_FROM] = layout.NO_STATE
    lives.saw(ProcessGone(pid=8, exitcode=-9, moments=moments))
    assert [event.state_from for event in told] == [("script", "script")]

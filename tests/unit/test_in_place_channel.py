"""How does a rank hear the agent's words about its lives (`client.in_place.channel`), however fast one follows another?"""

from __future__ import annotations

import errno
import json
import sys
import threading
from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from holdfast.client.in_place import channel as module
from holdfast.client.in_place.channel import Channel, open_channel
from holdfast.client.in_place.lives import Regroup, _is_of_regroup
from holdfast.core.page import layout

PATIENCE_S = 20.0


class Page:
    """The page as the agent sees it, and what the rank tells."""

    def __init__(self) -> None:
        self.words = memoryview(bytearray(layout.SIZE)).cast("Q")
        self.changed = threading.Condition()
        self.told: list[int] = []
        self.over = False  # The test is: who listens hears no more.

    def say(self, word: int, life: dict[str, Any] | None = None) -> None:
        """The agent's next word."""
        if life is not None:
            text = json.dumps(life).encode()
            at = layout.LIFE * 8
            self.words.cast("B")[at : at + len(text)] = text
            self.words[layout.LIFE_BYTES] = len(text)
        with self.changed:
            self.words[layout.LIFE_ASKED] = word
            self.changed.notify_all()

    def sleep_on(self, word: int, which: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.over or self.words[which] != word, 0.05)
        if self.over:
            threading.Event().wait()

    def tell_life(self, what: int) -> None:
        with self.changed:
            self.told.append(what)
            self.changed.notify_all()

    def await_told(self, *those: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.told == list(those), PATIENCE_S), self.told


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    page = Page()
    monkeypatch.setattr(module, "this_worker", SimpleNamespace(tell_life=page.tell_life, begin_anew=lambda: None))
    monkeypatch.setattr(module, "begin", lambda bootstrap, given: None)
    yield page
    page.over = True


def listening(page: Page) -> Channel:
    channel = Channel(page, KeyboardInterrupt, None)  # type: ignore[arg-type]
    channel.is_out.set()  # the main thread has left the script's code
    threading.Thread(target=channel.listen, daemon=True).start()
    return channel


def regrouping(channel: Channel) -> threading.Thread:
    thread = threading.Thread(target=channel.regroup, daemon=True)
    thread.start()
    return thread


def test_no_round_is_let_go_of_while_a_try_to_end_what_is_open_is_under_way(page: Page) -> None:
    """It would shut what the next life has opened."""
    channel = listening(page)
    with channel.tries:
        page.say(1)
        thread = regrouping(channel)
        thread.join(0.2)
        assert page.told == []
    page.await_told(layout.LET_GO)
    page.say(2, {})
    thread.join(PATIENCE_S)


def test_a_round_is_let_go_of_once_and_the_next_begun(page: Page) -> None:
    channel = listening(page)
    page.say(1)
    thread = regrouping(channel)
    page.await_told(layout.LET_GO)
    page.say(2, {})
    thread.join(PATIENCE_S)
    assert page.told == [layout.LET_GO]  # the script's code has yet to be called
    for _ in range(2):
        channel.enter()
        assert page.told == [layout.LET_GO, layout.IN_PLACE] and not channel.is_asked.is_set()


def test_a_life_that_is_to_be_left_before_anybody_saw_it_begin_is_let_go_of_too(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its environment is taken: of the next, only what differs from it is told."""
    taken: list[dict[str, Any]] = []
    monkeypatch.setattr(module, "begin", lambda bootstrap, given: taken.append(given))
    channel = listening(page)
    page.say(1)
    thread = regrouping(channel)
    page.await_told(layout.LET_GO)
    page.say(3, {"set": {"WORLD_SIZE": "2"}})  # 2 was said, and nobody has looked
    page.await_told(layout.LET_GO, layout.LET_GO)
    page.say(4, {"set": {"MASTER_PORT": "4"}})
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and not channel.is_asked.is_set()
    assert [given["set"] for given in taken] == [{"WORLD_SIZE": "2"}, {"MASTER_PORT": "4"}]


def test_a_word_that_comes_as_a_life_begins_is_not_forgotten(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = listening(page)
    page.say(1)
    monkeypatch.setattr(module, "begin", lambda bootstrap, given: page.say(3))
    thread = regrouping(channel)
    page.await_told(layout.LET_GO)
    page.say(2, {})
    thread.join(PATIENCE_S)
    assert channel.is_asked.wait(PATIENCE_S)


def test_a_rank_without_descriptors_hears_the_next_word_too(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(before: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(module.groups, "interrupt", refuse)
    channel = listening(page)
    page.say(1)
    assert channel.is_asked.wait(PATIENCE_S)
    thread = regrouping(channel)
    page.await_told(layout.LET_GO)
    page.say(2, {})
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_the_signal_raises_nothing_in_our_own_code(page: Page) -> None:
    """However often it comes: to let go of all that the script's functions had may take longer than until it is sent again."""
    channel = Channel(page, KeyboardInterrupt, None)  # type: ignore[arg-type]
    channel.is_awaited = True
    asked = [False, True]  # what the code is told, and what the handler is
    channel.is_asked = SimpleNamespace(is_set=lambda: asked[0])  # type: ignore[assignment]
    raised: list[str] = []

    def signalled(frame: FrameType, event: str, argument: object) -> None:
        asked.reverse()
        try:
            channel.interrupted(module.SIGNAL, frame)
        except KeyboardInterrupt:
            name = frame.f_code.co_name
            if frame.f_globals is not globals() or name == "tell_life":  # else it stands for the script's code
                raised.append(name)
        asked.reverse()

    sys.setprofile(signalled)
    try:
        channel.enter()
        asked[0] = True
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            assert channel.leave(error, is_regroup=True)
    finally:
        sys.setprofile(None)
    assert page.told == [layout.IN_PLACE] and not raised


@pytest.mark.torch
@pytest.mark.parametrize("manager", ["autocast", "saved_tensors_hooks", "no_grad"])
def test_no_context_manager_of_torch_s_is_left_half_entered_or_half_left(page: Page, manager: str) -> None:
    """Autocast would be on in the lives that follow, and calculate with the weights that it had cast in this one."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    managers = {
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "saved_tensors_hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda one: one, lambda one: one),
        "no_grad": torch.no_grad,
    }
    channel = Channel(page, KeyboardInterrupt, None)  # type: ignore[arg-type]
    channel.inside = True
    channel.is_asked.set()
    halves: list[FrameType] = []

    def noted(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name in ("__enter__", "__exit__"):
            halves.append(frame)
            channel.interrupted(module.SIGNAL, frame)

    made = managers[manager]()
    sys.settrace(noted)
    try:
        with made:
            pass
    finally:
        sys.settrace(None)
    assert len(halves) == 2
    with pytest.raises(KeyboardInterrupt):
        channel.interrupted(module.SIGNAL, sys._getframe())  # the script's own code
    channel.sent = module.OFTEN  # one that waits in there is not waited for any longer
    with pytest.raises(KeyboardInterrupt):
        channel.interrupted(module.SIGNAL, halves[-1])


def test_a_second_loop_over_lives_is_told_that_only_the_first_can() -> None:
    import signal

    taken = Channel(Page(), KeyboardInterrupt, None)  # type: ignore[arg-type]
    before = signal.signal(module.SIGNAL, taken.interrupted)
    try:
        with pytest.raises(ValueError, match="only the first of a script's loops"):
            open_channel(Page(), KeyboardInterrupt, None)  # type: ignore[arg-type]
    finally:
        signal.signal(module.SIGNAL, before)


def test_who_wants_to_end_while_regroup_unwinds_is_let_go() -> None:
    """An error of a `finally` that needed the group is no error of the script's; a wish to end is one."""
    for wish, goes_on in ((ValueError("the group is gone"), True), (SystemExit(1), False), (KeyboardInterrupt(), False)):
        with pytest.raises(type(wish)) as caught:
            try:
                raise Regroup
            finally:
                raise wish
        assert _is_of_regroup(caught.value) is goes_on
    ring = ValueError()
    ring.__context__ = KeyError()
    ring.__context__.__context__ = ring
    assert not _is_of_regroup(ring)

"""Many links behind one descriptor: what comes over them is heard, soon, and nothing else is held up."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.core.machine import NEVER
from holdfast.runtime.host import Host
from holdfast.runtime.net.link_pool import LinkPool, Pace


class Links:
    """A crowd of socket pairs. What is heard are the numbers of those that said something."""

    def __init__(self, count: int, pace: Pace) -> None:
        self.host = Host(print)
        self.heard: list[int] = []
        self.crowd = LinkPool(self.host, self.taken_in, pace)
        self.pairs = [socket.socketpair() for _ in range(count)]
        for number, (ours, _) in enumerate(self.pairs):
            self.crowd.watch(ours.fileno(), select.EPOLLIN, lambda events, number=number: self.hear(number))

    def hear(self, number: int) -> list[Any]:
        self.pairs[number][0].recv(100)
        self.heard.append(number)
        return [number]

    def taken_in(self) -> list[Any]:
        """Nothing, but what a test wants."""
        return []

    def say(self, *numbers: int) -> None:
        for number in numbers:
            self.pairs[number][1].send(b"x")

    def wait(self) -> list[Any]:
        """What the host hears, with no more patience than a test needs where nothing is to come."""
        return self.host.wait(self.host.now() + 0.05)

    def close(self) -> None:
        self.crowd.close()
        self.host.close()
        for pair in self.pairs:
            for end in pair:
                end.close()


@pytest.fixture
def eight() -> Iterator[Callable[..., Links]]:
    """`eight(often=…)`: eight links, which are many here; four that speak at once are busy."""
    made: list[Links] = []

    def make(**pace: float) -> Links:
        made.append(Links(8, Pace(many=8, busy=4, **pace)))
        return made[-1]

    yield make
    for links in made:
        links.close()


@pytest.fixture
def links(eight: Callable[..., Links]) -> Links:
    return eight()


def test_what_comes_while_nobody_looked_is_heard_at_once(links):
    links.say(3)
    assert links.wait() == [3]


def test_where_many_say_a_little_what_comes_next_waits_for_the_next_look(links):
    links.say(1)
    assert links.wait() == [1] and links.crowd.look_at < NEVER
    links.say(2, 5)
    assert links.wait() == [] and links.crowd.due(links.crowd.look_at - 0.001) == []
    assert sorted(links.crowd.due(links.crowd.look_at)) == [2, 5]


def test_after_a_look_that_found_nothing_the_next_word_wakes_again(links):
    links.say(1)
    links.wait()
    assert links.crowd.due(links.crowd.look_at) == [] and links.crowd.look_at == NEVER
    links.say(6)
    assert links.wait() == [6]


def test_where_much_is_said_nobody_waits(links):
    links.say(1)
    links.wait()
    links.say(0, 1, 2, 3)
    assert len(links.crowd.due(links.crowd.look_at)) == 4 and links.crowd.look_at == NEVER


def test_a_few_links_are_heard_at_once_each_time(links):
    links.crowd.unwatch(links.pairs[7][0].fileno())
    for number in (1, 2, 1):
        links.say(number)
        assert links.wait() == [number] and links.crowd.look_at == NEVER


def test_whatever_else_the_host_waits_for_is_not_held_up(links):
    links.say(1)
    links.wait()
    ours, theirs = socket.socketpair()
    links.host.watch(ours.fileno(), select.EPOLLIN, lambda events: ["a worker"])
    theirs.send(b"x")
    assert links.wait() == ["a worker"] and links.crowd.look_at < NEVER
    links.host.unwatch(ours.fileno())
    ours.close()
    theirs.close()


def test_what_is_made_of_it_is_told_once_all_has_been_taken_in(links):
    links.crowd.taken_in = lambda: [("made of", sorted(links.heard))]
    links.say(1, 2)
    assert links.wait()[-1] == ("made of", [1, 2])


@pytest.mark.parametrize(("each_s", "pause_s"), [(0.0, Pace().pause_s), (0.001, 0.008), (1.0, Pace().longest_s)])
def test_the_more_links_there_are_the_longer_is_the_pause(eight, each_s, pause_s):
    links = eight(each_s=each_s)
    links.say(1)
    before = links.host.now()
    assert links.wait() == [1]
    assert before + pause_s <= links.crowd.look_at <= links.host.now() + pause_s


def test_among_more_links_more_may_speak_at_one_look(eight):
    links = eight(often=1000.0)
    links.say(*range(6))
    assert sorted(links.wait()) == list(range(6)) and links.crowd.look_at < NEVER

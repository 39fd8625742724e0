"""An agent whose endpoint's name does not resolve yet asks again, says so, and can be told to go."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.agent.networked import NOTICE_S, wait_for_name
from holdfast.core.errors import RendezvousError, Stopped
from holdfast.core.machine import Observation, Signalled
from holdfast.runtime.net.names import Addresses

UNKNOWN = socket.gaierror(-3, "Temporary failure in name resolution")


class Scene:
    """A host and its name server. Each answer takes `slow_s`; the name is known from `known_at` on."""

    def __init__(self, known_at: float, *, slow_s: float = 0.0, signals: dict[float, int] | None = None) -> None:
        self.known_at, self.slow_s, self.signals = known_at, slow_s, dict(signals or {})
        self.at = 0.0
        self.asked: list[float] = []
        self.pending: list[tuple[float, Callable[[Addresses], Any]]] = []
        self.said: list[tuple[float, str]] = []

    def now(self) -> float:
        return self.at

    def ask(self, name: str, port: int, then: Callable[[Addresses], Any]) -> list[Observation]:
        self.asked.append(self.at)
        self.pending.append((self.at + self.slow_s, then))
        if not self.slow_s:
            self._answer()
        return []

    def wait(self, until: float) -> list[Observation]:
        self.at = max(self.at, min([until, *(at for at, _ in self.pending), *self.signals]))
        self._answer()
        return [Signalled(signum=self.signals.pop(at)) for at in list(self.signals) if at <= self.at]

    def _answer(self) -> None:
        due, self.pending = self.pending[:1], self.pending[1:]
        for at, then in due:
            if at > self.at:
                self.pending.append((at, then))
            else:
                then([("an address",)] if self.at >= self.known_at else UNKNOWN)

    def waits(self, wait_s: float = 60.0) -> None:
        tell = lambda text: self.said.append((self.at, text))
        wait_for_name(self, self, "head", wait_s, tell, stops=(15,))  # type: ignore[arg-type]


def test_a_name_that_is_known_costs_one_question() -> None:
    scene = Scene(0.0)
    scene.waits()
    assert scene.asked == [0.0] and not scene.said


def test_one_that_comes_late_is_asked_for_until_then_and_that_is_said_once() -> None:
    scene = Scene(20.0)
    scene.waits()
    assert 20.0 <= scene.at <= 21.0
    ((at, text),) = scene.said
    assert at == NOTICE_S and "cannot resolve head" in text and "Temporary failure" in text and "up to 60 s" in text


def test_a_name_server_that_hangs_is_waited_for_and_not_asked_again_meanwhile() -> None:
    scene = Scene(0.0, slow_s=30.0)
    scene.waits()
    assert scene.asked == [0.0] and scene.at == 30.0
    assert ["no answer yet" in text for _, text in scene.said] == [True]


def test_one_that_never_comes_ends_the_agent_when_the_time_for_joining_is_over() -> None:
    with pytest.raises(RendezvousError, match=r"cannot resolve head, .*: Temporary failure .* within 60 s"):
        Scene(1000.0).waits()


def test_a_signal_that_ends_agents_ends_the_waiting_and_others_do_not() -> None:
    scene = Scene(1000.0, signals={5.0: 10, 7.0: 15})
    with pytest.raises(Stopped) as stopped:
        scene.waits()
    assert stopped.value.exit_code == -15 and scene.at == 7.0

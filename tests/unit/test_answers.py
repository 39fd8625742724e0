"""Answers wait for those to the other messages that have come, and for nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.agent import Agent
from holdfast.core.wire.links import HangUp, Transmit
from holdfast.core.wire.messages import Renewed

FIRST, SECOND = (Transmit(link=link, message=Renewed(lease_s=3.0)) for link in (1, 2))


@pytest.fixture
def sent() -> list[Any]:
    return []


@pytest.fixture
def agent(sent: list[Any]) -> Agent:
    agent = object.__new__(Agent)
    agent.answers = []
    agent.host = SimpleNamespace(unix=lambda: 0.0)  # type: ignore[assignment]
    agent.network = SimpleNamespace(  # type: ignore[assignment]
        transmit_all=lambda those: sent.append(list(those)) or [], perform=lambda action: sent.append(action) or []
    )
    return agent


def test_they_go_out_together(agent, sent):
    agent._answer_or_perform([FIRST])
    agent._answer_or_perform([SECOND])
    assert not sent
    agent._send_answers()
    agent._send_answers()
    assert sent == [[FIRST, SECOND]]


def test_what_is_more_than_an_answer_comes_after_those_before_it(agent, sent):
    agent._answer_or_perform([FIRST])
    agent._answer_or_perform([SECOND, HangUp(link=2)])
    assert sent == [[FIRST], SECOND, HangUp(link=2)]


def test_nothing_waits_behind_what_leads_to_nothing(agent, sent):
    agent._answer_or_perform([FIRST])
    agent.perform([])
    assert sent == [[FIRST]]

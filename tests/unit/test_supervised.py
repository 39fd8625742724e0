"""What of an agent does a supervisor hear at once?"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.supervised import Supervised
from holdfast.core.config import RunConfig
from holdfast.core.events import HealthChanged
from holdfast.runtime.host import Host


@pytest.fixture
def supervised() -> Iterator[Supervised]:
    config = RunConfig(training_script="train.py", state_dir="/nowhere", supervisors=("127.0.0.1:9",))
    join = SimpleNamespace(node="c-1", name="c", life="1", domain="")
    group: Any = SimpleNamespace(join=join, state="joining", spare_because="", workers={}, assigned=None, round=0)
    host = Host(lambda text: None)
    nobody: Any = None
    supervised = Supervised(
        config,
        host,
        nobody,
        group,
        secret=b"",
        rendezvous=lambda: None,
        monitoring=lambda: None,
        say=lambda text, level: None,
    )
    supervised.due()
    yield supervised
    supervised.close()
    host.close()


def changed(check: str, state: str) -> HealthChanged:
    return HealthChanged(check=check, state=state, before="", reason=f"{check} is {state}", advice="", took_s=0.0)


def test_that_a_node_waits_for_a_place_is_told_at_once_though_no_event_says_so(supervised):
    group: Any = supervised.group
    assert supervised.deadline() > 0.0
    group.spare_because = "there are enough"
    assert supervised.deadline() == 0.0
    supervised.due()
    assert supervised.told is not None and supervised.told.spare_because == "there are enough" and supervised.deadline() > 0.0


def test_a_node_is_unfit_until_each_of_its_checks_is_content(supervised):
    said = []
    for check, state in (("gpu", "unfit"), ("nic", "unfit"), ("memory", "degraded"), ("gpu", "fit"), ("nic", "fit")):
        supervised.saw(changed(check, state))
        supervised.due()
        said.append(supervised.told.unfit)
    assert said == [*["gpu: gpu is unfit"] * 3, "nic: nic is unfit", ""]

"""What of an agent does a supervisor hear at once?"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.group.state import Phase
from holdfast.agent.reporting.supervisor_link import SupervisorLink
from holdfast.agent.surroundings import Surroundings
from holdfast.core.config.config import RunConfig
from holdfast.core.job.events import HealthChanged
from holdfast.core.job.xid import DeviceFault
from holdfast.core.value import replace
from holdfast.runtime.host import Host
from holdfast.runtime.net.frames import Identity


@pytest.fixture
def supervised() -> Iterator[SupervisorLink]:
    config = RunConfig(training_script="train.py", state_dir="/nowhere", supervisors=("127.0.0.1:9",), max_nodes=2)
    join = SimpleNamespace(node="c-1", name="c", life="1", domain="")
    state = SimpleNamespace(spare_because="")
    group: Any = SimpleNamespace(join=join, phase=Phase.JOINING, state=state, workers={}, assigned=None, round=0)
    host = Host(lambda text: None)
    nobody: Any = None
    agent_log: Any = SimpleNamespace(say=lambda text, level: None)
    network: Any = SimpleNamespace(listeners=[1], endpoint=("n0", 29400), identity=Identity("job", b""), shelter=None)
    node: Any = SimpleNamespace(group=group, server=None)
    around = Surroundings(
        config=config, host=host, agent_log=agent_log, node=node, network=network, job_dir=nobody, perform=nobody
    )
    supervised = SupervisorLink(around, nobody, secret=b"", own=b"", progress=lambda local_rank: {})
    supervised.due()
    yield supervised
    supervised.close()
    host.close()


def changed(check: str, state: str) -> HealthChanged:
    return HealthChanged(check=check, state=state, before="", reason=f"{check} is {state}", advice="", took_s=0.0)


def troubles(supervised: SupervisorLink, *faults: DeviceFault, state: str = "unfit") -> list[tuple[str, str, int, str]]:
    """What the supervisor is told of a check that has found these: kind, device, Xid, words."""
    supervised.recorded(replace(changed("xid", state), devices=faults), 0.0)
    return [(one.kind, one.device, one.xid, one.what) for one in supervised.uplink.troubles]


def test_that_a_node_waits_for_a_place_is_told_at_once_though_no_event_says_so(supervised):
    group: Any = supervised.group
    assert supervised.due_at > 0.0
    group.state.spare_because = "there are enough"
    assert supervised.due_at == 0.0
    supervised.due()
    assert supervised.told is not None and supervised.told.spare_because == "there are enough" and supervised.due_at > 0.0


@pytest.mark.parametrize(
    ("secret", "host", "is_open"), [(b"", "n0", True), (b"a secret", "n0", False), (b"", "127.0.0.1", False)]
)
def test_that_anybody_may_join_the_job_is_told(supervised, secret, host, is_open):
    supervised.around.network.identity, supervised.around.network.endpoint = Identity("job", secret), (host, 29400)
    supervised.recorded(changed("gpu", "fit"), 0.0)
    supervised.due()
    assert supervised.told.is_open is is_open


def test_a_node_is_unfit_until_each_of_its_checks_is_content(supervised):
    said = []
    for check, state in (("gpu", "unfit"), ("nic", "unfit"), ("memory", "degraded"), ("gpu", "fit"), ("nic", "fit")):
        supervised.recorded(changed(check, state), 0.0)
        supervised.due()
        said.append(supervised.told.unfit)
    assert said == [*["gpu: gpu is unfit"] * 3, "nic: nic is unfit", ""]


def test_each_device_that_a_check_has_found_is_told_with_its_xid(supervised):
    first, second = (DeviceFault(device=f"0000:{bus}:00", what=f"GPU 0000:{bus}:00: Xid 79", xid=79) for bus in ("3b", "9b"))
    assert troubles(supervised, first, second) == [("device", one.device, 79, one.what) for one in (first, second)]


def test_a_device_without_an_xid_makes_its_node_unfit_by_name(supervised):
    switch = DeviceFault(device="NVSwitch 0000:05:00.0", what="NVSwitch 0000:05:00.0: SXid 20034")
    assert troubles(supervised, switch) == [("unfit", switch.device, 0, switch.what)]


def test_a_node_that_is_degraded_tells_of_xids_and_of_nothing_else(supervised):
    row = DeviceFault(device="0000:3b:00", what="Xid 63", xid=63)
    assert troubles(supervised, DeviceFault(device="NVSwitch 1", what="SXid 12028"), row, state="degraded") == [
        ("device", row.device, 63, row.what)
    ]


def test_an_unfit_node_without_a_device_is_told_with_its_reason(supervised):
    assert troubles(supervised) == [("unfit", "", 0, "xid is unfit")]

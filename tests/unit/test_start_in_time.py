"""Is no worker started, and does the guardian know of the lease, where a slow disk holds up a start?"""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit.stages.made_up import assigned

from holdfast.agent.agent import Agent
from holdfast.agent.group.messages import TOO_LATE, PortHeld, Started, StartFailed, StartWorkers
from holdfast.agent.logs.attempt_logs import LogPlan
from holdfast.agent.own_lease import OwnLease
from holdfast.agent.workers.workers import Workers
from holdfast.core.config.config import RunConfig
from holdfast.core.processes import ProcessGone
from holdfast.core.wire.messages import Assigned
from holdfast.runtime.host import Host
from holdfast.runtime.process import guardian

ASSIGNED = assigned(world_size=2)


@pytest.mark.parametrize("left_s, kinds", [(-0.001, (StartFailed, PortHeld)), (60.0, (Started, Started, PortHeld))])
def test_what_would_start_after_its_lease_does_not(tmp_path: Path, left_s: float, kinds: tuple[type, ...]) -> None:
    host = Host(print)
    config = RunConfig(training_script="true", no_python=True, nproc_per_node=2, state_dir=str(tmp_path))
    workers = Workers(config, host, LogPlan.of(config, str(tmp_path), "n1"))
    found = list(workers.start(ASSIGNED, host.now() + left_s))
    assert tuple(map(type, found)) == kinds
    if isinstance(found[0], StartFailed):
        assert found[0].message == TOO_LATE
    left = len(workers.local_ranks)
    while left:
        left -= sum(isinstance(seen, ProcessGone) for seen in host.wait(host.now() + 1.0))


def test_what_was_started_counts_though_nothing_more_can_be_opened_right_then(tmp_path: Path, monkeypatch: Any) -> None:
    """Else the agent would wait for ever for the start of ranks that run, or for the failure of one that cannot."""
    host = Host(lambda what: None)
    config = RunConfig(training_script="true", no_python=True, nproc_per_node=2, state_dir=str(tmp_path))
    agent = object.__new__(Agent)
    agent.host, agent.workers = host, Workers(config, host, LogPlan.of(config, str(tmp_path), "n1"))

    def short(*_: object) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(agent.workers, "_start", short)
        assert [type(seen) for seen in agent.workers.start(ASSIGNED)] == [PortHeld]
    monkeypatch.setattr(host, "watch_pages", short)
    monkeypatch.setattr(host, "now", lambda: agent.workers.due_at)
    assert [type(seen) for seen in agent._unless_short(agent.workers.due)] == [Started, Started]
    monkeypatch.undo()
    left = len(agent.workers.local_ranks)
    while left:
        left -= sum(isinstance(seen, ProcessGone) for seen in host.wait(host.now() + 1.0))


def test_the_guardian_knows_of_the_lease_before_the_directories_are_made() -> None:
    lease = guardian.Lease()
    known: list[Any] = []
    agent = object.__new__(Agent)
    agent.answers = []
    host: Any = SimpleNamespace(unix=lambda: 0.0, now=lambda: 0.0, show_lease=lambda until: None)
    node: Any = SimpleNamespace(member=object(), lease_ends=7.0)
    agent.host, agent.node, agent.lease = host, node, OwnLease(host, node, lease)

    def start(told: Assigned, until: float | None, kept: object) -> list[Any]:
        known.append((lease.until, until))
        raise KeyboardInterrupt

    agent.workers = SimpleNamespace(start=start, attempt=None)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        agent.perform([StartWorkers(assigned=ASSIGNED)])
    assert known == [(7.0, 7.0)]

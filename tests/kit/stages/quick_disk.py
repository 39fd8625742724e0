"""Machines whose log files are there at once: `OpenLogs` is answered within the same observation."""

from __future__ import annotations

from typing import Any

from holdfast.agent.group.machine import Group
from holdfast.agent.group.messages import LogsOpened, OpenLogs
from holdfast.agent.node import Node
from holdfast.core.machine import Action, Observation


def with_logs(machine: Any, actions: list[Action], now: float) -> list[Action]:
    """`actions`, and what follows once the files that they ask for are there."""
    for action in list(actions):
        if isinstance(action, OpenLogs):
            actions = actions + machine.observe(LogsOpened(round=action.assigned.round), now)
    return actions


class QuickGroup(Group):
    """See above."""

    def begin(self, now: float) -> list[Action]:
        return with_logs(self, super().begin(now), now)

    def observe(self, seen: Observation, now: float) -> list[Action]:
        return with_logs(self, super().observe(seen, now), now)


class QuickNode(Node):
    """See above."""

    def begin(self, now: float) -> list[Action]:
        return with_logs(self, super().begin(now), now)

    def observe(self, seen: Observation, now: float) -> list[Action]:
        return with_logs(self, super().observe(seen, now), now)

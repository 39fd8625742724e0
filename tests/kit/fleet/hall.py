"""A supervisor's machine with links to it, as its service has them, and agents that say what they like."""

from __future__ import annotations

from typing import Any

from holdfast.core.machine import Action, Observation, Say
from holdfast.core.wire.fleet import FleetMessage, RankSaid, Standing
from holdfast.core.wire.links import Arrived, LinkUp
from holdfast.supervisor.connections import Connections
from holdfast.supervisor.fleet.machine import Fleet
from holdfast.supervisor.fleet.messages import Keep
from holdfast.supervisor.fleet.policies import policy
from holdfast.supervisor.fleet.state import Kept, RepairRules

LEASE_S = 2.0
NOW = LEASE_S + 1.0


def standing(node: str, job: str = "train", **how: Any) -> Standing:
    fields = {"state": "running", "round": 1, "life": "1", "ranks": (RankSaid(rank=0, local_rank=0, state="running"),)}
    return Standing(node=f"{node}-1", number=1, name=node, job=job, **fields | how)


class Hall:
    """A supervisor, and links to it."""

    def __init__(self, kept: Kept | None = None, repair: RepairRules | None = None) -> None:
        rules = policy("default")
        self.fleet = Fleet(rules, generation=1, lease_s=LEASE_S, now=0.0, now_unix=1000.0, kept=kept, repair=repair)
        self.connections, self.links = Connections(self.fleet), 0
        self.stored: dict[tuple[str, str], Any] = {}
        self.told: list[str] = []
        """To people."""

    def link(self, *first: FleetMessage, **came: Any) -> int:
        self.links += 1
        self.see(LinkUp(link=self.links, ours=False, **came), 0.5)
        for message in first:
            self.say(self.links, message, 0.5)
        return self.links

    def say(self, link: int, message: FleetMessage, now: float = NOW) -> list[Action]:
        return self.see(Arrived(link=link, message=message), now)

    def see(self, seen: Observation, now: float) -> list[Action]:
        """What it does then; what it stores is kept."""
        actions = self.connections.observe(seen, now)
        for action in actions:
            if isinstance(action, Keep):
                self.stored[action.table, action.key] = action.value
            elif isinstance(action, Say):
                self.told.append(action.text)
        return actions

    def of(self, table: str) -> dict[str, Any]:
        """What is stored there."""
        return {key: value for (where, key), value in self.stored.items() if where == table and value is not None}

    def killed(self) -> Hall:
        """The next life of it, with what this one has stored."""
        return Hall(Kept(nodes=tuple(self.of("nodes").values()), jobs=tuple(self.of("jobs").values())))

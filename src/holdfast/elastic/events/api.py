"""What is an event? Its fields, its JSON, and the interface of what takes it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TypeAlias

__all__ = ["Event", "EventHandler", "EventMetadataValue", "EventSource", "NodeState", "NullEventHandler", "RdzvEvent"]

EventMetadataValue: TypeAlias = str | int | float | bool | None


class EventSource(str, Enum):  # noqa: UP042 - as text torch's is `EventSource.AGENT`
    """Who saw it."""

    AGENT = "AGENT"
    WORKER = "WORKER"


class _Json:
    """What both kinds of event have: their fields as JSON."""

    def __str__(self) -> str:
        return self.serialize()

    def serialize(self) -> str:
        return json.dumps(asdict(self))  # type: ignore[call-overload]


@dataclass
class Event(_Json):
    """Something that happened to an agent or a worker. `timestamp` in milliseconds since the epoch; 0: not recorded yet."""

    name: str
    source: EventSource
    timestamp: int = 0
    metadata: dict[str, EventMetadataValue] = field(default_factory=dict)

    @staticmethod
    def deserialize(data: str | Event) -> Event:
        """From the JSON that `serialize` gave."""
        if isinstance(data, Event):
            return data
        fields = json.loads(data)
        return Event(**fields | {"source": EventSource[fields["source"]]})


class NodeState(str, Enum):  # noqa: UP042
    """How far a node is in its rendezvous."""

    INIT = "INIT"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass
class RdzvEvent(_Json):
    """Something that happened to a node in a rendezvous. `error_trace` is the traceback when the state is FAILED."""

    name: str
    run_id: str
    message: str
    hostname: str
    pid: int
    node_state: NodeState
    master_endpoint: str = ""
    rank: int | None = None
    local_id: int | None = None
    error_trace: str = ""

    @staticmethod
    def deserialize(data: str | RdzvEvent) -> RdzvEvent:
        """From the JSON that `serialize` gave."""
        if isinstance(data, RdzvEvent):
            return data
        fields = json.loads(data)
        return RdzvEvent(**fields | {"node_state": NodeState[fields["node_state"]]})


class EventHandler(ABC):
    """Takes events somewhere. Yours implements `record`."""

    @abstractmethod
    def record(self, event: Event) -> None: ...


class NullEventHandler(EventHandler):
    """Drops everything."""

    def record(self, event: Event) -> None:
        pass

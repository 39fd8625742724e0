"""What happened: the closed catalogue of events. Logs, metrics, reports and dashboards are folds over these.

One event is one JSON line in `events-<node>.jsonl`. The recorder adds the envelope (`seq`, `at_unix`, `node`, `round`,
`attempt`); an event itself carries only what is its own.
"""

from __future__ import annotations

from holdfast.core.failure import Failure
from holdfast.core.value import Value


class Event(Value):
    """Base of all events. The name on disk is the class's name."""


class AgentStarted(Event):
    """An agent's life begins: the first line of each, with what it was asked to run."""

    pid: int
    host: str
    version: str
    argv: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    nproc: int
    max_restarts: int
    backend: str


class Degraded(Event):
    """Something this host cannot do, and what is used instead."""

    what: str
    instead: str


class JoinRequested(Event):
    """This node asked to take part in the next round."""

    round: int
    backend: str
    endpoint: str


class RoundFormed(Event):
    """Members agreed. `nodes` in group-rank order."""

    round: int
    nodes: tuple[str, ...]
    group_rank: int
    world_size: int
    master_addr: str
    master_port: int
    waited_s: float
    reason: str


class WorkerStarted(Event):
    """The process of one rank was started."""

    rank: int
    local_rank: int
    pid: int
    argv: tuple[str, ...]
    log_dir: str | None


class WorkerDying(Event):
    """The kernel released the worker's robust mutex: it is dead, though its memory is still being freed."""

    rank: int
    local_rank: int
    pid: int
    exitcode: int | None


class WorkerExited(Event):
    """The process of one rank is gone, its memory freed."""

    rank: int
    local_rank: int
    pid: int
    exitcode: int


class FailureSeen(Event):
    """A worker ended badly, or was stopped because another had."""

    failure: Failure


class WatchdogExpired(Event):
    """A worker did not leave a scope in time (`timer.expires`), or another process with a timer."""

    pid: int
    scope: str
    expired_s: float


class Decided(Event):
    """A decision, with its reason in words. `why` prints exactly this."""

    decision: str
    """restart · rejoin · stop · finish"""
    reason: str
    delay_s: float = 0.0
    restarts_left: int | None = None


class StopSent(Event):
    """Workers were asked to stop."""

    signal: str
    grace_s: float
    reason: str
    ranks: tuple[int, ...]


class WorkersStopped(Event):
    """All workers of the round on this node are gone, with everything below them."""

    took_s: float
    killed: tuple[int, ...]
    """Ranks that outlived the grace period."""


class NodeJoined(Event):
    """A node asked the coordinator for the first time to take part."""

    name: str


class NodeLeft(Event):
    """A node went, and said so."""

    name: str
    reason: str


class NodeExcluded(Event):
    """A node must not take part from now on. It may stay connected as a spare."""

    name: str
    reason: str
    by: str
    """operator · failures (its workers were the first to fail, again and again) · itself"""


class NodeReadmitted(Event):
    """A node that was excluded may take part again."""

    name: str
    reason: str


class NodeLost(Event):
    """A node was not heard from for longer than its lease."""

    name: str
    reason: str
    silent_s: float = 0.0
    """For how long it had not been heard from."""


class SignalReceived(Event):
    """The agent was sent a signal."""

    signal: str


class GuardianLost(Event):
    """The process that was started, which guards the agent, was killed: everything on this node ends at once."""


class JobEnded(Event):
    """The agent's last line: the job is over, or this node's part in it."""

    outcome: str
    """succeeded · failed · stopped"""
    exit_code: int
    reason: str


CATALOGUE: dict[str, type[Event]] = {event.__name__: event for event in Event.__subclasses__()}
"""Name on disk → type."""

"""The rendezvous machine's settings, observations and actions."""

from __future__ import annotations

from holdfast.core.config.fault_tolerance import OnStraggler
from holdfast.core.config.own_options import Growth, Placement
from holdfast.core.machine import NEVER, Action, Observation
from holdfast.core.wire.messages import Message


class Rules(Growth, Placement):
    """The rules of a rendezvous."""

    job: str
    min_nodes: int
    max_nodes: int
    join_timeout_s: float = 600.0  # Seconds to wait for `min_nodes`. torchrun: 600 (join_timeout).
    last_call_s: float = 30.0
    """Seconds to wait for more than `min_nodes` in the first round. torchrun: 30 (last_call_timeout)."""
    lease_s: float = NEVER  # A member not heard from for so long is lost. NEVER: it shares our process.
    ranks_given: bool = False
    """Each node brings its group rank (static): exactly `max_nodes` of them, 0 to max-1."""
    master_addr: str = ""  # MASTER_ADDR given by the user. Empty: that of the node of group rank 0.
    master_port: int | None = None
    """MASTER_PORT given by the user. None: the one that the node of group rank 0 holds, a fresh one each round."""
    max_restarts: int = 0
    readmit_after_s: float = NEVER
    """Seconds after which an excluded node may take part again. NEVER: when somebody readmits it."""
    on_straggler: OnStraggler = OnStraggler.REPORT
    """EXCLUDE: a node that is much slower than the others, or has a rank that is, gives way to a spare."""


class Heard(Observation):
    """A member said something."""

    message: Message
    here: bool = False  # It shares our process: if it is gone, so are we.


class Unlinked(Observation):
    """The link to a member broke. It may come back within its lease."""

    node: str


class HostLeaves(Observation):
    """The agent that hosts this machine goes before the end: the job cannot go on."""

    reason: str


class Tell(Action):
    """Say something to one member."""

    node: str
    message: Message

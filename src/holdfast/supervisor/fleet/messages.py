"""What does the fleet's machine observe, and what does it want done? Its words with the service."""

from __future__ import annotations

from enum import StrEnum

from holdfast.core.job.injection import Injection
from holdfast.core.machine import Action, Observation
from holdfast.core.value import Value
from holdfast.core.wire.fleet import FleetMessage


class Said(Observation):
    """A reporter said something."""

    message: FleetMessage


class Unlinked(Observation):
    """A reporter's link is gone. It may be back within its lease."""

    node: str


class Called(Observation):
    """A call of the orchestrator has ended."""

    task: str
    ok: bool
    text: str


class Wish(StrEnum):
    """What an operator may ask for. For a job the policy is not asked, and no budget is spent."""

    DRAIN = "drain"
    """Take a node out of its job and of the scheduler's hands."""
    UNCORDON = "uncordon"
    """Let a node be used again."""
    RESTART = "restart"
    """All ranks of a job."""
    STOP = "stop"
    INJECT = "inject"
    """Play a fault on a node, for practice."""


class Asked(Observation):
    """An operator asks for something. A `Reply` with the same number follows."""

    ask: int
    """Number of the request."""
    wish: Wish
    node: str = ""
    job: str = ""
    """Of `inject`: how the job's name begins, where several work on the node."""
    reason: str = ""
    injection: Injection | None = None


class Tell(Action):
    """Say something to a reporter; lost if its link is down."""

    node: str
    message: FleetMessage


class CallVerb(StrEnum):
    """What an orchestrator can be called for."""

    DRAIN = "drain"
    UNCORDON = "uncordon"
    REPLACE = "replace"
    VACANT = "vacant"
    """Show that the node is cordoned, and that no job has it."""
    LABEL = "label"
    """Give the node a label, which its cloud acts on."""


class Need(Value):
    """Why another node is asked for."""

    reason: str
    job: str = ""
    trouble: str = ""
    """A `TroubleKind`."""
    is_urgent: bool = False
    """Its job stands, or will, until the other node is there."""
    label: str = ""
    """`KEY=VALUE`, of a `label`."""


class Call(Action):
    """Call the orchestrator, in a thread; `Called` follows, or never."""

    task: str
    """Its id. The same one, called again, is the same call."""
    verb: CallVerb
    target: str
    """A node."""
    need: Need


class Reply(Action):
    """Answer an operator's request."""

    ask: int
    ok: bool
    """Whether it was done, or begun. False: it was refused, or failed."""
    text: str


class Keep(Action):
    """Store this before the next action is performed. `value` None: delete it."""

    table: str
    """nodes · jobs · swaps · deeds · hours"""
    key: str
    value: Value | None


class InVain(Action):
    """A deed has not helped. Never leaves the machine: the policy's next choice stands in its place."""

    deed: str
    text: str

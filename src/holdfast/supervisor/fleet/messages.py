"""What is the fleet shown, and what does it want done? The words between the machine (`supervisor.fleet.machine`) and its
service.
"""

from __future__ import annotations

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
    """What came of a call to the orchestrator."""

    task: str
    ok: bool
    text: str


class Tell(Action):
    """Say something to a reporter; lost if its link is down."""

    node: str
    message: FleetMessage


class Call(Action):
    """Have the orchestrator do something, in a thread; `Called` follows, or never."""

    task: str
    """Its id. The same one, called again, is the same call."""
    verb: str
    """drain · uncordon · replace"""
    target: str
    """A node."""
    reason: str


class Reply(Action):
    """Tell whoever asked for a deed what came of it."""

    deed: str
    ok: bool
    text: str


class Keep(Action):
    """Write this down before the next action is performed. `value` None: strike it out."""

    table: str
    """nodes · jobs · swaps · deeds"""
    key: str
    value: Value | None

"""The words for links between machines of different nodes: messages over something that may break at any time.

A link is named by a number that is unique within its World. It is up only after both sides have proved that they belong
to the same job, and it is either up or gone: a machine that wants it back asks for a new one.
"""

from __future__ import annotations

from holdfast.core.machine import Action, Observation
from holdfast.core.wire.messages import Message


class LinkUp(Observation):
    """A link stands: one that we asked for (`ours`), or one that somebody opened to us."""

    link: int
    ours: bool
    peer: str = ""  # From which address it comes, where others opened it and that is known.
    names: tuple[str, ...] = ()  # Names in the other side's certificate.


class LinkDown(Observation):
    """A link broke, or could not be made. Whatever was on its way may be lost."""

    link: int
    reason: str
    final: bool = False  # True: an agent turned us away (wrong token, another job, another version), and will each time.
    foreign: bool = False  # Somebody answered who does not speak our protocol: another program has that port.
    refused: bool = False  # The host answered that nobody listens there: an agent that did is gone.


class Serving(Observation):
    """This node serves the job's endpoint from now on: it is here, and nobody else had its port when it was to be called."""


class Arrived(Observation):
    """A message came over a link."""

    link: int
    message: Message


class Connect(Action):
    """Make a link to the coordinator's endpoint; `LinkUp` or `LinkDown` will name it `link`, or `Serving` comes instead."""

    link: int
    endpoint: str = ""  # Where the coordinator is. Empty: where the job's configuration says.
    may_serve: bool = False  # Serve the endpoint instead, where it is on this host and its port is free.


class Transmit(Action):
    """Send a message over a link. Lost if the link is down."""

    link: int
    message: Message
    more: bool = False  # Another follows at once over the same link: both may go in one packet.


class HangUp(Action):
    """Close a link once everything sent over it has gone."""

    link: int
    why: str = ""  # What a person is told of it, no oftener than of strangers. Empty: nothing.

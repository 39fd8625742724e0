"""What does an election tell its node, and what does the node report? The same whether a store elects or the nodes do."""

from __future__ import annotations

from holdfast.core.machine import Action, Observation
from holdfast.core.wire.messages import Finish, Past


class Lead(Action):
    """Be the coordinator from now on."""

    past: Past
    reason: str = ""  # What became of the one before.


class StepDown(Action):
    """Stop being the coordinator, at once."""

    reason: str


class Follow(Action):
    """The coordinator is there."""

    endpoint: str


class RunOver(Action):
    """The run of the job that this node is in has ended: one that this node sought knows how."""

    finish: Finish


class GiveUp(Action):
    """This node cannot take part."""

    reason: str
    hint: str


class ForceAsked(Observation):
    """An operator says that nodes are gone for good: answered by `ForceAnswered`."""

    ask: int
    lost: tuple[str, ...]  # Their names.
    powered_off: bool = False  # The operator vouches for those that cannot be asked.


class ForceAnswered(Action):
    """What came of it, in words."""

    ask: int
    ok: bool
    text: str


class Reported(Observation):
    """Base of what the node reports: within one observation of its own, which began with a Tick."""


class MemberLink(Reported):
    """The member's link to the leader came up, or broke."""

    up: bool

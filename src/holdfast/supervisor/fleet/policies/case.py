"""What is a policy asked, and what does it answer?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.core.value import Value
from holdfast.core.wire.fleet import Act, Deed, TroubleKind

HARDWARE = (TroubleKind.LOST, TroubleKind.DEVICE, TroubleKind.UNFIT)
"""Troubles that are the node's, and not a program's."""

SOFTWARE = (TroubleKind.WORKER, TroubleKind.HANG)
"""Troubles of ranks, whose cause is not known."""


RESTART_S = 60.0
"""What a restart costs a job, where none has been measured yet."""


class Standby(Value):
    """A node that does not wait anywhere, and that the orchestrator gives when it is asked."""

    within_s: float
    by: str
    """Who says so, in words."""
    evicts: bool = False
    """It comes only once our ranks on the node have been ended."""

    def __str__(self) -> str:
        return f"another node comes within {self.within_s:g} s, {self.by}"


class Case(Value):
    """Something that has gone wrong, with what there is to mend it."""

    trouble: str
    """A `TroubleKind`, or what a newer reporter calls one."""
    node: str
    job: str
    """Empty: the node does not work for any."""
    what: str
    """What was seen, in words."""
    spares: tuple[str, ...] = ()
    """Nodes that wait for a place in that job, and may have it: one takes over at once."""
    standby: Standby | None = None
    """None: nobody knows how long the orchestrator takes to give a node, if it can."""
    restart_s: float = RESTART_S
    """What a restart costs a job here, until it trains again."""
    nodes: int = 1
    """Nodes of the job on which ranks run."""
    least: int = 1
    """A round of the job needs so many."""
    takes_orders: bool = True
    """Its ranks' launcher is told by us what to do. Stock torchrun is not."""
    handled: bool = True
    """The job's own policy restarts the ranks where its budget allows it."""
    round: int = 0
    """Of the job, in which it was seen. 0: in whichever ran when it was heard of."""
    cause: str = ""
    """How its rank failed (`Trouble.cause`). Empty: not known, or no rank did."""
    xid: int = 0
    device: str = ""
    goes_on: bool = False
    """Its job runs without the node already: a job's own lease is shorter than the supervisor's."""
    in_vain: tuple[Act, ...] = ()
    """Acts that have been tried for this case, and did not help."""
    limits: dict[str, int] = {}  # noqa: RUF012
    """What the job itself has told of how it may be treated, by Google's names."""

    @property
    def can_shrink(self) -> bool:
        """Whether the job could go on without the node, and without another in its place."""
        return self.takes_orders and self.nodes - 1 >= self.least

    @property
    def waits_for_standby(self) -> bool:
        """Whether it costs less to wait for the orchestrator's node than to go on with one node less.

        A job that is made smaller restarts now and, when it grows again, once more; until then it lacks one node. One that
        waits restarts once. It runs meanwhile if only an operator wants the node to go; else all its nodes stand."""
        if self.standby is None:
            return False
        if not self.can_shrink:
            return True
        stands = 0 if self.trouble == TroubleKind.OPERATOR else self.standby.within_s * (self.nodes - 1)
        return not self.standby.evicts and stands <= self.restart_s * self.nodes

    @property
    def is_of_the_node(self) -> bool:
        """Whether it is about the node, and not about what its ranks do."""
        return self.trouble in HARDWARE or self.trouble == TroubleKind.OPERATOR


class Choice(Value):
    """What next, and why."""

    act: Act
    reason: str
    delay_s: float = 0.0


class Policy(Protocol):
    """Decides what is done about a trouble."""

    name: str

    def decide(self, case: Case, before: Sequence[Deed], now_unix: float) -> Choice:
        """What to do about `case`; `before`: deeds about its job or its node, the oldest first."""

    def patience_s(self, case: Case) -> float:
        """How long a restart may take until a round runs again, before the next act is tried."""

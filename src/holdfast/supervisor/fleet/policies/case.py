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
    """Nodes that wait for a place in that job, and may have it."""
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

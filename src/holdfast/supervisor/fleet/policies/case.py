"""What is a policy asked, and what does it answer?"""

from __future__ import annotations

from holdfast.core.value import Value

HARDWARE = ("lost", "device", "unfit")
"""Troubles that are the node's, and not a program's."""


class Case(Value):
    """Something that has gone wrong, with what there is to mend it."""

    trouble: str
    """worker · hang · lost · device · unfit · operator"""
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
    handled: bool = True
    """The job's own policy restarts the ranks where its budget allows it."""
    round: int = 0
    """Of the job, in which it was seen. 0: in whichever ran when it was heard of."""
    xid: int = 0
    device: str = ""
    goes_on: bool = False
    """Its job runs without the node already: a job's own lease is shorter than the supervisor's."""
    in_vain: tuple[str, ...] = ()
    """Acts that have been tried for this case, and did not help."""
    limits: dict[str, int] = {}  # noqa: RUF012
    """What the job itself has told of how it may be treated, by Google's names."""

    @property
    def can_shrink(self) -> bool:
        """Whether the job could go on without the node, and without another in its place."""
        return self.nodes - 1 >= self.least


class Choice(Value):
    """What next, and why."""

    act: str
    """none · restart-workers (where the job's own policy does not) · restart-job (all its ranks, on the same nodes) · swap (the
    node) · shrink (the job, by the node) · stop (the job)"""
    reason: str
    delay_s: float = 0.0

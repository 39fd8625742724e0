"""What is to be done about a trouble? A policy is a function of the case and of what was done before; this is the list of them.

It remembers nothing itself: budgets and counters are folds over the record of deeds, which is kept, so that a node that flaps
does not start from nothing when the supervisor does.
"""

from __future__ import annotations

from holdfast.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Protocol

    from holdfast.core.fleet import Deed

    class Policy(Protocol):
        """See the module's text."""

        name: str

        def decide(self, case: Case, before: Sequence[Deed], now_unix: float) -> Choice:
            """What is to be done about `case`; `before`: deeds about its job or its node, the oldest first."""

        def patience_s(self, case: Case) -> float:
            """How long a restart may take until a round runs again, before the next thing is tried."""


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


NAMES = ("default", "google")


def policy(name: str, options: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Policy:
    """The policy of that name, with `options` (NAME=VALUE each) of its own; `environ` may have others. UsageError."""
    from holdfast.core.errors import UsageError
    from holdfast.core.grammar import did_you_mean

    if name == "google":
        from holdfast.supervisor.policies.google import Google
        from holdfast.supervisor.policies.google_limits import given_limits

        return Google(**given_limits(options, environ or {}))
    if name != "default":
        hint = did_you_mean(name, NAMES) or f"known: {', '.join(NAMES)}"
        raise UsageError(f"--policy: there is no policy {name!r}", hint=hint)
    if options:
        raise UsageError(f"--policy-option: the policy default has none: {options[0]!r}", hint="give --policy google")
    from holdfast.supervisor.policies.default import Default

    return Default()

"""How much may one node ask of the others? Every order that a member gives is limited here: in number, size and rate.

A member may be broken in, and so may a coordinator. So the coordinator asks this for each node that speaks, and each node for
what its coordinator passes on. The numbers are far above what operators and scripts need.
"""

from __future__ import annotations

from holdfast.core.value import Value, replace
from holdfast.core.wire.messages import Request, RequestKind

MOST_CHECKS, CHECK_CHARS = 64, 4096
"""Checks of one request, and characters of each. `holdfast check auto` runs four; there are seventeen of ours."""

REASON_CHARS = 2000  # Of a reason: it is recorded, told to every node and shown.

MOST_ABSENT = 256  # Nodes that are not here and are excluded if they come: names that anybody can invent.

IMPORTS, TROUBLES = "imports", "troubles"


class Allowance(Value):
    """So many at once; after that one each `every_s` seconds."""

    at_once: int
    every_s: float


ALLOWED: dict[str, Allowance] = {
    RequestKind.STOP: Allowance(at_once=64, every_s=1.0),
    RequestKind.RESTART: Allowance(at_once=256, every_s=1.0),  # each rank of a node may ask for the same one
    RequestKind.EXCLUDE: Allowance(at_once=256, every_s=1.0),  # likewise
    RequestKind.READMIT: Allowance(at_once=256, every_s=1.0),
    RequestKind.CHECK: Allowance(at_once=16, every_s=5.0),
    RequestKind.INJECT: Allowance(at_once=32, every_s=1.0),
    IMPORTS: Allowance(at_once=8, every_s=60.0),  # what a script imports later than its first steps is little
    TROUBLES: Allowance(at_once=64, every_s=1.0),  # of one node, to the supervisor: a reporter keeps 64
}


class Demands(Value):
    """What somebody has asked for lately."""

    paid_at: dict[str, float] = {}  # noqa: RUF012
    """By kind: when all that was asked for will have been one each `every_s`."""

    def after(self, kind: str, now: float) -> Demands | None:
        """With one more; None: it is one too many."""
        allowed = ALLOWED[kind]
        paid_at = max(self.paid_at.get(kind, now), now)
        if paid_at - now > (allowed.at_once - 1) * allowed.every_s:
            return None
        return replace(self, paid_at={**self.paid_at, kind: paid_at + allowed.every_s})


def too_large(request: Request) -> str:
    """Why nobody is asked for that much at once; empty: it is not too much."""
    if len(request.checks) > MOST_CHECKS:
        return f"{len(request.checks)} checks at once: at most {MOST_CHECKS} are run for one request"
    if any(len(check) > CHECK_CHARS for check in request.checks):
        return f"a check of more than {CHECK_CHARS} characters is not run"
    return f"a reason has at most {REASON_CHARS} characters" if len(request.reason) > REASON_CHARS else ""


def too_many(kind: str) -> str:
    """What somebody is told who asks too often."""
    allowed = ALLOWED[kind]
    return f"too many requests to {kind} from one node: {allowed.at_once} at once, then one each {allowed.every_s:g} s"

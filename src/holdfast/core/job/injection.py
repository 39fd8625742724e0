"""Which faults can be played, for practice? What an operator asks for, on its way to the node that it is meant for."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from holdfast.core.errors import UsageError
from holdfast.core.value import Value


class Fault(StrEnum):
    """What can be played."""

    KILL = "kill"
    HANG = "hang"
    SLOW = "slow"
    XID = "xid"
    ECC = "ecc"


FAULTS = {
    Fault.KILL: "a rank is killed (SIGKILL), as by the kernel when memory runs out",
    Fault.HANG: "a rank is stopped: it gives no sign of life",
    Fault.SLOW: "a rank runs a quarter of its time: a straggler",
    Fault.XID: "our checks read one more NVIDIA Xid error in the kernel's log",
    Fault.ECC: "our checks read one more uncorrected memory error of a GPU",
}

GIVEN_UP_S = {Fault.HANG: 3600.0, Fault.SLOW: 600.0}
"""How long these last where nothing is said: longer than most limits that were learned (ten minutes or more), and than it takes
to find a straggler (three minutes)."""

LONGEST_S = 86_400.0
CODE = 79  # The Xid that is played where none is named: the GPU has fallen off the bus.
CHARS = 200  # Of the name of who asks.


class Injection(Value):
    """What is to be played."""

    fault: Fault
    rank: int = -1  # Global rank that it is about, or whose GPU; -1: the first of the node.
    code: int = CODE  # Number of the Xid.
    for_s: float | None = None  # Seconds until it is undone. None: GIVEN_UP_S, else the agent's end.
    by: str = ""  # Who asked for it.

    @property
    def until_s(self) -> float | None:
        """How long it lasts. None: until the agent ends."""
        return GIVEN_UP_S.get(self.fault) if self.for_s is None else self.for_s


def injection(said: Mapping[str, Any]) -> Injection:
    """What was asked for, from a request's fields. UsageError: it makes no sense."""
    fault, rank, code, for_s = (said.get(field) for field in ("fault", "rank", "code", "for_s"))
    if fault not in list(Fault):  # what has no hash is none of them either
        raise UsageError(f"there is no fault {fault!r}", hint=f"known: {', '.join(FAULTS)}")
    if not _is_left_or(for_s, (int, float), above=0, most=LONGEST_S):
        raise UsageError(f"--for: {for_s} is not a duration", hint=f"give seconds, above 0, at most {LONGEST_S:g}")
    if for_s is not None and fault == Fault.KILL:
        raise UsageError("--for: a killed rank cannot be revived", hint="leave it out")
    if not _is_left_or(code, int, above=0, most=999):
        raise UsageError(f"--code: {code} is not an Xid", hint="give a number, such as 79")
    if not _is_left_or(rank, int, above=-2, most=2**31 - 1):
        raise UsageError(f"--rank: {rank} is not a rank")
    return Injection(
        fault=Fault(fault),
        rank=-1 if rank is None else rank,
        code=CODE if code is None else code,
        for_s=None if for_s is None else float(for_s),
        by=str(said.get("by") or "")[:CHARS],
    )


def _is_left_or(value: Any, kind: Any, *, above: int, most: float) -> bool:
    """Is it left open, or a number of this kind, above the one and at most the other?"""
    return value is None or (isinstance(value, kind) and above < value <= most)

"""The policy `default`: a ladder. What costs least comes first, and what has not helped is not tried again for the same case.

restart-workers ─▶ restart-job ─▶ swap ─▶ shrink ─▶ replace ─▶ stop
a rank fails       3 in an hour   2 failures on one node in an hour;
                                  or at once: the node is lost, its hardware fails, its checks say so
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.job.xid import NONE, RESTART, WATCH, xid
from holdfast.core.machine import NEVER
from holdfast.core.value import Value
from holdfast.core.wire.fleet import Act, Deed, TroubleKind
from holdfast.supervisor.fleet.action_log import Result, result
from holdfast.supervisor.fleet.policies.case import SOFTWARE, Case, Choice

HOUR_S = 3600.0

OUTCOME_S = 120.0
"""How long a restart may take until a round runs again, before the next thing is tried: imports and a checkpoint's restore are
a matter of minutes, and the job's own agents know of them what the supervisor does not."""


class Rung(Value):
    """One act, and how often it may come."""

    act: Act
    times: float = NEVER
    """At most so often for one job within `within_s`."""
    within_s: float = HOUR_S
    delay_s: float = 0.0
    """Before the second within that time; it doubles with each that follows. The first comes at once."""


LADDER = (
    Rung(act=Act.RESTART_WORKERS, times=3),
    Rung(act=Act.RESTART_JOB, times=2, delay_s=5.0),
    Rung(act=Act.SWAP),
    Rung(act=Act.SHRINK),
    Rung(act=Act.REPLACE),
    Rung(act=Act.STOP),
)

NODE_FAULTS = 2
"""When ranks of one node have failed more often than that within an hour, it is the node: ranks that fail for a reason of
their own fail on any node."""

WORDS = {
    Act.RESTART_WORKERS: "its job's own agents restart the ranks",
    Act.RESTART_JOB: "all ranks are restarted, on the same nodes",
    Act.SHRINK: "no spare waits: the job goes on with one node less",
    Act.REPLACE: "no spare waits, and the job needs all its nodes: another is asked for, and the job waits for it",
    Act.STOP: "nothing else is left",
}


class Default:
    """See the module's text."""

    name = "default"

    def patience_s(self, case: Case) -> float:
        return OUTCOME_S

    def decide(self, case: Case, before: Sequence[Deed], now_unix: float) -> Choice:
        if case.trouble == TroubleKind.DEVICE and (row := xid(case.xid, case.what)).action in (NONE, RESTART, WATCH):
            whose = "the node is looked after" if row.action == WATCH else "the GPU is well"
            return Choice(act=Act.NONE, reason=f"Xid {row.number} ({row.what}): {whose}")
        if not case.job:
            return Choice(act=Act.SWAP, reason="no job runs there: nobody has to take over")
        if case.goes_on:
            return Choice(act=Act.SWAP, reason=f"{case.what}; its job goes on without it already")
        first, why = self._first(case, before, now_unix)
        for rung in LADDER[first:]:
            if rung.act in case.in_vain:
                continue
            lately = [deed.at_unix for deed in before if deed.act == rung.act and now_unix - deed.at_unix < rung.within_s]
            if len(lately) >= rung.times or not _possible(rung.act, case):
                continue
            delay_s = rung.delay_s * 2.0 ** (len(lately) - 1) if lately else 0.0
            return Choice(act=rung.act, reason=f"{why}; {_words(rung.act, case)}", delay_s=delay_s)
        return Choice(act=Act.NONE, reason=f"{why}; what could be tried has been tried")

    def _first(self, case: Case, before: Sequence[Deed], now_unix: float) -> tuple[int, str]:
        if case.is_of_the_node:
            return 2, case.what
        lately = [deed for deed in before if deed.node == case.node and now_unix - deed.at_unix < HOUR_S]
        # What was done in vain was followed by another deed for the same failure.
        faults = sum(deed.trouble in SOFTWARE and result(deed) != Result.IN_VAIN for deed in lately)
        if faults >= NODE_FAULTS and (case.spares or case.standby is not None):
            return 2, f"{case.what}; {case.node} has failed {faults + 1} times within an hour"
        return 0, case.what


def _words(act: Act, case: Case) -> str:
    if act == Act.SWAP:
        return f"{case.spares[0]} takes over"
    if case.standby is None or act not in (Act.SHRINK, Act.REPLACE):
        return WORDS[act]
    if act == Act.SHRINK:
        why = "not before the node's ranks have ended" if case.standby.evicts else "and to wait for it would cost more"
        return f"{WORDS[act]}; {case.standby}, {why}"
    if not case.can_shrink:
        return f"{WORDS[act]}; {case.standby}"
    meanwhile = "the job runs on until then" if case.trouble == TroubleKind.OPERATOR else "the job waits for it"
    return f"no spare waits, and {case.standby}: {meanwhile}, which costs less than to go on with one node less"


def _possible(act: Act, case: Case) -> bool:
    match act:
        case Act.SWAP:
            return bool(case.spares)
        case Act.SHRINK:
            return case.can_shrink and (Act.REPLACE in case.in_vain or not case.waits_for_standby)
        case Act.REPLACE:
            return case.is_of_the_node or case.standby is not None
        case Act.STOP:
            # Neither a drain nor a check means to end the job; ranks that fail end it by themselves.
            return case.trouble in SOFTWARE
    return True

"""The policy `google`: what Google's supervisor does by default, with its limits and its counters.

| what | condition | act |
|---|---|---|
| a rank fails or is silent | in-job restarts of the job < `max_in_job_restarts` | restart-workers |
| | otherwise | restart-job; in-job restarts count from 0 |
| a node is lost, any Xid, ECC | a spare waits, failures of the node <= `max_workload_restarts` | restart-job |
| | a spare waits, failures above | swap; the node's failures count from 0 |
| | no spare, failures above; it is known when another node comes, and that is soon | replace |
| | no spare, scaling on, failures above | shrink |
| | no spare, otherwise | restart-job |
| a restarted job is down for too long | scaling on | shrink |
| | scaling off, and it is the node's doing | replace: another node is asked for, which Google's leaves to JobSet |

Any Xid is the node's there, and the same node may break the job `max_workload_restarts` times before it goes. A limit is the
operator's where he has given one, else the job's own, as its clients have told the host daemon, else the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.core.wire.fleet import Act, Deed, TroubleKind
from holdfast.supervisor.fleet.policies.case import HARDWARE, Case, Choice
from holdfast.supervisor.fleet.policies.google_limits import DEFAULTS


class Google:
    """See the module's text. The limits are those of `google_limits`, by name."""

    name = "google"

    def __init__(self, **limits: int) -> None:
        self.given = limits

    def limits(self, case: Case) -> Mapping[str, int]:
        """Those that count for this job."""
        return {**DEFAULTS, **case.limits, **self.given}

    def patience_s(self, case: Case) -> float:
        """How long its ranks may take to end, and the job to run again."""
        limits = self.limits(case)
        return float(limits["container_termination_threshold_s"] + limits["workload_downtime_threshold_s"])

    def decide(self, case: Case, before: Sequence[Deed], now_unix: float) -> Choice:
        if case.trouble == TroubleKind.OPERATOR or not case.job:
            act = _out(case)
            waits = f"; {case.standby}" if act == Act.REPLACE and case.standby is not None else ""
            return Choice(act=act, reason=f"{case.what}{waits}")
        limits = self.limits(case)
        if case.trouble not in HARDWARE:
            restarts, allowed = self._in_job_restarts(before), limits["max_in_job_restarts"]
            if restarts < allowed and Act.RESTART_WORKERS not in case.in_vain:
                return Choice(act=Act.RESTART_WORKERS, reason=f"in-job restart {restarts + 1} of {allowed}")
            return self._reset(case, limits, f"no in-job restart is left ({restarts} of {allowed})")
        return self._node_failed(case, limits, before)

    def _in_job_restarts(self, before: Sequence[Deed]) -> int:
        return _since(before, Act.RESTART_JOB, [deed for deed in before if deed.act == Act.RESTART_WORKERS])

    def _node_failed(self, case: Case, limits: Mapping[str, int], before: Sequence[Deed]) -> Choice:
        mine = [deed for deed in before if deed.node == case.node and deed.trouble in HARDWARE]
        failures, allowed = _since(mine, Act.SWAP, mine) + 1, limits["max_workload_restarts"]
        if failures <= allowed and Act.RESTART_JOB not in case.in_vain:
            return self._reset(case, limits, f"failure {failures} of {case.node}, {allowed} allowed")
        why = f"failure {failures} of {case.node}, more than {allowed}"
        if case.spares and not _too_many(case, limits):
            return Choice(act=Act.SWAP, reason=f"{why}; {case.spares[0]} takes over")
        if _gets_another(case) and not case.spares:
            return Choice(act=Act.REPLACE, reason=f"{why}; no spare waits, and {case.standby}")
        if _may_shrink(case, limits):
            gone = "the job has more replicas than it may have" if case.spares else "no spare waits, and the job may be smaller"
            return Choice(act=Act.SHRINK, reason=f"{why}; {gone}")
        return self._reset(case, limits, f"{why}; no spare waits")

    def _reset(self, case: Case, limits: Mapping[str, int], why: str) -> Choice:
        if Act.RESTART_JOB not in case.in_vain:
            return Choice(act=Act.RESTART_JOB, reason=why)
        if Act.SHRINK not in case.in_vain and _may_shrink(case, limits):
            return Choice(act=Act.SHRINK, reason=f"{why}; the job does not run again, and may be smaller")
        act = Act.REPLACE if case.is_of_the_node else Act.NONE
        return Choice(act=act, reason=f"{why}; a restart of the job has not helped")


def _out(case: Case) -> Act:
    """How an operator's node is taken out."""
    if not case.job or (case.spares and Act.SWAP not in case.in_vain):
        return Act.SWAP
    may_shrink = case.can_shrink and Act.SHRINK not in case.in_vain
    return Act.SHRINK if may_shrink and not _gets_another(case) else Act.REPLACE


def _gets_another(case: Case) -> bool:
    """Whether the orchestrator's node is worth the wait. Google's takes any idle host for a spare; this is one to come."""
    return case.waits_for_standby and Act.REPLACE not in case.in_vain


def _may_shrink(case: Case, limits: Mapping[str, int]) -> bool:
    """Whether the job could go on with one node less: by its own word, and by the replicas that are then left whole."""
    left = (case.nodes - 1) // max(1, limits["num_nodes_per_data_replica"])
    return bool(limits["workload_scaling_enabled"]) and case.can_shrink and left >= max(1, limits["min_num_data_replicas"])


def _too_many(case: Case, limits: Mapping[str, int]) -> bool:
    most = limits["max_num_data_replicas"]
    nodes = most * max(1, limits["num_nodes_per_data_replica"])
    return bool(most and limits["workload_scaling_enabled"]) and case.nodes > nodes


def _since(before: Sequence[Deed], act: Act, counted: Sequence[Deed]) -> int:
    """How many of `counted` have come after the last deed of that act."""
    last = max((deed.at_unix for deed in before if deed.act == act), default=float("-inf"))
    return sum(1 for deed in counted if deed.at_unix > last)

"""All say that they waited in vain: for whom? Reads timeouts of collectives, and complaints about peers; touches nothing.

torch's watchdog names the collective by its number in the group. A rank that is at an earlier one than the rest, or at another
operation of the same number, or says nothing while all others complain, is the one they waited for. Where all are at the
same one, everybody has come, and the collective itself is stuck: that is the network's, or NCCL's.
"""

from __future__ import annotations

from collections import Counter

from holdfast.core.config.grammar import ranges
from holdfast.core.job.finding import Action, Class, Finding, Quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.diagnosis.evidence import Evidence, Sighting

FEW = 0.25
"""At most this share of the ranks may be the ones that are waited for; else nothing tells who is."""


def waited_for(evidence: Evidence) -> Finding | None:
    """Whom the ranks waited for. None: nobody says, or other signs are better."""
    stuck = {one.rank: one for one in evidence.sightings if one.seq is not None and one.rank is not None}
    if len(stuck) >= 2 and (found := _by_number(stuck, evidence)) is not None:
        return found
    if (found := _by_name(evidence)) is not None:
        return found
    return _by_complaints(evidence)


def _by_number(stuck: dict[int, Sighting], evidence: Evidence) -> Finding | None:
    those = list(stuck.values())
    everybody = set(evidence.ranks) | set(range(evidence.world_size or 0))
    silent = sorted(everybody - stuck.keys())
    ops = Counter((one.seq, one.op) for one in those)
    (seq, op), _ = ops.most_common(1)[0]
    behind = sorted(one.rank or 0 for one in those if (one.seq or 0) < (seq or 0))
    other = sorted(one.rank or 0 for one in those if one.seq == seq and one.op != op)
    limit = max(1, int(len(everybody) * FEW))
    which = f"{op} number {seq}"
    if other and len(other) <= limit:
        one = stuck[other[0]]
        return _said(
            Class.USER_CODE, 0.85, other, one, those, f"called {one.op} where the others called {which}",
            "look for a branch that not all ranks take",
        )  # fmt: skip
    if behind and len(behind) <= limit:
        one = stuck[behind[0]]
        return _said(
            Class.UNKNOWN,
            0.7,
            behind,
            one,
            those,
            f"was still at {one.op} number {one.seq} while the others waited in {which}",
            "see its stacks and log: what kept it?",
        )
    if silent and len(silent) <= limit and len(everybody) > 2:
        return _said(
            Class.UNKNOWN,
            0.65,
            silent,
            None,
            those,
            f"never came to {which}, where all others waited",
            "see its stacks and log: what kept it?",
        )
    if len(ops) == 1 and not silent:
        says = f"all ranks came to {which}, and it never ended: the network between them, or NCCL itself"
        return _made(Class.FABRIC, 0.6, None, those, says, "look at the links' error counters, and run it with NCCL_DEBUG=INFO")
    return None


def _by_name(evidence: Evidence) -> Finding | None:
    """Ranks that are named as those that did not come."""
    those = [one for one in evidence.sightings if one.missing and not one.recovered]
    missing = sorted({rank for one in those for rank in one.missing})
    everybody = {*evidence.ranks, *range(evidence.world_size or 0), *missing}
    if not missing or len(missing) > max(1, int(len(everybody) * FEW)):
        return None
    says = "never came to a collective that others waited in"
    return _said(Class.UNKNOWN, 0.65, missing, None, those, says, "see its stacks and log: what kept it?")


def _by_complaints(evidence: Evidence) -> Finding | None:
    """A node or rank that others complain of, and that is silent itself."""
    accused = Counter(one.peer for one in evidence.sightings if one.peer and one.rule.depth == 0)
    if not accused:
        return None
    (peer, times), *more = accused.most_common(2)
    if more and more[0][1] == times:
        return None
    those = [one for one in evidence.sightings if one.peer == peer]
    speaking = {one.node for one in evidence.sightings} | {end.node for end in evidence.ends}
    if peer.isdigit():
        if any(one.rank == int(peer) and one.rule.depth for one in evidence.sightings):
            return None
        return _made(
            Class.NODE_LOST,
            0.55,
            int(peer),
            those,
            f"rank {peer} was lost: others no longer heard from it",
            "see its log and its node",
        )
    node = peer.split(":")[0]
    if node in speaking or any(one.rule.depth for one in evidence.sightings):
        return None
    says = f"node {node} was lost: others' connections to it broke, and it has said nothing"
    return _made(Class.NODE_LOST, 0.55, None, those, says, "see that node's own log", node=node)


def _said(
    kind: Class,
    confidence: float,
    ranks: Sequence[int],
    one: Sighting | None,
    those: Sequence[Sighting],
    says: str,
    advice: str,
) -> Finding:
    who = f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}"
    chosen = [*([one] if one else []), *(seen for seen in those if seen is not one)]
    return _made(kind, confidence, ranks[0], chosen, f"{who} {says}", advice, node=one.node if one else "")


def _made(
    kind: Class, confidence: float, rank: int | None, those: Sequence[Sighting], says: str, advice: str, *, node: str = ""
) -> Finding:
    quotes = tuple(Quote(text=one.text, source=one.source, line=one.line, rank=one.rank, node=one.node) for one in those[:4])
    effects = (f"{len(those)} ranks: a collective did not end in time",) if len(those) > 1 else ()
    return Finding(
        kind=kind, rule="waited-for", confidence=confidence, action=Action.STOP if kind == Class.USER_CODE else Action.RESTART,
        rank=rank, node=node, everywhere=False, sentence=f"{says}; {advice}", advice=advice, evidence=quotes, effects=effects,
    )  # fmt: skip

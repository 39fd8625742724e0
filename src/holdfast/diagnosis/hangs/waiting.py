"""Which rank did the others wait for? Reads timeouts of collectives and complaints about peers; pure.

torch's watchdog names the collective by its number in the group. The others wait for a rank that is at an earlier number, or at
another operation of the same number, or silent while all others complain. Where all ranks are at the same one, the collective
itself is stuck: the network or NCCL is to blame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from holdfast.core.job.finding import Action, Class, Finding, Quote
from holdfast.core.value import Value
from holdfast.diagnosis.evidence import Evidence, Sighting
from holdfast.diagnosis.hangs.stack_groups import BRANCH, KEPT, NETWORK, named
from holdfast.diagnosis.tables import EFFECT

FEW = 0.25
"""At most this share of the ranks may be the ones that are waited for; where there are more, nothing tells who is."""


def waited_for(evidence: Evidence) -> Finding | None:
    """Whom the ranks waited for. None: nobody says, or other signs are better."""
    stuck = {one.rank: one for one in evidence.sightings if one.seq is not None and one.rank is not None}
    if len(stuck) >= 2 and (found := _by_number(stuck, evidence)) is not None:
        return found
    if (found := _by_name(evidence)) is not None:
        return found
    return _by_complaints(evidence)


class Standing(Value):
    """Where the ranks stand whose collectives timed out."""

    seq: int
    """Number of the collective that most are at."""
    op: str
    agree: bool
    """All that say so are at the same one."""
    behind: tuple[int, ...]
    """Ranks at an earlier number."""
    elsewhere: tuple[int, ...]
    """Ranks at another operation of the same number."""
    silent: tuple[int, ...]
    """Ranks that say nothing."""


def _standing(stuck: dict[int, Sighting], everybody: Collection[int]) -> Standing:
    ops = Counter((one.seq or 0, one.op) for one in stuck.values())
    (seq, op), _ = ops.most_common(1)[0]
    return Standing(
        seq=seq,
        op=op,
        agree=len(ops) == 1,
        behind=tuple(sorted(rank for rank, one in stuck.items() if (one.seq or 0) < seq)),
        elsewhere=tuple(sorted(rank for rank, one in stuck.items() if one.seq == seq and one.op != op)),
        silent=tuple(sorted(everybody - stuck.keys())),
    )


def _by_number(stuck: dict[int, Sighting], evidence: Evidence) -> Finding | None:
    those = list(stuck.values())
    everybody = _everybody(evidence)
    at = _standing(stuck, everybody)
    which = f"{at.op} number {at.seq}"
    if _are_few(at.elsewhere, everybody):
        one = stuck[at.elsewhere[0]]
        says = f"called {one.op} where the others called {which}"
        return _said(Class.USER_CODE, 0.85, at.elsewhere, one, those, says, BRANCH)
    if _are_few(at.behind, everybody):
        one = stuck[at.behind[0]]
        says = f"was still at {one.op} number {one.seq} while the others waited in {which}"
        return _said(Class.UNKNOWN, 0.7, at.behind, one, those, says, KEPT)
    if _are_few(at.silent, everybody) and len(everybody) > 2:
        says = f"never came to {which}, where all others waited"
        return _said(Class.UNKNOWN, 0.65, at.silent, None, those, says, KEPT)
    if at.agree and not at.silent:
        says = f"all ranks came to {which}, and it never ended: the network between them, or NCCL itself"
        return _made(Class.FABRIC, 0.6, None, those, says, NETWORK)
    return None


def _everybody(evidence: Evidence) -> set[int]:
    return {*evidence.ranks, *range(evidence.world_size or 0)}


def _are_few(ranks: Sequence[int], everybody: Collection[int]) -> bool:
    """Whether there are some, and so few that they may be the ones that are waited for."""
    return 0 < len(ranks) <= max(1, int(len(everybody) * FEW))


def _by_name(evidence: Evidence) -> Finding | None:
    """Ranks that are named as those that did not come."""
    those = [one for one in evidence.sightings if one.missing and not one.recovered]
    missing = sorted({rank for one in those for rank in one.missing})
    if not _are_few(missing, _everybody(evidence).union(missing)):
        return None
    says = "never came to a collective that others waited in"
    return _said(Class.UNKNOWN, 0.65, missing, None, those, says, KEPT)


def _by_complaints(evidence: Evidence) -> Finding | None:
    """The node or rank that most others complain of, and that is silent itself."""
    accused = Counter(one.peer for one in evidence.sightings if one.peer and one.rule.depth == EFFECT)
    most = accused.most_common(2)
    if not most or (len(most) == 2 and most[0][1] == most[1][1]):
        return None
    peer = most[0][0]
    return _lost_rank(int(peer), evidence) if peer.isdigit() else _lost_node(peer, evidence)


def _lost_rank(rank: int, evidence: Evidence) -> Finding | None:
    if any(one.rank == rank and one.rule.depth > EFFECT for one in evidence.sightings):
        return None
    says = f"rank {rank} was lost: others no longer heard from it"
    return _made(Class.NODE_LOST, 0.55, rank, _about(str(rank), evidence), says, "see its log and its node")


def _lost_node(peer: str, evidence: Evidence) -> Finding | None:
    node = peer.split(":")[0]
    speaking = {one.node for one in evidence.sightings} | {end.node for end in evidence.ends}
    if node in speaking or any(one.rule.depth > EFFECT for one in evidence.sightings):
        return None
    says = f"node {node} was lost: others' connections to it broke, and it has said nothing"
    return _made(Class.NODE_LOST, 0.55, None, _about(peer, evidence), says, "see that node's own log", node=node)


def _about(peer: str, evidence: Evidence) -> list[Sighting]:
    return [one for one in evidence.sightings if one.peer == peer]


def _said(
    kind: Class,
    confidence: float,
    ranks: Sequence[int],
    one: Sighting | None,
    those: Sequence[Sighting],
    says: str,
    advice: str,
) -> Finding:
    chosen = [*([one] if one else []), *(seen for seen in those if seen is not one)]
    return _made(kind, confidence, ranks[0], chosen, f"{named(ranks)} {says}", advice, node=one.node if one else "")


def _made(
    kind: Class, confidence: float, rank: int | None, those: Sequence[Sighting], says: str, advice: str, *, node: str = ""
) -> Finding:
    quotes = tuple(Quote(text=one.text, source=one.source, line=one.line, rank=one.rank, node=one.node) for one in those[:4])
    effects = (f"{len(those)} ranks: a collective did not end in time",) if len(those) > 1 else ()
    return Finding(
        kind=kind, rule="waited-for", confidence=confidence, action=Action.STOP if kind == Class.USER_CODE else Action.RESTART,
        rank=rank, node=node, everywhere=False, sentence=f"{says}; {advice}", advice=advice, evidence=quotes, effects=effects,
    )  # fmt: skip

"""Which rank did the others wait for? Reads timeouts of collectives and complaints about peers; pure.

torch's watchdog names the collective by its number in the group. The others wait for a rank that is at an earlier number, or at
another operation of the same number, or silent while all others complain. Where all ranks are at the same one, the collective
itself is stuck: the network or NCCL is to blame.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from holdfast.core.job.finding import Class, Finding
from holdfast.diagnosis.evidence import Evidence, Sighting, quote
from holdfast.diagnosis.hangs.suspects import BRANCH, FEW, KEPT, NETWORK, are_few, blame
from holdfast.diagnosis.tables import EFFECT

OF_ONE_SIZE = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"})
"""Collectives to which all ranks give as many values."""

_TIMES_OUT = re.compile(r"(?i)\btim(?:ed|e)[- ]?out")


def waited_for(evidence: Evidence) -> Finding | None:
    """Whom the ranks waited for. None: nobody says, or other signs are better."""
    stuck = {one.rank: one for one in evidence.sightings if (one.seq is not None or one.op) and one.rank is not None}
    if len(stuck) >= 2 and not _are_apart(stuck) and (found := _by_number(stuck, evidence)) is not None:
        return found
    if (found := _by_name(evidence)) is not None:
        return found
    return _by_end(evidence) or _by_complaints(evidence)


def _are_apart(stuck: dict[int, Sighting]) -> bool:
    """Whether these ranks speak of several process groups: a collective's number means something within its own only."""
    members = [one.member for one in stuck.values() if one.member is not None]
    return len(set(members)) < len(members)


def _by_number(stuck: dict[int, Sighting], evidence: Evidence) -> Finding | None:
    those = list(stuck.values())
    known = _everybody(evidence)
    everybody = _with_gaps(known)
    places = Counter((one.seq or 0, one.op) for one in those)
    (seq, op), _ = places.most_common(1)[0]
    silent = sorted(everybody - stuck.keys())
    which = f"{op} number {seq}" if seq else op or "a collective"
    for kind, sure, ranks, says, advice in _odd(stuck, seq, op, which):
        if are_few(ranks, len(everybody)):
            one = stuck[ranks[0]]
            return _found(kind, sure, ranks, _with_first(one, those), says.format(one=one), advice, node=one.node)
    told = known.issuperset(silent) or len(silent) <= FEW * len(everybody)  # else too few are heard
    if told and are_few(silent, len(everybody)) and len(everybody) > 2:
        return _found(Class.UNKNOWN, 0.65, silent, those, f"never reached {which}, where all others waited", KEPT)
    if len(places) == 1 and not silent:
        says = f"all ranks reached {which}, and it never completed: the network between them, or NCCL itself"
        return _found(Class.FABRIC, 0.6, (), those, says, NETWORK)
    return None


def _odd(stuck: dict[int, Sighting], seq: int, op: str, which: str) -> Iterator[tuple[Class, float, list[int], str, str]]:
    """(class, how sure, ranks, what they did, what to do) of those that are not where most are, the surest first."""
    here = {rank: one.size for rank, one in stuck.items() if (one.seq or 0, one.op) == (seq, op) and op in OF_ONE_SIZE}
    size = Counter(here.values()).most_common(1)[0][0] if here else None
    elsewhere = sorted(rank for rank, one in stuck.items() if one.seq == seq and one.op != op)
    yield Class.USER_CODE, 0.85, elsewhere, f"called {{one.op}} where the others called {which}", BRANCH
    others = sorted(rank for rank, its in here.items() if None not in (its, size) and its != size)
    yield Class.USER_CODE, 0.85, others, f"gave {{one.size}} values to {which}, to which the others gave {size}", BRANCH
    behind = sorted(rank for rank, one in stuck.items() if (one.seq or 0) < seq)
    yield Class.UNKNOWN, 0.7, behind, f"was still at {{one.op}} number {{one.seq}} while the others waited in {which}", KEPT


def _with_first(one: Sighting, those: Sequence[Sighting]) -> list[Sighting]:
    return [one, *(seen for seen in those if seen is not one)]


def _everybody(evidence: Evidence) -> set[int]:
    spoke = {rank for tail in evidence.tails for rank in tail.last}
    return {*evidence.ranks, *spoke, *range(evidence.world_size or 0)}


def _with_gaps(ranks: set[int]) -> set[int]:
    """And those between them, and below them on their nodes, of whom nothing is heard."""
    if not ranks:
        return ranks
    of_nodes = 1 << (len(ranks) - 1).bit_length()
    return set(range(min(ranks) // of_nodes * of_nodes, max(ranks) + 1))


def _by_name(evidence: Evidence) -> Finding | None:
    """Ranks that are named as those that did not come."""
    those = [one for one in evidence.sightings if one.missing and not one.recovered]
    missing = sorted({rank for one in those for rank in one.missing})
    if not are_few(missing, len(_everybody(evidence).union(missing))):
        return None
    says = "never reached a collective that others waited in"
    return _found(Class.UNKNOWN, 0.65, missing, those, says, KEPT)


def waiting(evidence: Evidence) -> set[int]:
    """Ranks that waited for another in vain, by what they say."""
    those = (one for one in evidence.sightings if one.rule.depth == EFFECT and _TIMES_OUT.search(one.text))
    return {one.rank for one in those if one.rank is not None}


def _by_end(evidence: Evidence) -> Finding | None:
    """Who had to be ended when others had waited in vain, and has never said that it waits."""
    late = waiting(evidence)
    ended = sorted({end.rank for end in evidence.ends if end.innocent and end.rank is not None} - late)
    if not late or not are_few(ended, len(ended) + len(late)):
        return None
    those = [one for one in evidence.sightings if one.rank in late]
    return _found(Class.UNKNOWN, 0.6, ended, those, "was still at something else while the others waited in vain", KEPT)


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
    says, advice = "was lost: others no longer heard from it", "see its log and its node"
    return _found(Class.NODE_LOST, 0.55, (rank,), _about(str(rank), evidence), says, advice)


def _lost_node(peer: str, evidence: Evidence) -> Finding | None:
    node = peer.split(":")[0]
    if node in ("127.0.0.1", "localhost", "::1"):
        return None  # a process of one host
    speaking = {one.node for one in evidence.sightings} | {end.node for end in evidence.ends}
    about = _about(peer, evidence)
    if len(speaking - {""}) < 2 and len({one.rank for one in about}) < 2:
        return None  # its only witness may have been on the same host
    if node in speaking or any(one.rule.depth > EFFECT for one in evidence.sightings):
        return None
    says = f"node {node} was lost: others' connections to it broke, and it has said nothing"
    return _found(Class.NODE_LOST, 0.55, (), about, says, "see that node's own log", node=node)


def _about(peer: str, evidence: Evidence) -> list[Sighting]:
    return [one for one in evidence.sightings if one.peer == peer]


def _found(
    kind: Class, confidence: float, ranks: Sequence[int], those: Sequence[Sighting], says: str, advice: str, *, node: str = ""
) -> Finding:
    effects = [f"{len(those)} ranks: a collective did not end in time"] if len(those) > 1 else []
    return blame("waited-for", kind, confidence, ranks, says, advice, map(quote, those[:4]), node=node, effects=effects)

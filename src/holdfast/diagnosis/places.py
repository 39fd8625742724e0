"""Which rank is a message about, where its line does not say so? Knows which rank sits where; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.core.job.finding import Class
from holdfast.core.value import replace
from holdfast.diagnosis.evidence import End, Evidence, Sighting
from holdfast.diagnosis.hangs.waiting import waiting
from holdfast.diagnosis.precedence import first
from holdfast.diagnosis.tables import SYMPTOM

BESIDE = (Class.GPU, Class.USER_CODE, Class.FRAMEWORK)
"""Classes of what a rank may complain of when something below it broke; and the same class as that."""

MOST_LOCAL = 8  # Ranks that a node has, at most, where nobody says how many.
SIZES = (1, 2, 4, 8, 16)  # How many it may have.

_DEVICE = re.compile(r"(?:\bGPU |\bcuda:|\bXPU )([1-9]\d?)\b")


class Places:
    """Which rank sits where, as far as anybody has said so."""

    def __init__(self, evidence: Evidence) -> None:
        self.nodes: dict[int, str] = {}
        self.locals: dict[tuple[str, int], int] = {}
        self.pids: dict[tuple[str, int], int] = {}
        self.lowest, self.highest = min(evidence.ranks, default=0), max(evidence.ranks, default=0)
        everybody: list[End | Sighting] = [*evidence.ends, *evidence.sightings]
        self.several = len({one.node for one in everybody if one.node}) > 1
        for one in everybody:
            if one.rank is not None:
                self._note(one, one.rank)
        self.pids = {**evidence.pids, **self.pids}
        self.sightings = evidence.sightings
        self.told = frozenset(end for end in evidence.ends if end.rank is not None)
        ends = tuple(end if end.rank is not None else replace(end, rank=self._of_process(end)) for end in evidence.ends)
        self.evidence = replace(evidence, ends=ends)  # Ends of which only the place was told have their rank.
        for end in ends:
            if end.rank is not None:
                self._note(end, end.rank)
        self.waiting = waiting(evidence)

    @property
    def failed_alike(self) -> int:
        """How many ranks have exited by themselves with one code, where no launcher tells of another end. 0: no two have."""
        ranks = {end.rank for end in self.evidence.ends}
        codes = {end.exitcode or 0 for end in self.evidence.ends}
        return len(ranks) if len(ranks - {None}) > 1 and len(codes) == 1 and min(codes) > 0 else 0

    def _note(self, one: End | Sighting, rank: int) -> None:
        if one.node:
            self.nodes.setdefault(rank, one.node)
        if one.local is not None:
            self.locals.setdefault((one.node, one.local), rank)
        if one.pid is not None:
            self.pids.setdefault((one.node, one.pid), rank)

    def rank(self, one: Sighting) -> int | None:
        """Whose it is."""
        if one.rank is not None:
            return one.rank
        found = self._of_process(one)
        found = self._dead_on(one) if found is None else found
        return self._by_device(one) if found is None else found

    def _by_device(self, one: Sighting) -> int | None:
        """Whose GPU it names: who sees several uses that of its local rank. `GPU 0` may be the only one that it sees."""
        of_one = one.count == 1 and not self.several and one.rule.kind in (Class.OOM_GPU, Class.GPU)
        named = _DEVICE.search(one.text) if of_one else None
        return None if named is None else int(named[1])

    def _of_process(self, one: End | Sighting) -> int | None:
        """By its pid, else by its place."""
        by_pid = None if one.pid is None else _only(self.pids, one.pid, one.node)
        return self._by_place(one) if by_pid is None else by_pid

    def _by_place(self, one: End | Sighting) -> int | None:
        if one.local is None:
            return None
        at = {rank for (node, local), rank in self.locals.items() if local == one.local and one.node in ("", node)}
        if len(at) == 1:
            return at.pop()
        if not self.several:  # one node: a local rank is a rank, unless those that speak are of a later node
            return one.local if self.highest < MOST_LOCAL else self._who_failed_there(one.local)
        return self._in_order(one.node, one.local)

    def _who_failed_there(self, local: int) -> int | None:
        """Of several nodes' ranks: the one with that place on its node that says what failed; else the first node's."""
        says = {seen.rank for seen in self.sightings if seen.rank is not None and seen.rule.depth >= SYMPTOM}
        fit = {rank for rank in says if any(rank % size == local for size in SIZES)}
        if not says and (self.lowest < MOST_LOCAL or local >= MOST_LOCAL):
            return local
        return fit.pop() if len(fit) == 1 else None

    def _in_order(self, node: str, local: int) -> int | None:
        """Which rank has that place on a node of which enough is known: they are given out in order."""
        by_node: dict[str, list[int]] = {}
        for rank, at in self.nodes.items():
            by_node.setdefault(at, []).append(rank)
        size = max(map(len, by_node.values()), default=0)
        blocks = {at: {rank // size for rank in ranks} for at, ranks in by_node.items()}
        # Whose node it is may not have heard of all of its own: others' nodes tell how many there are on each.
        together = sorted(block for of_node in blocks.values() for block in of_node)
        known = len(blocks) > 1 and together == list(range(together[0], together[0] + len(blocks)))
        return size * min(blocks[node]) + local if known and node in blocks and local < size else None

    def _dead_on(self, one: Sighting) -> int | None:
        """The one rank of that node that ended as it would have by that, or complained first."""
        if one.rule.kind in (Class.PREEMPTED, Class.NODE_LOST):
            return None
        ends = self.evidence.ends
        named = {*self.nodes.values(), *(end.node for end in ends)}
        # Of what its kernel says of a GPU: ranks may know that host by its address only.
        at = "" if one.rule.kind == Class.GPU and one.node not in named else one.node
        here = [end for end in ends if end.rank is not None and not end.innocent and (at in ("", end.node) or not end.node)]
        complaints = self._complaints(one, at)
        if one.rule.kind == Class.OOM_HOST:
            return _killed(here, complaints)
        if complaints and (at or len({seen.rank for seen in complaints}) == 1):
            return first(complaints, self.evidence).rank
        # Where all fail alike, the local rank that the launcher happened to see first tells nothing.
        return _only_one([end for end in here if self._tells(end)])

    def _tells(self, end: End) -> bool:
        """Whether its rank failed by itself: a launcher names it, and it did not wait in vain; or a signal ended it."""
        return (end in self.told and end.rank not in self.waiting) or (end.exitcode or 0) < 0

    def _complaints(self, one: Sighting, at: str) -> list[Sighting]:
        """What ranks say that `one` may have brought about, of the node `at`; empty: of any."""
        return [
            seen
            for seen in self.sightings
            if seen is not one and seen.rank is not None and seen.rule.depth >= SYMPTOM
            and seen.rule.kind in (one.rule.kind, *BESIDE)
            and at in ("", seen.node or self.nodes.get(seen.rank, ""))
        ]  # fmt: skip


def _only(pids: Mapping[tuple[str, int], int], pid: int, node: str) -> int | None:
    """The one rank with that pid: on that node, else where no node is known."""
    at = {rank for (where, its), rank in pids.items() if its == pid and node in ("", where)}
    at = at or {rank for (where, its), rank in pids.items() if its == pid and not where}
    return at.pop() if len(at) == 1 else None


def _killed(ends: list[End], complaints: list[Sighting]) -> int | None:
    """The one rank that was killed as memory runs out; else of which a shell or a container says so."""
    by_signal = _only_one([end for end in ends if end.exitcode in (-9, -7)])
    told = {seen.rank for seen in complaints if seen.rule.kind == Class.OOM_HOST}
    return by_signal if by_signal is not None or len(told) != 1 else told.pop()


def _only_one(ends: list[End]) -> int | None:
    """The one rank that failed first, or alone."""
    ranks = {end.rank for end in ends if end.first} or {end.rank for end in ends}
    return ranks.pop() if len(ranks) == 1 else None


def whom(rank: int | None, node: str) -> str:
    """`rank 17 on n7`"""
    if rank is None:
        return f"node {node}" if node else "a rank that is not named"
    return f"rank {rank} on {node}" if node else f"rank {rank}"

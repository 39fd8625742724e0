"""Which of all that was seen is the cause, and whose is it? `Evidence` in, one `Finding` out; touches nothing.

Of a hundred messages most are consequences: when one rank dies, the others' collectives fail. So messages are ordered by how
near they are to the beginning (`diagnosis.rule.DEPTHS`): what broke below the process, before why a process failed, before that
it failed, before what others' failure brings about. Among equals the launcher's first failure counts, then the earliest. What
its writer has survived counts last: it got on, wrote on for long, or ended by another exception. Then it is found out whose it
is, where the line itself does not say.
"""

from __future__ import annotations

from holdfast.core.config.grammar import ranges
from holdfast.core.job.failure import signal_name
from holdfast.core.job.finding import ADVISED, Class, Finding, Quote
from holdfast.core.value import replace
from holdfast.diagnosis.evidence import End, writer
from holdfast.diagnosis.hangs.recorder_file import compare
from holdfast.diagnosis.hangs.stack_groups import outlier
from holdfast.diagnosis.hangs.waiting import waited_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.diagnosis.evidence import Evidence, Sighting

EFFECT, SYMPTOM, CAUSE, MACHINE = range(4)

ALL = 0.9
"""The share of ranks that says the same where all are meant: some are ended before they can."""

LATER_S = 60.0
"""What broke below the process so much later than a process failed did not make it fail."""

NEAR_ITS_END = 50
"""Lines that may follow what killed a rank in a file of its own."""

LIVED_ON = 200
"""Whoever wrote so many lines after an error has lived through it, where another's stands at its writer's end. Not fewer: the
stacks of all threads may follow what killed it."""

A_FEW = 2
"""Lines that may follow an error that a program has logged as it gave up."""

MOST_QUOTES = 8

SIGNALS = {
    -9: (Class.OOM_HOST, 0.55, "was killed by SIGKILL: most often by the kernel, for want of memory", "see its node's `dmesg`"),
    -11: (Class.FRAMEWORK, 0.5, "crashed in native code (SIGSEGV)", "look for libraries whose versions do not fit"),
    -6: (Class.FRAMEWORK, 0.4, "gave up in native code (SIGABRT)", "see what it wrote on stderr"),
    -7: (Class.OOM_HOST, 0.5, "died of a bus error (SIGBUS): often a full /dev/shm", "give the container more shared memory"),
    -4: (Class.FRAMEWORK, 0.6, "ran an instruction that its processor has not (SIGILL)", "use a build for it on every node"),
    -15: (Class.PREEMPTED, 0.5, "was told to end (SIGTERM)", "see who did: most often the scheduler"),
    -2: (Class.PREEMPTED, 0.5, "was interrupted (SIGINT)", "start it again when you like"),
}  # fmt: skip
"""What an end by a signal most likely means, where nothing else tells."""


def attribute(evidence: Evidence) -> Finding:
    """What happened, to whom, why, and what to do."""
    places = Places(evidence)
    alive = [one for one in evidence.sightings if not one.recovered]
    causes = _last_words(alive)
    symptoms = [one for one in alive if one.rule.depth == SYMPTOM]
    if causes:
        return _finding(_first(causes, evidence), causes, evidence, places)
    # Nobody says why. Then who was not where the others waited tells more than who complained.
    signs = (compare(evidence.records), outlier(evidence.stacks), waited_for(evidence))
    if found := max(filter(None, signs), key=lambda one: one.confidence, default=None):
        return _its_own(found, symptoms, evidence, places) or found
    if symptoms:
        return _finding(_first(symptoms, evidence), symptoms, evidence, places)
    if guilty := [end for end in evidence.ends if not end.innocent and end.exitcode]:
        return _of_end(min(guilty, key=lambda end: (not end.first, (end.exitcode or 0) > 0, end.line)), evidence, places)
    effects = [one for one in alive if one.rule.depth == EFFECT]
    if effects:
        return _finding(_first(effects, evidence), effects, evidence, places)
    if gone := [one for one in evidence.sightings if one.recovered]:
        return _finding(_first(gone, evidence), gone, evidence, places)
    if evidence.ends:
        return _of_end(evidence.ends[0], evidence, places)
    return Finding(sentence="nothing that a rule knows was found: see the logs", advice="see the logs")


def _its_own(found: Finding, symptoms: list[Sighting], evidence: Evidence, places: Places) -> Finding | None:
    """What the rank that others waited for has said, or died of itself: that it never came is what this led to."""
    if found.kind != Class.UNKNOWN or found.rank is None:
        return None
    told = {end.rank for end in evidence.ends if end.first} == {found.rank}

    def its(one: Sighting) -> bool:
        # Of a line that names nobody: that the launcher takes this rank for the first to fail tells enough.
        return places.rank(one, evidence) == found.rank or (told and one.rank is None and not one.node and one.local is None)

    if own := [replace(one, rank=found.rank) for one in symptoms if not one.logged and its(one)]:
        return _finding(_first(own, evidence), own, evidence, places)
    # Not SIGABRT: torch's watchdog ends whoever was late by that, too. Not where it is known why: a rank that hangs is killed.
    ends = (end for end in evidence.ends if end.rank == found.rank and end.first and not end.what)
    died = (end for end in ends if end.exitcode in (-9, -11, -7, -4))
    end = next(died, None)
    return _of_end(end, evidence, places) if end is not None else None


class Places:
    """Which rank sits where, as far as anybody has said so."""

    def __init__(self, evidence: Evidence) -> None:
        self.nodes: dict[int, str] = {}
        self.locals: dict[tuple[str, int], int] = {}
        self.pids: dict[tuple[str, int], int] = {}
        self.ends = evidence.ends
        everybody: list[End | Sighting] = [*evidence.ends, *evidence.sightings]
        self.several = len({one.node for one in everybody if one.node}) > 1
        for one in everybody:
            if one.rank is None:
                continue
            if one.node:
                self.nodes.setdefault(one.rank, one.node)
            if one.local is not None:
                self.locals.setdefault((one.node, one.local), one.rank)
            if one.pid is not None:
                self.pids.setdefault((one.node, one.pid), one.rank)
        self.pids = {**evidence.pids, **self.pids}

    def rank(self, one: Sighting, evidence: Evidence) -> int | None:
        """Whose it is, where its line does not say so."""
        if one.rank is not None:
            return one.rank
        if one.pid is not None:
            at = [rank for (node, pid), rank in self.pids.items() if pid == one.pid and one.node in ("", node)]
            if not at:
                at = [rank for (node, pid), rank in self.pids.items() if pid == one.pid and not node]
            if len(set(at)) == 1:
                return at[0]
        if one.local is not None:
            at = [rank for (node, local), rank in self.locals.items() if local == one.local and one.node in ("", node)]
            if len(set(at)) == 1:
                return at[0]
            if not self.several:  # one node: a local rank is a rank
                return one.local
            if (rank := self._in_order(one.node, one.local)) is not None:
                return rank
        return self._dead_on(one, evidence)

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

    def _dead_on(self, one: Sighting, evidence: Evidence) -> int | None:
        """The one rank of that node that ended as it would have by that, or complained first."""
        if one.rule.kind in (Class.PREEMPTED, Class.NODE_LOST):
            return None
        named = {*self.nodes.values(), *(end.node for end in self.ends)}
        # Of what its kernel says of a GPU: ranks may know that host by its address only.
        at = "" if one.rule.kind == Class.GPU and one.node not in named else one.node
        here = [end for end in self.ends if end.rank is not None and not end.innocent and at in ("", end.node)]
        if one.rule.kind == Class.OOM_HOST:
            here = [end for end in here if end.exitcode in (-9, -7)] or []
        else:
            complaints = [
                seen for seen in evidence.sightings
                if seen is not one and seen.rank is not None and seen.rule.depth >= SYMPTOM
                and seen.rule.kind in (one.rule.kind, Class.GPU, Class.USER_CODE, Class.FRAMEWORK)
                and at in ("", seen.node or self.nodes.get(seen.rank, ""))
            ]  # fmt: skip
            if complaints and (at or len({seen.rank for seen in complaints}) == 1):
                return _first(complaints, evidence).rank
        first = [end for end in here if end.first]
        if len({end.rank for end in first or here}) == 1:
            return (first or here)[0].rank
        return None


def _first(those: Sequence[Sighting], evidence: Evidence) -> Sighting:
    """The one nearest to the beginning."""
    top = max(one.rule.depth for one in those)
    best = [one for one in those if one.rule.depth == top]
    if top == MACHINE and (before := [one for one in those if one.rule.depth == CAUSE and _was_before(one, best)]):
        best = before
    told = {end.rank for end in evidence.ends if end.first}
    best = [one for one in best if one.rank in told and one.rank is not None] or best
    if len({one.source for one in best}) == 1:
        return min(best, key=lambda one: one.line)
    if all(one.at is not None for one in best):
        return min(best, key=lambda one: (one.at or 0.0, -one.rule.confidence, one.line))
    return min(
        best,
        key=lambda one: (
            one.left > NEAR_ITS_END,
            -round(one.rule.confidence, 1),
            one.at is None,
            one.at or 0.0,
            one.left,
            one.source,
        ),
    )


def _last_words(alive: list[Sighting]) -> list[Sighting]:
    """The causes among them, without errors that a program has caught and logged, or lived through for long, if there are some
    that it has not."""
    causes = [one for one in alive if one.rule.depth >= CAUSE]
    uncaught = [one for one in alive if one.rule.depth in (SYMPTOM, CAUSE) and not one.logged]
    names = {one.rule.name for one in uncaught if one.rule.depth == CAUSE}
    ended = any(one.own and one.left <= NEAR_ITS_END for one in uncaught)
    last = {one.rule.name for one in causes if one.own and one.left <= NEAR_ITS_END}

    def lived(one: Sighting) -> bool:
        if one.rule.depth == MACHINE:
            return False
        if one.logged and one.rule.name not in names and (names or (ended and one.own and one.left > A_FEW)):
            return True
        # Of what ended one rank another may have written long before it was ended, too.
        return bool(last) and one.own and one.left > LIVED_ON and one.rule.name not in last

    return [one for one in causes if not lived(one)]


def _was_before(one: Sighting, machine: Sequence[Sighting]) -> bool:
    """Whether a process had failed by itself before anything broke, or ended it, below."""
    for below in machine:
        if one.at is not None and below.at is not None:
            if below.at - one.at < (0.0 if below.rule.kind == Class.PREEMPTED else LATER_S):
                return False
        elif not (below.rule.kind == Class.PREEMPTED and one.source == below.source and one.line < below.line):
            return False
    return one.rule.confidence >= 0.7


def _finding(one: Sighting, alike: Sequence[Sighting], evidence: Evidence, places: Places) -> Finding:
    same = [seen for seen in alike if seen.rule.kind == one.rule.kind and seen.rule.depth == one.rule.depth]
    those = {writer(seen) for seen in same if seen.rule.name == one.rule.name} - {None}
    everywhere = len(those) > 1 and len(those) >= ALL * max(evidence.writers, evidence.world_size or 0)
    rank = None if everywhere else places.rank(one, evidence)
    node = "" if everywhere else one.node or (places.nodes.get(rank, "") if rank is not None else "")
    others = {seen.rule.kind for seen in alike if seen.rule.depth == one.rule.depth and seen.rule.confidence >= 0.7} - {
        one.rule.kind
    }
    confidence = one.rule.confidence * (0.8 if others else 1.0) * (0.8 if one.recovered else 1.0)
    says = one.rule.says.replace("{what}", one.what or "?")
    who = "all ranks" if everywhere else whom(rank, node)
    return Finding(
        kind=one.rule.kind, rule=one.rule.name, confidence=round(confidence, 2), rank=rank, node=node, everywhere=everywhere,
        action=one.rule.action, advice=one.rule.advice, sentence=f"{who}: {says}; {one.rule.advice}",
        evidence=tuple(_quotes(one, evidence, rank)), effects=tuple(_effects(one, evidence)),
    )  # fmt: skip


def _of_end(end: End, evidence: Evidence, places: Places) -> Finding:
    code = end.exitcode
    kind, confidence, says, advice = SIGNALS.get(code or 0, (Class.UNKNOWN, 0.3, "", "see its log"))
    if not says:
        says = f"ended with exit code {code}, and left nothing that a rule knows" if code is not None else end.what or "ended"
        if code is not None and code < 0:
            says = f"was killed by {signal_name(code)}"
    rank = end.rank
    return Finding(
        kind=kind, confidence=confidence, rank=rank, node=end.node, action=ADVISED[kind], advice=advice,
        sentence=f"{whom(rank, end.node)}: {says}; {advice}",
        evidence=(Quote(text=end.what or f"exit code {code}", source=end.source, line=end.line, rank=rank, node=end.node),),
        effects=tuple(_effects(None, evidence)),
    )  # fmt: skip


def whom(rank: int | None, node: str) -> str:
    """`rank 17 on n7`"""
    if rank is None:
        return f"node {node}" if node else "a rank that is not named"
    return f"rank {rank} on {node}" if node else f"rank {rank}"


def _quotes(one: Sighting, evidence: Evidence, rank: int | None) -> Iterable[Quote]:
    """The line itself first, then what else is said of the same rank, then the nearest causes."""
    others = [seen for seen in evidence.sightings if seen is not one and seen.rule.depth]
    others.sort(key=lambda seen: (seen.rank != rank, -seen.rule.depth, seen.line))
    seen_rules = {one.rule.name}
    yield quote(one)
    for other in others:
        if other.rule.name not in seen_rules and len(seen_rules) < MOST_QUOTES:
            seen_rules.add(other.rule.name)
            yield quote(other)


def quote(one: Sighting) -> Quote:
    """The line, as evidence."""
    return Quote(text=one.text, source=one.source, line=one.line, rank=one.rank, node=one.node)


def _effects(one: Sighting | None, evidence: Evidence) -> Iterable[str]:
    """Per rule: who said so, in one line each."""
    by_rule: dict[str, list[Sighting]] = {}
    for seen in evidence.sightings:
        if seen is not one and seen.rule.depth == EFFECT:
            by_rule.setdefault(seen.rule.says, []).append(seen)
    for says, those in sorted(by_rule.items(), key=lambda item: -len(item[1]))[:MOST_QUOTES]:
        ranks = {seen.rank for seen in those if seen.rank is not None}
        who = f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}" if ranks else f"{len(those)} times"
        yield f"{who}: {says}"

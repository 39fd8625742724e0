"""Which of several messages came first? Orders them by how near they are to the beginning of a failure; pure.

Of a hundred messages most are consequences: when one rank dies, the others' collectives fail. So what broke below the process
counts before why a process failed, that before that it failed, and that before what others' failure brings about
(`diagnosis.tables`). Among equals the launcher's first failure counts, then the earliest.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.job.finding import Class
from holdfast.diagnosis.evidence import Evidence, Sighting
from holdfast.diagnosis.tables import CAUSE, MACHINE, SYMPTOM

LATER_S = 60.0  # What broke below the process so much later than a process failed did not make it fail.
NEAR_ITS_END = 50  # Lines that may follow what killed a rank in a file of its own.

LIVED_ON = 200
"""A rank that wrote so many lines after an error has lived through it, where another rank's error stands at its end. Not fewer:
the stacks of all threads may follow what killed it."""

A_FEW = 2  # Lines that may follow an error that a program has logged as it gave up.


def first(those: Sequence[Sighting], evidence: Evidence) -> Sighting:
    """The one nearest to the beginning."""
    best = _first_to_fail(_deepest(those), evidence)
    if len({one.source for one in best}) == 1:
        return min(best, key=lambda one: one.line)
    if all(one.at is not None for one in best):
        return min(best, key=lambda one: (one.at or 0.0, -one.rule.confidence, one.line))
    return min(best, key=_without_clock)


def _deepest(those: Sequence[Sighting]) -> list[Sighting]:
    """The ones nearest to the beginning, but a process's own cause where it came before what broke below."""
    top = max(one.rule.depth for one in those)
    best = [one for one in those if one.rule.depth == top]
    if top < MACHINE:
        return best
    return [one for one in those if one.rule.depth == CAUSE and _was_before(one, best)] or best


def _first_to_fail(those: list[Sighting], evidence: Evidence) -> list[Sighting]:
    """Those of the ranks that a launcher takes for the first to fail, if there are any."""
    told = {end.rank for end in evidence.ends if end.first}
    return [one for one in those if one.rank is not None and one.rank in told] or those


def _without_clock(one: Sighting) -> tuple[bool, float, bool, float, int, str]:
    """Order of messages of several files, where not all say when."""
    return one.left > NEAR_ITS_END, -round(one.rule.confidence, 1), one.at is None, one.at or 0.0, one.left, one.source


def last_words(alive: list[Sighting]) -> list[Sighting]:
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

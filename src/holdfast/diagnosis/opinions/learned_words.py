"""What do the words of a log speak for, where no rule is sure? Weights that were learned from failures with their class.

`vocabulary/learned.txt` says of each word, and each pair of words, how much it speaks for which class. All words of the lines
that tell of a failure count together. `tests/tools/learn_words.py` writes that file. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from holdfast.core.job.finding import UNSURE, Class, Finding, Quote
from holdfast.core.value import replace
from holdfast.diagnosis.judgement import CHILD, HELPS
from holdfast.diagnosis.places import whom
from holdfast.diagnosis.terms import BASE, kinds_of_lines, learned

RULES_SURE = 0.9  # From this confidence on a rule is not doubted.
DOUBTED = 0.69  # What is left of a rule's confidence where the words speak for another class.
SURE, SURER = 0.5, 0.72  # How likely a class must be by the words to be named where no rule names one, and against one.
MOST = 0.65  # No answer by words alone is surer: where they were tried, two in three were right.
MOST_LINES = 60
STORIES = ("waited-for", "stack-outlier", "last-lines", "uneventful", CHILD)
"""What is no line's, or no line's by its words: those are not against it."""

_FAILS = (  # One line at least must have one of these: the others may be harmless.
    *("error", "exception", "fatal", "fail", "critical", "cannot", "can't", "unable", "abort", "panic", "kill", "denied"),
    *("exceed", "lost", "unreachable", "crash", "refused", "timeout", "timedout", "time out", "timed out", "oom", "xid", "ecc"),
    *("no such", "invalid", "unexpected", "corrupt", "missing", "preempt", "cancel", "evict", "drain"),
    *("could not", "couldn't"),
)
_TELLS = (*_FAILS, "memory", "signal", "not ", "warn", "assert")
_DOWN = re.compile(r"down\b")
_WORD = re.compile(r"[a-zA-Z_][a-zA-Z_]+")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_DIGITS = re.compile(r"\d+")


def tells(line: str) -> bool:
    """Whether a line may tell of a failure, and not only of what was survived."""
    lower = line.lower()
    has_word = any(word in lower for word in _TELLS) or ("down" in lower and _DOWN.search(lower) is not None)
    return has_word and not any(one.search(line) for one in kinds_of_lines("passes"))


def _fails(line: str) -> bool:
    lower = line.lower()
    return any(word in lower for word in _FAILS)


def shape(line: str) -> str:
    """The line, whatever its numbers."""
    return _DIGITS.sub("0", line)


def distinct(lines: Iterable[str]) -> tuple[str, ...]:
    """The last of these lines, each shape once, where it came last."""
    found: dict[str, str] = {}
    for line in lines:
        key = shape(line)
        found.pop(key, None)
        found[key] = line
    return tuple(found.values())[-MOST_LINES:]


def features(lines: Iterable[str]) -> set[str]:
    """The words of these lines, the parts of names such as `CamelCase`, and the pairs of words that stand side by side."""
    found: set[str] = set()
    for line in lines:
        words = _WORD.findall(line)
        lower = [word.lower() for word in words]
        found.update(lower)
        found.update(f"{one} {other}" for one, other in pairwise(lower))
        for word in words:
            if len(parts := _PART.findall(word)) > 1:
                found.update(part.lower() for part in parts)
    return found


def weighed(found: Finding, said: Sequence[str]) -> Finding:
    """The finding, where its rule is not sure as the words of `said` have it."""
    is_of_end = not found.rule and bool(found.evidence)  # how it ended is known, and tells more
    if found.confidence >= RULES_SURE or is_of_end or found.rule in STORIES or not any(map(_fails, said)):
        return found
    order = likely(said)
    kind, share = order[0]
    if kind == found.kind:
        return found
    if found.kind == Class.UNKNOWN:
        is_open = found.likely or not found.confidence  # else a rule or an end says that nobody can know
        if found.likely and not _has_one(said, found.evidence):
            return found  # the last lines tell of what followed
        return _by_words(found, order, said) if share >= SURE and is_open else found
    return _by_words(found, order, said) if share >= SURER else replace(found, confidence=min(found.confidence, DOUBTED))


def _has_one(said: Sequence[str], evidence: Sequence[Quote]) -> bool:
    return any(quote.text in line or line in quote.text for quote in evidence for line in said)


def likely(said: Iterable[str]) -> list[tuple[Class, float]]:
    """The classes of which these lines speak, the likeliest first, and how likely each is."""
    table = learned()
    known = [table[word] for word in features(said) if word in table]
    scale = 1 / math.sqrt(max(1, len(known)))
    sums = {kind: base + scale * sum(weights.get(kind, 0.0) for weights in known) for kind, base in table[BASE].items()}
    speaks = {kind: math.exp(one) for kind, one in sums.items()}
    return sorted(((kind, one / sum(speaks.values())) for kind, one in speaks.items()), key=lambda one: -one[1])


def _by_words(found: Finding, order: Sequence[tuple[Class, float]], said: Sequence[str]) -> Finding:
    kind, share = order[0]
    table = learned()
    telling = sorted(features(said) & table.keys(), key=lambda word: (-table[word].get(kind, 0.0), word))[:3]
    who = "all ranks" if found.everywhere else whom(found.rank, found.node)
    return replace(
        found,
        kind=kind,
        rule="learned-words",
        confidence=round(min(share, MOST), 2),
        action=UNSURE[kind],
        advice=HELPS[kind],
        sentence=f"{who}: by its words ({', '.join(telling)}) most likely {kind}; {HELPS[kind]}",
        likely=tuple((one, round(part, 2)) for one, part in order[:3]),
    )

"""What does a line mean? A rule that knows it says so; else its terms, its exception and what raised it are weighed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from holdfast.core.job.finding import Class
from holdfast.diagnosis.judgement import CARRIER, Frame, Judged, guessed, is_failing, is_of_a_child, judged
from holdfast.diagnosis.rule import Rule, Rules
from holdfast.diagnosis.tables import EFFECT, MACHINE
from holdfast.diagnosis.terms import Term, terms

TRACEBACK = "Traceback (most recent call last)"
GENERAL = (
    *("Error: ", "Exception: ", TRACEBACK, "what():  ", "KeyboardInterrupt", "SystemExit: ", "AssertionError"),
    "terminated with exception",
)
"""Words of failures of any kind: of exceptions, and of what hands them on."""

OF_AN_END = re.compile(r"\s*traceback\s*: Signal \d+ \(\w+\) received by PID")
"""A line of torchrun's box: how a process ended, which `ends` reads. No process has said it."""

_QUOTED = re.compile(r"(?:[^']*'(?P<what>[^'\n]{1,160})')?")  # The first of what a message puts in quotes, if it does.

WHOLE = 0.8  # A term that is more than this share of a line is all that the line says.

Meaning = tuple[Rule, re.Match[str]]  # What a line means, as a rule says it, and where it stands.


class Meanings:
    """What lines mean, by `rules` and by the vocabularies, `without` the terms of these names."""

    def __init__(self, rules: Rules, *, without: frozenset[str] = frozenset()) -> None:
        self.rules = rules
        self._terms: dict[str, list[Term]] = {}
        self._compiled: dict[str, re.Pattern[str]] = {}
        names = {rule.name for rule in rules.rules} | without
        for term in terms():
            for spelling in term.spellings if term.name not in names else ():
                self._terms.setdefault(spelling, []).append(term)
        self.words = tuple(dict.fromkeys((*rules.by_word, *self._terms, *GENERAL)))

    def best(self, text: str, words: Iterable[str], frames: Sequence[Frame] = (), *, is_raised: bool = False) -> Meaning | None:
        """What the line means. `words`: of ours, those in it; `frames`: of the traceback that it ends, if it does."""
        inside = [word for word in dict.fromkeys(words) if word in text]
        if OF_AN_END.match(text) or not (inside or is_raised):
            return None
        known = self._known(text, inside, frames)
        if known is not None and known[0].depth > EFFECT:
            if not self._names_better(known[0], text, inside):
                return known
            known = None
        if (handed := self._handed_on(text, inside, frames)) is not None and _says_more(handed, known):
            return handed
        said = self._inside(text, inside)
        if known is not None and not any(term.depth > EFFECT for term in said):
            return known
        means = judged(text, said, frames, is_raised=is_raised)
        return known if means is None or not _counts(means, text, known, is_raised=is_raised) else _as_rule(means, text)

    def _known(self, text: str, inside: list[str], frames: Sequence[Frame]) -> Meaning | None:
        """What a rule says. Of a pipe to another process none does: they are about other ranks."""
        return None if is_of_a_child(text, frames) else self.rules.best(text, inside)

    def _names_better(self, rule: Rule, text: str, inside: list[str]) -> bool:
        """Whether the environment explains what the rule that knows the line takes for a library's or a store's failure."""
        said = self._inside(text, inside) if rule.kind in (Class.FRAMEWORK, Class.STORAGE) else ()
        return any(term.kind == Class.ENVIRONMENT and term.sure > rule.confidence for term in said)

    def guess(self, text: str) -> Meaning | None:
        """What a line that nothing knows may mean, by its words."""
        means = guessed(text)
        return None if means is None else _as_rule(means, text)

    def _handed_on(self, text: str, inside: list[str], frames: Sequence[Frame]) -> Meaning | None:
        """What another one's message means that the line hands on, if it says why."""
        if (inner := CARRIER.search(text)) is None:
            return None
        return self.best(inner["inner"], inside, frames)

    def _inside(self, text: str, words: Iterable[str]) -> list[Term]:
        """The terms in a line, each as its vocabulary wants it."""
        maybe = dict.fromkeys(term for word in words for term in self._terms.get(word, ()))
        return [term for term in maybe if self._pattern(term).search(text)]

    def _pattern(self, term: Term) -> re.Pattern[str]:
        pattern = self._compiled.get(term.name)
        if pattern is None:
            pattern = self._compiled[term.name] = re.compile(term.pattern)
        return pattern


def _says_more(handed: Meaning, known: Meaning | None) -> bool:
    """Whether what a line hands on says more than the rule that knows the line."""
    return handed[0].depth > EFFECT or (known is not None and handed[0].confidence > known[0].confidence)


def _counts(means: Judged, text: str, known: Meaning | None, *, is_raised: bool) -> bool:
    """Whether a judgement says more than the rule that knows the line, which does not only happen to have a term."""
    if known is not None and means.term.depth <= known[0].depth:
        return False
    said = any(len(one) > WHOLE * len(text.strip()) for one in means.term.spellings)
    return is_raised or said or means.term.depth >= MACHINE or ":" in text or is_failing(text)


def _as_rule(means: Judged, text: str) -> Meaning | None:
    term, found = means.term, _QUOTED.match(text)
    if found is None:
        return None
    rule = Rule(
        name=term.name, kind=term.kind, depth=term.depth, confidence=round(term.sure, 2), words=(), pattern="",
        says=term.says if found["what"] else term.says.replace(" ({what})", ""),
        advice=term.helps, source=term.source, sample="", action=term.action, likely=means.likely,
    )  # fmt: skip
    return rule, found

"""Writes `diagnosis/vocabulary/learned.txt`: how much each word speaks for which class, learned from failures with their class.

They are the labelled logs (`kit.logs`: unseen, fresh, played), the causes that logs are made of, the samples of rules, and the
messages of `tests/kit/logs/failure_messages`. One softmax over the words, which are regularised; the same bytes each time.

    python tests/tools/learn_words.py             write the file
    python tests/tools/learn_words.py --score     how often is the class right by words alone? Each tenth is left out in turn
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / room) for room in ("unit", "")]

from kit.logs.failure_causes_unseen import FOLDER, FRESH, PLAYED, failures  # noqa: E402
from test_diagnosis_corpus import PARTS  # noqa: E402

from holdfast.core.job.finding import Class  # noqa: E402
from holdfast.diagnosis.gather import gather, of_text  # noqa: E402
from holdfast.diagnosis.meaning import Meanings  # noqa: E402
from holdfast.diagnosis.opinions.learned_words import features  # noqa: E402
from holdfast.diagnosis.rule import load  # noqa: E402
from holdfast.diagnosis.terms import BASE  # noqa: E402
from holdfast.diagnosis.terms import FOLDER as VOCABULARY  # noqa: E402

MESSAGES = Path(__file__).parents[1] / "kit" / "logs" / "failure_messages"
PENALTY = 0.1  # Of a weight's square.
STEPS = 300
AT_LEAST = 3  # Failures that have a word that is learned.
MUST, LEAST = 80, 20  # Hundredths that a word's largest weight must have, and any other, to be written: the rest adds nothing.
HEAD = """\
# source: learned by tests/tools/learn_words.py from labelled failures: label a failure or write a message, and run it
# word, or two that stand side by side | how much it speaks for which class, in hundredths
"""


class Example(NamedTuple):
    """One failure: its words, and every class that is right, the best first."""

    words: frozenset[str]
    classes: tuple[str, ...]
    part: str


def examples() -> Iterator[Example]:
    """All there are."""
    rules = load()
    meanings = Meanings(rules)
    for part, folder in (("unseen", FOLDER), ("fresh", FRESH), ("played", PLAYED)):
        for one in failures(folder):
            yield _example(gather([str(one.path)], meanings).said, one.classes, part)
    made = [(kind, text) for causes in PARTS.values() for kind, _, text in causes]
    made += [(str(rule.kind), rule.sample) for rule in rules.rules if rule.kind != Class.UNKNOWN]
    for file in sorted(MESSAGES.glob("*.jsonl")):
        told = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        made += [(one["class"], one["text"]) for one in told]
    for kind, text in made:
        yield _example(of_text(text, meanings).said or text.splitlines(), (kind,), "made")


def _example(said: Sequence[str], classes: tuple[str, ...], part: str) -> Example:
    return Example(frozenset(features(said)), classes, part)


class Learned:
    """What `those` have taught."""

    def __init__(self, those: Sequence[Example]) -> None:
        counts = Counter(word for one in those for word in one.words)
        self.words = sorted(word for word, count in counts.items() if count >= AT_LEAST)
        self.kinds = sorted({one.classes[0] for one in those})
        self._at = {word: number for number, word in enumerate(self.words)}
        seen = self._matrix(those)
        right = np.zeros((len(those), len(self.kinds)), np.float32)
        right[np.arange(len(those)), [self.kinds.index(one.classes[0]) for one in those]] = 1
        weights = np.zeros((seen.shape[1], len(self.kinds)), np.float32)
        mean, square = np.zeros_like(weights), np.zeros_like(weights)
        penalty = np.full((seen.shape[1], 1), PENALTY, np.float32)
        penalty[-1] = 0  # of what speaks before a word is read
        for step in range(1, STEPS + 1):  # Adam, over all at once
            slope = seen.T @ (_shares(seen @ weights) - right) + penalty * weights
            mean = 0.9 * mean + 0.1 * slope
            square = 0.99 * square + 0.01 * slope**2
            weights -= 0.1 * (1 - step / STEPS) * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-6)
        self.weights = weights - weights.mean(1, keepdims=True)

    def _matrix(self, those: Sequence[Example]) -> np.ndarray:
        """A row for each: its words, such that many count no more than few, and a one."""
        found = np.zeros((len(those), len(self.words) + 1), np.float32)
        for row, one in enumerate(those):
            known = [self._at[word] for word in one.words if word in self._at]
            found[row, known] = 1 / np.sqrt(max(1, len(known)))
        found[:, -1] = 1
        return found

    def kind_of(self, those: Sequence[Example]) -> list[str]:
        """The likeliest class of each."""
        return [self.kinds[at] for at in (self._matrix(those) @ self.weights).argmax(1)]

    def lines(self) -> Iterator[str]:
        """The file's."""
        for word, row in zip([*self.words, BASE], self.weights):
            told = [(kind, round(100 * float(weight))) for kind, weight in zip(self.kinds, row)]
            if word == BASE or max(abs(weight) for _, weight in told) >= MUST:
                shown = (f"{kind} {weight}" for kind, weight in told if abs(weight) >= LEAST or word == BASE)
                yield f"{word} | {', '.join(shown)}\n"


def _shares(speaks: np.ndarray) -> np.ndarray:
    speaks = np.exp(speaks - speaks.max(1, keepdims=True))
    return speaks / speaks.sum(1, keepdims=True)


def score(those: Sequence[Example]) -> Iterable[str]:
    """A line for each part: of those that were left out, how many are right."""
    right: dict[str, list[bool]] = {}
    for tenth in range(10):
        left = those[tenth::10]
        told = Learned([one for number, one in enumerate(those) if number % 10 != tenth]).kind_of(left)
        for one, kind in zip(left, told):
            right.setdefault(one.part, []).append(kind in one.classes)
    for part, those_right in right.items():
        yield f"{part}: class right by words alone {sum(those_right) / len(those_right):.1%} of {len(those_right)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--score", action="store_true")
    those = list(examples())
    if parser.parse_args().score:
        print(*score(those), sep="\n")
        return
    Path(VOCABULARY, "learned.txt").write_text(HEAD + "".join(Learned(those).lines()), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Which of some hundred words are in a megabyte, and where? In the time of one look at every fourth byte of it.

Looking for each word by itself takes a quarter of a millisecond for a megabyte, and a pattern of all of them a hundred. But if
a text is read as numbers of four bytes each, a word in it is a row of such numbers, and only four rows are possible: it begins
where a number does, or one, two or three bytes later. So the numbers are looked up among those of all words, which the
interpreter does by itself, and only words of which a whole row was seen are looked for.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FOUR = 4
SHORTEST = 2 * FOUR - 1
"""Letters of a word that has a number in each of its rows."""

LONGEST = 11
"""Letters of a word that are read: two numbers in each row tell it from most other text, and few numbers are looked up fast."""

INNER = 11
"""Words so short are looked for in others: who has not "Error: " has not "KeyError: "."""

SMALL = 32 << 10
"""Bytes of a text in which each word is looked for, as long as nothing larger has come: preparing takes milliseconds, too."""


class Sieve:
    """Looks for `words`, none of them empty."""

    def __init__(self, words: Iterable[bytes]) -> None:
        self.words = tuple(sorted(dict.fromkeys(words), key=len))
        self._rows: dict[bytes, list[frozenset[int]]] = {}
        """By word: the numbers of each of its rows. Empty: not prepared yet."""
        self._numbers = frozenset[int]()
        self._inner: dict[bytes, bytes] = {}
        """By word: another one that is in it."""

    def inside(self, text: bytes) -> Iterator[tuple[int, bytes]]:
        """(where it begins, word) for each time that a word is in `text`: one word after the other."""
        seen = set[bytes]()
        for word in self.words if len(text) < SMALL and not self._rows else self._maybe(text):
            if (inner := self._inner.get(word)) is not None and inner not in seen:
                continue
            at = text.find(word)
            if at >= 0:
                seen.add(word)
            while at >= 0:
                yield at, word
                at = text.find(word, at + 1)

    def _maybe(self, text: bytes) -> list[bytes]:
        if not self._rows:
            self._prepare()
        has = self._numbers.intersection(memoryview(text + bytes(-len(text) % FOUR)).cast("I")).issuperset
        return [word for word, rows in self._rows.items() if not rows or any(map(has, rows))]

    def _prepare(self) -> None:
        inner = [word for word in self.words if len(word) <= INNER]
        for word in self.words:
            self._rows[word] = [_row(word, begin) for begin in range(FOUR)] if len(word) >= SHORTEST else []
            if found := next((other for other in inner if other in word and other != word), None):
                self._inner[word] = found
        self._numbers = frozenset().union(*(row for rows in self._rows.values() for row in rows))


def _row(word: bytes, begin: int) -> frozenset[int]:
    """The numbers of its four letters that begin there, and of the next four."""
    fours = range(begin, min(len(word), LONGEST) - FOUR + 1, FOUR)
    return frozenset(int.from_bytes(word[at : at + FOUR], sys.byteorder) for at in fours)

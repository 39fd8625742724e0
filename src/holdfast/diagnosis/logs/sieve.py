"""Which of some hundred words are in a megabyte, and where? In the time of four looks at every fourth byte of it.

Looking for each word by itself takes half a millisecond for a megabyte, and a pattern of all of them a hundred. But `re` looks
for one letter of a set in three nanoseconds, however large the set is. So the text is packed: its bytes are taken for one of
fifteen kinds, and four of them become one letter of sixteen bits. A word then is a row of such letters, and only four rows are
possible: it begins where a letter does, or one, two or three bytes later. Where one of all rows' first letters is followed by
one of their second, and so on, it is looked whether one of these words is there.
"""

from __future__ import annotations

import re
from binascii import unhexlify
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product

FOUR = 4
SHORTEST = 2 * FOUR - 1  # Letters of a word that has a packed one in each of its rows.
MOST = 4  # Packed letters of a row that are looked at: with so many, hardly any other text has such a row.
KINDS = b"0123456789abcef"  # Of bytes, by hexadecimal digits. Without d no packed letter is half of one (a surrogate).

SMALL = 32 << 10
"""Bytes of a text in which each word is looked for, as long as nothing larger has come: preparing takes milliseconds, too."""


class Sieve:
    """Looks for `words`, none of them empty."""

    def __init__(self, words: Iterable[bytes]) -> None:
        self.words = tuple(dict.fromkeys(words))
        self._plain = self.words  # Those that are looked for one by one: all, until there is something to prepare for.
        self._looks: list[_Look] = []
        self._kinds = b""  # By byte. Empty: not prepared yet.

    def inside(self, text: bytes) -> Iterator[tuple[int, bytes]]:
        """(where it begins, word) for each time that a word is in `text`, in no order."""
        if len(text) >= SMALL and not self._kinds:
            self._prepare()
        for word in self._plain:
            at = text.find(word)
            while at >= 0:
                yield at, word
                at = text.find(word, at + 1)
        packed = self._packed(text) if self._looks else ""
        for look in self._looks:
            for number, skipped, word in look.maybe(packed):
                at = FOUR * number - skipped  # where it is below 0, that is counted from the end: too near to it for a word
                if text.startswith(word, at):
                    yield at, word

    def _packed(self, text: bytes) -> str:
        digits = text.translate(self._kinds) + KINDS[:1] * (-len(text) % FOUR)
        return unhexlify(digits).decode("utf-16-be")

    def _prepare(self) -> None:
        self._kinds = _alike(b"".join(self.words))
        self._plain = tuple(word for word in self.words if len(word) < SHORTEST)
        by_length: dict[int, list[tuple[bytes, int]]] = {}
        for word in self.words:
            for skipped in range(FOUR if len(word) >= SHORTEST else 0):
                length = min(MOST, (len(word) - skipped + FOUR // 2) // FOUR)
                by_length.setdefault(length, []).append((word, skipped))
        self._looks = [_Look(rows, length, self._kinds) for length, rows in by_length.items()]


class _Look:
    """Looks for rows of so many packed letters, each given as a word and how many of its bytes stand before the row. Of the
    last packed letter half is enough; of a row of one, what stands before it counts too."""

    def __init__(self, rows: list[tuple[bytes, int]], length: int, kinds: bytes) -> None:
        self._whole = max(1, length - 1)  # Packed letters that are known of each row for certain.
        self._words: dict[str, list[tuple[int, bytes]]] = {}
        sets: list[set[str]] = [set() for _ in range(length)]
        before = set[str]()
        for word, skipped in rows:
            digits = word.translate(kinds).decode()
            fours = [digits[at : at + FOUR] for at in range(skipped, skipped + FOUR * length, FOUR)]
            self._words.setdefault("".join(map(_letter, fours[: self._whole])), []).append((skipped, word))
            for one, four in zip(sets, fours):
                one.add(four)
            if length == 1:
                before.update("".join(some) + digits[:skipped] for some in product(KINDS.decode(), repeat=FOUR - skipped))
        first, *then = map(_one_of, sets)
        known = f"(?={''.join(then)})" if then else f"(?<={_one_of(before)}.)"
        self._pattern = re.compile(first + known, re.DOTALL)

    def maybe(self, packed: str) -> Iterator[tuple[int, int, bytes]]:
        """(where in `packed`, bytes before it, word) for each row that is there."""
        words, whole = self._words, self._whole
        for found in self._pattern.finditer(packed):
            at = found.start()
            for skipped, word in words.get(packed[at : at + whole], ()):
                yield at, skipped, word


def _letter(four: str) -> str:
    return chr(int(four, 16))


def _one_of(fours: set[str]) -> str:
    """A pattern of the packed letters that begin with one of these digits."""
    whole = "".join(_letter(four) for four in fours if len(four) == FOUR)
    parts = (f"{_letter(part.ljust(FOUR, '0'))}-{_letter(part.ljust(FOUR, 'f'))}" for part in fours if len(part) < FOUR)
    return f"[{re.escape(whole)}{''.join(parts)}]"


def _alike(text: bytes) -> bytes:
    """For each byte its kind; in `text` one is as frequent as the other, which tells most."""
    kinds = bytearray(KINDS[byte % len(KINDS)] for byte in range(256))
    full = [0] * len(KINDS)
    for byte, count in Counter(text).most_common():
        least = full.index(min(full))
        full[least] += count
        kinds[byte] = KINDS[least]
    return bytes(kinds)

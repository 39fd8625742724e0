"""The sieve finds what looking for each word finds, wherever it is."""

from __future__ import annotations

import random

import pytest

from holdfast.diagnosis import ends
from holdfast.diagnosis.rule import is_enough, load
from holdfast.diagnosis.sieve import SMALL, Sieve

WORDS = [word.encode() for word in (*load().by_word, *ends.WORDS)]


def plainly(text: bytes, words: list[bytes]) -> set[tuple[int, bytes]]:
    """What is to be found."""
    return {(at, word) for word in words for at in range(len(text)) if text.startswith(word, at)}


@pytest.mark.parametrize("seed", range(20))
def test_every_word_is_found_wherever_it_begins(seed: int) -> None:
    rng = random.Random(seed)
    parts = [rng.choice([rng.choice(WORDS), rng.choice(WORDS)[: rng.randrange(9)], b"\n", b"loss ", b"x"]) for _ in range(300)]
    text = b"".join(parts)
    words = rng.sample(WORDS, 40)
    expected = plainly(text, words)
    small, large = Sieve(words), Sieve(words)
    assert list(large.inside(b" " * SMALL)) == []  # from now on it does not look for each of them
    for sieve in (small, large):
        found = list(sieve.inside(text))
        assert set(found) == expected and len(found) == len(expected)


@pytest.mark.parametrize("word", WORDS[:: len(WORDS) // 40])
def test_a_word_alone_is_found_at_the_very_beginning_and_the_very_end(word: bytes) -> None:
    sieve = Sieve(WORDS)
    for before in range(9):
        text = b" " * (SMALL + before) + word
        assert (SMALL + before, word) in set(sieve.inside(text))
    assert (0, word) in set(sieve.inside(word))


def test_most_of_a_text_is_not_looked_at_again() -> None:
    sieve = Sieve(WORDS)
    assert len(sieve._maybe(b"the loss of this step is lower, and memory shards failed to be written " * 1000)) < 30


def test_every_rule_has_words_that_are_worth_looking_for() -> None:
    assert [rule.name for rule in load().rules if not rule.words or not all(map(is_enough, rule.words))] == []

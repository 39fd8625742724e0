"""The sieve finds what looking for each word finds, wherever it is; a scanner, what reading each line for each rule does."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from kit.logs import failure_causes_held_out
from kit.logs.failure_logs import make

from holdfast.diagnosis.logs import ends
from holdfast.diagnosis.logs.prefix import Speaker, of_file, split
from holdfast.diagnosis.logs.scan import MOST_ALIKE, NEW, Log, Scanner
from holdfast.diagnosis.logs.sieve import KINDS, SHORTEST, SMALL, Sieve
from holdfast.diagnosis.meaning import Meanings
from holdfast.diagnosis.rule import is_enough, load

RULES = load()
MEANINGS = Meanings(RULES)
WORDS = [word.encode() for word in (*RULES.by_word, *ends.WORDS)]


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


@pytest.mark.parametrize("seed", range(20))
def test_words_of_any_bytes_and_lengths_are_found(seed: int) -> None:
    """Few kinds of bytes, so that words begin and end like others, overlap and are in each other."""
    rng = random.Random(seed)
    letters = [rng.randbytes(3), b"]^-[\\", bytes(range(256))][seed % 3]
    words = [bytes(rng.choices(letters, k=rng.randrange(4, 30))) for _ in range(40)]
    words += [word + bytes(rng.choices(letters, k=rng.randrange(5))) for word in words[::4]]
    parts = [rng.choice(words)[rng.choice((0, 0, 0, 1, 2)) : rng.choice((None, None, -1))] for _ in range(4000)]
    text = b"".join(parts)[: SMALL + seed]
    assert len(text) == SMALL + seed
    sieve = Sieve(words)
    assert Counter(sieve.inside(text)) == Counter(
        (at, word) for word in set(words) for at in range(len(text)) if text.startswith(word, at)
    )
    assert sieve._looks  # it did not look for each of them


@pytest.mark.parametrize("before", range(4))
def test_no_packed_letter_means_something_else_in_a_pattern(before: int) -> None:
    """Among them are backslash, circumflex and newline."""
    kinds = [bytes([letter]) for letter in range(97, 97 + len(KINDS))]  # as frequent as each other: one of each kind
    words = [c + b + a + a + b + c + b for a in kinds for b in kinds for c in kinds]
    text = b" " * before + b"".join(words) + b" " * SMALL
    assert {(before + number * SHORTEST, word) for number, word in enumerate(words)} <= set(Sieve(words).inside(text))


def test_most_of_a_text_is_not_looked_at_again() -> None:
    sieve = Sieve(WORDS)
    text = b"the loss of this step is lower, Error failed to checkpoint: memory shards were not written\n" * 1000
    assert list(sieve.inside(text)) == []
    assert all(len(word) < SHORTEST for word in sieve._plain)
    packed = sieve._packed(text)
    assert sum(len(list(look.maybe(packed))) for look in sieve._looks) < 2000


def read_plainly(text: bytes, default: Speaker) -> Counter[str]:
    """How many lines mean what a rule or a term knows, by reading each for all of them."""
    told: Counter[str] = Counter()
    before = b""
    for raw in text.split(b"\n"):
        line = raw.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
        shown = b"    " in raw and b"  File \"" in before and b"\", line " in before
        words = [] if shown else [word for word in MEANINGS.words if word in line]  # without one, a line is not judged
        if words and (best := MEANINGS.best(split(line, default)[1], words)) is not None:
            told[best[0].name] += 1
        before = raw
    return told


def counted(log: Log) -> Counter[str]:
    told: Counter[str] = Counter()
    for one in log.sightings.values():
        told[one.rule.name] += one.count
    return told


def some_log(rng: random.Random, lines: int) -> bytes:
    """Rules' samples, whole and cut, with prefixes and bytes that are no UTF-8, among lines that are alike or not."""
    samples = [rule.sample.encode() for rule in RULES.rules]
    prefixes = (b"", b"[rank%d]: ", b"%d: ", b"[default%d]:", b"2026-11-21T12:00:%02dZ ", b"\xff\xfe%d ", b"%d%%\r")
    made = []
    for number in range(lines):
        prefix = rng.choice(prefixes)
        kind = rng.random()
        sample = rng.choice(samples)
        line = b"step %d loss %.3f" % (number, rng.random())
        if kind < 0.05:
            line = sample
        elif kind < 0.10:
            line = sample[rng.randrange(9) : len(sample) - rng.randrange(9)]
        elif kind < 0.15:
            at = rng.randrange(len(sample))
            line = sample[:at] + rng.choice([b"7", b"\xc3", b"\0", b"\r", b"\n"]) + sample[at:]
        elif kind < 0.8:
            line = b" ".join(rng.choice(WORDS)[: rng.randrange(12)] for _ in range(6))
        made.append((prefix % rng.randrange(64) if b"%" in prefix else prefix) + line)
    return rng.choice([b"\n", b"\r\n"]).join(made)


@pytest.mark.parametrize("seed", range(6))
def test_a_scanner_finds_what_reading_each_line_for_each_rule_finds(seed: int, tmp_path: Path) -> None:
    text = some_log(random.Random(seed), 4000)
    path = tmp_path / "some.log"
    path.write_bytes(text)
    assert len(text) > 2 * SMALL
    scanner = Scanner(RULES)
    log = scanner.file(str(path), Speaker())
    assert scanner._strange or NEW == 1, "its lines are not compared with what came before any more"
    expected = read_plainly(text, Speaker())
    assert sum(expected.values()) > 150 and max(expected.values()) < MOST_ALIKE
    assert counted(log) == expected
    assert counted(scanner.file(str(path), Speaker())) == expected  # and read as if no line had come before


def test_a_scanner_reads_the_labelled_logs_as_one_who_reads_each_line(tmp_path: Path) -> None:
    scanner, found = Scanner(RULES), 0
    assert list(scanner._sieve.inside(b" " * SMALL)) == []  # prepared
    for seed, cause in enumerate(failure_causes_held_out.CAUSES[::4]):
        make(seed, cause, tmp_path / str(seed))
        for path in (tmp_path / str(seed)).rglob("*"):
            if path.is_file():
                expected = read_plainly(path.read_bytes(), of_file(str(path)))
                assert counted(scanner.file(str(path), of_file(str(path)))) == expected, path
                found += sum(expected.values())
    assert found > 100


def test_every_rule_has_words_that_are_worth_looking_for() -> None:
    assert [rule.name for rule in load().rules if not rule.words or not all(map(is_enough, rule.words))] == []

"""Which hosts does Slurm's short form name, and what is that of some? `n[01-03],m1` ↔ n01 n02 n03 m1. Pure: no `scontrol`."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.config.grammar import ranges
from holdfast.core.errors import UsageError

MOST = 100_000  # Hosts in one list. Slurm allows 65,536 nodes; beyond, a bracket was mistyped.


def expand(text: str, name: str = "node list") -> list[str]:
    """The hosts in their order. `name` is what to call the list when it is wrong (`UsageError`)."""
    hosts: list[str] = []
    for word in _words(text, name):
        found = [""]
        for prefix, choices in _parts(word, name):
            if len(found) * len(choices) > MOST:
                raise UsageError(f"{name}: {_short(text)} names more than {MOST} hosts", hint="is a bracket mistyped?")
            found = [f"{start}{prefix}{choice}" for start in found for choice in choices]
        hosts += found
    return hosts


def compress(hosts: Iterable[str]) -> str:
    """The short form of some hosts, in its own order: by prefix, as they first come, then by number."""
    numbers: dict[tuple[str, int], list[int]] = {}  # By prefix and width: `n7` and `n07` are two hosts.
    for host in dict.fromkeys(hosts):
        prefix = host.rstrip("0123456789")
        digits = host[len(prefix) :]
        numbers.setdefault((prefix, len(digits)), []).extend([int(digits)] if digits else [])
    return ",".join(_named(prefix, width, sorted(those)) for (prefix, width), those in numbers.items())


def _named(prefix: str, width: int, numbers: list[int]) -> str:
    if not numbers:
        return prefix
    text = ranges(numbers, width)
    return f"{prefix}[{text}]" if len(numbers) > 1 else f"{prefix}{text}"


def _words(text: str, name: str) -> list[str]:
    words, depth, start = [], 0, 0
    for at, char in enumerate(text + ","):
        depth += {"[": 1, "]": -1}.get(char, 0)
        if depth not in (0, 1):
            break
        if char == "," and depth == 0:
            words.append(text[start:at].strip())
            start = at + 1
    if depth:
        raise UsageError(f"{name}: the brackets of {_short(text)} do not match", hint="they look like n[01-03,7]")
    return [word for word in words if word]


def _parts(word: str, name: str) -> list[tuple[str, list[str]]]:
    """`r[1-2]n[3,5]x` → (r, 1 2), (n, 3 5), (x, nothing)."""
    parts = []
    while "[" in word:
        prefix, _, rest = word.partition("[")
        inside, _, word = rest.partition("]")
        parts.append((prefix, [number for item in inside.split(",") for number in _numbers(item.strip(), name)]))
    return [*parts, (word, [""])]


def _numbers(item: str, name: str) -> list[str]:
    """`01-03` → 01 02 03: as wide as the first one is written."""
    low, dash, high = item.partition("-")
    high = high if dash else low
    if not all(end.isascii() and end.isdigit() for end in (low, high)) or int(low) > int(high):
        raise UsageError(f"{name}: {_short(item)!r} is neither a number nor a range", hint="they look like n[01-03,7]")
    if int(high) - int(low) >= MOST:
        raise UsageError(f"{name}: {item} names more than {MOST} hosts", hint="is a digit mistyped?")
    return [f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1)]


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"

"""Which variables does the user seem to have set for us that nothing reads? A slip of the pen is told, and changes nothing:
other programs may have variables of such names too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.core.config.option import Option

OURS, TORCHRUN = "HOLDFAST_", "PET_"


def misspelt(names: Iterable[str], flags: Iterable[Option]) -> Iterator[tuple[str, str]]:
    """Of the `names` of variables, those that look like a flag's and are none, each with the flag's."""
    known = {flag.env for flag in flags if flag.env}
    for name in names:
        if name.startswith((OURS, TORCHRUN)) and name not in known and (meant := _meant(name, known)):
            yield name, meant


def _meant(name: str, known: set[str]) -> str | None:
    """With the other prefix, or with another letter or two."""
    bare = name.partition("_")[2]
    other = (TORCHRUN if name.startswith(OURS) else OURS) + bare
    return other if other in known else next((one for one in sorted(known) if _is_slip(name, one)), None)


def _is_slip(one: str, other: str) -> bool:
    """Whether they differ in one place, by two letters at most: not by a whole word."""
    start = next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    rest, others = one[start:], other[start:]
    while rest and others and rest[-1] == others[-1]:
        rest, others = rest[:-1], others[:-1]
    return len(rest) <= 2 and len(others) <= 2

"""The list of modules for a spare to import, and whether changed variables make the spare unusable."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

Changes = dict[str, tuple[str | None, str | None]]  # Variable → its old and its new value; None: not set.

READ_AT_LOAD = tuple("OMP_ GOMP_ KMP_ MKL_ OPENBLAS_ BLIS_ VECLIB_ NUMEXPR_ TORCH_ PYTORCH_ XLA_ TF_ HF_ TRITON".split())
"""How the names of variables begin that compiled code reads as it is loaded, which nobody can watch."""

READ_BY_LIBRARIES = (
    *READ_AT_LOAD,
    *"CUDA NVIDIA_ NCCL_ GLOO_ UCX_ HIP_ ROC HSA_ ZE_ LD_ MALLOC_ GLIBC_ PYTHON LANG LC_ TZ".split(),
)
"""And of those that it reads sooner, or when a device or a port is first used, which no spare does."""


def contradiction(changed: Changes, reads: Collection[str]) -> str:
    """Which change has come too late for what is imported already, in words; empty: none."""
    for name in sorted(changed):
        if name in reads or name.startswith(READ_BY_LIBRARIES):
            old, new = ("not set" if value is None else repr(value) for value in changed[name])
            return f"{name}, which its imports have read, was {old} and is {new} now"
    return ""


def differences(before: Mapping[str, str], after: Mapping[str, str], *, but: Iterable[str]) -> Changes:
    """Variables that differ between two environments, except some."""
    names = [*before, *(name for name in after if name not in before)]
    skipped = set(but)
    pairs = {name: (before.get(name), after.get(name)) for name in names if name not in skipped}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def merged(lines: list[str], more: Sequence[str]) -> list[str]:
    """`lines`, and those of `more` that are not there: each right behind the one that it follows there, so that a change comes
    no later than it did for anybody. One that is there with another value in it is there."""
    places = {line: at for at, line in enumerate(lines)}
    told = {line.partition(" ")[0] for line in lines}
    last, behind = -1, dict[int, list[str]]()
    for line in more:
        if line in places:
            last = places[line]
        elif line.partition(" ")[0] not in told:
            behind.setdefault(last, []).append(line)
    if not behind:
        return lines
    return [line for at in range(-1, len(lines)) for line in (*lines[max(at, 0) : at + 1], *behind.get(at, ()))]


def is_line(text: str) -> bool:
    """A module's name, or what had been changed (`core.page.layout`): what another node may have us import."""
    if text.startswith("="):
        return "\n" not in text
    return all(part.isidentifier() for part in text.removeprefix("?").split("."))


def at_load(line: str) -> str:
    """Marked, if it tells of a change of a variable that compiled code reads as it is loaded."""
    return "!" + line[1:] if line[0] == "=" and line[1:].startswith(READ_AT_LOAD) else line

"""Which words mean what, whoever says them? Reads the vocabularies: closed sets of names, with their source, one a line.

`vocabulary/*.txt`: a name, its class, how sure that is, how near to the beginning, the spellings, what it means, what helps
and, where the class does not tell it, what is advised. A spelling that begins with `!`, or is one word, counts wherever it
stands; any other one only behind what the file's `carrier` names. `exceptions` has Python's; the others are weak signs
(`judgement`).
"""

from __future__ import annotations

import os
import re
from functools import cache

from holdfast.core.job.finding import ADVISED, UNSURE, Action, Class
from holdfast.core.value import Value
from holdfast.diagnosis.tables import DEPTHS

FOLDER = os.path.join(os.path.dirname(__file__), "vocabulary")
FILES = tuple("cuda libraries nccl cann devices mpi ibverbs linux cluster rpc loader web databases".split())

BASE = "*"  # The line of `learned` that has no word.

_WORD = re.compile(r"[A-Za-z]\w*(?:[A-Z_]\w*)+:? ?")  # Of such a shape is a name, and no ordinary word.


class Term(Value):
    """One name, with its spellings."""

    name: str
    kind: Class
    sure: float
    depth: int
    spellings: tuple[str, ...]
    pattern: str
    says: str
    helps: str
    action: Action
    source: str


class Sign(Value):
    """A weak sign of a class."""

    pattern: re.Pattern[str]
    kind: Class
    weight: float


@cache
def terms() -> tuple[Term, ...]:
    """Those of all vocabularies but Python's exceptions."""
    return tuple(term for file in FILES for term in _read(file))


def of_file(file: str) -> tuple[Term, ...]:
    """Those of one vocabulary."""
    return tuple(_read(file))


@cache
def exceptions() -> dict[str, Term]:
    """By the name of an exception's class."""
    return {spelling: term for term in _read("exceptions") for spelling in term.spellings}


@cache
def signs(file: str) -> tuple[Sign, ...]:
    """`callers`, `words` or `names`."""
    made = []
    for columns in _lines(file)[1]:
        pattern, kind, weight = columns
        made.append(Sign(pattern=re.compile(pattern), kind=Class(kind), weight=int(weight) / 100))
    return tuple(made)


@cache
def kinds_of_lines(how: str) -> tuple[re.Pattern[str], ...]:
    """What is in lines that tell of a failure (`fails`), or of one that was survived (`passes`)."""
    return tuple(re.compile(pattern) for pattern, kind in _lines("lines")[1] if kind == how)


@cache
def learned() -> dict[str, dict[Class, float]]:
    """How much each word, or pair of words, speaks for which class; `BASE`: what does before a word is read."""
    table = {}
    for word, weights in _lines("learned")[1]:
        columns = (one.partition(" ") for one in weights.split(", "))
        table[word] = {Class(kind): int(weight) / 100 for kind, _, weight in columns}
    return table


def read_all() -> None:
    """All vocabularies: from now on none is read again."""
    terms(), exceptions(), learned()
    for file in ("callers", "words", "names"):
        signs(file)
    for how in ("fails", "passes"):
        kinds_of_lines(how)


def _read(file: str) -> list[Term]:
    head, lines = _lines(file)
    carrier = head.get("carrier", "")
    return [_term(columns, head["source"], carrier) for columns in lines]


def _lines(file: str) -> tuple[dict[str, str], list[list[str]]]:
    head: dict[str, str] = {}
    lines = []
    with open(os.path.join(FOLDER, f"{file}.txt"), encoding="utf-8") as text:
        for line in text:
            if line.startswith("#"):
                key, _, value = line[1:].partition(": ")
                head[key.strip()] = value.strip()
            elif line.strip():
                lines.append([part.strip() for part in line.rstrip("\n").split(" | ")])
    return head, lines


def _term(columns: list[str], source: str, carrier: str) -> Term:
    name, kind, sure, depth, spelled, says, helps, *action = columns
    spellings = [one.strip() for one in spelled.split(";")]
    bare = [one for one in spellings if one.startswith("!") or not carrier or _WORD.fullmatch(one)]
    carried = [one for one in spellings if one not in bare]
    patterns = [_spelled(one.removeprefix("!")) for one in bare]
    if carried:
        patterns.append(f"{carrier}.{{0,160}}?(?:{'|'.join(map(_spelled, carried))})")
    of_class = Class(kind)
    of_depth = (Action.RESTART, UNSURE[of_class], ADVISED[of_class], ADVISED[of_class])[DEPTHS.index(depth)]
    advised = Action(action[0]) if action else of_depth
    return Term(
        name=name, kind=of_class, sure=int(sure) / 100, depth=DEPTHS.index(depth), pattern="|".join(patterns), says=says,
        spellings=tuple(one.removeprefix("!") for one in spellings), helps=helps, action=advised, source=source,
    )  # fmt: skip


def _spelled(text: str) -> str:
    """A pattern of it, as a word of its own."""
    begin = r"(?<!\w)" if text[0].isalnum() else ""
    return f"{begin}{re.escape(text)}" + (r"(?!\w)" if text[-1].isalnum() else "")

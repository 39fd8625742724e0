"""Which rules are there? The tables (`diagnosis.tables`), and files of the user's own.

A rule names words, one of which stands in every line that it is about. So a whole log is searched for a few hundred words at
once, and a pattern is compiled and tried only where its words are. Of several rules that know a line, the one with the longest
word counts, since it says most; what Python says of any exception counts last.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from holdfast.core.config.grammar import did_you_mean
from holdfast.core.errors import UsageError
from holdfast.core.job.finding import ACTIONS, ADVISED, CLASSES, UNSURE, Action, Class
from holdfast.core.value import Value, to_plain
from holdfast.diagnosis.tables import CAUSE, DEPTHS, EFFECT, Row
from holdfast.telemetry.record.state_dir import homes

TABLES = ("gpu", "nccl", "host", "scheduler", "torch", "jax", "python")
COLUMNS = ("name", "kind", "depth", "confidence", "words", "pattern", "says", "advice", "source", "sample")


class Rule(Value):
    """One kind of message."""

    name: str
    kind: Class  # What it means.
    depth: int
    """How near to the beginning of it all, as `DEPTHS`: what others' failure brings about · that it failed, not why · why ·
    what broke below the process."""
    confidence: float  # How sure it is that a failure with this message has this cause, from 0 to 1.
    words: tuple[str, ...]  # One of them is in every line that the rule is about.
    pattern: str
    """Looked for in the line, without what its writer or a launcher puts before it. Groups: `rank`, `local`, `node`, `pid` say
    who is meant; `peer` and `peer_rank` who is complained of; `missing` who is waited for, or `lines` of which each begins with
    one of them; `seq` and `op` which collective; `what` is for `says`. With `\\n` in it, it goes on in the lines below."""
    says: str  # What happened, of "rank 3 on n7: …". `{what}` is that group.
    advice: str
    source: str  # Where the message is documented, or the file that writes it.
    sample: str  # A line that the rule knows.
    action: Action  # What is advised.
    likely: tuple[tuple[str, float], ...] = ()  # Where it is judged by signs: the likeliest classes, and how likely each is.


class Rules:
    """Rules to be looked for together."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple({rule.name: rule for rule in rules}.values())
        self._compiled: dict[str, re.Pattern[str]] = {}
        by_word: dict[str, list[Rule]] = {}
        for rule in self.rules:
            for word in rule.words:
                by_word.setdefault(word, []).append(rule)
        self.by_word = by_word
        self._order = {word: number for number, word in enumerate(by_word)}

    def match(self, rule: Rule, text: str) -> re.Match[str] | None:
        """Where the rule's pattern is in `text`."""
        pattern = self._compiled.get(rule.name)
        if pattern is None:
            pattern = self._compiled[rule.name] = re.compile(rule.pattern)
        return pattern.search(text)

    def best(self, text: str, words: Iterable[str] | None = None) -> tuple[Rule, re.Match[str]] | None:
        """The rule that says most about a line. `words`: those that are in it, if they are known."""
        inside = {word for word in (self.by_word if words is None else words) if word in text and word in self.by_word}
        known = [(word, rule) for word in inside for rule in self.by_word[word]]
        known.sort(key=lambda one: (one[1].name.startswith("python-"), -len(one[0]), self._order[one[0]]))
        return next(((rule, found) for _, rule in known if (found := self.match(rule, text)) is not None), None)


def load(files: Sequence[str] = (), *, tables: Sequence[str] = TABLES) -> Rules:
    """The rules of the tables and of the user's files; of two with one name the user's counts. UsageError."""
    rows: list[Row] = []
    actions: dict[str, str] = {}
    for table in tables:
        module = import_module(f"holdfast.diagnosis.tables.{table}")
        rows += module.RULES
        actions |= getattr(module, "ACTIONS", {})
    own = [rule for path in files for rule in _read(path)]
    ours = (_of_row(row, actions) for row in rows)
    return Rules([*own, *(rule for rule in ours if rule.name not in {one.name for one in own})])


def own_files() -> list[str]:
    """The user's: `rules/*.toml` in the state directory."""
    folder = os.path.join(homes(os.environ)[0], "rules")
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".toml")]
    except OSError:
        return []


def _of_row(row: Row, actions: Mapping[str, str]) -> Rule:
    said: dict[str, Any] = dict(zip(COLUMNS, row))
    kind, name = Class(said["kind"]), said["name"]
    of_class = Action.EXCLUDE if "drain the node" in said["advice"] else ADVISED[kind]
    unsure = UNSURE[kind] if said["depth"] > EFFECT else Action.RESTART
    action = Action(actions[name]) if name in actions else of_class if said["depth"] >= CAUSE else unsure
    known = {"kind": kind, "confidence": said["confidence"] / 100, "words": tuple(said["words"].split("|")), "action": action}
    return Rule(**said | known)


def _read(path: str) -> list[Rule]:
    """A file of the user's: TOML, a table `[[rule]]` for each."""
    try:
        with open(path, "rb") as file:
            said = tomllib.load(file)
    except OSError as error:
        raise UsageError(f"rules in {path} cannot be read: {error.strerror}", hint="check its path and rights") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"rules in {path} are not TOML: {error}", hint="see docs/how-to/write-a-rule.md") from error
    tables = said.get("rule", [])
    if not isinstance(tables, list) or set(said) - {"rule"}:
        raise UsageError(f"{path} may hold only [[rule]] tables", hint="see docs/how-to/write-a-rule.md")
    return [_of_table(table, f"rule {number} in {path}") for number, table in enumerate(tables, 1)]


KEYS = ("name", "class", "words", "pattern", "says", "advice", "sample", "depth", "confidence", "source", "action")
TEXTS = ("name", "pattern", "says", "advice", "source", "sample")


def _of_table(table: dict[str, Any], where: str) -> Rule:
    """The rule of a user's table. UsageError: it is wrong."""
    said: dict[str, Any] = {"confidence": 0.9, "depth": "cause", "source": "", "action": None} | table
    _check_keys(said, where)
    _one_of(said["class"], CLASSES, f"class of {where}")
    _one_of(said["depth"], DEPTHS, f"depth of {where}")
    action = said["action"] or ADVISED[said["class"]]
    _one_of(action, ACTIONS, f"action of {where}")
    _check_values(said, where)
    made = Rule(
        kind=Class(said["class"]),
        depth=DEPTHS.index(said["depth"]),
        confidence=float(said["confidence"]),
        words=tuple(said["words"]),
        action=Action(action),
        **{key: said[key] for key in TEXTS},
    )
    if Rules([made]).best(made.sample) is None:
        raise UsageError(f"{where} does not match its own sample", hint="one of its words, and its pattern, must be in it")
    return made


def _check_keys(said: Mapping[str, Any], where: str) -> None:
    if missing := [key for key in KEYS if key not in said]:
        raise UsageError(f"{where} has no {missing[0]}")
    if strange := [key for key in said if key not in KEYS]:
        raise UsageError(f"{where}: there is no key {strange[0]!r}", hint=did_you_mean(strange[0], KEYS))


def _check_values(said: Mapping[str, Any], where: str) -> None:
    words = said["words"]
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and is_enough(word) for word in words):
        raise UsageError(f"{where}: words must be a list of texts, each of at least four characters beside its digits")
    if not isinstance(said["confidence"], (int, float)) or not 0 <= said["confidence"] <= 1:
        raise UsageError(f"{where}: confidence must be a number from 0 to 1")
    if wrong := [key for key in TEXTS if not isinstance(said[key], str)]:
        raise UsageError(f"{where}: {wrong[0]} must be text")
    try:
        re.compile(said["pattern"])
    except re.error as error:
        raise UsageError(f"{where}: its pattern is not a regular expression: {error}") from error


def is_enough(word: str) -> bool:
    """Whether so much of a word is left without its digits that it is worth looking for."""
    return sum(not letter.isdigit() for letter in word) >= 4


def _one_of(word: Any, words: Iterable[str], what: str) -> None:
    if word not in words:
        raise UsageError(f"{what}: {word!r} is none of {', '.join(words)}", hint=did_you_mean(str(word), tuple(words)))


def as_table(rule: Rule) -> dict[str, Any]:
    """The rule as plain values, for programs."""
    plain: dict[str, Any] = to_plain(rule)
    return plain | {"depth": DEPTHS[rule.depth]}

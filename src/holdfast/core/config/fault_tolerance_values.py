"""What do the texts of fault tolerance's settings mean, and what does the YAML file say? Loaded only where one was given.

The file is one more source of texts, below the command line and the variables: its `fault_tolerance` mapping is looked for
depth first, in lists too, and its keys become settings that name the file as their origin. So a wrong value is the same
error wherever it stands.
"""

from __future__ import annotations

from holdfast.core.config import grammar
from holdfast.core.config.config import Setting
from holdfast.core.config.fault_tolerance import AUTO
from holdfast.core.config.fault_tolerance_flags import ACCEPTED, DESTS, ROWS
from holdfast.core.errors import UsageError
from holdfast.core.signals import NUMBERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from holdfast.core.config.config import Draft
    from holdfast.core.config.fault_tolerance_flags import FtFlag

SECTION = "fault_tolerance"
NO_LIMIT = ("", "none", "null", "~")
LEVELS = {"dbg": "DEBUG", "warn": "WARNING"} | {
    word.lower(): word for word in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
}
NULL_IS_NO_LIMIT = {row.dest for row in ROWS if row.kind == "limit"} | {"most_limit", "still_limit"}
"""Settings for which YAML's null says something; for others it says nothing."""


# --- the file -------------------------------------------------------------------------------------------------------------


def read_file(draft: Draft) -> None:
    """Take over what the file of --ft-cfg-path says and neither a flag nor a variable does. UsageError: it is of no use."""
    path = draft.text("ft_cfg_path")
    if not path:
        return
    missing_is_fine = draft.given("ft_ignore_missing_cfg") and truth(
        draft.text("ft_ignore_missing_cfg"), "--ft-ignore-missing-cfg"
    )
    try:
        document = draft.host.read_yaml(grammar.absolute(path, draft.host.cwd))
    except OSError as error:
        if missing_is_fine and isinstance(error, FileNotFoundError):
            return
        hint = "--ft-ignore-missing-cfg goes on without it" if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"{draft.name('ft_cfg_path')}: {path} cannot be read: {error.strerror}", hint=hint) from error
    found = section(document)
    if found is None:
        if not missing_is_fine:
            draft.tell("WARNING", f"{draft.name('ft_cfg_path')}: {path} has no mapping {SECTION}: nothing is taken from it")
        return
    for key, raw in found.items():
        _take(draft, path, str(key), raw)


def section(document: object) -> Mapping[object, object] | None:
    """The first mapping of that name, depth first, as ft_launcher looks for it. An empty one counts where there is no other."""
    children: list[object] = []
    empty = False
    if isinstance(document, dict):
        if isinstance(found := document.get(SECTION), dict):
            return found
        empty = SECTION in document and found is None
        children = list(document.values())
    elif isinstance(document, list):
        children = document
    for child in children:
        if (deeper := section(child)) is not None:
            return deeper
    return {} if empty else None


def _take(draft: Draft, path: str, key: str, raw: object) -> None:
    origin = f"{path} {SECTION}.{key}"
    dest = DESTS.get(key)
    if dest is None:
        # ft_launcher reads past what it does not know. A slip of the pen would switch off what it was to switch on; but
        # a key that is like none of ours may be of a version to come.
        if meant := grammar.nearest(key, DESTS):
            raise UsageError(f"{path}: there is no {SECTION}.{key}", hint=f"did you mean {meant}?")
        return draft.tell("WARNING", f"{path}: nothing reads {SECTION}.{key}")
    text = as_text(dest, raw)
    if text is not None and not draft.given(dest):
        draft.settings[dest] = Setting(value=text, origin=origin)
    return None


def as_text(dest: str, raw: object) -> str | None:
    """A value of the file as it would be typed. None: it says nothing, and the default holds."""
    if raw is None:
        return "none" if dest in NULL_IS_NO_LIMIT else None
    if isinstance(raw, bool):
        if dest == "monitor":  # YAML reads `off` as false
            return "auto" if raw else "off"
        return "true" if raw else "false"
    if isinstance(raw, dict):
        return ",".join(f"{name}:{'none' if limit is None else limit}" for name, limit in raw.items())
    if isinstance(raw, list):
        return ",".join(map(str, raw))
    return str(raw)


# --- the values -----------------------------------------------------------------------------------------------------------


def given_fields(draft: Draft) -> dict[str, Any]:
    """What the rows' settings make of the fields. Says of those that do nothing that they do nothing."""
    fields: dict[str, Any] = {}
    idle: dict[str, list[str]] = {}
    for row in ROWS:
        if not row.field or not draft.given(row.dest):
            continue
        text, name = draft.text(row.dest), draft.name(row.dest)
        fields[row.field] = _value(row, text, name, draft.host.cwd)
        draft.origins[f"ft.{row.field}"] = draft.settings[row.dest].origin
        if row.state == ACCEPTED:
            idle.setdefault(row.said, []).append(name)
    for said, names in idle.items():
        draft.tell("INFO", f"{', '.join(names)}: {said}")
    return fields


def _value(row: FtFlag, text: str, name: str, cwd: str) -> object:
    if row.kind == "word":
        if text.lower() not in row.choices:
            raise UsageError(f"{name}: there is no {text!r}", hint=grammar.did_you_mean(text, row.choices))
        return text.lower()
    if row.kind == "path":
        return grammar.absolute(text, cwd) or None
    return READERS[row.kind](text, name)


def limit(text: str, name: str) -> float | str | None:
    """Seconds, `none` or `auto`."""
    word = text.strip().lower()
    if word == AUTO:
        return AUTO
    if word in NO_LIMIT:
        return None
    return grammar.seconds(word, f"{name} (seconds, none or auto)", zero=False)


def limits(text: str, name: str) -> dict[str, float | None]:
    """`step:60,checkpoint:none`; a section's name may have colons."""
    found: dict[str, float | None] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        section_name, colon, seconds = item.rpartition(":")
        if not colon or not section_name.strip():
            raise UsageError(f"{name}: {item!r} is not NAME:SECONDS", hint="give them as step:60,checkpoint:600")
        word = seconds.strip().lower()
        at = f"{name} {section_name.strip()}"
        found[section_name.strip()] = None if word in NO_LIMIT else grammar.seconds(word, at, zero=False)
    return found


def truth(text: str, name: str) -> bool:
    """`true`, `1`, `yes`, and so on; a flag with nothing behind it is `true`."""
    return {"on": True, "off": False}[text.lower()] if text.lower() in ("on", "off") else grammar.truth(text, name)


def number(text: str, name: str) -> float:
    """A float above zero."""
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{name}: {text!r} is not a number") from None
    if not 0 < value <= grammar.LONGEST_S:
        raise UsageError(f"{name}: {text} is not above zero, or too large")
    return value


def signal_number(text: str, name: str) -> int:
    """`9`, `SIGKILL`, `sigkill` or `kill`; ft_launcher's own YAML may say `Signals.SIGKILL`."""
    word = text.strip().upper().removeprefix("SIGNALS.")
    if word.isdecimal() and int(word) in NUMBERS.values():
        return int(word)
    word = f"SIG{word.removeprefix('SIG')}"
    if word not in NUMBERS:
        raise UsageError(f"{name}: there is no signal {text}", hint=grammar.did_you_mean(word, NUMBERS))
    return NUMBERS[word]


def level(text: str, name: str) -> str:
    """A level's name, from its name or from a number between 10 and 50."""
    word = text.strip().lower()
    if word in LEVELS:
        return LEVELS[word]
    if not word.isdecimal():
        raise UsageError(f"{name}: there is no level {text!r}", hint=grammar.did_you_mean(word, LEVELS))
    rank = grammar.whole(word, name, at_least=10, at_most=50)
    return ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")[rank // 10 - 1]


def paths(text: str, name: str) -> tuple[str, ...]:
    """Absolute paths, separated by commas."""
    found = tuple(filter(None, map(str.strip, text.split(","))))
    for path in found:
        if not path.startswith("/"):
            raise UsageError(f"{name}: {path} is not absolute", hint="every node looks there: give it from / on")
    return found


READERS: dict[str, Callable[[str, str], object]] = {
    "limit": limit,
    "limits": limits,
    "seconds": grammar.seconds,
    "number": number,
    "whole": grammar.whole,
    "yes": truth,
    "signal": signal_number,
    "level": level,
    "paths": paths,
    "text": lambda text, name: text or None,
}

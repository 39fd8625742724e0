"""How is an option written? In one place, the field that it sets:

    lease_s: float = ours("--lease", SOME_SECONDS, "3.0", "seconds of silence after which a node counts as lost")

The command line, the variable, the key in YAML, `--print-config`, `--help`, the reference pages and the rules of the machines
derive from that line. The field's default is what the default's text means. An option that several fields are made of stands on
a line without a type, as in `_nnodes = torchrun(NODES, "--nnodes N|MIN:MAX", …)`; `core.resolve` makes the fields.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar, cast

from holdfast.core.config import grammar
from holdfast.core.errors import UsageError
from holdfast.core.value import Value, ValueType, quicken

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
W = TypeVar("W", bound=StrEnum)

NODES, RENDEZVOUS, WORKERS, LOGS, STATIC, OURS = (
    "nodes and workers",
    "rendezvous",
    "workers",
    "logs",
    "static ranks",
    "holdfast's own",
)
"""Headings of `--help`."""

WORKS, ACCEPTED = "works", "accepted"  # Acted on · taken without effect, since nothing is left to do.


# --- what a text means ----------------------------------------------------------------------------------------------------


class Kind(Generic[T_co]):
    """What an option's text means.

    `name`: text · whole (int) · number (float) · switch · list (`,,` is a comma) · yes (alone: true) · and ft_launcher's kinds.
    `read`: text and name in messages → value, or UsageError. `nothing`: the value where nothing is said. `path`: made
    absolute."""

    def __init__(
        self,
        name: str,
        read: Callable[[str, str], T_co],
        metavar: str = "",
        nothing: Any = None,
        choices: tuple[str, ...] = (),
        path: bool = False,
    ) -> None:
        self.name, self.read, self.metavar, self.nothing, self.choices, self.path = name, read, metavar, nothing, choices, path


def text_or_none(text: str, name: str) -> str | None:
    """An empty text says nothing."""
    return text or None


def optional(kind: Kind[T]) -> Kind[T | None]:
    """The same, where an empty text says nothing."""
    return Kind(kind.name, lambda text, name: kind.read(text, name) if text else None, kind.metavar)


def whole(at_least: int | None = None, metavar: str = "N") -> Kind[int]:
    """A whole number."""
    return Kind("whole", lambda text, name: grammar.whole(text, name, at_least=at_least), metavar)


def choice(*words: str, metavar: str = "WORD", any_case: bool = False) -> Kind[str]:
    """One of some words, in capitals or not if `any_case`."""

    def read(text: str, name: str) -> str:
        word = text.lower() if any_case else text
        if word not in words:
            raise UsageError(f"{name}: there is no {text!r}", hint=grammar.did_you_mean(text, words))
        return word

    return Kind("word" if any_case else "text", read, metavar, choices=words)


def one_of(words: type[W], metavar: str = "WORD", any_case: bool = False) -> Kind[W]:
    """One of the members of an enumeration, likewise."""
    word = choice(*words, metavar=metavar, any_case=any_case)
    return Kind(word.name, lambda text, name: words(word.read(text, name)), metavar, choices=word.choices)


TEXT: Kind[str] = Kind("text", lambda text, name: text)
TEXT_OR_NONE: Kind[str | None] = Kind("text", text_or_none, "TEXT")
TEXTS: Kind[tuple[str, ...]] = Kind("list", lambda text, name: grammar.comma_list(text), "TEXT,…", ())
PATH: Kind[str | None] = Kind("text", text_or_none, "FILE", path=True)
SWITCH: Kind[bool] = Kind("switch", grammar.switch, nothing=False)
SECONDS: Kind[float] = Kind("number", grammar.seconds, "S")
SOME_SECONDS: Kind[float] = Kind("number", grammar.some_seconds, "S")
"""More than none."""


# --- the option -----------------------------------------------------------------------------------------------------------


class Option(Value):
    """One option."""

    names: tuple[str, ...]  # Every spelling, in torchrun's order. The first long one is the name in messages.
    reads: Kind[Any] = TEXT
    default: str | None = None  # As it would be typed; None: no value.
    usual: Any = None  # What its field is if the user says nothing.
    metavar: str = ""
    env: str = ""  # Variable that gives the value where the command line does not.
    group: str = ""  # Heading in `--help`. Empty: that of its section.
    torchrun: bool = False
    help: str
    note: str = ""  # How ours differs from torchrun's, for the reference page.
    field: str = ""  # The field that it sets by itself; empty: it sets none, or shares several with others.
    keys: tuple[str, ...] = ()  # Under `fault_tolerance:` in YAML, the field's name first.
    state: str = WORKS
    said: str = ""  # accepted: why nothing is left to do.

    @property
    def name(self) -> str:
        """`--max-restarts`."""
        return next(name for name in self.names if name.startswith("--"))

    @property
    def dest(self) -> str:
        """`max_restarts`: the attribute's name."""
        return self.name[2:].replace("-", "_")

    @property
    def kind(self) -> str:
        return self.reads.name

    @property
    def is_switch(self) -> bool:
        """It takes no value."""
        return self.reads is SWITCH

    @property
    def is_yes_or_no(self) -> bool:
        """It takes yes or no; alone it means yes."""
        return self.reads.name == "yes"

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it takes; empty: others too."""
        return self.reads.choices

    def read(self, text: str | bool | None, name: str, cwd: str) -> Any:
        """The value of a text that was given, or of a default. `name` is what messages call it, `cwd` the current directory."""
        if text is None or isinstance(text, bool):
            return self.reads.nothing if text is None else text
        value = self.reads.read(text, name)
        return grammar.absolute(value, cwd) if self.reads.path and value else value


quicken(Option)


class _Written:
    def __init__(self, build: Callable[[str, str], Option], usual: Any) -> None:
        self.build = build  # From the field's name, or empty, and the section's heading.
        self.usual = usual


def torchrun(group: str, usage: str, kind: Kind[T], default: str | None, help: str, *, note: str = "", pet: bool = True) -> T:
    """An option of torchrun, with its variable `PET_` and its dest. `usage`: its names, and how its value is shown.

    `pet` False: torchrun has no variable for it."""
    note = note if pet else note or "torchrun has no variable for this flag."
    return _flag(usage, kind, default, help, env="PET_", group=group, torchrun=True, note=note)


def ours(
    usage: str, kind: Kind[T], default: str | None, help: str, *, env: str = "HOLDFAST_", group: str = OURS, yaml: bool = False
) -> T:
    """An option of ours. `usage` as in `torchrun`; `env`: its variable, or how that begins; empty: it has none; `yaml`: it is a
    key under `fault_tolerance:` too."""
    return _flag(usage, kind, default, help, env=env, group=group, yaml=yaml)


def _flag(
    usage: str, kind: Kind[T], default: str | None, help: str, *, env: str, group: str, yaml: bool = False, **more: Any
) -> T:
    words = usage.split()
    metavar = "" if words[-1].startswith("-") else words.pop()
    plain = next(word for word in words if word.startswith("--"))[2:].replace("-", "_")
    usual = cast(T, kind.nothing if default is None else kind.read(default, f"--{plain}"))

    def build(field: str, heading: str) -> Option:
        return Option(
            names=tuple(dict.fromkeys(name for word in words for name in spellings(word))),
            reads=kind,
            default=default,
            usual=usual,
            metavar=metavar or kind.metavar,
            env=f"{env}{plain.upper()}" if env.endswith("_") else env,
            group=group,
            help=help,
            field=field,
            keys=(field,) if yaml else (),
            **more,
        )

    return cast(T, _Written(build, usual))


def nvrx(
    kind: Kind[T],
    default: T,
    help: str,
    *,
    flag: str = "",
    also: tuple[str, ...] = (),
    old: tuple[str, ...] = (),
    pet: bool = False,
    metavar: str = "",
    said: str = "",
) -> T:
    """A field of ft_launcher's, as a flag and as a key in YAML: `--ft-a-b`, and the oldest versions' `--ft-param-a-b`. `flag`:
    the flag's name without `--ft-`, where it is not the field's. `also`: older names of the field, and `old` of the flag.
    `pet`: it has a variable. `said`: why it is accepted without effect."""

    def build(field: str, heading: str) -> Option:
        words = dict.fromkeys((flag or field, field, *also))
        dashed = [f"--{start}-{word.replace('_', '-')}" for start in ("ft", "ft-param") for word in words]
        return Option(
            names=tuple(dict.fromkeys(name for word in (*dashed, *old) for name in spellings(word))),
            reads=kind,
            usual=default,
            metavar=metavar or kind.metavar,
            env=f"PET_FT_{field.upper()}" if pet else "",
            group=heading,
            help=help,
            field=field,
            keys=tuple(dict.fromkeys((field, *words))),
            state=ACCEPTED if said else WORKS,
            said=said,
        )

    return cast(T, _Written(build, default))


def spellings(name: str) -> tuple[str, ...]:
    """`--a-b` → `--a-b` and `--a_b`; `--ft-a-b` → `--ft-a-b`, `--ft-a_b`, `--ft_a_b`; likewise behind `--ft-param-`."""
    if not name.startswith("--"):
        return (name,)
    start = next((start for start in ("--ft-param-", "--ft-") if name.startswith(start)), "--")
    whole = name[2:].replace("-", "_")
    return tuple(dict.fromkeys((name, start + whole[len(start) - 2 :], f"--{whole}")))


# --- what options stand in ------------------------------------------------------------------------------------------------


class SectionType(ValueType):
    """Makes a section: takes the options from its fields, which keep their defaults."""

    def __new__(
        meta, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, heading: str = "", **how: Any
    ) -> SectionType:
        options = [option for base in bases for option in getattr(base, "__options__", ())]
        typed = namespace.get("__annotations__", {})
        for attribute, written in list(namespace.items()):
            if isinstance(written, _Written):
                options.append(written.build(attribute if attribute in typed else "", heading))
                if attribute in typed:
                    namespace[attribute] = written.usual
                else:
                    del namespace[attribute]
        namespace["__options__"] = tuple(options)
        return cast(SectionType, super().__new__(meta, name, bases, namespace, **how))


class Section(Value, metaclass=SectionType, mixin=True):
    """Fields, and the options that set them, for values that take over several sections (`mixin=True`)."""

    __options__: ClassVar[tuple[Option, ...]]


def shared(value: Value, *sections: type[Section]) -> dict[str, Any]:
    """The fields of these sections as `value` has them, for another value that takes them over."""
    return {field: getattr(value, field) for section in sections for field in section.__fields__}

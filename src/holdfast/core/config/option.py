"""How is an option written? In one place, the field that it sets:

    grow_after_s: float = ours(SECONDS, "--grow-after", "with --grow at-checkpoint: …", default="60")

The command line, the variable, the key in YAML, `--print-config`, `--help`, the reference pages and the rules of the machines
derive from that line. The field's default is what the default's text means. An option that several fields are made of stands on
a line without a type, as in `_nnodes = torchrun(TEXT, "--nnodes", …)`; `core.resolve` makes the fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

from holdfast.core.config import grammar
from holdfast.core.errors import UsageError
from holdfast.core.value import Value, ValueType, replace

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

NODES, RENDEZVOUS, WORKERS, LOGS, STATIC, OURS = (
    "nodes and workers",
    "rendezvous",
    "workers",
    "logs",
    "static ranks",
    "holdfast's own",
)
"""Headings of `--help`."""

WORKS, ACCEPTED = "works", "accepted"
"""Acted on · taken without effect, since nothing is left to do."""

YES_OR_NO = ("true", "false", "1", "0", "yes", "no", "t", "f", "y", "n", "on", "off")
"""What a flag of kind `yes` takes for its value."""


# --- what a text means ----------------------------------------------------------------------------------------------------


class Kind(NamedTuple, Generic[T_co]):
    """What an option's text means."""

    name: str
    """text · whole (int) · number (float) · switch · list (comma separated, `,,` is a comma) · yes (true or false; alone: true)
    · and those of ft_launcher's fields"""
    read: Callable[[str, str], T_co]
    """From the text and the name in messages to the value. UsageError: it means nothing."""
    metavar: str = ""
    nothing: Any = None
    """The value where neither the user nor the default says anything."""
    choices: tuple[str, ...] = ()
    path: bool = False
    """The value is a path, which is made absolute."""


def text_or_none(text: str, name: str) -> str | None:
    """An empty text says nothing."""
    return text or None


def optional(kind: Kind[T]) -> Kind[T | None]:
    """The same, where an empty text says nothing."""
    return Kind(kind.name, lambda text, name: kind.read(text, name) if text else None, kind.metavar)


def whole(at_least: int | None = None, metavar: str = "N") -> Kind[int]:
    """A whole number."""
    return Kind("whole", lambda text, name: grammar.whole(text, name, at_least=at_least), metavar)


def choice(*words: str, metavar: str = "WORD") -> Kind[str]:
    """One of some words."""

    def read(text: str, name: str) -> str:
        if text and text not in words:
            raise UsageError(f"{name}: there is no {text!r}", hint=grammar.did_you_mean(text, words))
        return text

    return Kind("text", read, metavar, choices=words)


TEXT: Kind[str] = Kind("text", lambda text, name: text)
TEXT_OR_NONE: Kind[str | None] = Kind("text", text_or_none, "TEXT")
TEXTS: Kind[tuple[str, ...]] = Kind("list", lambda text, name: grammar.comma_list(text), "TEXT,…", ())
PATH: Kind[str | None] = Kind("text", text_or_none, "FILE", path=True)
SWITCH: Kind[bool] = Kind("switch", grammar.switch, nothing=False)
SECONDS: Kind[float] = Kind("number", grammar.seconds, "S")
SOME_SECONDS: Kind[float] = Kind("number", lambda text, name: grammar.seconds(text, name, zero=False), "S")
"""More than none."""


# --- the option -----------------------------------------------------------------------------------------------------------


class Option(Value):
    """One option."""

    names: tuple[str, ...]
    """Every spelling, in torchrun's order. The first long one is the name in messages."""
    reads: Kind[Any] = TEXT
    default: str | None = None
    """As it would be typed; None: no value."""
    usual: Any = None
    """What its field is if the user says nothing."""
    metavar: str = ""
    env: str = ""
    """Variable that gives the value where the command line does not."""
    group: str = ""
    """Heading in `--help`. Empty: that of its section."""
    torchrun: bool = False
    help: str
    note: str = ""
    """How ours differs from torchrun's, for the reference page."""
    field: str = ""
    """The field that it sets by itself; empty: it sets none, or shares several with others."""
    keys: tuple[str, ...] = ()
    """Under `fault_tolerance:` in YAML, the field's name first; empty: it cannot stand there."""
    state: str = WORKS
    said: str = ""
    """accepted: why nothing is left to do."""

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
        """The name of its kind."""
        return self.reads.name

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


def _usual(kind: Kind[T], default: str | None, name: str) -> T:
    return cast(T, kind.nothing if default is None else kind.read(default, name))


def torchrun(
    kind: Kind[T], name: str, help: str, *, short: str = "", default: str | None = None, pet: bool = True, **rest: Any
) -> T:
    """An option of torchrun: a dashed and, for several words, an underscored spelling; `PET_` and its dest in the environment.

    `pet` False: torchrun has no variable for it."""
    plain = name[2:].replace("-", "_")
    names = tuple(spelling for spelling in (short, name, f"--{plain}" if "_" in plain else "") if spelling)
    rest = {"metavar": kind.metavar, "note": "" if pet else "torchrun has no variable for this flag."} | rest
    made = Option(names=names, reads=kind, help=help, default=default, env=f"PET_{plain.upper()}", torchrun=True, **rest)
    return cast(T, replace(made, usual=_usual(kind, default, name)))


def ours(kind: Kind[T], name: str, help: str, *, default: str | None = None, env: bool | str = True, **rest: Any) -> T:
    """An option of ours: both spellings, and `HOLDFAST_` and its dest in the environment, or another name, or none."""
    plain = name[2:].replace("-", "_")
    names = (name, f"--{plain}") if "_" in plain else (name,)
    variable = f"HOLDFAST_{plain.upper()}" if env is True else env or ""
    rest = {"names": names, "metavar": kind.metavar, "group": OURS} | rest
    made = Option(reads=kind, help=help, default=default, env=variable, **rest)
    return cast(T, replace(made, usual=_usual(kind, default, name)))


def nvrx(
    kind: Kind[T],
    default: T,
    help: str,
    *,
    flag: str = "",
    also: tuple[str, ...] = (),
    old: tuple[str, ...] = (),
    keys: tuple[str, ...] = (),
    pet: bool = False,
    metavar: str = "",
    said: str = "",
) -> T:
    """A field of ft_launcher's, as a flag and as a key in YAML: `--ft-a-b`, `--ft-a_b`, `--ft_a_b`, and the oldest versions'
    `--ft-param-a-b`. `flag`: the flag's name without `--ft-`, where it is not the field's. `also`: older names of the field,
    and `old` of the flag. `pet`: it has a variable. `said`: why it is accepted without effect."""
    option = Option(
        names=(),
        reads=kind,
        help=help,
        usual=default,
        metavar=metavar or kind.metavar,
        state=ACCEPTED if said else WORKS,
        said=said,
    )
    return cast(T, _Nvrx(option, flag, also, old, keys, pet))


class _Nvrx(NamedTuple):
    """An option whose names follow from its field's."""

    option: Option
    flag: str
    also: tuple[str, ...]
    old: tuple[str, ...]
    keys: tuple[str, ...]
    pet: bool

    def named(self, field: str) -> Option:
        words = (self.flag or field, *self.also)
        names = [name for word in words for name in spellings(word)]
        names += [f"{start}{name}" for word in words for start, name in _oldest(word)]
        env = f"PET_FT_{words[0].upper()}" if self.pet else ""
        keys = self.keys or (field, *self.also)
        return replace(self.option, names=tuple(dict.fromkeys((*names, *self.old))), env=env, keys=keys)


def spellings(word: str) -> tuple[str, ...]:
    """The three of `--ft-WORD`."""
    return f"--ft-{word.replace('_', '-')}", f"--ft-{word}", f"--ft_{word}"


def _oldest(word: str) -> tuple[tuple[str, str], ...]:
    return ("--ft-param-", word.replace("_", "-")), ("--ft-param-", word), ("--ft_param_", word)


# --- what options stand in ------------------------------------------------------------------------------------------------


class SectionType(ValueType):
    """Makes a section: takes the options from its fields, which keep their defaults."""

    def __new__(
        meta, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, heading: str = "", **how: Any
    ) -> SectionType:
        options = [option for base in bases for option in getattr(base, "__options__", ())]
        typed = namespace.get("__annotations__", {})
        for attribute, option in list(namespace.items()):
            if isinstance(option, _Nvrx):
                option = option.named(attribute)
            if isinstance(option, Option):
                field = attribute if attribute in typed else ""
                options.append(replace(option, field=field, group=option.group or heading))
                namespace[attribute] = option.usual
                if not field:
                    del namespace[attribute]
        namespace["__options__"] = tuple(options)
        return cast(SectionType, super().__new__(meta, name, bases, namespace, **how))


class Section(Value, metaclass=SectionType, mixin=True):
    """Fields, and the options that set them, for values that take over several sections (`mixin=True`)."""

    __options__: ClassVar[tuple[Option, ...]]


def shared(value: Value, *sections: type[Section]) -> dict[str, Any]:
    """The fields of these sections as `value` has them, for another value that takes them over."""
    return {field: getattr(value, field) for section in sections for field in section.__fields__}

"""What is a configuration while it is being made? Texts from the command line, the environment and the defaults, with where
each came from; then fields, one after the other (`core.resolve`); then a `Resolved`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.core.config import grammar
from holdfast.core.config.binding import Topology
from holdfast.core.config.config import RunConfig
from holdfast.core.config.flags import ALL_FLAGS
from holdfast.core.config.option import Option
from holdfast.core.value import Value


class HostFacts(Value):
    """What resolving needs to know of this host. What costs something is a function, called only when asked for."""

    python: str  # This interpreter.
    cwd: str
    state_home: str  # Where jobs keep their state unless told otherwise.
    cpus: Callable[[], int]  # CPUs this process may use.
    accelerators: Callable[[str], int]  # How many `gpu`, or `xpu`.
    fresh_id: Callable[[], str]  # A short name that no other job has.
    entry_points: Callable[[str], tuple[str, ...]]  # Names registered in an entry-point group.
    full_name: Callable[[], str]  # This host's name with its domain, where it has one.
    read_yaml: Callable[[str], object]
    """What stands in a YAML file, given its absolute path. OSError: it cannot be read. UsageError: it is not valid YAML."""
    slurm_address: Callable[[str], str]  # A Slurm node's name, or where it does not resolve, its NodeAddr.
    topology: Callable[[str], Topology]  # What is near what, as far as a mode of --numa-binding needs it.
    has_program: Callable[[str], bool]  # Is there a program of that name on PATH?


class Setting(Value):
    """A value as it was given, and where."""

    value: str | bool | None
    origin: str  # `--tee`, `PET_TEE`, `SLURM_NNODES`, or `default`.


class Notice(Value):
    """Something the user should hear before the job starts."""

    level: str  # INFO · NOTE (no warning, but told as soon as warnings are) · WARNING
    text: str


class Resolved(Value):
    """A configuration, where each value came from, and what to tell the user."""

    config: RunConfig
    origins: dict[str, str]  # Field → `--flag`, `VARIABLE`, `default`, or `derived: why`.
    notices: tuple[Notice, ...]


class Draft:
    """A configuration in the making."""

    def __init__(self, settings: Mapping[str, Setting], environ: Mapping[str, str], host: HostFacts) -> None:
        self.settings = dict(settings)
        self.environ = environ
        self.host = host
        self.values: dict[str, Any] = {}  # What each option's text means, by `dest`.
        self.fields: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.notices: list[Notice] = []

    def text(self, dest: str) -> str:
        """A setting as text; empty where it has no value."""
        value = self.settings[dest].value
        return "" if value is None or isinstance(value, bool) else value

    def on(self, dest: str) -> bool:
        """Is a switch on?"""
        return self.settings[dest].value is True

    def given(self, dest: str) -> bool:
        """Did the user say it, by flag or variable?"""
        return dest in self.settings and self.origin(dest) != "default"

    def name(self, dest: str) -> str:
        """What to call it in a message: the variable if it came from there, else the flag."""
        origin = self.origin(dest)
        return f"--{dest.replace('_', '-')}" if origin == "default" else origin

    def origin(self, dest: str) -> str:
        """Where a setting comes from."""
        return self.settings[dest].origin

    def put(self, field: str, value: Any, origin: str) -> None:
        """Settle a field; a later, better founded value replaces an earlier one."""
        self.fields[field] = value
        self.origins[field] = origin

    def settle(self, options: Iterable[Option], within: str = "") -> None:
        """Read the text of each option, and settle the field that it sets by itself."""
        for option in options:
            setting = self.settings[option.dest]
            if self.given(option.dest) or setting.value not in (option.default, False):
                self.values[option.dest] = option.read(setting.value, self.name(option.dest), self.host.cwd)
                if option.field:
                    self.origins[within + option.field] = setting.origin
            else:
                self.values[option.dest] = option.usual
            if option.field:
                self.fields[within + option.field] = self.values[option.dest]

    def within(self, start: str) -> dict[str, Any]:
        """Take the fields whose names start so, without that."""
        names = [name for name in self.fields if name.startswith(start)]
        return {name.removeprefix(start): self.fields.pop(name) for name in names}

    def keep(self, dest: str, value: Any, field: str | None = None) -> None:
        """Settle a field from the setting of that name."""
        self.put(field or dest, value, self.origin(dest))

    def warn(self, text: str) -> None:
        """Something is probably not as the user meant it."""
        self.tell("WARNING", text)

    def tell(self, level: str, text: str) -> None:
        """Something to say before the job starts; `level` as in `Notice`."""
        self.notices.append(Notice(level=level, text=text))


class Typed(Value):
    """A command line, taken apart."""

    given: dict[str, str | bool]  # By `dest`: only what was typed.
    script: str = ""
    script_args: tuple[str, ...] = ()
    print_config: str = ""  # "" · text · json
    dry_run: bool = False
    help: str = ""  # "" · `main` · `all`


def typed_of(given: Mapping[str, Any], script: str, script_args: Sequence[str]) -> Typed:
    """A command line with these options, some of which only ask to be told something."""
    options = dict(given)
    print_config, dry_run = options.pop("print_config", ""), options.pop("dry_run", False)
    return Typed(given=options, script=script, script_args=tuple(script_args), print_config=print_config, dry_run=dry_run)


def gather(
    given: Mapping[str, str | bool], environ: Mapping[str, str], flags: Iterable[Option] = ALL_FLAGS
) -> dict[str, Setting]:
    """By `dest`: the command line's values, else the environment's, else the defaults.

    As in torchrun, a switch set by its variable stays on, and a variable that is set but empty counts."""
    found: dict[str, Setting] = {}
    for flag in flags:
        dest = flag.dest
        in_environ = environ.get(flag.env) if flag.env else None
        if dest in given:
            found[dest] = Setting(value=given[dest], origin=flag.name)
        elif in_environ is None:
            found[dest] = Setting(value=False if flag.is_switch else flag.default, origin="default")
        elif flag.is_switch:
            found[dest] = Setting(value=grammar.switch(in_environ, flag.env), origin=flag.env)
        else:
            found[dest] = Setting(value=in_environ, origin=flag.env)
    return found

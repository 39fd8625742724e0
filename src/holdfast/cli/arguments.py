"""How do the commands read their arguments? With argparse, whose complaints become a line or two in our words (`UsageError`).

An argument's `type=reads(seconds)` names a function as those of `core.config.grammar`, which takes the argument's name too.
`holdfast run` has a parser of its own (`cli.run.parser`), since its rules are torchrun's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn, cast

from holdfast.core.config import grammar
from holdfast.core.config.grammar import did_you_mean
from holdfast.core.errors import UsageError

Reads = Callable[[str, str], Any]
"""From an argument's text and its name in messages to its value. UsageError."""


class CommandParser(argparse.ArgumentParser):
    """Of one command."""

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        return cast(Reads, action.type)(arg_string, _name(action)) if action.type else arg_string

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise UsageError(f"{_name(action)}: there is no {value!r}", hint=did_you_mean(value, action.choices))

    def error(self, message: str) -> NoReturn:
        """argparse's complaint in our words."""
        if "required: " in message:
            raise UsageError(f"no {message.partition('required: ')[2]} given", hint=self._usage())
        raise complaint(message, self._usage())

    def unknown(self, word: str) -> UsageError:
        """There is no such argument; the nearest is …"""
        flags = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        meant = grammar.nearest(word, flags) if word.startswith("-") else None
        return UsageError(f"there is no argument {word}", hint=f"did you mean {meant}?" if meant else self._usage())

    def _usage(self) -> str:
        """Where it is told how the command is used."""
        needed = [_name(action) for action in self._actions if action.required and not action.option_strings]
        return f"{' '.join([self.prog, *needed])}; see `{self.prog} --help`"


def reads(read: Reads) -> Callable[[str], Any]:
    """The `type=` of an argument of a `CommandParser`, which `read` reads."""
    return cast(Callable[[str], Any], read)


def whole(text: str, name: str) -> int:
    """A whole number, 0 or more."""
    return grammar.whole(text, name, at_least=0)


def complaint(message: str, hint: str = "") -> UsageError:
    """What argparse says of one flag."""
    where, _, what = message.removeprefix("argument ").partition(": ")
    name = next((name for name in where.split("/") if name.startswith("--")), where)
    if what.startswith("expected"):
        return UsageError(f"{name} needs a value", hint=hint)
    if what.startswith("ignored explicit argument"):
        return UsageError(f"{name} takes no value, but got {what.split('argument ')[-1]}", hint=hint)
    return UsageError(message, hint=hint)


def _name(action: argparse.Action) -> str:
    return next((name for name in action.option_strings if name.startswith("--")), str(action.metavar or action.dest))

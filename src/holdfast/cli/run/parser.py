"""What did the user type? argv → a text or True for each option that was given, the script, and the script's arguments.

argparse reads the line, since torchrun's rules are its own: prefixes, `-r3`, `--`, and numbers that look like flags. Every
option is text to it, without type, default or help. All checking happens in `core.resolve.resolve`, with one kind of message.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from holdfast.cli.arguments import complaint
from holdfast.core.config.draft import Typed, typed_of
from holdfast.core.config.flags import ALL_FLAGS
from holdfast.core.config.grammar import NO, YES, nearest
from holdfast.core.config.option import Option
from holdfast.core.errors import UsageError

argparse._ = lambda message: message  # type: ignore[attr-defined]
# argparse has its headings translated, for which gettext searches the disk for catalogues: more than half of the time it takes.


ELSEWHERE = {
    **dict.fromkeys(("np", "n", "gpus", "num-gpus", "gpus-per-node", "num-processes", "ntasks-per-node"), "nproc-per-node"),
    **dict.fromkeys(("N", "nodes", "num-nodes", "num-machines"), "nnodes"),
    **dict.fromkeys(("master", "host", "main-process-ip"), "rdzv-endpoint"),
    "machine-rank": "node-rank", "job-id": "rdzv-id", "retries": "max-restarts",
}  # fmt: skip
"""What mpirun, srun, accelerate, deepspeed and others call what is called otherwise here and in torchrun."""

OF_PYTHON = ("python", "python-exec", "interpreter", "venv")
"""What users look for who want another interpreter: torchrun and we have a variable for that."""


def read(argv: Sequence[str], flags: Sequence[Option] = ALL_FLAGS, command: str = "run") -> Typed:
    """Take `argv` (without the program's name and subcommand) apart. `command`: that subcommand, which hints name. UsageError:
    it cannot be understood."""
    words = list(argv)
    parser = _Parser(flags, f"holdfast {command}")
    try:
        found, unknown = parser.parse_known_args(words)
    except _HelpAsked as asked:
        return Typed(given={}, help=asked.args[0])
    if unknown:
        raise parser.ambiguous.get(unknown[0]) or parser.unknown_flag(unknown[0])
    given = vars(found)
    for dest, value in given.items():
        if isinstance(value, list) and dest != "training_script_args":  # What argparse makes of `--role=--`.
            raise UsageError(f"--{dest.replace('_', '-')} needs a value")
    script, script_args = given.pop("training_script"), given.pop("training_script_args")
    return typed_of(given, script, script_args)


class _HelpAsked(Exception):
    pass


class _Help(argparse.Action):
    def __call__(self, *args: Any, **options: Any) -> None:
        raise _HelpAsked(self.const)


class _NoFormatter(argparse.HelpFormatter):
    """argparse makes a formatter for each option to check its metavar, and each measures the terminal."""

    def __init__(self, prog: str) -> None:
        pass

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        return ""


class _Parser(argparse.ArgumentParser):
    def __init__(self, flags: Sequence[Option], command: str) -> None:
        super().__init__(prog=command, add_help=False, argument_default=argparse.SUPPRESS, formatter_class=_NoFormatter)
        self.flags = flags
        self.words: list[str] = []
        self.done = 0  # Words that have been taken in, when a flag that may take a value or none was met last.
        self.ambiguous: dict[str, UsageError] = {}  # Words that could be several flags, if they stand before the script.
        self.add_argument("-h", "--help", action=_Help, nargs=0, const="main")
        self.add_argument("--help-all", action=_Help, nargs=0, const="all")
        self._by_prefix = {"help"}
        """What a prefix may stand for: what it may stand for in torchrun, so that none becomes ambiguous because of us."""
        for flag in flags:
            self._add(flag)
        self.add_argument("training_script")
        self.add_argument("training_script_args", nargs=argparse.REMAINDER)

    def _add(self, flag: Option) -> None:
        if flag.torchrun:
            self._by_prefix.add(flag.dest)
        if flag.dest == "print_config":
            for name in flag.names:  # A whole word with its `=`: the flag must not swallow the script as its value.
                self.add_argument(name, dest="print_config", action="store_const", const="text")
                self.add_argument(f"{name}=json", dest="print_config", action="store_const", const="json")
        elif flag.is_switch:
            self.add_argument(*flag.names, dest=flag.dest, action="store_const", const=True)
        elif flag.is_yes_or_no:
            self.add_argument(*flag.names, dest=flag.dest, nargs="?", const="true")
        else:
            self.add_argument(*flag.names, dest=flag.dest)

    def _match_argument(self, action: argparse.Action, arg_strings_pattern: str) -> int:
        if action.nargs == "?":  # takes the next word only if that is a yes or no: it may be the script
            at = len(self.words) - len(arg_strings_pattern)
            # Of `--flag=yes` it is shown the value alone, as if that were the last word.
            with_value = next((before for before in range(self.done, at - 1) if self._gives(action, self.words[before])), None)
            self.done = at if with_value is None else with_value + 1
            if with_value is None and self.words[at - 1] in action.option_strings:
                return int(arg_strings_pattern[:1] == "A" and self.words[at].lower() in (*YES, *NO))
        return super()._match_argument(action, arg_strings_pattern)

    def _gives(self, action: argparse.Action, word: str) -> bool:
        """Whether it is that flag, written out or not, with its value."""
        name, equals, _ = word.partition("=")
        if not equals or not name.startswith("-"):
            return False
        known = self._option_string_actions.get(name)
        return action in ([known] if known else [match[0] for match in self._get_option_tuples(word)])

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.words = args
        return super().parse_known_args(args, namespace)

    def _parse_optional(self, arg_string: str) -> Any:
        """Python 3.11 refuses `train.py --n 3`, since `--n` could be several of our flags. It is the script's own argument."""
        try:
            return super()._parse_optional(arg_string)
        except UsageError as error:
            self.ambiguous[arg_string] = error
            return None, arg_string, None  # an unknown flag, if it stands before the script

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        found: list[Any] = super()._get_option_tuples(option_string)
        return [match for match in found if match[0].dest in self._by_prefix]

    def error(self, message: str) -> NoReturn:
        """argparse's complaint in our words."""
        if "ambiguous option" in message:
            word, _, candidates = message.partition("ambiguous option: ")[2].partition(" could match ")
            raise self._ambiguous(word, candidates.split(", "))
        if "required" in message:
            raise self._no_script()
        raise complaint(message, f"see `{self.prog} --help`")

    def _ambiguous(self, word: str, candidates: list[str]) -> UsageError:
        meant = dict.fromkeys(name.replace("_", "-") for name in candidates)
        if len(meant) == 1:  # both spellings of one flag
            return UsageError(f"{word} is too short for a flag's name", hint=f"write {candidates[0]}")
        return UsageError(f"{word} is ambiguous: it could be {' or '.join(candidates)}", hint="write it out")

    def _no_script(self) -> UsageError:
        # An unknown flag before the script swallows nothing, but the script may look like its value: name the flag first.
        for word in self.words:
            if word in self.ambiguous:
                return self.ambiguous[word]
            if word.startswith("-") and len(word) > 1 and word != "--" and not self._is_known(word):
                return self.unknown_flag(word)
        # The flag before it has swallowed the script, where its own value was forgotten.
        flag, last = self.words[-2:] if len(self.words) > 1 else ("", "")
        swallowed = flag.startswith("-") and "=" not in flag and not last.startswith("-")
        return UsageError(
            "no script to run" + (f": {last} is the value of {flag}" if swallowed else ""),
            hint=f"{self.prog} [options] SCRIPT [script's arguments]; see `{self.prog} --help`",
        )

    def _is_known(self, word: str) -> bool:
        name = word.split("=")[0]
        if name in self._option_string_actions or self._get_option_tuples(word):
            return True
        return word.lstrip("-").replace(".", "").isdigit() or " " in word

    def unknown_flag(self, word: str) -> UsageError:
        """There is no such flag; the nearest is …"""
        name = word.split("=")[0]
        asked = name.lstrip("-").replace("_", "-")
        meant = ELSEWHERE.get(asked) or nearest(asked, [flag.name[2:] for flag in self.flags])
        hint = f"did you mean --{meant}?" if meant else f"see `{self.prog} --help`"
        hint = "for another interpreter set PYTHON_EXEC=/path/to/python" if asked in OF_PYTHON else hint
        return UsageError(f"there is no flag {name}", hint=hint)

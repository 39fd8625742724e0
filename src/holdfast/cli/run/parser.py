"""What did the user type? argv → a text or True for each option that was given, the script, and the script's arguments.

torchrun's rules are argparse's. A line with every flag written out needs few of them, and is read here: argparse takes 10 ms
to load and to be told of all flags, which is a fifth of a launcher's start. Whatever else there is, mistakes too, is
read by argparse itself (`cli.run.shorthand`).
"""

from __future__ import annotations

from holdfast.core.config.config import Typed, typed_of
from holdfast.core.config.flags import FLAGS, YES_OR_NO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.core.config.flags import Flag


def read(argv: Sequence[str], flags: Sequence[Flag] = FLAGS) -> Typed:
    """Take `argv` (without the program's name and subcommand) apart. UsageError: it cannot be understood."""
    typed = _written_out(argv, flags)
    if typed is None:
        from holdfast.cli.run.shorthand import read as read_any

        typed = read_any(argv, flags)
    return typed


def _written_out(argv: Sequence[str], flags: Sequence[Flag]) -> Typed | None:
    """Flags by their full names, values that do not look like flags, and a script. None: there is something else."""
    named = {name: flag for flag in flags for name in flag.names}
    given: dict[str, str | bool] = {}
    words = iter(enumerate(argv, 1))
    for after, word in words:
        if not word.startswith("-"):
            return None if "--" in argv else typed_of(given, word, argv[after:])
        flag = named.get(word.partition("=")[0])
        if flag is None:
            return None
        follows = argv[after] if after < len(argv) else "-"
        said = _said(flag, word, follows)
        if said is None and "=" not in word and not follows.startswith("-"):
            said = next(words)[1]
        if said is None:
            return None
        given[flag.dest] = said
    return None


def _said(flag: Flag, word: str, follows: str) -> str | bool | None:
    """What the flag says by itself, as it stands in this word. None: nothing, or what is not understood here."""
    name, joined, value = word.partition("=")
    if flag.dest == "print_config":
        if not joined:
            return "text"
        return value if value == "json" and name.startswith("--") else None
    if flag.kind == "switch":
        return None if joined else True
    if joined:
        return value if name.startswith("--") and value not in ("", "--") else None
    return "true" if flag.kind == "yes" and follows.lower() not in YES_OR_NO else None

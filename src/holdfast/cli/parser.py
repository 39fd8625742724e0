"""What did the user type? argv → a text or True for each option that was given, the script, and the script's arguments.

torchrun's rules are argparse's. A line with every flag written out needs few of them, and is read here: argparse takes 10 ms
to load and to be told of all flags, which is a fifth of a launcher's start. Whatever else there is, mistakes too, is
read by argparse itself (`cli.shorthand`).
"""

from __future__ import annotations

from holdfast.core.config import Typed, typed_of
from holdfast.core.flags import FLAGS, YES_OR_NO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.core.flags import Flag


def read(argv: Sequence[str], flags: Sequence[Flag] = FLAGS) -> Typed:
    """Take `argv` (without the program's name and subcommand) apart. UsageError: it cannot be understood."""
    typed = _written_out(argv, flags)
    if typed is None:
        from holdfast.cli.shorthand import read as read_any

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
        name, joined, value = word.partition("=")
        flag = named.get(name)
        follows = argv[after] if after < len(argv) else "-"
        if flag is None or (joined and not (name.startswith("--") and value not in ("", "--"))):
            return None
        if flag.dest == "print_config":
            if joined and value != "json":
                return None
            given[flag.dest] = value or "text"
        elif flag.kind == "switch":
            if joined:
                return None
            given[flag.dest] = True
        elif joined:
            given[flag.dest] = value
        elif flag.kind == "yes" and follows.lower() not in YES_OR_NO:
            given[flag.dest] = "true"
        elif follows.startswith("-"):
            return None
        else:
            given[flag.dest] = next(words)[1]
    return None

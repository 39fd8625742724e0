"""`holdfast` and `python -m holdfast`."""

from __future__ import annotations

import sys

from holdfast.cli.main import main as perform


def main() -> int:
    """Run the command line; returns the exit code."""
    return perform(sys.argv[1:])


def ft_launcher() -> int:
    """The script of that name, which the extra `nvrx` installs."""
    return perform(["ft_launcher", *sys.argv[1:]])


if __name__ == "__main__":
    raise SystemExit(main())

"""`holdfast` and `python -m holdfast`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    from holdfast.cli.main import main

    return main(sys.argv[1:])


def ft_launcher() -> int:
    """The script of that name, which the extra `nvrx` installs."""
    from holdfast.cli.main import main

    return main(["ft_launcher", *sys.argv[1:]])


if __name__ == "__main__":
    raise SystemExit(main())

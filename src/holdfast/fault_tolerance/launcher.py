"""NVRx's module of this name, as far as job scripts use it: `python -m …fault_tolerance.launcher` is `holdfast ft_launcher`."""

from __future__ import annotations

import sys
from importlib import import_module

__all__ = ["main"]


def main(args: list[str] | None = None) -> int:
    """Run the command line; returns the exit code. `args`: in place of this process's own."""
    code: int = import_module("holdfast.cli.main").main(["ft_launcher", *(sys.argv[1:] if args is None else args)])
    return code


if __name__ == "__main__":
    raise SystemExit(main())

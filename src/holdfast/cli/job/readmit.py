"""`holdfast readmit NODE`: let an excluded node take part again. What was held against it is forgotten."""

from __future__ import annotations

import argparse

from holdfast.cli.job import exclude

HELP = "let an excluded node take part in a running job again"

arguments = exclude.arguments


def run(options: argparse.Namespace) -> int:
    """Ask for it. 0: it is so; HoldfastError: it is not, and why."""
    return exclude.request("readmit", options)

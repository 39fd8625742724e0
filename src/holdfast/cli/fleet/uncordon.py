"""`holdfast uncordon NODE`: let a node be used again. What was held against it is forgotten; why it was is not."""

from __future__ import annotations

import argparse

from holdfast.cli.fleet import drain

HELP = "let a node be used again that the supervisor has taken out"

arguments = drain.arguments


def run(options: argparse.Namespace) -> int:
    """Ask for it. 0: it is so; HoldfastError: it is not, and why."""
    return drain.request("uncordon", options)

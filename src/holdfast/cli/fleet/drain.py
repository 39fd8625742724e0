"""`holdfast drain NODE`: take a node out of its job and of the scheduler's hands, through the supervisor on this host."""

from __future__ import annotations

import argparse

from holdfast.cli.fleet.supervisor_here import ask_supervisor, state_argument
from holdfast.telemetry.report.safe_text import plain

HELP = "take a node out of use: a spare takes its place, and the scheduler gives it no more work"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("node", metavar="NODE", help="name of the node, as `holdfast nodes` shows it")
    parser.add_argument("--reason", default="", help="why; kept, and shown by `holdfast nodes` and `holdfast why NODE`")
    state_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Ask for it. 0: it was begun; HoldfastError: it was not, and why."""
    return request("drain", options)


def request(what: str, options: argparse.Namespace) -> int:
    """Ask the supervisor, and say what it answered."""
    asked = {"ask": what, "node": options.node, "reason": options.reason}
    print(plain(str(ask_supervisor(options, asked).get("text"))))
    return 0

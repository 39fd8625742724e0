"""`holdfast force-leader JOB --lost NODE,…`: let the nodes that are left go on without those that are gone for good."""

from __future__ import annotations

import argparse

from holdfast.cli.agents import ANSWER_S, ask_job
from holdfast.telemetry.report.safe_text import plain

HELP = "let a job go on that waits for nodes with a say in who leads, when those are gone for good"

CALL_S = 1.0  # How long the agent takes at most to call one of them.


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("job", metavar="JOB", help="name, run id or start of a name")
    parser.add_argument("--lost", metavar="NODE,…", required=True, help="names of the nodes that are gone for good")
    parser.add_argument(
        "--powered-off",
        action="store_true",
        help="you have made sure that those whose hosts do not answer at all run no rank: they have no power, or no network",
    )


def run(options: argparse.Namespace) -> int:
    """Ask for it. 0: a coordinator is being chosen; HoldfastError: none is, and why."""
    lost = [name.strip() for name in options.lost.split(",") if name.strip()]
    request = {"ask": "force-leader", "lost": lost, "powered_off": options.powered_off}
    said = ask_job(options.job, request, within_s=ANSWER_S + CALL_S * len(lost))
    print(plain(str(said.get("text"))))
    return 0

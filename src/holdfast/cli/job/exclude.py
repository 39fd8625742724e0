"""`holdfast exclude NODE`: leave a node out of a job that runs on this host; `holdfast readmit` undoes it."""

from __future__ import annotations

import argparse

from holdfast.cli.agents import ask_job
from holdfast.telemetry.report.safe_text import plain

HELP = "leave a node out of a running job, now and in later rounds"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("node", metavar="NODE", help="name of the node, as `holdfast status` shows it")
    parser.add_argument("--job", metavar="JOB", help="name, run id or start of a name (default: the newest)")
    parser.add_argument("--reason", default="", help="why; recorded, and shown by `holdfast status` and `holdfast why`")


def run(options: argparse.Namespace) -> int:
    """Ask for it. 0: it is so; HoldfastError: it is not, and why."""
    return request("exclude", options)


def request(what: str, options: argparse.Namespace) -> int:
    """Ask the coordinator, through an agent of the job on this host, and print its answer."""
    why = f"{options.reason} (`holdfast {what}`)" if options.reason else f"an operator asked for it (`holdfast {what}`)"
    print(plain(str(ask_job(options.job, {"ask": what, "node": options.node, "reason": why}).get("text"))))
    return 0

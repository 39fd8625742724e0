"""`holdfast exclude NODE`: leave a node out of a job that runs on this host; a spare takes its place. `holdfast readmit` is
the way back.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from holdfast.agent.control.control_client import ask
from holdfast.cli.job.choose import choose
from holdfast.core.errors import HoldfastError, ProtocolError
from holdfast.telemetry.record.state_dir import running_nodes
from holdfast.telemetry.report.safe_text import plain

HELP = "leave a node out of a running job, now and in later rounds"

ANSWER_S = 10.0
"""How long to wait for the coordinator's word: it may be on another node, and its link may be coming back."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("node", metavar="NODE", help="name of the node, as `holdfast status` shows it")
    parser.add_argument("--job", metavar="JOB", help="name, run id or start of a name (default: the newest)")
    parser.add_argument("--reason", default="", help="why; recorded, and shown by `holdfast status` and `holdfast why`")


def run(options: argparse.Namespace) -> int:
    """Ask for it. 0: it is so; HoldfastError: it is not, and why."""
    return request("exclude", options.node, options.job, options.reason)


def request(what: str, node: str, job: str | None, reason: str) -> int:
    """Ask the coordinator, through an agent of the job on this host, and say what it answered."""
    why = f"{reason} (`holdfast {what}`)" if reason else f"an operator asked for it (`holdfast {what}`)"
    print(plain(str(ask_job(job, {"ask": what, "node": node, "reason": why}).get("text"))))
    return 0


def ask_job(job: str | None, request: dict[str, Any], first: str = "") -> dict[str, Any]:
    """The answer of an agent of the job on this host, of node `first` if that is here. HoldfastError: none answers, or it
    refuses."""
    path = choose(job, to_act=True)
    name, here = os.path.basename(path), sorted(running_nodes(path), key=lambda node: node != first)
    if not here:
        raise HoldfastError(f"job {name} does not run on this host", hint="`holdfast jobs --running` lists those that do")
    trouble = []
    for agent in here:
        try:
            answer: dict[str, Any] = ask(path, agent, request, ANSWER_S)
        except (OSError, ProtocolError) as error:
            trouble.append(f"the agent of node {agent} does not answer ({error})")
            continue
        if not answer.get("ok"):
            raise HoldfastError(plain(str(answer.get("error"))))
        return answer
    raise HoldfastError("; ".join(trouble), hint="does its coordinator answer? see `holdfast status`")

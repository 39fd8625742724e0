"""`holdfast restart JOB`: start all ranks of a job anew, on the nodes that it has. Its own coordinator does it.

All of them are new processes, also where a script can begin again in place: who asks may have changed the script, or mistrust
what is in memory.
"""

from __future__ import annotations

import argparse
import os

from holdfast.cli.agents import ask_agent
from holdfast.cli.job.stop import TAKEN_UP_S, asked_by, ordered, steer_arguments
from holdfast.core.errors import HoldfastError
from holdfast.telemetry.record.state_dir import running_nodes
from holdfast.telemetry.report.safe_text import plain

HELP = "start all ranks of a job anew"

arguments = steer_arguments


def run(options: argparse.Namespace) -> int:
    """Ask for it. 0: the coordinator was asked, or the supervisor has told it; HoldfastError: it could not be, and why."""
    path = ordered("restart", options)
    if path is None:
        return 0
    refused = []
    for node in running_nodes(path):
        answer, trouble = ask_agent(path, node, {"ask": "restart", "reason": asked_by("restart", options)}, TAKEN_UP_S)
        if not trouble:
            print(plain(str(answer.get("text"))))
            return 0
        refused.append(f"the agent of node {node} refused: {trouble}" if answer else trouble)
    absent = f"job {os.path.basename(path)} does not run on this host"
    raise HoldfastError("; ".join(refused) or absent, hint="`holdfast status` shows its state")

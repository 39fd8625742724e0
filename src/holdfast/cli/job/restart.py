"""`holdfast restart JOB`: start all ranks of a job anew, on the nodes that it has. Its own coordinator does it."""

from __future__ import annotations

import argparse

from holdfast.agent.control.control_client import ask
from holdfast.cli.job.stop import asked_by, ordered, steer_arguments
from holdfast.core.errors import HoldfastError, ProtocolError
from holdfast.telemetry.record.state_dir import running_nodes
from holdfast.telemetry.report.safe_text import plain

HELP = "start all ranks of a job anew"

ANSWER_S = 5.0
"""How long to wait for an agent to take the request up."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    steer_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Ask for it. 0: the coordinator was asked, or the supervisor has told it; HoldfastError: it could not be, and why."""
    path = ordered("restart", options)
    if path is None:
        return 0
    refused = []
    for node in running_nodes(path):
        try:
            answer = ask(path, node, {"ask": "restart", "reason": asked_by("restart", options)}, ANSWER_S)
        except (OSError, ProtocolError) as error:
            refused.append(f"the agent of node {node} does not answer ({error})")
            continue
        if answer.get("ok"):
            print(plain(str(answer.get("text"))))
            return 0
        refused.append(f"the agent of node {node} refused: {answer.get('error')}")
    raise HoldfastError(
        plain("; ".join(refused)) or "the job does not run on this host", hint="`holdfast status` shows how it is"
    )

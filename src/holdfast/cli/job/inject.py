"""`holdfast inject FAULT NODE`: play a fault on a node that was started for it. The supervisor on this host passes it on, where
it hears the node; else an agent of the job.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from holdfast.cli.agents import ask_job
from holdfast.cli.arguments import reads, whole
from holdfast.cli.fleet.supervisor_here import ask_supervisor, socket_of, state_argument
from holdfast.cli.job.stop import who
from holdfast.core.config.grammar import some_seconds
from holdfast.core.job.injection import CODE, FAULTS, GIVEN_UP_S, injection
from holdfast.core.value import to_plain
from holdfast.telemetry.report.safe_text import plain

HELP = "play a fault on a node, for practice: kill, hang or slow a rank; an Xid or a memory error of a GPU"

ANSWER_S = 15.0  # More than an agent has for an order.


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("fault", metavar="FAULT", help="; ".join(f"{name}: {what}" for name, what in FAULTS.items()))
    parser.add_argument("node", metavar="NODE", help="name of the node, as `holdfast nodes` and `holdfast status` show it")
    parser.add_argument(
        "--rank", type=reads(whole), metavar="R", help="which rank, or the GPU of which (default: the node's first)"
    )
    parser.add_argument(
        "--code", type=reads(whole), metavar="N", help=f"xid: which (default: {CODE}, the GPU has fallen off the bus)"
    )
    lasts = " and ".join(f"{name} {for_s:g}" for name, for_s in GIVEN_UP_S.items())
    parser.add_argument(
        "--for",
        dest="for_s",
        type=reads(some_seconds),
        metavar="S",
        help=f"undo it after so long (default: {lasts}; else at its end)",
    )
    parser.add_argument("--job", metavar="JOB", help="which of the node's jobs: name, run id or start of a name")
    state_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Ask for it. 0: it is played; HoldfastError: it is not, and why."""
    fields = ("fault", "rank", "code", "for_s")
    wanted = injection({**{field: getattr(options, field) for field in fields}, "by": who()})
    request = {"ask": "inject", "node": options.node, **to_plain(wanted)}
    if _is_supervised(options):
        answer = ask_supervisor(options, {**request, "job": options.job or ""}, ANSWER_S)
    else:
        answer = ask_job(options.job, request, first=options.node)
    print(plain(str(answer.get("text"))))
    return 0


def _is_supervised(options: argparse.Namespace) -> bool:
    """Whether a supervisor here hears the node."""
    if not os.path.exists(socket_of(options)):
        return False
    nodes: list[dict[str, Any]] = ask_supervisor(options, {"ask": "nodes"})["nodes"]
    return any(node["name"] == options.node and node["linked"] for node in nodes)

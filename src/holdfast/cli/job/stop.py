"""`holdfast stop JOB`: stop a job, in order: workers get their grace period, agents report and end.

One that runs on this host is stopped by its agents here; another one by the supervisor that runs here and knows it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

from holdfast.cli.agents import ask_agent
from holdfast.cli.arguments import reads
from holdfast.cli.choose import choose
from holdfast.cli.fleet.supervisor_here import ask_supervisor, socket_of, state_argument
from holdfast.core.config.grammar import seconds
from holdfast.core.errors import HoldfastError, UsageError
from holdfast.telemetry.record.file_watch import Watch
from holdfast.telemetry.record.state_dir import running_nodes
from holdfast.telemetry.report.phrasing import span
from holdfast.telemetry.report.safe_text import plain

HELP = "stop a job"

GRACE_S = 30.0  # The grace period that is assumed when none is given: the default of `holdfast run --shutdown-timeout`.
REPORT_S = 15.0  # Beyond the grace period: for SIGKILL, the other nodes' answers, and the report.
TAKEN_UP_S = 5.0  # How long to wait for an agent to take the request up.


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    steer_arguments(parser)
    parser.add_argument(
        "--grace", type=reads(seconds), metavar="S", help="seconds from SIGTERM to SIGKILL (default: as it was launched)"
    )
    parser.add_argument(
        "--no-wait", action="store_true", help="return when the agents have accepted it, before they have ended"
    )


def steer_arguments(parser: argparse.ArgumentParser) -> None:
    """Of the commands that have something done to a job."""
    parser.add_argument("job", metavar="JOB", help="name, run id or start of a name (see `holdfast jobs --running`)")
    parser.add_argument("--reason", default="", help="why; recorded, and shown by `holdfast why`")
    parser.add_argument("--supervisor", action="store_true", help="through the supervisor on this host, whose name it is then")
    state_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Ask every agent of the job here, and wait for their end. 0: it has ended (also: it had); 1: it has not."""
    path = ordered("stop", options)
    if path is None:
        return 0
    name, nodes = os.path.basename(path), running_nodes(path)
    if not nodes:
        print(f"job {name} does not run on this host")
        return 0
    request: dict[str, object] = {"ask": "stop", "reason": asked_by("stop", options)}
    if options.grace is not None:
        request["grace_s"] = options.grace
    trouble = [line for node in nodes if (line := _ask(path, node, request))]
    if len(trouble) == len(nodes):
        raise HoldfastError("; ".join(trouble), hint="send SIGTERM to its `holdfast run`, or SIGKILL if it hangs")
    if options.no_wait:
        return 0
    return _wait(path, name, (GRACE_S if options.grace is None else options.grace) + REPORT_S)


def _ask(path: str, node: str, request: dict[str, object]) -> str:
    """Ask one agent. What went wrong; empty: nothing."""
    answer, trouble = ask_agent(path, node, request, TAKEN_UP_S)
    if not trouble:
        print(f"asked the agent of node {node} to stop", flush=True)
    elif answer:
        return f"the agent of node {node} refused: {trouble}"
    elif node not in running_nodes(path):
        return ""  # gone in between: another agent, asked first, may have ended the whole job already
    return trouble


def _wait(path: str, name: str, limit_s: float, clock: Callable[[], float] = time.monotonic) -> int:
    began = clock()
    with Watch(path) as watch:
        while (left := running_nodes(path)) and clock() - began < limit_s:
            watch.wait(0.5)
    took = span(clock() - began)
    print(f"job {name} still runs after {took} (nodes {', '.join(left)})" if left else f"job {name} has ended, after {took}")
    return 1 if left else 0


def ordered(act: str, options: argparse.Namespace) -> str | None:
    """The job's folder on this host. None: it does not run here, or --supervisor is given, and the supervisor was told.
    HoldfastError: nobody here knows the job, or the supervisor refuses."""
    path = None
    if not options.supervisor:
        there_is_one = os.path.exists(socket_of(options))
        try:
            path = choose(options.job, to_act=True)
        except UsageError:
            if not there_is_one:
                raise
        if path is not None and (running_nodes(path) or not there_is_one):
            return path
    if getattr(options, "grace", None) is not None:
        raise UsageError("--grace: through the supervisor a job is stopped as it was launched", hint="leave it out")
    request = {"ask": act, "job": options.job, "reason": asked_by(act, options)}
    try:
        print(plain(str(ask_supervisor(options, request).get("text"))))
    except HoldfastError:
        if path is not None:
            return path  # it has run here, and runs nowhere else
        raise
    return None


def asked_by(act: str, options: argparse.Namespace) -> str:
    """Why, in words."""
    return options.reason or f"`holdfast {act}` by {who()}"


def who() -> str:
    """Who types this, as far as the environment tells."""
    return os.environ.get("USER") or os.environ.get("LOGNAME") or f"uid {os.getuid()}"

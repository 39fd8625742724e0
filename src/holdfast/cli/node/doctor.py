"""`holdfast doctor`: what does this host have, what is degraded, what does that mean, and what can be done about it?"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Iterator, Sequence

from holdfast.agent.control.control_socket import ControlSocket
from holdfast.cli.arguments import reads
from holdfast.cli.choose import json_argument
from holdfast.cli.table import answer
from holdfast.core.config.grammar import some_seconds
from holdfast.core.errors import HoldfastError
from holdfast.runtime.hardware.capabilities import every_check
from holdfast.runtime.process.safe_probes import DEADLINE_S, DEGRADED, HAVE, MISSING, Fact, ask, have, missing
from holdfast.telemetry.record.state_dir import open_job, running_nodes, state_home
from holdfast.telemetry.report.phrasing import count
from holdfast.telemetry.report.safe_text import one_line

HELP = "what this host has, what is degraded, and what to do about it"

COLOURS = {HAVE: "\x1b[32m", DEGRADED: "\x1b[33m", MISSING: "\x1b[1;31m"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    json_argument(parser)
    parser.add_argument(
        "--deadline",
        type=reads(some_seconds),
        default=DEADLINE_S,
        metavar="S",
        help="give a question up after S seconds (%(default)g)",
    )


def run(options: argparse.Namespace) -> int:
    """Show it. 1: something is missing without which nothing runs."""
    checks = every_check(os.environ) | {"state directory": lambda: state_directory(state_home(os.environ))}
    facts = ask(checks, options.deadline)
    lacking = [fact.name for fact in facts if fact.required and fact.state == MISSING]
    plain = {"host": socket.gethostname(), "fit": not lacking, "facts": facts}
    answer(options.json, lambda: plain, _lines(facts, lacking, sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    return 1 if lacking else 0


def state_directory(home: str) -> Fact:
    """Can a job's record be kept, and can its agents be asked? Tried out with a job of our own."""
    probe = f"doctor-{os.getpid()}"
    try:
        job = open_job(home, probe, "probe")
    except HoldfastError as error:
        return missing(error.what, "no job can start", error.hint)
    try:
        trouble = job.degraded or _trouble_in(job.path, job.socket_path)
    finally:
        job.close()
        for path in (job.events_path, job.socket_path):
            if os.path.lexists(path):
                os.unlink(path)
        os.rmdir(job.path)
    if not trouble:
        return have(home, required=True)
    means = "`holdfast status` and `stop` may not find or reach a job, though it runs"
    advice = "set HOLDFAST_STATE_DIR to a directory on a local file system"
    return Fact(state=DEGRADED, found=trouble, means=means, advice=advice, required=True)


def _trouble_in(folder: str, socket_path: str) -> str:
    if not running_nodes(folder):
        return f"{folder} is on a file system without locks"
    try:
        ControlSocket(socket_path).close()
    except OSError as error:
        return f"no socket can be made in {folder}: {error.strerror}"
    return ""


def _lines(facts: Sequence[Fact], lacking: Sequence[str], colour: bool) -> Iterator[str]:
    wide = max(len(fact.name) for fact in facts)
    for fact in facts:
        state = f"{COLOURS[fact.state]}{fact.state:<8}\x1b[0m" if colour else f"{fact.state:<8}"
        yield f"{state}  {fact.name:<{wide}}  {one_line(fact.found, 1000)}"
        for label, text in (("means", fact.means), ("do", fact.advice)):
            if text and fact.state != HAVE:
                yield f"{'':<8}  {'':<{wide}}    {label}: {one_line(text, 1000)}"
    degraded = sum(fact.state == DEGRADED for fact in facts)
    better = f"; {count(degraded, 'thing')} could be better" if degraded else ""
    yield ""
    yield f"jobs cannot run here: {', '.join(lacking)} missing" if lacking else f"jobs can run here{better}"

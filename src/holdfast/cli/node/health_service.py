"""`holdfast health-service SOCKET [CHECK …]`: serve our checks by the node health service's protocol."""

from __future__ import annotations

import argparse
import os
import signal

from holdfast.cli.arguments import reads
from holdfast.core.config.grammar import some_seconds
from holdfast.core.errors import UsageError
from holdfast.health.check import ROOT, USUAL, wanted, with_deadline
from holdfast.health.service import serve

HELP = "answer a launcher's node health checks on a Unix socket (nvhcd.HealthCheckService)"

GOODBYE_S = 5.0  # How long requests that are under way may take to end.

STOPS = (signal.SIGTERM, signal.SIGINT)

MOST_S = 55.0  # For one check: clients give up after 60 s, and would take that for fit.


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("socket", metavar="SOCKET", help="path to listen at; for --ft-node-health-check-endpoint")
    usual = f"as for `holdfast check` (default: {' '.join(USUAL)})"
    parser.add_argument("checks", nargs="*", default=[], metavar="CHECK", help=usual)
    parser.add_argument("--mode", default="600", metavar="OCTAL", help="who may ask, as for chmod (default: %(default)s)")
    most = f"give a check up after S seconds (at most {MOST_S:g})"
    parser.add_argument("--deadline", type=reads(some_seconds), metavar="S", help=most)


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    try:
        mode = int(options.mode, 8)
    except ValueError:
        hint = "600: only this user; 666: everybody"
        raise UsageError(f"--mode: {options.mode!r} is not an octal number", hint=hint) from None
    root = os.environ.get(ROOT, "/")
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # before gRPC's threads begin, so that none of them takes one
    asked = [with_deadline(one, options.deadline) for one in wanted(options.checks or USUAL, root)]
    checks = [with_deadline(one, min(one.check.deadline_s, MOST_S)) for one in asked]
    server = serve(options.socket, checks, root, mode)
    print(f"listening at {options.socket}: {', '.join(one.label for one in checks)}", flush=True)
    signal.sigwait(STOPS)
    server.stop(GOODBYE_S).wait()
    return 0

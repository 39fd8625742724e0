"""`holdfast google-sensor`: Google's host daemons report to our supervisor, as they have reported to Google's sensor."""

from __future__ import annotations

import argparse
import os
import sys

from holdfast.cli.arguments import reads
from holdfast.cli.fleet.daemon import EVERY_VARIABLE
from holdfast.cli.fleet.supervisor_here import tls_arguments, token_of
from holdfast.core.config import grammar
from holdfast.core.config.own_options import SUPERVISOR_PORT
from holdfast.runtime.secrets import shelter_of
from holdfast.supervisor.daemon.google_hosts import EVERY_S
from holdfast.supervisor.daemon.google_sensor import GoogleSensor
from holdfast.supervisor.daemon.host_uplink import Supervisor
from holdfast.telemetry.report.safe_text import plain

HELP = "let Google's unmodified host daemons report to our supervisor"

PORT = 60081
"""Of the sensor in Google's recipes."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    here = "where the daemons' SENSOR_ADDRESS, CONTROLLER_ADDRESS and ACTUATOR_ADDRESS point to (default: %(default)s)"
    parser.add_argument("--listen", default=f"127.0.0.1:{PORT}", metavar="HOST:PORT", help=here)
    parser.add_argument("--supervisor", required=True, metavar="HOST:PORT[,…]", help="our supervisor")
    parser.add_argument("--supervisor-token-file", metavar="FILE", help="the secret that it knows ($HOLDFAST_SUPERVISOR_TOKEN)")
    every = f"seconds between two heartbeats of a daemon, as it was told (default: ${EVERY_VARIABLE}, else {EVERY_S:g})"
    parser.add_argument("--every", type=reads(grammar.some_seconds), metavar="S", help=every)
    tls_arguments(parser, "supervisors")


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    at = grammar.endpoint(options.listen, "--listen", default_port=PORT)
    every_s = options.every or grammar.some_seconds(os.environ.get(EVERY_VARIABLE) or f"{EVERY_S:g}", EVERY_VARIABLE)
    supervisor = Supervisor(
        endpoints=grammar.endpoints(options.supervisor, "--supervisor", default_port=SUPERVISOR_PORT),
        node_name="",
        secret=token_of(options.supervisor_token_file, "--supervisor-token-file"),
        shelter=shelter_of(options.tls_cert, options.tls_key, options.tls_ca),
    )
    sensor = GoogleSensor(at, supervisor, _say, every_s)
    try:
        print(f"listening at {sensor.listens}", flush=True)
        sensor.run()
    finally:
        sensor.close()
    return 0


def _say(text: str) -> None:
    print(f"holdfast google-sensor: {plain(text, keep='')}", file=sys.stderr, flush=True)

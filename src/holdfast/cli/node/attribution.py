"""`holdfast attribution serve`: a service that says of logs whether their jobs should go on, by the API of NVRx's."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading

from holdfast.cli.arguments import reads
from holdfast.core.config.grammar import port_number
from holdfast.core.errors import StartError, UsageError
from holdfast.diagnosis.rule import load, own_files
from holdfast.diagnosis.service import Service
from holdfast.runtime.secrets import secret_in, take_secret

HELP = "serve NVRx's attribution API over our rules: which logs say that a job should stop"

TOKEN = "HOLDFAST_ATTRIBUTION_TOKEN"  # Variable with the token that is asked for, and shown.


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("what", choices=("serve",), metavar="serve", help="answer until a signal comes")
    parser.add_argument("--root", required=True, metavar="DIR", help="only logs below this directory are read")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: this host alone)")
    parser.add_argument(
        "--port", type=reads(port_number), default=50050, help="port to listen at; 0: a free one (default: 50050)"
    )
    parser.add_argument("--token-file", metavar="FILE", help=f"clients must show what is in it (else: {TOKEN})")
    parser.add_argument("--rules", action="append", default=[], metavar="FILE", help="more rules, as TOML; may be repeated")


def run(options: argparse.Namespace) -> int:
    """Serve."""
    token = _token(options.token_file)
    if not os.path.isdir(options.root):
        raise UsageError(f"--root: there is no directory {options.root}", hint="below which folder are the jobs' logs?")
    if not token and options.host not in ("127.0.0.1", "::1", "localhost"):
        raise UsageError(f"--host {options.host} lets others ask, and there is no token", hint=f"give --token-file, or {TOKEN}")
    try:
        service = Service(options.root, load([*own_files(), *options.rules]), token=token, host=options.host, port=options.port)
    except OSError as error:
        hint = "choose another port, and an address of this host"
        raise StartError(f"cannot listen at {options.host}:{options.port}: {error.strerror}", hint=hint) from error

    def stop(signum: int, frame: object) -> None:
        threading.Thread(target=service.close).start()  # it waits for `serve`, which this interrupts

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    where = f"http://{options.host}:{service.port}"
    print(f"attribution service at {where} for logs below {service.root}", file=sys.stderr, flush=True)
    service.serve()
    return 0


def _token(path: str | None) -> str:
    return (take_secret(TOKEN.encode()) or b"").decode() if path is None else secret_in(path, "--token-file").decode()

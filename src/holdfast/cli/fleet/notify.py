"""`holdfast notify`: tell webhooks, and an OTLP receiver, what this host's supervisor does. `holdfast supervisor` starts it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from importlib.util import find_spec

from holdfast.cli.fleet.supervisor_here import folder_of, parent_argument, state_argument
from holdfast.core.errors import UsageError
from holdfast.runtime.secrets import secret_in
from holdfast.supervisor.child import tied_to
from holdfast.supervisor.notify.notify import Notify, check_otlp
from holdfast.supervisor.notify.webhook import Webhook
from holdfast.telemetry.report.safe_text import plain

HELP = "tell webhooks and OpenTelemetry what the supervisor does; it starts this itself"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    state_argument(parser)
    receivers(parser)
    parent_argument(parser)


def receivers(parser: argparse.ArgumentParser) -> None:
    """Who is told: the arguments that `holdfast supervisor` has too."""
    parser.add_argument("--webhook", action="append", default=[], metavar="URL", help="POST each deed there; may be repeated")
    parser.add_argument("--webhook-secret-file", metavar="FILE", help="sign what is posted with the secret in it")
    parser.add_argument(
        "--otlp",
        metavar="URL",
        default="" if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") else None,
        help="export spans and metrics by OTLP over HTTP ($OTEL_EXPORTER_OTLP_ENDPOINT)",
    )


def run(options: argparse.Namespace) -> int:
    """Listen until SIGTERM or SIGINT."""
    if options.parent and not tied_to(options.parent):
        return 0
    if not options.webhook and options.otlp is None:
        raise UsageError("no receiver is given", hint="give --webhook URL or --otlp URL")

    def say(text: str) -> None:
        print(f"holdfast notify: {plain(text)}", file=sys.stderr, flush=True)

    notify = Notify(folder_of(options), options.webhook, _secret(options), options.otlp, say)
    # Letters that are under way are left: what was not taken for sure is told by the next life.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    notify.run()
    return 0


def checked(options: argparse.Namespace, folder: str) -> list[str]:
    """The arguments of the process that tells them; empty: no receiver is given. UsageError: it could not."""
    _secret(options)
    for url in options.webhook:
        Webhook(url)
    otlp: str | None = options.otlp
    check_otlp(otlp or "")
    if otlp is not None and not (find_spec("opentelemetry") and find_spec("opentelemetry.exporter")):
        if otlp:
            raise UsageError("--otlp: OpenTelemetry is not installed", hint="pip install 'holdfast[otel]'")
        print("holdfast supervisor: OTEL_EXPORTER_OTLP_ENDPOINT is set, but the extra `otel` is not installed", file=sys.stderr)
        otlp = None
    if not options.webhook and otlp is None:
        return []
    words = ["--state", folder]
    words += [word for url in options.webhook for word in ("--webhook", url)]
    if options.webhook_secret_file:
        words += ["--webhook-secret-file", os.path.abspath(options.webhook_secret_file)]
    return words + (["--otlp", otlp] if otlp else [])


def _secret(options: argparse.Namespace) -> bytes:
    path: str | None = options.webhook_secret_file
    return secret_in(path, "--webhook-secret-file") if path is not None else b""

"""`holdfast notify`: tell webhooks, and an OTLP receiver, what this host's supervisor does. `holdfast supervisor` starts it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from importlib.util import find_spec

from holdfast.cli.fleet.supervisor_here import folder_of, parent_argument, state_argument
from holdfast.core.errors import UsageError
from holdfast.runtime.private_files import private
from holdfast.runtime.secrets import secret_in
from holdfast.supervisor.child import tied_to
from holdfast.supervisor.notify.notify import Notify, check_otlp
from holdfast.supervisor.notify.webhook import Webhook, tells_a_secret
from holdfast.supervisor.store import RECEIVERS
from holdfast.telemetry.report.safe_text import plain

HELP = "tell webhooks and OpenTelemetry what the supervisor does; it starts this itself"


OTLP_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
"""The variable that OpenTelemetry's exporters read."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    state_argument(parser)
    receivers(parser)
    parent_argument(parser)


def receivers(parser: argparse.ArgumentParser) -> None:
    """Who is told: the arguments that `holdfast supervisor` has too."""
    parser.add_argument("--webhook", action="append", default=[], metavar="URL", help="POST each deed there; may be repeated")
    parser.add_argument("--webhook-file", metavar="FILE", help="more such URLs, one on a line: command lines are no secrets")
    parser.add_argument("--webhook-secret-file", metavar="FILE", help="sign what is posted with the secret in it")
    parser.add_argument(
        "--otlp",
        metavar="URL",
        default="" if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") else None,
        help="export spans and metrics by OTLP over HTTP ($OTEL_EXPORTER_OTLP_ENDPOINT)",
    )
    more = f"{OTLP_HEADERS} of these exports, NAME=VALUE, one on a line"
    parser.add_argument("--otlp-headers-file", metavar="FILE", help=more)


def run(options: argparse.Namespace) -> int:
    """Listen until SIGTERM or SIGINT."""
    if options.parent and not tied_to(options.parent):
        return 0
    webhooks = _webhooks(options)
    if not webhooks and options.otlp is None:
        raise UsageError("no receiver is given", hint="give --webhook-file FILE, --webhook URL or --otlp URL")
    if options.otlp_headers_file:
        os.environ[OTLP_HEADERS] = ",".join(_lines(options.otlp_headers_file, "--otlp-headers-file"))

    def say(text: str) -> None:
        print(f"holdfast notify: {plain(text)}", file=sys.stderr, flush=True)

    notify = Notify(folder_of(options), webhooks, _secret(options), options.otlp, say)
    # Letters that are under way are left: what was not taken for sure is told by the next life.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    notify.run()
    return 0


def checked(options: argparse.Namespace, folder: str, webhooks: list[str], otlp: str | None) -> list[str]:
    """The arguments of the process that tells `receivers_of` these; empty: there are none. Whose URLs it is to tell it reads
    in a file in `folder`."""
    if otlp is not None and not _can_export():
        print("holdfast supervisor: OTEL_EXPORTER_OTLP_ENDPOINT is set, but the extra `otel` is not installed", file=sys.stderr)
        otlp = None
    if not webhooks and otlp is None:
        return []
    words = ["--state", folder]
    if webhooks:
        words += ["--webhook-file", _kept(folder, webhooks)]
    if options.otlp_headers_file:
        words += ["--otlp-headers-file", os.path.abspath(options.otlp_headers_file)]
    if options.webhook_secret_file:
        words += ["--webhook-secret-file", os.path.abspath(options.webhook_secret_file)]
    return words + (["--otlp", otlp] if otlp else [])


def receivers_of(options: argparse.Namespace) -> tuple[list[str], str | None]:
    """The webhooks, and where spans and metrics go (empty: where a variable says; None: nowhere). UsageError: one is of no
    use."""
    _secret(options)
    webhooks = _webhooks(options)
    check_otlp(options.otlp or "")
    if options.otlp_headers_file:
        _lines(options.otlp_headers_file, "--otlp-headers-file")
    if options.otlp and not _can_export():
        raise UsageError("--otlp: OpenTelemetry is not installed", hint="pip install 'holdfast[otel]'")
    return webhooks, options.otlp


def _can_export() -> bool:
    return bool(find_spec("opentelemetry") and find_spec("opentelemetry.exporter"))


def _webhooks(options: argparse.Namespace) -> list[str]:
    """Their URLs. UsageError: one is of no use."""
    urls: list[str] = list(options.webhook)
    if options.webhook_file:
        urls += _lines(options.webhook_file, "--webhook-file")
    for url in urls:
        Webhook(url)
    if any(map(tells_a_secret, options.webhook)):
        warning = "--webhook: everybody on this host sees command lines, and who knows such a URL may post there"
        print(f"holdfast: {warning}; put it into a file, and give --webhook-file", file=sys.stderr)
    return urls


def _lines(path: str, flag: str) -> list[str]:
    lines = [line.strip() for line in secret_in(path, flag).decode("utf-8", "replace").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def _kept(folder: str, webhooks: list[str]) -> str:
    path = os.path.join(folder, RECEIVERS)
    with open(path, "w", encoding="utf-8", opener=private) as file:
        file.write("".join(f"{url}\n" for url in webhooks))
    return path


def _secret(options: argparse.Namespace) -> bytes:
    path: str | None = options.webhook_secret_file
    return secret_in(path, "--webhook-secret-file") if path is not None else b""

"""`holdfast web`: the supervisor's HTTP API and dashboard. `holdfast supervisor` starts it; it only asks, over its socket."""

from __future__ import annotations

import argparse
from socket import socket

from holdfast.cli.arguments import reads
from holdfast.cli.fleet.supervisor_here import parent_argument, socket_of, state_argument
from holdfast.core.config import grammar
from holdfast.core.errors import UsageError
from holdfast.supervisor.child import tied_to
from holdfast.supervisor.web.auth import refuse_an_open_door, tokens
from holdfast.supervisor.web.serve import bind, missing
from holdfast.supervisor.web.serve import run as serve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ssl import SSLContext

HELP = "serve the supervisor's HTTP API and dashboard (`holdfast supervisor` does so by itself)"

PORT = 29180


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    http_arguments(parser, "")
    state_argument(parser)
    parent_argument(parser)
    here = "serve at this socket, which `holdfast supervisor` has made"
    parser.add_argument("--listener", type=reads(grammar.whole), default=-1, metavar="FD", help=here)


def http_arguments(parser: argparse.ArgumentParser, more: str) -> None:
    """Where it listens, and who may ask."""
    here = f"127.0.0.1:{PORT}"
    parser.add_argument(
        "--http", default=here, metavar="HOST:PORT", help=f"where browsers come to (default: %(default)s{more})"
    )
    parser.add_argument(
        "--http-token-file", metavar="FILE", help="lines `read TOKEN` and `operate TOKEN`: who may see, and act"
    )
    parser.add_argument("--http-cert", metavar="FILE", help="serve HTTPS with this certificate, in PEM")
    parser.add_argument("--http-key", metavar="FILE", help="its private key (otherwise in the same file)")


def checked(options: argparse.Namespace) -> tuple[str, int, dict[str, str], SSLContext | None]:
    """Where to listen, the tokens, and what HTTPS is served with. UsageError: they make no sense."""
    host, port = grammar.endpoint(options.http, "--http", default_port=PORT)
    known = tokens(options.http_token_file)
    refuse_an_open_door(host, known)
    if options.http_key and not options.http_cert:
        raise UsageError("--http-key needs --http-cert")
    if not options.http_cert:
        return host, port, known, None
    from holdfast.runtime.net.tls import https  # ssl takes 20 ms, and few give a certificate

    return host, port, known, https(options.http_cert, options.http_key)


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    if options.parent and not tied_to(options.parent):
        return 0
    host, port, known, context = checked(options)
    if lacks := missing():
        raise UsageError(f"{lacks} are not installed", hint="pip install 'holdfast[supervisor]'")
    from holdfast.supervisor.web.app import Api  # it needs starlette, of the extra `supervisor`

    api = Api(socket_of(options), known, secure=context is not None)
    listener = bind(host, port) if options.listener < 0 else socket(fileno=options.listener)
    scheme = "http" if context is None else "https"
    print(f"dashboard at {scheme}://{grammar.shown_endpoint(host, listener.getsockname()[1])}/", flush=True)
    serve(api.app(), listener, context)
    return 0

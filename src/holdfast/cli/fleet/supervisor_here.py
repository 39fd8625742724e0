"""Where is the supervisor of this host, and what does it say? And its arguments that other commands have too."""

from __future__ import annotations

import argparse
import os
from typing import Any

from holdfast.agent.control.control_client import ask_at
from holdfast.core.errors import HoldfastError, ProtocolError, UsageError
from holdfast.supervisor.feed import SOCKET
from holdfast.telemetry.record.state_dir import state_home
from holdfast.telemetry.report.safe_text import plain

ANSWER_S = 10.0

HERE = "HOLDFAST_SUPERVISOR_STATE"


def tls_arguments(parser: argparse.ArgumentParser, whom: str) -> None:
    """TLS between it and those whom it speaks to."""
    parser.add_argument("--tls-cert", metavar="FILE", help=f"its certificate, in PEM, where {whom} have one too")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key (otherwise in the same file)")
    parser.add_argument("--tls-ca", metavar="FILE", help=f"the CA that signs for {whom}")


def state_argument(parser: argparse.ArgumentParser) -> None:
    """Where a supervisor keeps what it knows."""
    parser.add_argument("--state", metavar="DIR", help=f"where the supervisor keeps what it knows (${HERE})")


def folder_of(options: argparse.Namespace) -> str:
    """The state directory: as given, else where jobs are kept too."""
    return os.path.abspath(options.state or os.environ.get(HERE) or os.path.join(state_home(os.environ), "supervisor"))


def socket_of(options: argparse.Namespace) -> str:
    """Where the supervisor of this host is asked; it is there while one runs."""
    return os.path.join(folder_of(options), SOCKET)


def ask_supervisor(options: argparse.Namespace, request: dict[str, Any], within_s: float = ANSWER_S) -> dict[str, Any]:
    """The answer of the supervisor on this host. HoldfastError: there is none, or it refuses."""
    try:
        answer = ask_at(socket_of(options), "the supervisor", request, within_s)
    except (OSError, ProtocolError) as error:
        hint = "is `holdfast supervisor` running here, with this --state?"
        raise HoldfastError(f"no supervisor answers in {folder_of(options)} ({error})", hint=hint) from error
    if not answer.get("ok"):
        raise HoldfastError(plain(str(answer.get("error"))))
    return answer


def token_of(path: str | None, flag: str) -> bytes:
    """The secret of its links; it is taken out of the environment. UsageError."""
    if path is None:
        return os.environb.pop(b"HOLDFAST_SUPERVISOR_TOKEN", b"").strip()
    return secret_in(path, flag)


def secret_in(path: str, flag: str) -> bytes:
    """The secret in a file. UsageError: there is none."""
    try:
        with open(path, "rb") as file:
            token = file.read().strip()
    except OSError as error:
        raise UsageError(f"{flag}: {path} cannot be read: {error.strerror}") from error
    if not token:
        raise UsageError(f"{flag}: {path} is empty", hint="`holdfast token --write FILE` makes one")
    return token


def shelter_of(options: argparse.Namespace) -> Any:
    """Of its links: TLS, or None. UsageError."""
    if not (options.tls_cert and options.tls_ca):
        if options.tls_cert or options.tls_ca or options.tls_key:
            raise UsageError("--tls-cert and --tls-ca are needed together")
        return None
    from holdfast.runtime.net.tls import shelter  # ssl takes 20 ms, and few give a certificate

    return shelter(options.tls_cert, options.tls_key, options.tls_ca)

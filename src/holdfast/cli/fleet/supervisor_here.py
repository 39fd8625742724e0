"""Where is the supervisor of this host, and what does it say? And its arguments that other commands have too."""

from __future__ import annotations

import argparse
import os
import shlex
from shutil import which
from typing import Any

from holdfast.agent.control.control_client import ask_at
from holdfast.cli.arguments import reads, whole
from holdfast.core.errors import HoldfastError, ProtocolError, UsageError
from holdfast.runtime.secrets import secret_in, take_secret
from holdfast.supervisor.feed import SOCKET
from holdfast.telemetry.record.state_dir import state_home
from holdfast.telemetry.report.safe_text import plain

ANSWER_S = 10.0

HERE = "HOLDFAST_SUPERVISOR_STATE"

NO_SUPERVISOR = "is `holdfast supervisor` running here, with this --state?"


def tls_arguments(parser: argparse.ArgumentParser, whom: str) -> None:
    """TLS between it and those whom it speaks to."""
    parser.add_argument("--tls-cert", metavar="FILE", help=f"its certificate, in PEM, where {whom} have one too")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key (otherwise in the same file)")
    parser.add_argument("--tls-ca", metavar="FILE", help=f"the CA that signs for {whom}")


def state_argument(parser: argparse.ArgumentParser) -> None:
    """Where a supervisor keeps what it knows."""
    parser.add_argument("--state", metavar="DIR", help=f"where the supervisor keeps what it knows (${HERE})")


def parent_argument(parser: argparse.ArgumentParser) -> None:
    """Of a process that the supervisor starts."""
    parser.add_argument(
        "--parent", type=reads(whole), default=0, metavar="PID", help="end when this process, which started it, does"
    )


def folder_of(options: argparse.Namespace) -> str:
    """The state directory: as given, else where jobs are kept too."""
    return os.path.abspath(options.state or os.environ.get(HERE) or os.path.join(state_home(os.environ), "supervisor"))


def socket_of(options: argparse.Namespace) -> str:
    """Where the supervisor of this host is asked; it is there while one runs."""
    return os.path.join(folder_of(options), SOCKET)


def ask_supervisor(options: argparse.Namespace, request: dict[str, Any], within_s: float = ANSWER_S) -> dict[str, Any]:
    """The answer of the supervisor on this host. HoldfastError: there is none, or it refuses."""
    return answer_at(socket_of(options), "supervisor", NO_SUPERVISOR, request, within_s)


def answer_at(path: str, whom: str, hint: str, request: dict[str, Any], within_s: float = ANSWER_S) -> dict[str, Any]:
    """The answer of the program at a socket. HoldfastError: nobody answers (`hint`), or it refuses."""
    try:
        answer = ask_at(path, f"the {whom}", request, within_s)
    except (OSError, ProtocolError) as error:
        why = getattr(error, "strerror", None) or error
        raise HoldfastError(f"no {whom} answers at {path}: {why}", hint=hint) from error
    if not answer.get("ok"):
        raise HoldfastError(plain(str(answer.get("error"))))
    return answer


def token_of(path: str | None, flag: str) -> bytes:
    """The secret of its links; it is taken out of the environment. UsageError."""
    return take_secret(b"HOLDFAST_SUPERVISOR_TOKEN") or b"" if path is None else secret_in(path, flag)


def words_of(command: str, name: str) -> list[str]:
    """The words of a command that the argument `name` gives. UsageError: they are none, or there is no such program."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        hint = "close the quotation, or put a backslash before it"
        raise UsageError(f"{name}: {command}: {error}", hint=hint) from None
    if words and which(words[0]) is None:
        hint = "give its path, or correct PATH or its rights (chmod +x)"
        raise UsageError(f"{name}: there is no program {words[0]}", hint=hint)
    return words

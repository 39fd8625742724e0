"""How does a process read its secrets? From a file that a flag names, or from the environment, which then has them no more.

Never from an argument: everybody on the host sees command lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from holdfast.core.errors import UsageError
from holdfast.runtime.readable import CHECK_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.runtime.net.tls import Tunnel  # `ssl` is heavy, and most jobs use none

Shelter = Callable[[bool], "Tunnel"]
"""Makes the tunnel of a link; True: for the side that asked for it."""

VARIABLES = (
    b"HOLDFAST_TOKEN",
    b"HOLDFAST_SUPERVISOR_TOKEN",
    b"HOLDFAST_ATTRIBUTION_TOKEN",
    b"HOLDFAST_ASK_KEY",
    b"HOLDFAST_ETCD_USER",
    b"HOLDFAST_ETCD_PASSWORD",
)
"""Those that may hold a secret of ours."""


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for what need not know our secrets."""
    ours = {os.fsdecode(variable) for variable in VARIABLES}
    return {name: value for name, value in environ.items() if name not in ours}


def secret_in(path: str, flag: str) -> bytes:
    """The secret in a file. UsageError: there is none."""
    try:
        with open(path, "rb") as file:
            secret = file.read().strip()
    except OSError as error:
        raise UsageError(f"{flag}: {path} cannot be read: {error.strerror}", hint=CHECK_FILE) from error
    if not secret:
        raise UsageError(f"{flag}: {path} is empty", hint="`holdfast token --write FILE` makes one")
    return secret


def take_secret(variable: bytes) -> bytes | None:
    """The secret in a variable, which nothing that this process starts inherits. None: the variable is not set."""
    secret = os.environb.pop(variable, None)
    return None if secret is None else secret.strip()


def shelter_of(cert: str | None, key: str | None, ca: str | None) -> Shelter | None:
    """What encrypts links, by --tls-cert, --tls-key and --tls-ca. None: nothing does. UsageError: the files are of no use."""
    if not (cert and ca):
        if cert or ca or key:
            hint = "both sides of a link show a certificate, and check the other's"
            raise UsageError("--tls-cert and --tls-ca are needed together", hint=hint)
        return None
    from holdfast.runtime.net.tls import shelter  # `ssl` takes 20 ms, and few give a certificate

    return shelter(cert, key, ca)

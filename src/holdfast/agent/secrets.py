"""Which secrets does an agent hold? The job's token and the supervisor's, and the certificates that encrypt its links.

Secrets leave the environment when they are read: workers do not inherit them.
"""

from __future__ import annotations

import os

from holdfast.core.config.config import RunConfig
from holdfast.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.runtime.net.tls import Shelter


def job_token(config: RunConfig) -> bytes:
    """The job's secret; empty: it has none. Raises UsageError."""
    in_environ, token = _secret("--token-file", config.token_file, b"HOLDFAST_TOKEN")
    if config.token_file is not None and not token:
        raise UsageError(f"--token-file: {config.token_file} is empty", hint="`holdfast token --write FILE` makes one")
    if config.token_file is None and in_environ and not token:
        raise UsageError("HOLDFAST_TOKEN is set but empty", hint="`holdfast token` makes one; unset it to go without")
    return token


def supervisor_token(config: RunConfig) -> bytes:
    """The secret that the supervisor knows; empty: none is set. Raises UsageError."""
    return _secret("--supervisor-token-file", config.supervisor_token_file, b"HOLDFAST_SUPERVISOR_TOKEN")[1]


def shelter_of(config: RunConfig) -> Shelter | None:
    """What encrypts this agent's links. None: nothing does."""
    if config.tls_cert is None or config.tls_ca is None:
        return None
    from holdfast.runtime.net.tls import shelter  # loads ssl, which a job without --tls-cert never needs

    return shelter(config.tls_cert, config.tls_key, config.tls_ca)


def _secret(flag: str, path: str | None, variable: bytes) -> tuple[bool, bytes]:
    """Whether the environment has the secret, and the secret itself: the file's where there is one."""
    in_environ = os.environb.pop(variable, None)
    if path is None:
        return in_environ is not None, (in_environ or b"").strip()
    try:
        with open(path, "rb") as file:
            return in_environ is not None, file.read().strip()
    except OSError as error:
        raise UsageError(f"{flag}: {path} cannot be read: {error.strerror}") from error

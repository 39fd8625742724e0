"""Which secrets does an agent hold? The job's token and the supervisor's.

Secrets leave the environment when they are read: workers do not inherit them. What nobody has read by the time that the agent
is complete leaves it too.
"""

from __future__ import annotations

from holdfast.core.config.config import RunConfig
from holdfast.core.errors import UsageError
from holdfast.runtime import secrets


def job_token(config: RunConfig) -> bytes:
    """The job's secret; empty: it has none. Raises UsageError."""
    given = secrets.take_secret(b"HOLDFAST_TOKEN")
    if config.token_file is not None:
        return secrets.secret_in(config.token_file, "--token-file")
    if given == b"":
        raise UsageError("HOLDFAST_TOKEN is set but empty", hint="`holdfast token` makes one; unset it to go without")
    return given or b""


def supervisor_token(config: RunConfig) -> bytes:
    """The secret that the supervisor knows; empty: none is set. Raises UsageError."""
    given = secrets.take_secret(b"HOLDFAST_SUPERVISOR_TOKEN")
    path = config.supervisor_token_file
    return given or b"" if path is None else secrets.secret_in(path, "--supervisor-token-file")


def forget_others() -> None:
    """Take secrets that this agent has no use for out of the environment."""
    for variable in secrets.VARIABLES:
        secrets.take_secret(variable)

"""Which secrets does an agent hold? The job's token and the supervisor's.

Secrets leave the environment when they are read: workers do not inherit them. What nobody has read by the time that the agent
is complete leaves it too.
"""

from __future__ import annotations

from holdfast.core.config.config import RunConfig
from holdfast.core.errors import UsageError
from holdfast.runtime import secrets
from holdfast.runtime.net.frames import Identity
from holdfast.telemetry.record.job_secret import job_identity, job_secret


def identity_of(config: RunConfig) -> Identity:
    """What proves that an agent belongs to the job. Raises UsageError."""
    found = job_identity(config.rdzv_id, config.token_file, "--token-file", config.state_dir)
    check_required(config, found.is_secret)
    return found


def check_required(config: RunConfig, has_token: bool) -> None:
    """UsageError: the job shall not start without a token, and has none."""
    if config.require_token and not has_token:
        raise UsageError(
            "--require-token: this job of several nodes has no token",
            hint="`holdfast token --write FILE` makes one; give each node --token-file FILE, set HOLDFAST_TOKEN, or give all "
            "nodes one --state-dir on a file system that they share; under Slurm, munge on each node does as well",
        )


def job_s_at_supervisor(config: RunConfig, joined: bytes | None) -> bytes:
    """The secret that binds the job's name at the supervisor; empty: nothing does, nor where the job was given no name.
    `joined`: the secret that its nodes join with; None: it has one node, which has not looked for one."""
    if not config.supervisors or config.rdzv_id == "none":
        return b""
    return job_secret(config.token_file, "--token-file", config.state_dir) if joined is None else joined


def supervisor_token(config: RunConfig) -> bytes:
    """The secret that the supervisor knows; empty: none is set. Raises UsageError."""
    given = secrets.take_secret(b"HOLDFAST_SUPERVISOR_TOKEN")
    path = config.supervisor_token_file
    return given or b"" if path is None else secrets.secret_in(path, "--supervisor-token-file")


def forget_others() -> None:
    """Take secrets that this agent has no use for out of the environment."""
    for variable in secrets.VARIABLES:
        secrets.take_secret(variable)

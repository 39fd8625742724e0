"""What can go wrong with *us*, and the exit code of each. A worker's death is not here: it is a value (`core.job.failure`).

HoldfastError               1   we cannot go on
├── UsageError              2   a flag, value or file of the user's is wrong
├── StartError              1   a program could not be started
├── RendezvousError         1   the nodes could not agree
├── Stopped           -signal   a signal came before there was anything to stop
└── ProtocolError           1   a peer sent what we do not understand
"""

from __future__ import annotations


class HoldfastError(Exception):
    """`what` happened, to what; `hint` says what to do about it."""

    exit_code = 1

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}\n  hint: {self.hint}" if self.hint else self.what


class UsageError(HoldfastError):
    """A flag, an environment variable or a file of the user's is wrong."""

    exit_code = 2


class StartError(HoldfastError):
    """A program could not be started."""


class RendezvousError(HoldfastError):
    """The nodes of the job could not agree on who takes part."""


class Stopped(HoldfastError):
    """A signal came that ends the agent, before there was anything to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by signal {signum}")
        self.exit_code = -signum


class ProtocolError(HoldfastError):
    """A peer sent something we do not understand."""

"""How a job ended: the value that every node prints and `report.json` holds. The same on every node."""

from __future__ import annotations

from enum import StrEnum

from holdfast.core.job.failure import Failure
from holdfast.core.value import Value


class Outcome(StrEnum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class JobReport(Value):
    """The end of a job."""

    job: str
    outcome: Outcome
    exit_code: int
    failures: tuple[Failure, ...] = ()
    """Of the last round: the first failure across all nodes first, those that we stopped ourselves last. Of a job that has
    succeeded those that it carried on without, if any."""
    failures_left_out: int = 0  # Further ones: the report goes to every node, and must stay small.
    restarts_used: int = 0
    max_restarts: int = 0
    rounds: int = 0
    started_at_unix: float
    ended_at_unix: float
    reason: str  # Why it ended, in words.
    nodes: tuple[str, ...] = ()
    nodes_left_out: int = 0  # As with failures.
    life: str = ""
    """Names the run that it is the end of, as in `core.wire.messages.Past`. Empty: a job of one node, whose end nobody
    misses.
    """

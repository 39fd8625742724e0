"""What a policy is told about a failure, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from holdfast.core.job.failure import Failure
from holdfast.core.value import Value


class Policy(Protocol):
    """What next, after a failure?"""

    carries_on: bool  # Whether a round may go on without some of its workers.

    def judge(self, health: Health, what: str) -> Decision:
        """Answer what becomes of the round after `what`: carry-on, finish or restart, which `consider` then decides
        about."""

    def consider(self, failure: Failure, *, uptime_s: float, now: float) -> Decision:
        """Decide about the first failure of a round that had run `uptime_s` seconds; remembers that it did."""

    def consider_request(self, what: str, *, uptime_s: float, now: float) -> Decision:
        """Decide about a worker's wish, `what`, that all ranks restart."""

    def stalled(self, reached: int | None, *, restarting: bool, failures: Sequence[Failure] = ()) -> Decision | None:
        """Answer why a new round would be in vain; None: go on. `reached`: the furthest iteration known. `failures`: of the
        round before, the first one first."""

    def heed(self, verdict: str) -> None:
        """Somebody who was asked says that the job should not be restarted again, and why."""

    def restarts_left(self, now: float) -> int:
        """How many restarts may still come."""

    def may_not_restart(self, now: float) -> str:
        """Why a wish for a restart would end the job. Empty: it would not."""

    def pardon(self, name: str) -> None:
        """A node has been readmitted: what it has done before no longer counts against it."""


class Verdict(StrEnum):
    """What was decided about a job: the first five about a round, the last three about a node."""

    RESTART = "restart"  # Another round, which spends a restart.
    REJOIN = "rejoin"  # Another round, which is nobody's fault and spends no restart: no policy says so.
    CARRY_ON = "carry-on"  # The same round, without the workers that failed.
    FINISH = "finish"  # The job has succeeded.
    STOP = "stop"  # The job has failed, or was told to stop.
    EXCLUDE = "exclude"
    READMIT = "readmit"
    INJECT = "inject"


class Health(Value):
    """How the nodes of a round are."""

    needed: int  # The least number of nodes that a round may have.
    healthy: int  # All their workers run, or have exited with 0 while others run.
    succeeded: int  # All their workers exited with 0. They count for good, whatever becomes of the node.
    size: int
    """Of the round as it formed. The others have lost a worker, of which some may still have others; or they were lost, have
    left, or were excluded."""


class Decision(Value):
    """What next, and why, in words."""

    then: Verdict = Verdict.RESTART
    reason: str
    delay_s: float = 0.0  # Seconds to wait before the next round, so that a crash loop does not spin.
    restarts_left: int = 0
    exclude: str = ""
    """With `restart`: why the node whose worker failed should not go on, if another can take its place. Empty: it may."""
    exit_code: int = 1  # With `stop`: that of every agent.

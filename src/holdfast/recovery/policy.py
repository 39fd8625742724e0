"""What next, after a failure? Restart while the budget lasts; the longer a crash loop, the longer the pause in it."""

from __future__ import annotations

from holdfast.core.failure import describe
from holdfast.core.machine import NEVER
from holdfast.core.policy import Decision
from holdfast.recovery.budget import Budget
from holdfast.recovery.suspects import Suspects

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.failure import Failure

INSTANT_S = 5.0
"""A group that lived shorter than this crashed at once: most likely it will do so again. Kubernetes forgets a crash loop
after 600 s of life, systemd counts starts within 10 s; imports alone take a training script some seconds."""

FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 60.0
"""The first crash restarts without delay (it may be a fluke), the second in a row after 0.5 s, then twice as long each
time. Kubernetes: 10 s doubling to 300 s."""


class RestartOnFailure:
    """Torchrun's policy, with the job's budget and a back-off, and an eye on nodes that fail again and again."""

    def __init__(
        self,
        *,
        max_restarts: int,
        period_s: float | None = None,
        longest_delay_s: float = LONGEST_DELAY_S,
        exclude_after: int = 0,
    ) -> None:
        within_s = NEVER if period_s is None else period_s
        self.budget = Budget(restarts=max_restarts, period_s=within_s)
        self.suspects = Suspects(after=exclude_after, period_s=within_s)
        self.longest_delay_s = longest_delay_s
        self.instant_crashes = 0

    def restarts_left(self, now: float) -> int:
        """How many restarts may still come."""
        return self.budget.left(now)

    def pardon(self, name: str) -> None:
        """Hold nothing against that node any more."""
        self.suspects.pardon(name)

    def consider(self, failure: Failure, *, uptime_s: float, now: float) -> Decision:
        """Decide about the first failure of a round that had run `uptime_s` seconds."""
        self.instant_crashes = self.instant_crashes + 1 if uptime_s < INSTANT_S else 0
        what = describe(failure)
        if failure.cause == "start":
            return Decision(restart=False, reason=f"{what}; starting it again would fail the same way")
        if failure.cause == "stuck":
            return Decision(restart=False, reason=f"{what}; what it holds, a new process on its node would need")
        if not self.budget.spend(now):
            return Decision(restart=False, reason=f"{what}; {self._spent()}")
        left = self.budget.left(now)
        delay_s = self._delay_s()
        pause = f", after {delay_s:g} s because it crashed at once {self.instant_crashes} times" if delay_s else ""
        return Decision(
            restart=True,
            reason=f"{what}; restarting all ranks{pause} ({left} of {self.budget.restarts} restarts left)",
            delay_s=delay_s,
            restarts_left=left,
            exclude=self.suspects.blame(failure.node, now),
        )

    def _delay_s(self) -> float:
        if self.instant_crashes < 2:
            return 0.0
        return min(self.longest_delay_s, FIRST_DELAY_S * float(1 << min(self.instant_crashes - 2, 30)))

    def _spent(self) -> str:
        if self.budget.restarts == 0:
            return "no restarts allowed (--max-restarts 0)"
        within = "" if self.budget.period_s == NEVER else f" within {self.budget.period_s:g} s"
        return f"no restart is left ({self.budget.restarts} of {self.budget.restarts} used{within})"

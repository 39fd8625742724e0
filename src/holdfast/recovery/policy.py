"""What next, after a failure? Restart while the budget lasts; the longer a crash loop, the longer the pause in it.

By `any-failed` every failure is one of all; by `min-healthy` only one that leaves too few nodes is (`min_healthy`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from holdfast.core.job.ends import WORDLESS
from holdfast.core.job.failure import Cause, Failure, describe
from holdfast.core.job.policy import Decision, Health, Verdict
from holdfast.core.machine import NEVER
from holdfast.core.wire.messages import Past

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.recovery.findings import Findings

INSTANT_S = 5.0
"""A group that lived for less than this crashed at once, and will probably crash again. Kubernetes forgets a crash loop after
600 s of life, and systemd counts starts within 10 s. The imports alone take a training script some seconds."""

FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 60.0
"""The first crash restarts without delay, because it may be a fluke. The second in a row waits 0.5 s, and each further one
twice as long. Kubernetes: 10 s doubling to 300 s."""

NO_RESTART = 93
"""Exit code of a job that we ended ourselves although it had restarts left: ft_launcher's, and a hint not to queue it again."""


class Budget:
    """At most `restarts` restarts within the last `period_s` seconds (Erlang/OTP calls the pair intensity and period).

    It is the job's: one failure on one node spends one restart, however many nodes it takes down with it, and a change of
    members spends none."""

    def __init__(self, *, restarts: int, period_s: float = NEVER) -> None:
        self.restarts = restarts
        self.period_s = period_s
        self.spent_at: list[float] = []

    def left(self, now: float) -> int:
        """How many may still come at `now`."""
        return self.restarts - sum(1 for at in self.spent_at if now - at < self.period_s)

    def spend(self, now: float) -> bool:
        """Take one. False, and nothing taken, when none is left."""
        if self.left(now) <= 0:
            return False
        self.spent_at = [at for at in self.spent_at if now - at < self.period_s]
        self.spent_at.append(now)
        return True

    def resume(self, ages_s: Iterable[float], *, uncounted: int, now: float) -> None:
        """Take over from a predecessor. `uncounted`: restarts that it did not know of."""
        self.spent_at = [*(now - age_s for age_s in ages_s), *[now] * uncounted]

    def take_back(self) -> None:
        """The restart last taken does not come after all."""
        if self.spent_at:
            self.spent_at.pop()


class Progress:
    """Does the job get anywhere? Restarts in a row that bring it no further only cost machine time.

    How far it is, the nodes say before each round: by the checkpoint file if the job names one, else by the steps that its
    ranks report. Only the coordinator compares that with the restart before, so no two nodes can disagree."""

    def __init__(self, *, cycles: int = 0, iterations: int = 1, source: str = "") -> None:
        self.cycles = cycles  # So many restarts in a row without progress are too many. 0: no number is.
        self.iterations = iterations  # So many iterations since the restart before are progress.
        self.source = source  # The file that says how far it is. Empty: the ranks do.
        self.reached: int | None = None  # The iteration known at the last restart. None: none was.
        self.idle = 0  # Restarts in a row without progress.

    @property
    def condition(self) -> str:
        """On what the next restart depends, in words that follow it; empty: on nothing. How far the job is now, is not known
        at a failure: only when every node has said so, in `note`."""
        if not self.cycles or self.idle + 1 < self.cycles or self.reached is None:
            return ""
        return f" if the job has reached iteration {self.reached + self.iterations}"

    def resume(self, reached: int | None, idle: int) -> None:
        self.reached, self.idle = reached, idle

    def note(self, reached: int | None, *, restarting: bool) -> str:
        """A round is about to form, and `reached` is what is known now; None: nothing. Why the restart that it would be is one
        too many; empty: it is not.

        What nobody knows changes nothing: a file may be out of reach for a moment. But ranks that have reported steps before,
        and none this time, have died before their first one.
        """
        if not self.cycles or (reached is None and (self.source or self.reached is None)):
            return ""
        before, now = self.reached or 0, (self.reached or 0) if reached is None else reached
        if not restarting:
            self.reached = now if self.reached is None else self.reached
            return ""
        self.reached, self.idle = now, 0 if now - before >= self.iterations else self.idle + 1
        if self.idle < self.cycles:
            return ""
        least = f"fewer than {self.iterations} iterations" if self.iterations > 1 else "no iteration"
        where = f"iteration {now}" + (f" by {self.source}" if self.source else "")
        return f"no progress: {self.idle} restart{'s' if self.idle > 1 else ''} in a row brought {least} ({where})"


class Suspects:
    """Whose workers fail first, again and again? First failures by node, within the last `period_s` seconds.

    Later failures of a round are mostly consequences, and a lost node is nobody's fault: neither counts."""

    def __init__(self, *, after: int, period_s: float = NEVER) -> None:
        self.after = after  # So many are too many. 0: no number is.
        self.period_s = period_s
        self.faults: dict[str, list[float]] = {}

    def blame(self, name: str, now: float) -> str:
        """Note one more of that node. Why it should not go on; empty: it may."""
        if not self.after:
            return ""
        mine = self.faults[name] = [at for at in self.faults.get(name, ()) if now - at < self.period_s] + [now]
        if len(mine) < self.after:
            return ""
        within = "" if self.period_s == NEVER else f" within {self.period_s:g} s"
        return f"its workers were the first to fail {len(mine)} times{within}"

    def pardon(self, name: str) -> None:
        self.faults.pop(name, None)

    def ages_s(self, now: float) -> dict[str, tuple[float, ...]]:
        """What a successor must know: how long ago each was."""
        return {name: tuple(now - at for at in those) for name, those in self.faults.items()}

    def resume(self, ages_s: Mapping[str, Sequence[float]], now: float) -> None:
        self.faults = {name: [now - age_s for age_s in those] for name, those in ages_s.items()}


class RestartOnFailure:
    """Torchrun's policy, with the job's budget and a back-off, and an eye on nodes that fail again and again."""

    def __init__(
        self,
        *,
        max_restarts: int,
        period_s: float | None = None,
        longest_delay_s: float = LONGEST_DELAY_S,
        exclude_after: int = 0,
        carries_on: bool = False,
        progress: Progress | None = None,
        no_restart_exit_code: int = NO_RESTART,
        findings: Callable[[], Findings] | None = None,
    ) -> None:
        within_s = NEVER if period_s is None else period_s
        self.budget = Budget(restarts=max_restarts, period_s=within_s)
        self.suspects = Suspects(after=exclude_after, period_s=within_s)
        self.longest_delay_s = longest_delay_s
        self.instant_crashes = 0
        self.carries_on = carries_on  # See `core.job.policy.Policy`.
        self.progress = progress or Progress()
        self.no_restart_exit_code = no_restart_exit_code
        self._findings = findings  # Makes what judges by a failure's own words. None: nothing does.
        self._found: Findings | None = None
        self.verdict = ""  # Why somebody who was asked wants no more restarts. Empty: nobody does.

    def resume(self, past: Past, *, uncounted: int, now: float) -> None:
        """Take over from a predecessor. `uncounted`: restarts that it did not know of."""
        self.budget.resume(past.restart_ages_s, uncounted=uncounted, now=now)
        self.suspects.resume(past.fault_ages_s, now)
        self.progress.resume(past.reached, past.idle_restarts)

    def heed(self, verdict: str) -> None:
        """From now on no restart comes; the first such verdict counts."""
        self.verdict = self.verdict or verdict

    def restarts_left(self, now: float) -> int:
        return self.budget.left(now)

    def may_not_restart(self, now: float) -> str:
        """Why a wish for a restart would end the job. Empty: it would not."""
        return self.verdict or ("" if self.budget.left(now) else self._spent())

    def pardon(self, name: str) -> None:
        self.suspects.pardon(name)

    def judge(self, health: Health, what: str) -> Decision:
        """Whether the round may go on without some of its nodes."""
        return min_healthy(health, what) if self.carries_on else Decision(reason="")

    def consider(self, failure: Failure, *, uptime_s: float, now: float) -> Decision:
        """Decide about the first failure of a round that had run `uptime_s` seconds."""
        what = describe(failure)
        if failure.cause == Cause.START:
            return Decision(then=Verdict.STOP, reason=f"{what}; starting it again would fail the same way")
        if failure.cause == Cause.STUCK:
            return Decision(then=Verdict.STOP, reason=f"{what}; what it holds, a new process on its node would need")
        spared = failure.undecided or self.budget.left(now) <= 0
        blame = "" if spared else self.suspects.blame(failure.node, now)
        if not blame and (findings := self._judge_of(failure)) is not None:
            blame = findings.unfit(failure)
        return self._again(what, uptime_s, now, exclude=blame)

    def consider_request(self, what: str, *, uptime_s: float, now: float) -> Decision:
        """Decide about a worker's wish that all ranks restart. It spends one as a failure does: what else would bound it?"""
        return self._again(what, uptime_s, now)

    def _judge_of(self, failure: Failure) -> Findings | None:
        """What judges by a failure's own words, which is made at the first that has any. None: nothing does, or it has none."""
        if failure.cause not in (Cause.EXCEPTION, Cause.EXIT) or (failure.message in WORDLESS and not failure.log_tail):
            return None
        if self._found is None and self._findings is not None:
            self._found = self._findings()
        return self._found

    def stalled(self, reached: int | None, *, restarting: bool, failures: Sequence[Failure] = ()) -> Decision | None:
        """Whether the round about to form is a restart in vain. The restart that does not come is not counted."""
        why = self.progress.note(reached, restarting=restarting) or (self.verdict if restarting else "")
        if not why and restarting:
            if failures and (findings := self._judge_of(failures[0])) is not None:
                why = findings.in_vain(failures)
            elif self._found is not None:
                self._found.forget()
        if not why:
            return None
        self.budget.take_back()
        return Decision(then=Verdict.STOP, reason=self._final(why), exit_code=self.no_restart_exit_code)

    def _final(self, why: str) -> str:
        return f"{why}; it is not restarted again (exit code {self.no_restart_exit_code})"

    def _again(self, what: str, uptime_s: float, now: float, *, exclude: str = "") -> Decision:
        self.instant_crashes = self.instant_crashes + 1 if uptime_s < INSTANT_S else 0
        if self.verdict:
            why = f"{what}; {self._final(self.verdict)}"
            return Decision(then=Verdict.STOP, reason=why, exit_code=self.no_restart_exit_code)
        if not self.budget.spend(now):
            return Decision(then=Verdict.STOP, reason=f"{what}; {self._spent()}")
        left = self.budget.left(now)
        delay_s = self._delay_s()
        how = self.progress.condition
        how += f", after {delay_s:g} s because it crashed at once {self.instant_crashes} times" if delay_s else ""
        return Decision(
            reason=f"{what}; restarting all ranks{how} ({left} of {self.budget.restarts} restarts left)",
            delay_s=delay_s,
            restarts_left=left,
            exclude=exclude,
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


def min_healthy(health: Health, what: str) -> Decision:
    """The policy `min-healthy`: what becomes of a round of which `what` has just become known. It counts nodes: one that has
    lost a worker is no longer healthy, whatever becomes of its others. RESTART: too few are left; the reason says only that."""
    well, needed = health.healthy + health.succeeded, health.needed
    if not health.healthy and health.succeeded >= needed:
        reason = f"{what}; {_nodes(health.succeeded)} succeeded, and that is enough (min-healthy: {needed})"
        return Decision(then=Verdict.FINISH, reason=reason)
    of = f"{well} of {_nodes(health.size)}"
    done = f", {health.succeeded} of them done" if health.succeeded else ""
    if well >= needed:
        reason = f"{what}; the others carry on: {of} healthy{done} (min-healthy: {needed})"
        return Decision(then=Verdict.CARRY_ON, reason=reason)
    return Decision(reason=f"only {of} healthy{done} (min-healthy: {needed})")


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"

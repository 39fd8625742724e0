"""As `agent.checking`, with simulated checks: the same examiner, and one check whose answers are what the story says.

A place that ails says why (`Cluster.ail`), flaps, or its check hangs; all others are fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.agent.words import NodeChecked
from holdfast.core.machine import Observation, Record, Say, Tick
from holdfast.health.check import Check, Wanted
from holdfast.health.examiner import Answered, Asked, Examined, Examiner, StartCheck, Watch
from holdfast.health.verdict import Verdict, fit, unfit

if TYPE_CHECKING:
    from holdfast.sim.agent import SimAgent

ANSWER_S, DEADLINE_S = (0.02, 0.2), 2.0
"""How long the check takes; and when it is killed."""

HANGS = "the driver hangs"
"""What ails a place whose check gives no answer."""

JOINING = "join"

Ailment = Callable[[float], str]
"""Seconds of true time → what a look shows then; empty: nothing."""


def always(why: str) -> Ailment:
    """The same whenever it is looked at."""
    return lambda now: why


def flapping(why: str, half_s: float) -> Ailment:
    """There for `half_s` seconds, away for as long, and so on."""
    return lambda now: why if int(now / half_s) % 2 == 0 else ""


class SimChecking:
    """The checks of one agent: `gpu`, before each round and while its ranks run."""

    def __init__(self, agent: SimAgent) -> None:
        job = agent.cluster.job
        self.agent = agent
        self.examiner = Examiner(job.check_every_s)
        check = Check(
            name="gpu",
            target="",
            help="",
            deadline_s=DEADLINE_S,
            bad_in_a_row=job.bad_in_a_row,
            good_in_a_row=job.good_in_a_row,
        )
        self.examiner.know((Wanted(check=check),))
        self.unfit_since: float | None = None
        """In true time. None: the node is fit, as far as it knows."""

    def before_join(self) -> list[Observation]:
        """`CheckNode`."""
        return self._show(Watch(labels=())) + self._show(Asked(purpose=JOINING, labels=("gpu",)))

    def begin_round(self) -> None:
        """Workers run."""
        self._show(Watch(labels=("gpu",)))

    def deadline(self) -> float:
        """When to call `due`."""
        return self.examiner.deadline()

    def due(self) -> list[Observation]:
        """What the passing of time has brought."""
        return self._show(Tick()) if self.agent.world.now() >= self.deadline() else []

    def answered(self, answer: Answered) -> list[Observation]:
        """The check has ended."""
        return self._show(answer)

    def _show(self, seen: Observation) -> list[Observation]:
        out: list[Observation] = []
        for action in self.examiner.observe(seen, self.agent.world.now()):
            match action:
                case StartCheck(label=label):
                    self._start(label)
                case Examined(purpose=purpose, unfit=why):
                    out.append(NodeChecked(unfit=why, asked=purpose == JOINING))
                case Record() | Say():
                    self.agent.perform([action])
                case _:
                    raise AssertionError(f"a simulated examiner cannot do {action!r}")
        now = self.agent.cluster.timeline.now
        self.unfit_since = None if not self.examiner.unfit else now if self.unfit_since is None else self.unfit_since
        return out

    def _start(self, label: str) -> None:
        cluster = self.agent.cluster
        ailment = cluster.ailments.get(self.agent.place, always(""))

        def look() -> None:
            why = ailment(cluster.timeline.now)
            self.agent.world.see(Answered(label=label, verdict=_verdict(why, label)))

        hangs = ailment(cluster.timeline.now) == HANGS
        cluster.timeline.after(DEADLINE_S if hangs else cluster.rng.uniform(*ANSWER_S), look)


def _verdict(why: str, label: str) -> Verdict:
    """As `health.runner.Child` would make it."""
    found = fit("8 GPUs") if not why else unfit(f"no answer within {DEADLINE_S:g} s" if why == HANGS else why)
    return Verdict(state=found.state, reason=found.reason, check=label)

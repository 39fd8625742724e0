"""The checks of a simulated agent: the real part (`agent.control.health_checks`), whose one check answers as the story says.

A place that ails says why (`Cluster.ail`), flaps, or its check hangs; all others are fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.agent.control.health_checks import Checking
from holdfast.core.config.config import RunConfig
from holdfast.core.machine import Action, Observation
from holdfast.health.examiner import Answered, StartCheck
from holdfast.health.verdict import Verdict, fit, unfit
from holdfast.sim.scene import DEADLINE_S, Ailment, Scene
from holdfast.sim.world import SimHost

ANSWER_S = (0.02, 0.2)  # How long the check takes.

HANGS = "the driver hangs"  # What ails a place whose check gives no answer.


def always(why: str) -> Ailment:
    """The same whenever it is looked at."""
    return lambda now: why


def flapping(why: str, half_s: float) -> Ailment:
    """There for `half_s` seconds, away for as long, and so on."""
    return lambda now: why if int(now / half_s) % 2 == 0 else ""


class SimChecking(Checking):
    """The checks of one agent, before each round and while its ranks run."""

    def __init__(
        self, scene: Scene, place: str, config: RunConfig, world: SimHost, perform: Callable[[Iterable[Action]], None]
    ) -> None:
        super().__init__(config, world.as_host, perform, lambda: None)
        self.scene, self.place, self.world = scene, place, world

    def answered(self, answer: Answered) -> list[Observation]:
        return self._show(answer)

    def _start(self, action: StartCheck) -> list[Observation]:
        timeline, ailment = self.scene.timeline, self.scene.ailments.get(self.place, always(""))

        def look() -> None:
            self.world.see(Answered(label=action.label, verdict=_verdict(ailment(timeline.now), action.label)))

        hangs = ailment(timeline.now) == HANGS
        timeline.after(DEADLINE_S if hangs else self.scene.rng.uniform(*ANSWER_S), look)
        return []


def _verdict(why: str, label: str) -> Verdict:
    """As `health.runner.Child` would make it."""
    found = fit("8 GPUs") if not why else unfit(f"no answer within {DEADLINE_S:g} s" if why == HANGS else why)
    return Verdict(state=found.state, reason=found.reason, check=label)

"""As `agent.control.health_checks`, with simulated checks: the same examiner, and one check whose answers are what the story
says.

A place that ails says why (`Cluster.ail`), flaps, or its check hangs; all others are fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from holdfast.agent.group.messages import NodeChecked
from holdfast.core.machine import Observation, Record, Say, Tick
from holdfast.health.check import Check, Wanted
from holdfast.health.examiner import Answered, Asked, Examined, Examiner, StartCheck, Watch
from holdfast.health.verdict import Verdict, fit, unfit

if TYPE_CHECKING:
    from holdfast.core.machine import Action
    from holdfast.sim.scene import Ailment, Scene
    from holdfast.sim.world import SimHost

ANSWER_S, DEADLINE_S = (0.02, 0.2), 2.0
"""How long the check takes; and when it is killed."""

HANGS = "the driver hangs"
"""What ails a place whose check gives no answer."""

JOINING = "join"

def always(why: str) -> Ailment:
    """The same whenever it is looked at."""
    return lambda now: why


def flapping(why: str, half_s: float) -> Ailment:
    """There for `half_s` seconds, away for as long, and so on."""
    return lambda now: why if int(now / half_s) % 2 == 0 else ""


class SimChecking:
    """The checks of one agent: `gpu`, before each round and while its ranks run."""

    def __init__(self, scene: Scene, place: str, world: SimHost, perform: Callable[[Iterable[Action]], None]) -> None:
        job = scene.job
        self.scene, self.place, self.world, self.perform = scene, place, world, perform
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
        return self._show(Tick()) if self.world.now() >= self.deadline() else []

    def answered(self, answer: Answered) -> list[Observation]:
        """The check has ended."""
        return self._show(answer)

    def _show(self, seen: Observation) -> list[Observation]:
        out: list[Observation] = []
        for action in self.examiner.observe(seen, self.world.now()):
            match action:
                case StartCheck(label=label):
                    self._start(label)
                case Examined(purpose=purpose, unfit=why):
                    out.append(NodeChecked(unfit=why, asked=purpose == JOINING))
                case Record() | Say():
                    self.perform([action])
                case _:
                    raise AssertionError(f"a simulated examiner cannot do {action!r}")
        now = self.scene.timeline.now
        self.unfit_since = None if not self.examiner.unfit else now if self.unfit_since is None else self.unfit_since
        return out

    def _start(self, label: str) -> None:
        scene = self.scene
        ailment = scene.ailments.get(self.place, always(""))

        def look() -> None:
            why = ailment(scene.timeline.now)
            self.world.see(Answered(label=label, verdict=_verdict(why, label)))

        hangs = ailment(scene.timeline.now) == HANGS
        scene.timeline.after(DEADLINE_S if hangs else scene.rng.uniform(*ANSWER_S), look)


def _verdict(why: str, label: str) -> Verdict:
    """As `health.runner.Child` would make it."""
    found = fit("8 GPUs") if not why else unfit(f"no answer within {DEADLINE_S:g} s" if why == HANGS else why)
    return Verdict(state=found.state, reason=found.reason, check=label)

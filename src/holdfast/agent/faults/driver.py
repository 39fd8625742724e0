"""How is a fault played on this node's ranks, and on what its checks read? Carries out what `agent.faults.machine` decides.

Loaded at the first request. Ranks are stopped and let go with everything in their process groups; what checks are to see beside
the host's own words is in a file without a name. So whatever ends the agent ends all of it: its guardian kills the ranks,
stopped or not, and the file goes with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable

from holdfast.agent.component import Component
from holdfast.agent.control.health_checks import Checking
from holdfast.agent.faults.machine import Answered, Asked, Injector, Plant, RankOver, RoundOver, Strike
from holdfast.agent.group.messages import ToCoordinator
from holdfast.agent.group.state import Phase, WorkerState
from holdfast.agent.surroundings import Surroundings
from holdfast.agent.workers.workers import Workers
from holdfast.core.job.events import Event, StopSent, WorkerDying, WorkerExited
from holdfast.core.job.injection import Injection
from holdfast.core.machine import Action, Observation, Tick
from holdfast.core.signals import signal
from holdfast.core.wire.messages import Reply
from holdfast.health.injected import WHERE
from holdfast.runtime.hardware.gpus import names
from holdfast.runtime.process.process import kill_group
from holdfast.runtime.shm.pages import nameless_file

FORBIDDEN = "its agent was not started with --allow-inject (or HOLDFAST_ALLOW_INJECT=1)"


class Injections(Component):
    """One agent's."""

    notes = StopSent, WorkerDying, WorkerExited

    def __init__(self, around: Surroundings, workers: Workers, *, checker: Callable[[], Checking | None]) -> None:
        """`checker`: what runs the node's checks, if anything does."""
        self.config, self.host, self.perform = around.config, around.host, around.perform
        self.group, self.workers, self.checker = around.node.group, workers, checker
        self.injector = Injector()
        self.planted = -1  # What checks read beside the host's own words. -1: nothing was ever added.

    # --- what is asked for ----------------------------------------------------------------------------------------------

    def ask(self, wanted: Injection) -> tuple[bool, str]:
        """Whether it is played, and what to watch; or why it is not."""
        name = self.group.join.name
        if not self.config.allow_inject:
            return False, f"no fault is injected on {name}: {FORBIDDEN}"
        runs = self.group.workers.values() if self.group.phase is Phase.RUNNING else ()
        ranks = {seat.rank: (seat.local_rank, seat.pid) for seat in runs if seat.state is WorkerState.RUNNING}
        asked = Asked(injection=wanted, ranks=ranks, looks_s=self._looks(), gpus=self._gpus())
        (answer,) = self._carry_out(self.injector.observe(asked, self.host.now()))
        return answer.ok, f"{name}: {answer.text}"

    def play(self, ask: int, wanted: Injection) -> Observation:
        """The same, for somebody elsewhere."""
        ok, text = self.ask(wanted)
        return ToCoordinator(message=Reply(node=self.group.join.node, ask=ask, ok=ok, text=text))

    def _looks(self) -> dict[str, float | None]:
        checker = self.checker()
        if checker is None:
            return {}
        every_s = self.config.check_every_s
        return {label: every_s if label in checker.during else None for label in checker.examiner.counts}

    def _gpus(self) -> tuple[str, ...]:
        root = checker.root if (checker := self.checker()) is not None else "/"
        return tuple(names(root, "proc/driver/nvidia/gpus"))

    # --- the loop -------------------------------------------------------------------------------------------------------

    @property
    def due_at(self) -> float:
        return self.injector.deadline()

    def due(self) -> list[Observation]:
        """What the passing of time has brought."""
        self._carry_out(self.injector.observe(Tick(), self.host.now()))
        return []

    def recorded(self, event: Event, at_unix: float) -> None:
        """See `Component`: ranks end, or are being stopped."""
        match event:
            case StopSent():
                self._carry_out(self.injector.observe(RoundOver(), self.host.now()))
            case WorkerDying(local_rank=local_rank) | WorkerExited(local_rank=local_rank):
                self._carry_out(self.injector.observe(RankOver(local_rank=local_rank), self.host.now()))

    def close(self) -> None:
        """The agent ends: nobody stays stopped."""
        self._carry_out(self.injector.observe(RoundOver(), self.host.now()))
        if self.planted >= 0:
            os.close(self.planted)

    # --- hands ----------------------------------------------------------------------------------------------------------

    def _carry_out(self, actions: Iterable[Action]) -> list[Answered]:
        answers: list[Answered] = []
        for action in actions:
            match action:
                case Answered():
                    answers.append(action)
                case Strike(local_rank=local_rank, signum=signum, what=what):
                    if pid := self._pid(local_rank):
                        self.workers.struck(pid, what)
                        (os.kill if signum == signal.SIGKILL else kill_group)(pid, signum)
                case Plant():
                    self._plant(action)
                case _:
                    self.perform([action])
        return answers

    def _pid(self, local_rank: int) -> int:
        """Of the rank's process, which is there until it is reaped. 0: it has been."""
        ours = ((pid, one) for pid, one in self.workers.local_ranks.items() if pid in self.host.children)
        return next((pid for pid, one in ours if one == local_rank), 0)

    def _plant(self, plant: Plant) -> None:
        checker = self.checker()
        assert checker is not None, "this agent runs no checks that could see it"
        if self.planted < 0:
            self.planted = nameless_file("holdfast-injected")
            checker.environ[WHERE] = f"/proc/{os.getpid()}/fd/{self.planted}"
        os.ftruncate(self.planted, 0)
        os.pwrite(self.planted, json.dumps({"kmsg": plant.kmsg, "ecc": plant.ecc}).encode(), 0)

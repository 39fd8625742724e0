"""What are all agents of a simulated cluster in? The job, time, chance, and how it is at each place."""

from __future__ import annotations

import random
from collections.abc import Callable

from holdfast.agent.spares.machine import MiB
from holdfast.core.config.config import RunConfig
from holdfast.core.config.option import shared
from holdfast.core.config.own_options import Growth
from holdfast.core.job.events import Event
from holdfast.core.machine import NEVER
from holdfast.core.value import Value
from holdfast.rendezvous.rules import Rules
from holdfast.sim.timeline import Timeline
from holdfast.sim.transcript import Transcript

MEMORY_BYTES = 64 * 1024 * MiB

DEADLINE_S = 2.0  # When a check is killed.

Ailment = Callable[[float], str]  # Seconds of true time → what a look shows then; empty: nothing.


class Job(Growth):
    """What is run."""

    min_nodes: int = 2
    max_nodes: int = 2
    nproc: int = 2
    max_restarts: int = 3
    restart_period_s: float | None = None
    grace_s: float = 5.0
    parts: int = 0  # Of the model that ranks keep in memory: rank N holds part N modulo this. 0: they keep none.
    regroup_s: float = 2.0  # How long one that can begin again in place may take to let go of its round.
    lease_s: float = 3.0
    join_timeout_s: float = 60.0
    last_call_s: float = 2.0
    ranks_given: bool = False
    save_every_s: float = 2.0  # How often the ranks write a checkpoint, where the job grows after one.
    elected: bool = False
    """A store elects the agent that hosts the coordinator; otherwise that is the one that was started as host."""
    carries_on: bool = False  # By the policy min-healthy.
    no_progress_cycles: int = 0
    exclude_after: int = 0
    readmit_after_s: float = NEVER
    succession: bool = True  # The nodes choose another coordinator if the endpoint's host is lost.
    witness: bool = False  # There is a shared directory that decides between two halves.
    on_split: str = "stop"
    memory_s: float = 0.0  # How long a GPU's memory stays taken when workers have gone. 0: there are no GPUs.
    checks: bool = False  # Each node looks at its GPUs before a round, and while its ranks run.
    check_every_s: float = 5.0
    bad_in_a_row: int = 1
    good_in_a_row: int = 1
    warm_spares: int | None = 0  # Of each node. None: one for each worker, as far as there is memory.
    warm_fork: bool = False  # One for all, which workers are forked from.

    def config(self, nproc: int) -> RunConfig:
        """Of a node of it, as far as the parts of an agent look there that the simulator has."""
        checks = (f"gpu[deadline={DEADLINE_S:g} bad={self.bad_in_a_row} good={self.good_in_a_row}]",) if self.checks else ()
        return RunConfig(
            state_dir="",
            training_script="train.py",
            nproc_per_node=nproc,
            warm_spares=self.warm_spares,
            warm_mode="fork" if self.warm_fork else "spawn",
            check_before=checks,
            check_during=checks,
            check_every_s=self.check_every_s,
        )

    def rules(self) -> Rules:
        """For the rounds of it."""
        return Rules(
            job="job",
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            join_timeout_s=self.join_timeout_s,
            last_call_s=self.last_call_s,
            lease_s=self.lease_s,
            ranks_given=self.ranks_given,
            max_restarts=self.max_restarts,
            readmit_after_s=self.readmit_after_s,
            **shared(self, Growth),
        )


class SpareLife(Value):
    """What a spare is going to do."""

    import_s: float = 0.5
    fails: bool = False  # Its imports do.
    lasts_s: float = NEVER  # From its start to its death; it may be a worker by then.
    reads_rank: bool = False  # Its imports read RANK: where that is another, it cannot become the worker.


class Scene:
    """All that an agent knows of its cluster."""

    def __init__(self, job: Job, seed: str, spare_life: Callable[[str], SpareLife]) -> None:
        self.job, self.spare_life = job, spare_life
        self.rng = random.Random(f"cluster {seed}")
        self.timeline = Timeline()
        self.disks: dict[str, float] = {}  # place → how long a write may take there, where that is long
        self.ailments: dict[str, Ailment] = {}  # place → what its check finds; others are fit
        self.transcript = Transcript()
        self.room_bytes = MEMORY_BYTES  # Memory that is left on every host.
        self.next_port = 20000

    def leave_memory(self, room_bytes: int) -> None:
        """From now on so much is left on every host."""
        self.room_bytes = room_bytes

    def note(self, place: str, what: Event | str) -> None:
        """Something happens at a place."""
        self.transcript.note(self.timeline.now, place, what)

    def hold_port(self) -> int:
        """A port that nobody else has."""
        self.next_port += 1
        return self.next_port

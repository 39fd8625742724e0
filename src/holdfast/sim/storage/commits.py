"""Simulates the job's checkpoint: a file on a disk that all nodes share, which rank 0 replaces again and again.

The steps are those of `holdfast.client.commit`: list what is aside, write aside, look at the lease, take away what other rounds
have left, rename. Between any two of them its node may be stopped, for as long as it likes.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from holdfast.core.page.asides import aside_name, outdated
from holdfast.sim.checks import Checks, Watched
from holdfast.sim.timeline import Timeline
from holdfast.sim.world import Worker

TARGET, JOB = "checkpoint.pt", "job"

PAUSES_S = (0.01, 0.1, 1.0)  # Between two commits.
WRITE_S = (0.001, 0.1, 0.4)
GAPS_S = (0.0, 0.0001, 0.02, 0.3)
"""From the look to the rename: a rank that waits for a processor, or for its disk. Shorter than what is left of a fence."""
AGAIN_S = 0.01  # Between two looks at a lease that is over.


class Commits:
    """What stands aside, and whoever writes it."""

    def __init__(self, timeline: Timeline, checks: Checks, seed: str) -> None:
        self.timeline, self.checks = timeline, checks
        self.rng = random.Random(f"commits {seed}")
        self.asides: set[str] = set()
        self.made = 0
        self.replaced = self.refused = 0  # Renames that found what they renamed, and those that did not.

    def begin(self, agent: Watched, worker: Worker) -> None:
        """A worker lives: rank 0 is the one that writes checkpoints."""
        if worker.rank == 0:
            self.timeline.after(self.rng.choice(PAUSES_S), lambda: _Commit(self, agent, worker).write())


class _Commit:
    """One, from the first step to the last."""

    def __init__(self, commits: Commits, agent: Watched, worker: Worker) -> None:
        self.commits, self.agent, self.worker = commits, agent, worker
        commits.made += 1
        self.aside = aside_name(TARGET, JOB, str(worker.round), str(commits.made))
        self.earlier: list[str] = []

    def write(self) -> None:
        """List, and write aside."""
        if self._runs(self.write):
            commits = self.commits
            self.earlier = outdated(sorted(commits.asides), TARGET, JOB, str(self.worker.round))
            commits.asides.add(self.aside)
            commits.timeline.after(commits.rng.choice(WRITE_S), self.look)

    def look(self) -> None:
        """Look at the lease, until it is good."""
        if not self._runs(self.look):
            return
        ends, commits = self.worker.lease_ends, self.commits
        if ends is not None and self.agent.world.now() >= ends:
            commits.timeline.after(AGAIN_S, self.look)
            return
        commits.checks.may_commit(self.agent, self.worker)
        commits.timeline.after(commits.rng.choice(GAPS_S), self.rename)

    def rename(self) -> None:
        """Take away what is older, and rename."""
        if not self._runs(self.rename):
            return
        commits = self.commits
        commits.asides.difference_update(self.earlier)
        if self.aside in commits.asides:
            commits.asides.remove(self.aside)
            commits.replaced += 1
            commits.checks.committed(self.agent, self.worker)
        else:
            commits.refused += 1
        commits.begin(self.agent, self.worker)

    def _runs(self, step: Callable[[], None]) -> bool:
        """Whether the rank lives and is awake. Stopped, it takes `step` when it goes on."""
        return self.worker.alive and not self.worker.let_go and self.worker.awake(step)

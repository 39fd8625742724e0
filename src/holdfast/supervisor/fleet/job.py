"""How is one job, over all its lives? What its reporters say, put together.

Who is a member is its coordinator's word alone, which hears the nodes over links of its own: that the supervisor does not hear
a node says nothing about whether the job does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from holdfast.core.value import replace
from holdfast.core.wire.fleet import JobKept, JobLife, Recovery, ReporterState, Standing

K = TypeVar("K")

LIVES = 20
"""Runs that are remembered of a job."""

HELD_S = 900.0
"""For so long a job that is not heard, and has not ended, may come back to its name. Longer than a scheduler takes to start it
anew; but a run that was killed whole, and has another secret each time, is not heard for so long."""

LONGEST_S = 30 * 86400.0
"""A restart that took longer, by a reporter's word, is not believed."""


class FleetJob:
    """One job."""

    def __init__(self, name: str, at_unix: float, kept: JobKept | None = None) -> None:
        """`at_unix`: now. `kept`: as it was stored."""
        kept = kept or JobKept(name=name)
        self.name, self.owner, self.heard_at_unix = name, kept.owner, at_unix
        self.lives = list(kept.lives)
        self.recovered, self.trained_s, self.lost_s = kept.recovered, kept.trained_s, kept.lost_s
        """Of the last run, as `JobKept` has it."""
        self.troubled = kept.recovered
        """The newest round of the last run whose end counts as an incident."""
        self.restarts: dict[int, Recovery] = {}
        """By the round that was disturbed: the longest report, of those that are not counted yet."""
        self.most = 0
        """Nodes of its largest round, of the last run."""
        self._untold: tuple[float, float] = (0.0, 0.0)
        self._spent_at: float | None = None
        self.reports: dict[str, Standing] = {}
        """By reporter, of those that have not gone."""
        # Counted, not searched: thousands of nodes report when a round has formed, and each report asks how the job is now.
        self.ranked: Counter[str] = Counter()
        """Names of the nodes on which ranks run, and how many reporters say so."""
        self._rounds: Counter[int] = Counter()
        """Reports by round; and below, of those whose ranks run."""
        self._running: Counter[int] = Counter()
        self._leasts: Counter[int] = Counter()
        """Reports by how many nodes they say that a round needs."""
        self._coordinators: dict[str, Standing] = {}
        """Reports of those that say who is a member; and below, of those that wait as spares, and that tell of limits."""
        self._waiting: dict[str, Standing] = {}
        self._limited: dict[str, Standing] = {}
        self._watchers = 0
        """Reports of hosts' daemons."""

    @property
    def round(self) -> int:
        """The newest that a node of it has reached."""
        return max(self._rounds, default=0)

    @property
    def is_running(self) -> bool:
        """Whether ranks of the newest round run."""
        return self.round in self._running

    @property
    def is_here(self) -> bool:
        """Whether anybody still works for it."""
        return any(report.state != ReporterState.ENDED for report in self.reports.values())

    @property
    def is_open(self) -> bool:
        """Whether one of its nodes says that it is unauthenticated."""
        return any(report.is_open for report in self.reports.values() if report.state != ReporterState.ENDED)

    def is_held(self, at_unix: float) -> bool:
        """Whether its name is its owner's alone: it is alive, or may be."""
        if not self.owner:
            return False
        return self.is_here or (not self.outcome and at_unix < self.heard_at_unix + HELD_S)

    def belongs_to(self, owner: str) -> None:
        """From now on; those who spoke for it until now are gone."""
        self.owner = owner

    @property
    def is_watched(self) -> bool:
        """Whether only hosts' daemons tell of it: its ranks were started by others, who take no orders from us."""
        return 0 < self._watchers == len(self.reports)

    @property
    def limits(self) -> dict[str, int]:
        """What its own clients have told of how it may be treated."""
        return next((report.limits for report in self._limited.values()), {})

    @property
    def members(self) -> tuple[str, ...] | None:
        """Nodes that its coordinator hears. None: nobody knows (it is elsewhere, or silent)."""
        said = self._coordinators.values()
        return max(said, key=lambda report: (report.round, report.number)).members if said else None

    @property
    def least(self) -> int:
        """A round needs so many nodes."""
        return max(self._leasts, default=1)

    @property
    def spares(self) -> list[str]:
        """Names of the nodes that wait for a place in it."""
        return sorted(report.name for report in self._waiting.values())

    @property
    def outcome(self) -> str:
        """How its last run ended. Empty: it has not, or there was none."""
        return self.lives[-1].outcome if self.lives else ""

    def speakers(self, *, but: str) -> Iterator[str]:
        """Reporters to which an order for the job can be said, the best first: where the coordinator is, then others, and the
        node that it is about last. Who comes first is known without a look at thousands of others."""
        for is_own in (False, True):
            yield from _by_name(self._coordinators.values(), but, is_own)
            yield from _by_name([report for report in self.reports.values() if report.members is None], but, is_own)

    def hear(self, report: Standing, at_unix: float) -> bool:
        """What a reporter says of it. Whether that is something to be kept."""
        self._spend(at_unix)
        self.gone(report.node, at_unix)
        self.reports[report.node] = report
        self._count(report, 1)
        if self.lives and self.lives[-1].life == report.life and report.recovery is not None:
            self._restarted(report.recovery)
        if report.outcome:
            return self._ended(report)
        if not report.life or (self.lives and self.lives[-1].life == report.life):
            return False
        self.lives = [*self.lives[1 - LIVES :], JobLife(life=report.life, at_unix=at_unix, round=report.round)]
        self.recovered = self.troubled = self.most = 0
        self.trained_s, self.lost_s, self.restarts = 0.0, 0.0, {}
        return True

    def gone(self, reporter: str, at_unix: float) -> None:
        self.heard_at_unix = at_unix
        if (report := self.reports.pop(reporter, None)) is not None:
            self._count(report, -1)

    def _count(self, report: Standing, by: int) -> None:
        _add(self._rounds, report.round, by)
        if report.state == ReporterState.RUNNING:
            _add(self._running, report.round, by)
        if report.ranks and report.state != ReporterState.ENDED:
            _add(self.ranked, report.name, by)
        self._watchers += by * report.is_watcher
        _add(self._leasts, report.least, by)
        for some, is_one in (
            (self._coordinators, report.members is not None),
            (self._waiting, report.spare_because),
            (self._limited, report.limits),
        ):
            if is_one and by > 0:
                some[report.node] = report
            else:
                some.pop(report.node, None)

    def _ended(self, report: Standing) -> bool:
        """The first to tell names the outcome; it may be a spare, which has seen no round and no restart."""
        for index, life in enumerate(self.lives):
            if life.life == report.life:
                newest, attempt = max(life.round, report.round), max(life.attempt, report.attempt)
                self.lives[index] = replace(life, outcome=life.outcome or report.outcome, round=newest, attempt=attempt)
                return self.lives[index] != life
        return False

    def ends(self, round: int) -> bool:
        """Something has ended that round, or at 0 one that is not known. Whether that is news."""
        is_news = not round or round > self.troubled
        self.troubled = max(round, self.troubled)
        return is_news

    def take(self, at_unix: float) -> tuple[list[Recovery], tuple[float, float]]:
        """The restarts, and the seconds × nodes that trained and were lost, since this was asked last."""
        self._spend(at_unix)
        restarts, self.restarts = list(self.restarts.values()), {}
        self.recovered = max([self.recovered, *(one.round for one in restarts)])
        for one in restarts:  # what was lost while ranks ran, or seemed to
            late_s = max(0.0, one.lost_s - one.act_s) * len(self.ranked)
            self._add(-late_s, late_s)
        untold, self._untold = self._untold, (0.0, 0.0)
        return restarts, untold

    def _restarted(self, took: Recovery) -> None:
        times = (took.detect_s, took.act_s, took.train_s, took.lost_s)
        if took.round > self.recovered and all(0.0 <= one <= LONGEST_S for one in times):
            known = self.restarts.get(took.round)
            if known is None or took.train_s > known.train_s:
                self.restarts[took.round] = took

    def _spend(self, at_unix: float) -> None:
        """Count the time since the last call, as things have been until now."""
        since, self._spent_at = self._spent_at, at_unix
        if since is None or not self.reports or self.outcome:
            return
        here = len(self.ranked)
        self.most = max(self.most, here, self.least)
        trained = here if self.is_running else 0
        self._add(trained * (at_unix - since), (self.most - trained) * (at_unix - since))

    def _add(self, trained_s: float, lost_s: float) -> None:
        self.trained_s, self.lost_s = self.trained_s + trained_s, self.lost_s + lost_s
        self._untold = self._untold[0] + trained_s, self._untold[1] + lost_s

    def kept(self) -> JobKept:
        return JobKept(
            name=self.name,
            owner=self.owner,
            lives=tuple(self.lives),
            recovered=self.recovered,
            trained_s=self.trained_s,
            lost_s=self.lost_s,
        )


def _by_name(reports: Iterable[Standing], name: str, is_own: bool) -> list[str]:
    """Reporters, in order of their nodes' names; of the node of that name, or of all others."""
    return [node for _, node in sorted((one.name, one.node) for one in reports if (one.name == name) is is_own)]


def _add(counts: Counter[K], key: K, by: int) -> None:
    """None of those that there are is 0."""
    counts[key] += by
    if not counts[key]:
        del counts[key]

"""Merges what nodes report: longest silences (for limits) and step times (for stragglers).

One small message per node and minute comes (`core.wire.messages.Pace`), and is answered only where the job needs more than that
node knows. What the ranks need goes to nodes that start later, and to a coordinator's successor. So do the limits that the
script itself has calculated, which are not judged here: the newest word counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from holdfast.core.job.events import StragglerOver, StragglerSeen
from holdfast.core.outliers import LEAST, too_slow
from holdfast.core.wire.messages import Pace

DAY_S = 86400.0
"""What has not come again for so long is forgotten: one outlier must not raise a limit for ever."""

KINDS, LONGEST_S, CHARS = 64, 30 * DAY_S, 80
"""Bounds of what is kept: kinds of silence (a page has 32 sections), seconds of one, characters of a name."""

BUSY_S = 3600.0  # A node's word that it works is good for no longer.

PERIOD_S, PERIODS = 60.0, 3  # Nodes are compared so often, and slow is who was so that many times in a row.

OTHER_NODES = "the other nodes"


class Paces:
    """All of them."""

    def __init__(self) -> None:
        self.longest: dict[str, tuple[float, float]] = {}
        """kind of silence → the longest that was needed, and when that was said last"""
        self.calculated_s: dict[str, float] = {}  # kind of silence → the limit that the script has calculated
        self.calculated_in = 0  # In that round, or before it: what was said then is the newest that is known.
        self.typical: dict[str, dict[str, float]] = {}  # series → node's name → its median in this round
        self.compare_at = 0.0
        self.slow: dict[tuple[str, str], int] = {}  # (name, series) → for how many periods in a row
        self.told: set[tuple[str, str]] = set()
        self.busy_at = 0.0  # Until then all know already that somebody works.

    @property
    def longest_s(self) -> dict[str, float]:
        """What the job needs, by kind of silence."""
        return {kind: seconds for kind, (seconds, _) in self.longest.items()}

    def joined(self, longest_s: Mapping[str, float], now: float) -> None:
        """Somebody joins who has been told this before: it is no news unless we have never heard it."""
        known = self.longest_s
        self.know({kind: seconds for kind, seconds in longest_s.items() if seconds > known.get(kind, 0.0)}, now)

    def calculated(self, limits_s: Mapping[str, float], round: int) -> bool:
        """Somebody says what the script had calculated by that round: whether it is news."""
        if not limits_s or round < self.calculated_in:
            return False
        known = self.calculated_s
        self.calculated_s = dict(islice((item for item in limits_s.items() if _is_sane(*item)), KINDS))
        self.calculated_in = round
        return self.calculated_s != known

    def begin_round(self) -> None:
        """Other ranks run on other nodes."""
        self.typical, self.slow, self.told, self.busy_at = {}, {}, set(), 0.0

    def heard(self, name: str, pace: Pace, now: float) -> dict[str, float]:
        """A node has spoken. What it should hear: all that the job needs, if it is more than this node knows; else nothing."""
        self.know(pace.longest_s, now)
        for series, seconds in pace.typical_s.items():
            room = series in self.typical or len(self.typical) < KINDS
            if room and _is_sane(series, seconds):
                self.typical.setdefault(series, {})[name] = seconds
        job = self.longest_s
        return job if any(seconds > pace.longest_s.get(kind, 0.0) for kind, seconds in job.items()) else {}

    def busy(self, pace: Pace, now: float) -> float:
        """For how long the others are to wait for this node's ranks, which work in silence. 0: nobody is to be told."""
        busy_s = min(pace.busy_s, BUSY_S)
        if not busy_s > 0 or now < self.busy_at:
            return 0.0
        self.busy_at = now + busy_s / 4
        return busy_s

    def know(self, longest_s: Mapping[str, float], now: float) -> None:
        """Somebody says what ranks have needed: a node, or a predecessor."""
        for kind, seconds in longest_s.items():
            known, since = self.longest.get(kind, (0.0, now))
            if not _is_sane(kind, seconds) or (not known and len(self.longest) >= KINDS):
                continue
            if seconds >= known or now - since > DAY_S:
                self.longest[kind] = seconds, now

    def compare(self, now: float) -> Iterator[StragglerSeen | StragglerOver]:
        """Whose steps or sections take much longer than the other nodes', for a while now; and who is as fast as they again."""
        if now < self.compare_at:
            return
        self.compare_at = now + PERIOD_S
        for series, of_node in self.typical.items():
            typical_s, slow = too_slow(of_node)
            for name in slow:
                key = name, series
                self.slow[key] = self.slow.get(key, 0) + 1
                if self.slow[key] >= PERIODS and key not in self.told:
                    self.told.add(key)
                    yield StragglerSeen(
                        name=name, rank=-1, series=series, took_s=of_node[name], typical_s=typical_s, against=OTHER_NODES
                    )
            if len(of_node) >= LEAST:
                for name in [name for name in of_node if name not in slow]:
                    self.slow.pop((name, series), None)
                    if (name, series) in self.told:
                        self.told.discard((name, series))
                        yield StragglerOver(name=name, rank=-1, series=series, against=OTHER_NODES)


def _is_sane(kind: str, seconds: float) -> bool:
    return len(kind) <= CHARS and 0 < seconds <= LONGEST_S


def described(seen: StragglerSeen) -> str:
    """For people, and as the reason of an exclusion."""
    return f"it takes {seen.took_s:.3g} s for {seen.series}, {seen.against} {seen.typical_s:.3g} s"

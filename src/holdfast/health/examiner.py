"""When does which check run, and what is its verdict? One machine on every node that runs checks.

    asked ──▶ started ──▶ answered ──▶ judged (`verdict.Standing`) ──▶ all that were asked for are there: Examined
                              ▲                    │
                              └── `every_s` later ─┘   while it is watched, or while it stands as unfit

Questions that come while the same check runs share its answer. The World runs a check (`health.runner`), and answers within its
deadline, with a verdict about its silence if need be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from holdfast.core.job.events import HealthChanged
from holdfast.core.machine import NEVER, Action, Observation, Record, Say, Tick
from holdfast.core.value import to_plain
from holdfast.health.check import Wanted
from holdfast.health.verdict import FIT, UNFIT, Standing, Verdict


class Asked(Observation):
    """A question; `Examined` with the same purpose follows."""

    purpose: str
    labels: tuple[str, ...]


class Answered(Observation):
    """A check has answered, or its silence has."""

    label: str
    verdict: Verdict


class Watch(Observation):
    """From now on these run again and again, and besides them only what has found the node unfit."""

    labels: tuple[str, ...]


class StartCheck(Action):
    """Run one check."""

    label: str
    before: dict[str, Any]  # What it kept the last time.


class Examined(Action):
    """All answers to a question. Purpose WATCHED: without one, the node has become unfit or fit, or is still unfit."""

    purpose: str
    verdicts: tuple[Verdict, ...]  # As they stand, after hysteresis.
    unfit: str  # Why the node must not take part, by all checks that it has ever been asked here. Empty: it may.


WATCHED = ""

MOST_KNOWN = 256  # Checks whose last answers are kept.


class Examiner:
    """The machine."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self.standings: dict[str, Standing] = {}
        self.counts: set[str] = set()  # Labels by which this node is judged; others are only asked about.
        self.kept: dict[str, dict[str, Any]] = {}
        self.running: set[str] = set()
        self.due_at: dict[str, float] = {}
        self.watched: tuple[str, ...] = ()
        self.open: dict[str, list[str]] = {}  # Purpose → labels, of questions whose answers are not all there.
        self.told = ""  # Why the node is unfit, as it was said last.

    def know(self, wanted: Collection[Wanted], *, counts: bool = True) -> None:
        """These may be asked for from now on. `counts`: whether the node takes part depends on them."""
        for one in wanted:
            if counts:
                self.counts.add(one.label)
            self.standings.setdefault(one.label, Standing(one.check.bad_in_a_row, one.check.good_in_a_row))
        self._forget({one.label for one in wanted})

    def _forget(self, asked: set[str]) -> None:
        """What others have asked about long ago: every path is another label."""
        asked = asked.union(self.counts, self.running, *self.open.values())
        others = [label for label in self.standings if label not in asked]
        for label in others[: max(0, len(self.standings) - MOST_KNOWN)]:
            del self.standings[label]
            self.kept.pop(label, None)

    # --- the machine's face ---------------------------------------------------------------------------------------------

    def observe(self, seen: Observation, now: float) -> list[Action]:
        match seen:
            case Asked(purpose=purpose, labels=labels):
                self.open[purpose] = list(labels)
                return [action for label in labels for action in self._start(label)] + self._conclude()
            case Answered(label=label, verdict=verdict):
                return self._answered(label, verdict, now)
            case Watch(labels=labels):
                self.watched = labels
                self.due_at = {label: self.due_at.get(label, now + self.every_s) for label in self._again()}
                return []
            case Tick():
                due = [label for label, at in self.due_at.items() if now >= at]
                return [action for label in due for action in self._start(label)]
        raise AssertionError(f"the examiner cannot observe {seen!r}")

    def deadline(self) -> float:
        return min(self.due_at.values(), default=NEVER)

    @property
    def unfit(self) -> str:
        """Why this node must not take part. Empty: it may."""
        found = ((label, self.standings[label].verdict) for label in self.unfit_by)
        return "; ".join(f"{label}: {verdict.reason}" for label, verdict in found if verdict is not None)

    @property
    def unfit_by(self) -> tuple[str, ...]:
        """The checks that say so."""
        return tuple(label for label, one in self.standings.items() if one.state == UNFIT and label in self.counts)

    # --- inside ---------------------------------------------------------------------------------------------------------

    def _start(self, label: str) -> list[Action]:
        self.due_at.pop(label, None)
        if label in self.running:
            return []
        self.running.add(label)
        return [StartCheck(label=label, before=self.kept.get(label, {}))]

    def _answered(self, label: str, verdict: Verdict, now: float) -> list[Action]:
        self.running.discard(label)
        if verdict.keep:
            self.kept[label] = verdict.keep
        standing = self.standings[label]
        before = standing.verdict
        stands = standing.judge(verdict)
        if label in self._again():
            self.due_at[label] = now + self.every_s
        for labels in self.open.values():
            if label in labels:
                labels.remove(label)
        news = _news(label, before, stands) if label in self.counts else []
        return news + self._conclude(still_unfit=stands.state == UNFIT and label in self.counts)

    def _again(self) -> tuple[str, ...]:
        """Those that are looked at again by themselves."""
        judged = ((label, one) for label, one in self.standings.items() if label in self.counts)
        return tuple(label for label, one in judged if label in self.watched or one.state == UNFIT)

    def _conclude(self, *, still_unfit: bool = False) -> list[Action]:
        over = [purpose for purpose, labels in self.open.items() if not labels]
        for purpose in over:
            del self.open[purpose]
        unfit, news = self.unfit, self.unfit != self.told
        if over or news:
            self.told = unfit
        purposes = over or ([WATCHED] if news or still_unfit else [])
        standing = tuple(one.verdict for one in self.standings.values() if one.verdict is not None)
        return [Examined(purpose=purpose, verdicts=standing, unfit=unfit) for purpose in purposes]


def _news(label: str, before: Verdict | None, stands: Verdict) -> list[Action]:
    """What is recorded and said: a change of state, or another reason for one that is not fit. The same again is silence."""
    was = before.state if before is not None else FIT
    if stands.state == was and (stands.state == FIT or (before is not None and before.reason == stands.reason)):
        return []
    event = HealthChanged(
        check=label,
        state=stands.state,
        before=was,
        reason=stands.reason,
        advice=stands.advice,
        devices=stands.devices,
        took_s=stands.took_s,
    )
    level = "error" if stands.state == UNFIT else "warning"  # fit again, too: readers of the one want the other
    hint = f" ({stands.advice})" if stands.advice else ""
    return [Record(event=event), Say(text=f"health: {label}: {stands.state}: {stands.reason}{hint}", level=level)]


def plain(verdicts: Iterable[Verdict]) -> list[Mapping[str, Any]]:
    """Verdicts as JSON has them, without what is only the check's own."""
    return [{field: value for field, value in to_plain(one).items() if field != "keep"} for one in verdicts]

"""A snapshot of one rank's signs of life, from its page and its log, and what two snapshots teach about its silences."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.page.signs import SectionSigns, Signs
from holdfast.core.page.silences import BEAT, FIRST, OUT, in_section
from holdfast.core.value import Value
from holdfast.monitor.limits import Learned
from holdfast.monitor.messages import RankSeen


class Glimpse(Value):
    """One look. A line of progress in the log counts as a heartbeat."""

    at: float
    signs: Signs = Signs()
    logged_at: float | None = None
    logged_step: int | None = None
    lines: int = 0

    @property
    def beat_at(self) -> float | None:
        """Its last heartbeat. None: none yet."""
        return max((at for at in (self.signs.beat_at, self.logged_at) if at is not None), default=None)

    @property
    def beats(self) -> int:
        return self.signs.beats + self.lines

    @property
    def step(self) -> int | None:
        """The last step that it has reported. None: none."""
        return self.logged_step if self.signs.step is None else self.signs.step

    @property
    def first_at(self) -> float | None:
        """Its first sign of life, as well as this look can tell. None: none yet."""
        if self.signs.first_beat_at is not None:
            return self.signs.first_beat_at
        return self.at if self.lines or self.signs.sections else None

    @property
    def is_known(self) -> bool:
        """It has given a sign of life, or has a rank monitor."""
        return self.first_at is not None or self.signs.awaited_since is not None

    @property
    def open_sections(self) -> tuple[SectionSigns, ...]:
        return tuple(one for one in self.signs.sections if one.open_since is not None)

    @property
    def section(self) -> str:
        """The open section that it entered last. Empty: none."""
        return max(((one.open_since or 0.0, one.name) for one in self.open_sections), default=(0.0, ""))[1]


def glimpse(seen: RankSeen, now: float) -> Glimpse:
    """What was seen, at that time."""
    signs = seen.signs or Signs()
    return Glimpse(at=now, signs=signs, logged_at=seen.logged_at, logged_step=seen.logged_step, lines=seen.lines)


def learn(learned: Learned, started_at: float, before: Glimpse, after: Glimpse) -> Learned:
    """Add the silences that ended between two looks. One that goes on teaches nothing: it may be a hang."""
    now, signs, last = after.at, after.signs, before.signs
    if before.first_at is None and after.first_at is not None:
        learned = learned.saw(FIRST, after.first_at - started_at, 1, now)
    new = after.beats - before.beats
    if new > 0 and after.beat_at is not None:
        # The page has the longest gap of the whole life only; between the looks, what they have seen themselves.
        gap_s = 0.0 if before.beat_at is None else max((after.beat_at - before.beat_at) / new, before.at - before.beat_at)
        rose = signs.longest_gap_s > last.longest_gap_s
        learned = learned.saw(BEAT, max(gap_s, signs.longest_gap_s if rose else 0.0), after.beats, now)
    for old, one in _closed(last, signs):
        rose = one.longest_s > (old.longest_s if old else 0.0)
        learned = learned.saw(in_section(one.name), one.longest_s if rose else one.took_s, one.count, now)
    if signs.longest_out_s > last.longest_out_s:
        learned = learned.saw(OUT, signs.longest_out_s, max((one.count for one in signs.sections), default=0), now)
    return learned


def durations(before: Glimpse, after: Glimpse) -> dict[str, float]:
    """Seconds by series: the sections that were left between two looks, the last time; and the steps, on average."""
    found = {one.name: one.took_s for _, one in _closed(before.signs, after.signs)}
    old, new = before.signs, after.signs
    if old.step is not None and new.step is not None and new.step > old.step and old.step_at and new.step_at:
        found.setdefault("step", (new.step_at - old.step_at) / (new.step - old.step))
    return found


def _closed(before: Signs, after: Signs) -> Iterator[tuple[SectionSigns | None, SectionSigns]]:
    known = {one.name: one for one in before.sections}
    for one in after.sections:
        old = known.get(one.name)
        if one.count > (old.count if old else 0):
            yield old, one

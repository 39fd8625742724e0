"""Which limits would suit what has been observed? Keeps the longest intervals, and multiplies them by a safety factor.

The longest of the last day counts (`core.page.silences`), so an outlier raises a limit for a day at most. The longest since
the last calculation would be too little: an evaluation that comes once per epoch would be taken for a hang. Within a day the
numbers are NVRx's.

Time is an argument. Where the caller leaves it out, it is now.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from holdfast.core.page.silences import Lately
from holdfast.fault_tolerance._distributed import largest_of_all, process_group
from holdfast.fault_tolerance.data import HeartbeatTimeouts, SectionAction, SectionTimeouts

OLD_WEIGHT = 0.5  # How much of a limit that was calculated before stays in the next one. NVRx: 0.5.


class TimeoutsCalcError(Exception):
    """Too little has been seen, a section is opened or closed out of turn, or there is no process group."""


class Seen(Lately):
    """How long one kind of interval took, here and elsewhere."""

    anywhere_s = 0.0
    """The longest of any rank, when they were last compared. Kept apart: else no rank would ever forget it."""

    def compared(self, anywhere_s: float) -> None:
        """The longest of any rank is so long."""
        self.anywhere_s = anywhere_s

    @property
    def most_s(self) -> float:
        """What a limit follows from; 0: nothing has been seen."""
        return max(self.longest_s, self.anywhere_s)


class TimeoutsCalc:
    """What one rank has seen since `start_time` (monotonic seconds; None: now) of heartbeats and of the sections named."""

    def __init__(
        self, sections: Iterable[str] | None = None, start_time: float | None = None, safety_factor: float = 5.0
    ) -> None:
        self.start_time = _at(start_time)
        self.safety_factor = safety_factor
        self.until_first, self.gaps, self.outside = Seen(), Seen(), Seen()
        self.inside = {name: Seen() for name in sections or ()}  # Of each section that may be used.
        self.open_sections: dict[str, float] = {}  # Since when.
        self._beat_at: float | None = None
        self._out_since = self.start_time

    def reset_start_time(self) -> None:
        """The time until the first heartbeat counts from now."""
        self.start_time = _at(None)

    def synchronize_all(self) -> None:
        """Know the longest of any rank. Collective: every rank must call it. TimeoutsCalcError without a process group."""
        if process_group() is None:
            raise TimeoutsCalcError("torch.distributed is not initialised: initialise it, then calculate the limits")
        kinds = [self.until_first, self.gaps, self.outside, *self.inside.values()]
        for seen, anywhere_s in zip(kinds, largest_of_all([seen.longest_s for seen in kinds])):
            seen.compared(anywhere_s)

    def update_on_heartbeat(self, hb_time: float | None = None) -> None:
        """A heartbeat was sent at `hb_time`."""
        now = _at(hb_time)
        if self._beat_at is None:
            self.until_first.add(now - self.start_time, now)
        else:
            self.gaps.add(now - self._beat_at, now)
        self._beat_at = now

    def update_on_section_event(self, section: str | None, action: SectionAction, event_time: float | None = None) -> None:
        """`section` was opened or closed at `event_time`, or all were (section None). TimeoutsCalcError: not as it stands."""
        now = _at(event_time)
        if action is SectionAction.CLOSE_ALL:
            for name in list(self.open_sections):
                self._close(name, now)
            return
        if section is None or section not in self.inside:
            raise TimeoutsCalcError(f"section {section!r} is not in rank_section_timeouts, which has {sorted(self.inside)}")
        if action is SectionAction.CLOSE:
            self._close(section, now)
            return
        if section in self.open_sections:
            raise TimeoutsCalcError(f"section {section!r} is open already: end it before it is started again")
        self.maybe_bump_oos_time(now)
        self.open_sections[section] = now

    def _close(self, section: str, now: float) -> None:
        if section not in self.open_sections:
            raise TimeoutsCalcError(f"section {section!r} is not open")
        self.inside[section].add(now - self.open_sections.pop(section), now)
        if not self.open_sections:
            self._out_since = now

    @property
    def is_out_of_section(self) -> bool:
        """No section is open."""
        return not self.open_sections

    def maybe_bump_oos_time(self, curr_time: float | None = None) -> None:
        """Count the time outside of sections that is running now, if it is."""
        if self.is_out_of_section:
            now = _at(curr_time)
            self.outside.add(now - self._out_since, now)

    def can_get_hb_timeouts(self) -> bool:
        """Two heartbeats have been seen, here or (after `synchronize_all`) anywhere."""
        return self.until_first.most_s > 0 and self.gaps.most_s > 0

    def get_hb_timeouts(self, current: HeartbeatTimeouts | None = None) -> HeartbeatTimeouts:
        """Limits for heartbeats; merged with `current` if that was calculated too. TimeoutsCalcError if too little was seen."""
        if not self.can_get_hb_timeouts():
            raise TimeoutsCalcError("too little has been seen for heartbeat limits: it takes two heartbeats")
        initial, subsequent = self.safety_factor * self.until_first.most_s, self.safety_factor * self.gaps.most_s
        if current is not None and current.were_calculated:
            if current.initial is None or current.subsequent is None:
                raise TimeoutsCalcError(f"calculated limits have values, and these have none: {current}")
            initial, subsequent = self._merged(current.initial, initial), self._merged(current.subsequent, subsequent)
        return HeartbeatTimeouts(initial=initial, subsequent=subsequent, were_calculated=True)

    def can_get_section_timeouts(
        self, selected_sections: Collection[str] | None = None, calc_out_of_section: bool = True
    ) -> bool:
        """Each section selected (None: all) was closed once, and time outside of sections was seen if that is asked for."""
        if calc_out_of_section and self.outside.most_s <= 0:
            return False
        return all(self.inside[name].most_s > 0 for name in self._selected(selected_sections))

    def get_section_timeouts(
        self,
        selected_sections: Collection[str] | None = None,
        calc_out_of_section: bool = True,
        current: SectionTimeouts | None = None,
    ) -> SectionTimeouts:
        """Limits for the sections selected (None: all), and outside of them; those not asked for are `current`'s.

        TimeoutsCalcError if too little was seen."""
        selected = self._selected(selected_sections)
        if not self.can_get_section_timeouts(selected, calc_out_of_section):
            raise TimeoutsCalcError("too little has been seen for section limits: each section must have been ended once")
        factor = self.safety_factor
        new = SectionTimeouts(
            section={name: factor * seen.most_s if name in selected else None for name, seen in self.inside.items()},
            out_of_section=factor * self.outside.most_s if calc_out_of_section else None,
            calculated_sections=selected,
            is_out_of_section_calculated=calc_out_of_section,
        )
        return self._get_merged_section_timeouts(new, current)

    def _selected(self, names: Collection[str] | None) -> set[str]:
        selected = set(self.inside if names is None else names)
        if unknown := selected - self.inside.keys():
            raise TimeoutsCalcError(f"sections {sorted(unknown)} are not in rank_section_timeouts: {sorted(self.inside)}")
        return selected

    @staticmethod
    def _merged(old: float, new: float) -> float:
        return OLD_WEIGHT * old + (1 - OLD_WEIGHT) * new

    @classmethod
    def _get_merged_section_timeouts(cls, new: SectionTimeouts, current: SectionTimeouts | None) -> SectionTimeouts:
        """What was calculated now counts; together with what was calculated before; what was not calculated now stays."""
        if current is None:
            return new

        def chosen(is_new: bool, is_old: bool, was: float | None, now: float | None) -> float | None:
            if not is_new:
                return was
            return cls._merged(was, now) if is_old and was is not None and now is not None else now

        old: Mapping[str, float | None] = current.section
        return SectionTimeouts(
            section={
                name: chosen(name in new.calculated_sections, name in current.calculated_sections, old.get(name), limit)
                for name, limit in new.section.items()
            },
            out_of_section=chosen(
                new.is_out_of_section_calculated,
                current.is_out_of_section_calculated,
                current.out_of_section,
                new.out_of_section,
            ),
            calculated_sections={*current.calculated_sections, *new.calculated_sections},
            is_out_of_section_calculated=current.is_out_of_section_calculated or new.is_out_of_section_calculated,
        )


def _at(given: float | None) -> float:
    """A moment, in monotonic seconds: now, where none is given."""
    return time.monotonic() if given is None else given

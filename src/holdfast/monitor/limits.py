"""How long may a rank be silent? What the user gives, else what the script sets, else what this job has been seen to need.

A given limit is kept to the letter. A learned one is a guess, and a false alarm costs more than a late one, so it has three
parts: see `Bound`. What is learned is the *longest* that healthy ranks have taken lately, in seconds by kind of silence
(`core.page.silences`). It belongs to the job: the coordinator merges what the nodes tell and gives it to the next.
"""

from __future__ import annotations

import copy

from holdfast.core.config.fault_tolerance import AUTO, FaultTolerance, Limit
from holdfast.core.machine import NEVER
from holdfast.core.page.signs import SectionSigns, Signs
from holdfast.core.page.silences import BEAT, FIRST, OUT, Lately, in_section
from holdfast.core.value import Value, replace

READY, READY_TIMES = {FIRST: 1, BEAT: 20}, 5
"""So often one rank must have done it before a limit is learned from it: the first steps of a script are not like the others
(compilation, warming caches)."""

QUIET, QUIET_S = 0.25, 2.0
"""A rank that has exceeded a learned limit must stand still for this part of it, and so many seconds at least. With
--least-limit's 600 s: 150 s."""

STEP, WARMUP = "step", "warmup"
"""Sections with a meaning of their own, as in ft_launcher: a rank's first `step`s are judged by the limit of `warmup`."""


class Bound(Value):
    """From when on a silence is too long."""

    limit_s: float
    """From here on the rank is suspected …"""
    still_s: float = 0.0
    """… and hung if the node has stood still for so long; 0: whatever it does."""
    busy_s: float = NEVER  # From here on it is hung, whatever it does.
    is_sure: bool = False  # Somebody gave it.


NO_BOUND = Bound(limit_s=NEVER, busy_s=NEVER, is_sure=True)


class Learned(Value):
    """What the ranks of a node have needed, in this round and before it."""

    job_s: dict[str, float] = {}  # noqa: RUF012
    """What the whole job needs, as the coordinator has it."""
    lately: dict[str, Lately] = {}  # noqa: RUF012
    counts: dict[str, int] = {}  # noqa: RUF012
    """How often one rank has done it, at most."""

    def saw(self, kind: str, seconds: float, times: int, now: float) -> Learned:
        """A rank, which has done it `times` times by now, was silent for so long over it."""
        lately = copy.copy(self.lately.get(kind, Lately()))
        lately.add(seconds, now)
        counts = {**self.counts, kind: max(self.counts.get(kind, 0), times)}
        return replace(self, lately={**self.lately, kind: lately}, counts=counts)

    def longest_s(self, kind: str) -> float:
        """0: nothing is known."""
        lately = self.lately.get(kind)
        return max(lately.longest_s if lately else 0.0, self.job_s.get(kind, 0.0))

    def is_ready(self, kind: str) -> bool:
        """Enough has been seen, here or elsewhere in the job."""
        return kind in self.job_s or self.counts.get(kind, 0) >= READY.get(kind, READY_TIMES)

    def known_s(self) -> dict[str, float]:
        """What this node tells of itself."""
        return {kind: lately.longest_s for kind, lately in self.lately.items() if self.is_ready(kind) and lately.longest_s > 0}


class Limits(Value):
    """What bounds each kind of silence of a rank."""

    ft: FaultTolerance
    learned: Learned = Learned()

    @property
    def still_s(self) -> float:
        return NEVER if self.ft.still_limit is None else self.ft.still_limit

    @property
    def most_s(self) -> float:
        return NEVER if self.ft.most_limit is None else self.ft.most_limit

    def first(self, signs: Signs | None) -> Bound:
        """From the start of the process to the first heartbeat, or where it is learned, to any sign of life."""
        if bound := _given(signs.limits.initial_s if signs else None, self.ft.start_limit):
            return bound
        # Who gives the limit of a rank monitor (ft_launcher) wants nothing else until that begins.
        learned = self.of_kind(FIRST) if self.ft.initial_rank_heartbeat_timeout == AUTO else None
        # Nobody knows whether one will ever come: a rank that shows nothing by itself hangs only if all stands still.
        return learned or Bound(limit_s=0.0, still_s=self.still_s)

    def awaited(self, signs: Signs) -> Bound | None:
        """From the beginning of its rank monitor to the first heartbeat. None: nobody has set it."""
        return _given(signs.limits.initial_s, self.ft.initial_rank_heartbeat_timeout)

    def beat(self, signs: Signs | None) -> Bound:
        """Between two heartbeats."""
        return self._bound(BEAT, signs.limits.beat_s if signs else None, self.ft.rank_heartbeat_timeout)

    def out(self, signs: Signs) -> Bound:
        """With no section open, from the first one on."""
        return self._bound(OUT, signs.limits.out_s, self.ft.rank_out_of_section_timeout)

    def ending(self) -> Bound:
        """While the interpreter ends: what is left to do has nothing to do with heartbeats."""
        least_s = self.ft.least_limit
        return Bound(limit_s=least_s, still_s=_quiet_s(least_s), busy_s=max(self.most_s, least_s))

    def section(self, section: SectionSigns, signs: Signs) -> Bound:
        """With that section open."""
        said_steps, given = signs.limits.warmup_steps, self.ft.rank_section_timeouts
        slow_steps = self.ft.num_warmup_iterations if said_steps is None else said_steps
        if section.name == STEP and section.count < slow_steps:
            said = next((one.limit_s for one in signs.sections if one.name == WARMUP), None)
            if said is not None or WARMUP in given:
                return _given(said, given.get(WARMUP)) or NO_BOUND
        return self._bound(in_section(section.name), section.limit_s, given.get(section.name, AUTO))

    def shortest_s(self, signs: Signs) -> float:
        """Of all limits that were given for silences that may yet begin: the shortest."""
        ft, said = self.ft, signs.limits
        given = [ft.initial_rank_heartbeat_timeout, ft.rank_heartbeat_timeout, ft.rank_out_of_section_timeout]
        given += [*ft.rank_section_timeouts.values(), said.initial_s, said.beat_s, said.out_s]
        given += [one.limit_s for one in signs.sections]
        return min((float(limit) for limit in given if limit is not None and limit != AUTO), default=NEVER)

    def of_kind(self, kind: str) -> Bound | None:
        """What follows from what has been seen. None: nothing has."""
        longest_s = self.learned.longest_s(kind)
        if longest_s <= 0:
            return None
        limit_s = max(self.ft.least_limit, self.ft.safety_factor * longest_s)
        if not self.learned.is_ready(kind):  # as if nothing had been seen, but never less than that
            return Bound(limit_s=max(limit_s, self.still_s), still_s=_quiet_s(max(limit_s, self.still_s)))
        return Bound(limit_s=limit_s, still_s=_quiet_s(limit_s), busy_s=max(self.most_s, 2 * limit_s))

    def _bound(self, kind: str, said_s: float | None, given: Limit) -> Bound:
        # Of what nobody knows how long it takes, one that is busy is never accused.
        unknown = Bound(limit_s=self.still_s, still_s=_quiet_s(self.still_s))
        return _given(said_s, given) or self.of_kind(kind) or unknown


def _given(said_s: float | None, given: Limit) -> Bound | None:
    """The script's limit goes first: it may have calculated what was given to begin with. None: neither sets one."""
    if said_s is not None:
        return Bound(limit_s=said_s, busy_s=said_s, is_sure=True)
    if given == AUTO:
        return None
    return NO_BOUND if given is None else Bound(limit_s=float(given), busy_s=float(given), is_sure=True)


def _quiet_s(limit_s: float) -> float:
    return max(QUIET * limit_s, QUIET_S)

"""Which silences of a rank go on, and what bounds each?

silence                     runs from                         limit
no sign of life             the start of its process          of the start; where it is learned, any sign of life ends it
no heartbeat yet            its rank monitor's beginning      initial
no heartbeat                its last one                      between two heartbeats
in a section                its opening                       of that section; `step` in the first iterations: of `warmup`
outside of sections         the last one's closing            out of section, from the first section on
the process does not end    the end of its script             --least-limit, as if it had been learned
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.machine import NEVER
from holdfast.core.page.silences import BEAT, FIRST, OUT, in_section
from holdfast.core.value import Value
from holdfast.monitor.glimpse import Glimpse
from holdfast.monitor.limits import Bound, Limits

AWAITED, END = "awaited", "end"
"""Kinds of silence of which nothing is learned: a rank monitor waits for the first heartbeat; the interpreter ends."""


class Silence(Value):
    """One silence of a rank that goes on."""

    kind: str
    since: float
    bound: Bound

    def words(self, silent_s: float, limit_s: float) -> str:
        """`no heartbeat for 12.3 s (limit 12 s)`."""
        learned = "" if self.bound.is_sure else "learned "
        limit = f" ({learned}limit {limit_s:g} s)" if 0 < limit_s < NEVER else ""
        match self.kind:
            case "first":
                return f"no sign of life for {silent_s:.1f} s after its start{limit}"
            case "awaited":
                return f"no heartbeat for {silent_s:.1f} s since its monitoring began{limit}"
            case "beat":
                return f"no heartbeat for {silent_s:.1f} s{limit}"
            case "end":
                return f"its script has ended, but not its process for {silent_s:.1f} s{limit}"
            case "out":
                return f"outside of any section for {silent_s:.1f} s{limit}"
        return f"in {self.kind} for {silent_s:.1f} s{limit}"


def silences(seen: Glimpse, started_at: float, limits: Limits) -> Iterator[Silence]:
    """Every silence that goes on and could have a limit, of a rank that started then."""
    signs = seen.signs
    if signs.exit_at is not None:
        yield Silence(kind=END, since=signs.exit_at, bound=limits.ending())
        return
    awaited = None if signs.awaited_since is None else limits.awaited(signs)
    silent_since = max((at for at in (signs.awaited_since, seen.beat_at) if at is not None), default=started_at)
    if awaited is not None:
        yield Silence(kind=AWAITED, since=silent_since, bound=awaited)
    elif seen.beat_at is not None:
        yield Silence(kind=BEAT, since=silent_since, bound=limits.beat(signs))
    elif (first := limits.first(signs)).is_sure or not signs.sections:
        yield Silence(kind=FIRST, since=started_at, bound=first)
    for one in seen.open_sections:
        yield Silence(kind=in_section(one.name), since=one.open_since or 0.0, bound=limits.section(one, signs))
    if signs.out_since is not None and signs.sections and not seen.open_sections:
        yield Silence(kind=OUT, since=signs.out_since, bound=limits.out(signs))

"""How long did the ranks of a round take to begin, and with what? Looks at their pages until each has made its first step.

Ranks write the moments as they pass (`core.page`), so it costs them nothing to be looked at late, and the agent looks ever more
seldom: after one second, two, four. When a rank ends before all have begun, what is known then is told.
"""

from __future__ import annotations

from holdfast.core.events import RanksBegun
from holdfast.core.machine import NEVER
from holdfast.core.processes import ProcessDying, ProcessErred, ProcessGone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.core.machine import Observation
    from holdfast.core.signs import Moments
    from holdfast.runtime.host import Host

FIRST_LOOK_S = 1.0
"""Few ranks have made a step sooner; and until the report is asked for nobody waits."""


class Beginnings:
    """Those of the ranks of one round on this node."""

    def __init__(self, host: Host, record: Callable[[RanksBegun], None]) -> None:
        self.host, self.record = host, record
        self.pids: set[int] = set()
        self.since, self.look_at = 0.0, NEVER

    def begin(self, pids: Iterable[int], since: float) -> None:
        """These have been started."""
        self.pids, self.since, self.look_at = set(pids), since, since + FIRST_LOOK_S

    def look(self) -> None:
        """See how far they are, if it is time to."""
        now = self.host.now()
        if now < self.look_at:
            return
        self.look_at = now + (now - self.since)
        found = self._moments()
        if found and all(one.stepped_at is not None for one in found):
            self._tell(found)

    def saw(self, seen: Observation) -> None:
        """What this host saw: the first end of a rank is the last moment to tell how all began."""
        match seen:
            case ProcessGone(pid=pid, moments=moments) if pid in self.pids:
                self._tell([*self._moments(), *([moments] if moments is not None else [])])
            case ProcessDying(pid=pid) | ProcessErred(pid=pid) if pid in self.pids and pid in self.host.children:
                self._tell(self._moments())  # else it is gone as well, which is told next

    def _moments(self) -> list[Moments]:
        pages = [child.page for pid in self.pids if (child := self.host.children.get(pid)) is not None]
        return [page.moments for page in pages if page is not None]

    def _tell(self, found: list[Moments]) -> None:
        if self.look_at == NEVER:
            return  # it has been told
        self.look_at = NEVER
        if not any(one.booted_at for one in found):
            return  # no Python that we can reach

        def latest(moment: str) -> float | None:
            known = [at - self.since for one in found if (at := getattr(one, moment)) is not None]
            return max(known, default=None)

        event = RanksBegun(
            booted_s=latest("booted_at"),
            joining_s=latest("joining_at"),
            joined_s=latest("joined_at"),
            restored_s=latest("restored_at"),
            restore_s=max(one.restore_s for one in found),
            stepped_s=latest("stepped_at"),
        )
        self.record(event)

"""Which node's workers fail first, again and again? It is better left out, if another can take its place.

Only the first failure of a round counts, as the coordinator heard of it: later ones are mostly consequences. A lost node is
nobody's fault here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.core.machine import NEVER


class Suspects:
    """First failures by node, within the last `period_s` seconds."""

    def __init__(self, *, after: int, period_s: float = NEVER) -> None:
        self.after = after  # So many are too many. 0: no number is.
        self.period_s = period_s
        self.faults: dict[str, list[float]] = {}

    def blame(self, name: str, now: float) -> str:
        """Note one more of that node. Why it should not go on; empty: it may."""
        if not self.after:
            return ""
        mine = self.faults[name] = [at for at in self.faults.get(name, ()) if now - at < self.period_s] + [now]
        if len(mine) < self.after:
            return ""
        within = "" if self.period_s == NEVER else f" within {self.period_s:g} s"
        return f"its workers were the first to fail {len(mine)} times{within}"

    def pardon(self, name: str) -> None:
        self.faults.pop(name, None)

    def ages_s(self, now: float) -> dict[str, tuple[float, ...]]:
        """What a successor must know: how long ago each was."""
        return {name: tuple(now - at for at in those) for name, those in self.faults.items()}

    def resume(self, ages_s: Mapping[str, Sequence[float]], now: float) -> None:
        self.faults = {name: [now - age_s for age_s in those] for name, those in ages_s.items()}

"""The words between whoever sees a failure and whoever decides about it."""

from __future__ import annotations

from holdfast.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from holdfast.core.failure import Failure

    class Policy(Protocol):
        """What next, after a failure?"""

        def consider(self, failure: Failure, *, uptime_s: float, now: float) -> Decision:
            """Decide about the first failure of a round that had run `uptime_s` seconds; remembers that it did."""

        def restarts_left(self, now: float) -> int:
            """How many restarts may still come."""

        def pardon(self, name: str) -> None:
            """A node has been readmitted: what it has done before no longer counts against it."""


class Decision(Value):
    """What next, and why, in words."""

    restart: bool
    reason: str
    delay_s: float = 0.0
    """Seconds to wait before the next round, so that a crash loop does not spin."""
    restarts_left: int = 0
    exclude: str = ""
    """With `restart`: why the node whose worker failed should not go on, if another can take its place. Empty: it may."""

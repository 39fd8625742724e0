"""Is now a moment at which all ranks may start again for a node that waits? For jobs that grow after a checkpoint only.

Each node says when a rank of it begins to write one, and when none does any more (`agent.workers.checkpoint_writes`). When
nobody has written for a moment, what the job has done is kept, as far as anybody can tell, and to start again costs next to no
steps. Whether somebody waits who is worth it, `rendezvous.coordinator.exclusion` knows.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.wire.messages import Saving

SETTLE_S = 0.5
"""Nobody has written for so long: others may have begun that have not been looked at yet (0.2 s), come to it a little later, or
write another file next. It costs the steps of that time."""


class Growth:
    """Of one round."""

    def __init__(self) -> None:
        self.writing: set[str] = set()
        """Nodes of which a rank writes."""
        self.due_at = NEVER
        """When that moment is there. NEVER: nothing has been written since the last, or somebody still writes."""

    def heard(self, saving: Saving, now: float) -> None:
        """A node of the running round has spoken."""
        self.due_at = NEVER
        if saving.open:
            self.writing.add(saving.node)
            return
        self.writing.discard(saving.node)
        if not self.writing:
            self.due_at = now + SETTLE_S

    def is_due(self, now: float) -> bool:
        """The moment is there: once after each checkpoint."""
        if now < self.due_at:
            return False
        self.due_at = NEVER
        return True

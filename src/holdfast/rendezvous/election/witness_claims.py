"""What is asked of a witness, and when? One question at a time, and a pause after one that was not granted. Who answers is
`agent.leader.tie_breaker`'s matter; what the vote is worth is decided in `rendezvous.election.succession`.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action, Observation, Say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

RETRY_S = 1.0
"""Pause before a witness that could not be asked is asked again."""


class Claim(Action):
    """Ask the witness for its vote in an electorate: answered by `Claimed`."""

    life: str
    id: int
    endpoint: str
    missing: tuple[str, ...] = ()
    """Endpoints of those of that electorate who are not with us, as far as they are known by name."""


class Claimed(Observation):
    """What the witness said."""

    id: int
    granted: bool
    reason: str = ""
    """Why not."""


class Claims:
    """One node's questions."""

    def __init__(self, *, has_witness: bool) -> None:
        self.has_witness = has_witness
        self.asking = False
        self.ask_at = -NEVER
        self.said = ""
        """Why not, when it was asked last."""

    def may_ask(self, now: float) -> bool:
        """There is somebody to be asked, and it is time."""
        return self.has_witness and not self.asking and now >= self.ask_at

    def ask(self, life: str, id: int, endpoint: str, missing: Iterable[str]) -> list[Action]:
        """Ask for its vote."""
        self.asking = True
        return [Claim(life=life, id=id, endpoint=endpoint, missing=tuple(missing))]

    def answered(self, answer: Claimed, now: float) -> list[Action]:
        """It has said something; a reason that is news is told."""
        self.asking = False
        if answer.granted:
            return []
        self.ask_at = now + RETRY_S
        fresh, self.said = answer.reason != self.said, answer.reason
        return [Say(text=f"the witness does not speak for this node: {answer.reason}", level="warning")] if fresh else []

"""What is asked of a witness, and when? One question at a time, and a pause after one that was not granted. Who answers is
`agent.leader.tie_breaker`'s matter; what the vote is worth is decided in `rendezvous.election.succession`.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.machine import NEVER, Action, Observation, Say
from holdfast.core.value import Value, replace

RETRY_S = 1.0  # Pause before a witness that could not be asked is asked again.


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
    reason: str = ""  # Why not.


class Claims(Value):
    """One node's questions."""

    has_witness: bool
    asking: bool = False
    ask_at: float = -NEVER
    said: str = ""  # Why not, when it was asked last.

    def may_ask(self, now: float) -> bool:
        """Whether there is a witness, and it is time to ask it."""
        return self.has_witness and not self.asking and now >= self.ask_at

    def ask(self, life: str, id: int, endpoint: str, missing: Iterable[str]) -> tuple[Claims, list[Action]]:
        """Ask for its vote."""
        return replace(self, asking=True), [Claim(life=life, id=id, endpoint=endpoint, missing=tuple(missing))]

    def answered(self, answer: Claimed, now: float) -> tuple[Claims, list[Action]]:
        """The witness has answered; a reason that is news is told."""
        if answer.granted:
            return replace(self, asking=False), []
        fresh = answer.reason != self.said
        said: list[Action] = [Say(text=f"the witness does not speak for this node: {answer.reason}", level="warning")]
        return replace(self, asking=False, ask_at=now + RETRY_S, said=answer.reason), said if fresh else []

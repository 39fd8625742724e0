"""What must an elector not forget when its agent is started again? Its latest term, and the newest roster that it has told of.

An elector is known by its endpoint. An agent that is started again on the same host takes its earlier life's endpoint, and with
it that life's say: what that life has promised binds this one. Promises run out by themselves; these do not:

    voted in a term          never twice in it, or two candidates could be elected in one term
    told of a newer roster   supports nobody by an older one: the electorates of that may be void by now

So a vote goes out, and a roster is told of, only when the world has kept them (`Remember`, answered by `Remembered`): in a
file (`agent.leader.elector_file`). A disk that hangs or fails is not waited for longer than `DEAF_S`: the others need this
node's vote now, and what it has not kept can do harm only if this agent is killed too.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action, Observation
from holdfast.core.value import Value, replace
from holdfast.core.wire.messages import Past, Roster

DEAF_S = 1.0
"""How long a vote waits for the disk. A proposal waits as long for its votes: the first may fail, the next waits no more."""


class ElectorMemory(Value):
    """What outlives the agent."""

    term: int = 0  # The latest in which this elector led, followed or voted.
    roster: Roster | None = None  # The newest that others know it to hold, without what it says of the job. None: none yet.

    @property
    def life(self) -> str:
        """The run of the job that it is of. Empty: none."""
        return "" if self.roster is None else self.roster.past.life


class Remember(Action):
    """Keep this, instead of what was to be kept before: answered by `Remembered`."""

    memory: ElectorMemory
    endpoint: str  # Where the elector is known.


class Remembered(Observation):
    """It is kept; or cannot be."""

    memory: ElectorMemory
    is_kept: bool = True


class Keeping(Value):
    """One elector's memory: what is kept, and what is on its way."""

    is_wanted: bool = False  # False: no life after this one has its endpoint.
    kept: ElectorMemory = ElectorMemory()
    latest: ElectorMemory = ElectorMemory()  # What was to be kept last.
    latest_at: float = NEVER
    since: float = NEVER  # Since when something is on its way. NEVER: all is kept.
    is_deaf: bool = False  # What keeps it does not answer, or fails: it is waited for no more.

    def keep(self, memory: ElectorMemory, endpoint: str, now: float) -> tuple[Keeping, list[Action]]:
        """Have this kept."""
        if not self.is_wanted:
            return replace(self, kept=memory, latest=memory), []
        after = replace(self, latest=memory, latest_at=now, since=min(self.since, now))
        return after, [Remember(memory=memory, endpoint=endpoint)]

    def heard(self, seen: Remembered) -> Keeping:
        """Something is kept, or cannot be."""
        if not seen.is_kept:
            return replace(self, is_deaf=True)
        if seen.memory != self.latest:
            return replace(self, kept=seen.memory, since=self.latest_at)
        return replace(self, kept=seen.memory, since=NEVER, is_deaf=False)

    def waited(self, now: float) -> Keeping:
        """Time has passed."""
        return self if self.is_deaf or now < self.deaf_at else replace(self, is_deaf=True)

    @property
    def deaf_at(self) -> float:
        """When it is waited for no more."""
        return NEVER if self.is_deaf else self.since + DEAF_S

    def knows_term(self, term: int) -> bool:
        """Whether a vote in that term may be told of."""
        return self.is_deaf or self.kept.term >= term

    def told_of(self, roster: Roster | None) -> int:
        """The version of the roster that this node may say it holds; 0: none."""
        if roster is None or self.is_deaf:
            return 0 if roster is None else roster.version
        kept = self.kept.roster
        return 0 if kept is None or kept.past.life != roster.past.life else min(kept.version, roster.version)

    def may_recall(self, roster: Roster, known_round: int) -> bool:
        """Whether that roster, of a node that is not our coordinator, is of the run that we were in, and none that was void by
        `known_round`, the last round that an earlier life is known to have been in: without a memory nobody can tell."""
        if self.latest.roster is None:
            return roster.past.round >= known_round
        return self.latest.life == roster.past.life

    def recalled(self, roster: Roster, known_round: int) -> Roster:
        """That roster as it is, or as we know it to be by now: others have had a say since it was drawn up."""
        ours = self.latest.roster
        if ours is None:
            return roster
        past = replace(roster.past, round=max(roster.past.round, known_round))
        return replace(roster if ours.version <= roster.version else ours, past=past)


def to_remember(latest: ElectorMemory, roster: Roster | None, term: int) -> ElectorMemory:
    """What must be remembered of what a node knows now."""
    if roster is None:
        return replace(latest, term=term)
    return ElectorMemory(term=term, roster=replace(roster, past=Past(life=roster.past.life)))

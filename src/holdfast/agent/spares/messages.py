"""What is `agent.spares.machine` shown, and what does it want done? The words between the machine and `agent.spares.pool`."""

from __future__ import annotations

from holdfast.agent.spares.import_list import Changes
from holdfast.core.machine import Action, Observation


class RoundBegan(Observation):
    """The workers of a round have been started."""


class StandingBy(Observation):
    """This node waits for a place, and knows from others what its workers would import."""


class RoundEnds(Observation):
    """They are being ended, or end by themselves."""


class RoundOver(Observation):
    """They have ended, and it is not known that others follow."""


class Surveyed(Observation):
    """How the ranks get on, and the memory."""

    reached: bool  # Every rank has run our bootstrap: a spare of it would wait, and not run the script.
    between: bool = False  # The ranks of one round are being ended, or the next one's gathered.
    beating: bool  # Every rank has shown a heartbeat.
    modules: int  # How many they have loaded, together.
    room_bytes: int
    total_bytes: int
    sizes: dict[int, int]  # Spare → bytes that it has alone.


class Ready(Observation):
    """A spare has imported everything, and waits."""

    pid: int
    import_s: float
    reads: frozenset[str]  # Variables that have been read meanwhile.
    until: str = ""
    """It has imported only what the script imports before it changes this variable. Empty: everything."""
    size_bytes: int


class Lost(Observation):
    """A spare has ended, or will in a moment."""

    pid: int
    reason: str


class Made(Observation):
    """What came of `MakeSpare`."""

    slot: int
    pid: int = -1  # -1: there is none, as `trouble` says.
    trouble: str = ""


class WorkerDue(Observation):
    """A worker is to be started; `StartWith` follows at once."""

    local_rank: int
    changed: dict[int, Changes]  # Spare → the variables that are no longer what it was started with.


class Used(Observation):
    """A spare has become a worker."""

    pid: int
    trouble: str = ""  # Why it has refused, and is gone. Empty: it has not.


class Survey(Action):
    """Look how the ranks get on; `Surveyed` follows."""


class MakeSpare(Action):
    """Start a spare; `Made` follows."""

    slot: int
    local_rank: int


class EndSpare(Action):
    """Kill a spare."""

    pid: int


class StartWith(Action):
    """Have this spare become the worker."""

    pid: int  # -1: start it cold.
    cold_because: str = ""

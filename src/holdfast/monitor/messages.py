"""What is the monitor shown, and what does it ask for?"""

from __future__ import annotations

from holdfast.core.machine import Action, Observation
from holdfast.core.page.signs import Signs
from holdfast.core.value import Value


class RoundBegan(Observation):
    """Other ranks are about to start."""

    job_s: dict[str, float]  # What the job is known to need, in seconds by kind of silence.


class PaceHeard(Observation):
    """The coordinator tells what the whole job needs."""

    job_s: dict[str, float]
    busy_s: float = 0.0  # For so long another node's ranks may be waited for: they work in silence.


class RankStarted(Observation):
    """A rank's process runs."""

    local_rank: int
    rank: int
    started_at: float


class RankSeen(Observation):
    """What a rank shows by itself: its page, and its log."""

    local_rank: int
    signs: Signs | None = None  # None: it has no page.
    logged_at: float | None = None
    """When its log was last found to have grown by a line that means progress. None: it has no such line."""
    logged_step: int | None = None  # The step that this line named. None: it named none.
    lines: int = 0  # Such lines so far.
    is_whole: bool = True  # False: its log could not be read in time, so it may have shown more.


class RankMeasured(Value):
    """What the kernel says of a rank and everything below it."""

    local_rank: int
    cpu_s: float  # Processor time that they have spent.
    io_bytes: int  # Bytes that they have read and written.
    state: str
    """Of its main process, as in /proc: R S D T t …"""


class RanksMeasured(Observation):
    """All ranks of the node, measured at the same moment."""

    ranks: tuple[RankMeasured, ...]


class GpusSeen(Observation):
    """Whether any GPU of this node works. None: nobody can tell."""

    busy: bool | None


class RankGone(Observation):
    """A rank's process has ended, or is ending."""

    local_rank: int


class FaultPlayed(Observation):
    """A fault that was played on a rank, for practice, is over: silences that it caused are about to end."""


class SeeRanks(Action):
    """Read their pages and logs: a `RankSeen` for each."""

    local_ranks: tuple[int, ...]


class MeasureRanks(Action):
    """Ask the kernel about all of them: `RanksMeasured`."""

    local_ranks: tuple[int, ...]


class AskGpus(Action):
    """Find out whether the GPUs work: `GpusSeen`, in its own time."""


class Overdue(Action):
    """A rank has exceeded a limit: it hangs."""

    local_rank: int
    reason: str  # Which, and by how much: `no heartbeat for 12.3 s (limit 12 s), in section checkpoint`.
    silent_s: float


class Inform(Action):
    """Tell the coordinator how this node's ranks get on."""

    longest_s: dict[str, float]
    """By kind of silence (`core.page.silences`): the longest that healthy ranks of this node have needed lately."""
    typical_s: dict[str, float]  # Of each series (`step`, or a section's name): the median of this node's ranks.
    straggler: str  # Ranks of this node that are much slower than the others, in words. Empty: none is.
    busy_s: float = 0.0
    """A rank here is silent for longer than was learned, and works: other nodes may wait for it for so long. 0: none does."""

"""What a failure means, as a value: its class, whom it is to be blamed on, how sure that is, and what to do about it.

`diagnosis` makes findings, `recovery` judges them, reports show them: here are the words that they share. Touches nothing.
"""

from __future__ import annotations

from holdfast.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CLASSES = {
    "user-code": "the script, or how it was called",
    "data": "the training data, or a checkpoint's content",
    "framework": "torch, JAX, NCCL or another library, or versions that do not fit together",
    "oom-host": "the host's memory (or a container's, or /dev/shm) was used up",
    "oom-gpu": "a GPU's memory was used up",
    "gpu": "a GPU, its driver or its link is broken",
    "fabric": "NVLink, a network card, a cable, a switch or the network between nodes",
    "storage": "a disk or a file system",
    "node-lost": "a whole node went away",
    "preempted": "the scheduler, or whoever owns the nodes, ended it on purpose",
    "unknown": "nothing that a rule knows",
}
"""What a failure can be about, and what each means."""

ACTIONS = {
    "stop": "do not try again: it would fail the same way",
    "exclude": "restart without that node, if another can take its place",
    "restart": "restart: it may well pass",
    "ignore": "as if nothing had been found",
}
"""What may be done about a finding."""

ADVISED: Mapping[str, str] = {
    "user-code": "stop", "data": "stop", "framework": "restart", "oom-host": "restart", "oom-gpu": "restart",
    "gpu": "exclude", "fabric": "restart", "storage": "restart", "node-lost": "restart", "preempted": "restart",
    "unknown": "restart",
}  # fmt: skip
"""What is advised for a class, where a rule says nothing else."""

SURE = 0.9
"""From this confidence on a finding may change what becomes of a job."""


class Quote(Value):
    """A line that the finding rests on."""

    text: str
    source: str = ""
    """Which file, or what else said so. Empty: not known."""
    line: int = 0
    """Its number in that file, from 1; 0: it has none."""
    rank: int | None = None
    node: str = ""


class Finding(Value):
    """What was found."""

    kind: str = "unknown"
    """One of `CLASSES`."""
    rule: str = ""
    """Name of the rule that says so. Empty: none does."""
    confidence: float = 0.0
    """From 0 to 1."""
    action: str = "restart"
    """One of `ACTIONS`: what is advised."""
    rank: int | None = None
    """Who is to blame. None: all ranks alike, or not known."""
    node: str = ""
    """Its node's name. Empty: not known."""
    everywhere: bool = False
    """Every rank that has left anything says the same."""
    sentence: str
    """What happened, to whom, and what to do."""
    advice: str = ""
    evidence: tuple[Quote, ...] = ()
    """The first is what decided."""
    effects: tuple[str, ...] = ()
    """What was taken for its consequences, in words."""

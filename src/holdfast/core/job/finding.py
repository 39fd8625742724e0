"""What a failure means, as a value: its class, the rank or node to blame, how sure that is, and what to do about it.

`diagnosis` makes findings, `recovery` judges them, reports show them: here are the words that they share. Touches nothing.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Class(StrEnum):
    """What a failure can be about. `CLASSES` says what each means."""

    USER_CODE = "user-code"
    DATA = "data"
    FRAMEWORK = "framework"
    OOM_HOST = "oom-host"
    OOM_GPU = "oom-gpu"
    GPU = "gpu"
    FABRIC = "fabric"
    STORAGE = "storage"
    NODE_LOST = "node-lost"
    PREEMPTED = "preempted"
    UNKNOWN = "unknown"


class Action(StrEnum):
    """What may be done about a finding. `ACTIONS` says what each means."""

    STOP = "stop"
    EXCLUDE = "exclude"
    RESTART = "restart"
    IGNORE = "ignore"


CLASSES = {
    Class.USER_CODE: "the script, or how it was called",
    Class.DATA: "the training data, or a checkpoint's content",
    Class.FRAMEWORK: "torch, JAX, NCCL or another library, or versions that do not fit together",
    Class.OOM_HOST: "the host's memory (or a container's, or /dev/shm) was used up",
    Class.OOM_GPU: "a GPU's memory was used up",
    Class.GPU: "a GPU, its driver or its link is broken",
    Class.FABRIC: "NVLink, a network card, a cable, a switch or the network between nodes",
    Class.STORAGE: "a disk or a file system",
    Class.NODE_LOST: "a whole node went away",
    Class.PREEMPTED: "the scheduler, or whoever owns the nodes, ended it on purpose",
    Class.UNKNOWN: "nothing that a rule knows",
}
"""What each class means."""

ACTIONS = {
    Action.STOP: "do not try again: it would fail the same way",
    Action.EXCLUDE: "restart without that node, if another can take its place",
    Action.RESTART: "restart: it may well pass",
    Action.IGNORE: "as if nothing had been found",
}
"""What each action means."""

ADVISED: Mapping[Class, Action] = {
    Class.USER_CODE: Action.STOP,
    Class.DATA: Action.STOP,
    Class.FRAMEWORK: Action.RESTART,
    Class.OOM_HOST: Action.RESTART,
    Class.OOM_GPU: Action.RESTART,
    Class.GPU: Action.EXCLUDE,
    Class.FABRIC: Action.RESTART,
    Class.STORAGE: Action.RESTART,
    Class.NODE_LOST: Action.RESTART,
    Class.PREEMPTED: Action.RESTART,
    Class.UNKNOWN: Action.RESTART,
}
"""What is advised for a class, where a rule says nothing else."""

SURE = 0.9  # From this confidence on a finding may change what becomes of a job.


class Quote(Value):
    """A line that the finding rests on."""

    text: str
    source: str = ""  # Which file, or what else said so. Empty: not known.
    line: int = 0  # Its number in that file, from 1; 0: it has none.
    rank: int | None = None
    node: str = ""


class Finding(Value):
    """What was found."""

    kind: Class = Class.UNKNOWN
    rule: str = ""  # Name of the rule that says so. Empty: none does.
    confidence: float = 0.0  # From 0 to 1.
    action: Action = Action.RESTART  # What is advised.
    rank: int | None = None  # Who is to blame. None: all ranks alike, or not known.
    node: str = ""  # Its node's name. Empty: not known.
    everywhere: bool = False  # Every rank that has left anything says the same.
    sentence: str  # What happened, to whom, and what to do.
    advice: str = ""
    evidence: tuple[Quote, ...] = ()  # The first is what decided.
    effects: tuple[str, ...] = ()  # What was taken for its consequences, in words.

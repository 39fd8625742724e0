"""What a failure means, as a value: its class, the rank or node to blame, how sure that is, and what to do about it.

`diagnosis` makes findings, `recovery` judges them, reports show them: here are the words that they share. Touches nothing.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.core.value import Value


class Class(StrEnum):
    """What a failure can be about. `CLASSES` says what each means."""

    USER_CODE = "user-code"
    DATA = "data"
    FRAMEWORK = "framework"
    ENVIRONMENT = "environment"
    OOM_HOST = "oom-host"
    OOM_GPU = "oom-gpu"
    GPU = "gpu"
    FABRIC = "fabric"
    STORAGE = "storage"
    NODE_LOST = "node-lost"
    PREEMPTED = "preempted"
    INJECTED = "injected"
    UNKNOWN = "unknown"


class Action(StrEnum):
    """What may be done about a finding. `ACTIONS` says what each means."""

    STOP = "stop"
    EXCLUDE = "exclude"
    RESTART = "restart"
    ASK = "ask"
    IGNORE = "ignore"


ACTIONS = {
    Action.STOP: "do not try again: it would fail the same way",
    Action.EXCLUDE: "restart without that node, if another can take its place",
    Action.RESTART: "start it again: what failed may pass",
    Action.ASK: "have a person look at it: a restart may not help; where nobody does, restart",
    Action.IGNORE: "as if nothing had been found",
}
"""What each action means."""

_CLASSES = {
    Class.USER_CODE: ("the script, or how it was called", Action.STOP, Action.ASK),
    Class.DATA: ("the training data, or a checkpoint's content", Action.STOP, Action.ASK),
    Class.FRAMEWORK: ("torch, JAX, NCCL or another library has failed within", Action.ASK, Action.ASK),
    Class.ENVIRONMENT: ("what is installed is missing, broken, or of versions that do not fit", Action.STOP, Action.ASK),
    Class.OOM_HOST: ("the host's memory (or a container's, or /dev/shm) was used up", Action.ASK, Action.ASK),
    Class.OOM_GPU: ("a GPU's memory was used up", Action.ASK, Action.ASK),
    Class.GPU: ("a GPU, its driver or its link is broken", Action.EXCLUDE, Action.ASK),
    Class.FABRIC: ("NVLink, a network card, a cable, a switch or the network between nodes", Action.RESTART, Action.ASK),
    Class.STORAGE: ("a disk or a file system", Action.ASK, Action.ASK),
    Class.NODE_LOST: ("a whole node went away", Action.RESTART, Action.RESTART),
    Class.PREEMPTED: ("the scheduler, or the nodes' owner, ended it on purpose", Action.RESTART, Action.RESTART),
    Class.INJECTED: ("an operator injected it for practice (`holdfast inject`)", Action.RESTART, Action.RESTART),
    Class.UNKNOWN: ("cause unknown", Action.RESTART, Action.RESTART),
}
CLASSES = {kind: meaning for kind, (meaning, _, _) in _CLASSES.items()}  # What each class means.
ADVISED = {kind: action for kind, (_, action, _) in _CLASSES.items()}
"""What is advised about a cause of each class, where a rule or term says nothing else."""

UNSURE = {kind: action for kind, (_, _, action) in _CLASSES.items()}  # And where it is known that it failed, not why.

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
    likely: tuple[tuple[str, float], ...] = ()  # Where signs were weighed: the likeliest classes, and how likely each is.

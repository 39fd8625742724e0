"""Failures that no rule has seen: logs of others' jobs from public places, labelled before anything was scored.

One entry of `failure_causes_unseen/index.toml` is one failure, and `failure_causes_unseen/logs/<log>.txt` its log, shortened.
A log's file has a name that gives nothing away: some read a rank from it. Lines are as in the source; where the source shows
some of them only, or one rank's, and the rest was put together from messages of the same framework in their true form, the
entry says `assembled`. Names and folders of people were made up.

Experts differ: `classes`, `advice` and `ranks` hold all that is right, the best first. Who changes a label says why in the
commit.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).with_suffix("")
FRESH = FOLDER.with_name("failure_causes_fresh")
"""The next such parts, of November 2026: labelled by people who did not know the rules, but for the eighth and ninth."""

FRESH_PARTS = (182, 73, 95, 119, 165, 65, 60, 40, 20, 60, 60)
"""How many of it came each time: each was scored blind, before anything was changed for it."""

PLAYED = FOLDER.with_name("failure_causes_played")
"""Failures that were played for this, each by a script that is kept beside its log."""

CLASSES = frozenset({
    "user-code", "data", "framework", "environment", "oom-host", "oom-gpu",
    "gpu", "fabric", "storage", "node-lost", "preempted", "unknown",
})  # fmt: skip
"""As in docs/reference/rules.md, and `environment`: an installation that is broken, or whose parts do not fit together."""

FAULTS = frozenset({
    "user", "data", "library", "installation", "memory", "machine", "network", "storage", "service", "scheduler", "unknown",
})  # fmt: skip
"""Whose fault. `service`: somebody else's, over HTTP; `machine`: a node, its GPUs, their driver or how the node is set up."""

ADVICE = frozenset({"restart", "exclude", "stop", "ask"})
"""As `Action` has it: `exclude` is a restart elsewhere; `ask` leaves it to a person."""


class Failure(NamedTuple):
    """One failure, and what is right to say about it."""

    name: str
    log: str  # Its file, without the ending.
    source: str  # Where it stood: an address.
    assembled: bool  # Lines were added, or put into another transport's form.
    framework: str
    transport: str  # How the lines came: plain, srun --label, CRI, ...
    kind: str  # What happened, finer than a class.
    several: bool  # More than one rank, task, pod or process speaks.
    classes: tuple[str, ...]
    ranks: tuple[int, ...]  # Any of them may be blamed.
    nobody: bool  # It is right to blame no rank.
    nodes: tuple[str, ...]  # Any of them may be named, and no other; none: do not judge.
    fault: str
    advice: tuple[str, ...]
    why: str
    folder: Path = FOLDER

    @property
    def path(self) -> Path:
        """Its log."""
        return self.folder / "logs" / f"{self.log}.txt"


def failures(folder: Path = FOLDER) -> list[Failure]:
    """All of those whose index is in `folder`."""
    index = tomllib.loads((folder / "index.toml").read_text(encoding="utf-8"))
    return [
        Failure(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}, folder=folder)
        for entry in index["failure"]
    ]

"""What is a kind of fault? One function that does it to a job that runs, and one row that says what is to be expected.

    @fault("kill rank", "SIGKILL to a rank", restarts=1, cause=("rank {rank}", "SIGKILL"))
    def kill_rank(job):
        job.kill_rank(job.any_rank())

That is all that a new kind needs: the campaign, the page, and the tests find it in `FAULTS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How a job that meets the fault goes on."""

    TRAINS = "trains on"  # To its end, with the result of a job that nothing has happened to.
    ENDS = "ends"  # No restart can help, or somebody has asked for it: each agent ends, and says why.
    HALTS = "halts"  # Too few nodes are left: no rank runs, and the nodes that are left say what they wait for.


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The job that a fault is played on."""

    nodes: int = 2
    nnodes: str = ""
    """What `--nnodes` says. Empty: `nodes`."""
    nproc: int | tuple[int, ...] = 1
    """Ranks of each node."""
    options: tuple[object, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ddp: bool = False
    """The ranks train with PyTorch's DDP on gloo. Else they train the same model over sockets, with nothing to import."""
    network: bool = False
    """Each node is a host of its own: a network namespace."""
    slow: Mapping[str, float] = field(default_factory=dict)
    """Node → seconds that each of its packets takes longer."""
    starts: bool = True
    """The agents are started, and train, before the fault is played. Else it starts them."""
    script: str = ""
    """Lines put before the script's own."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A kind of fault. `cause`: patterns, each to be found in what the console says, and in what `why` and `report` say;
    names in braces are what the fault has noted (`job.note(rank=1)`)."""

    name: str
    done: str
    group: str
    play: Callable[[Any], None]
    setup: Setup
    needs: tuple[str, ...]
    outcome: Outcome
    restarts: tuple[int, int]
    """How many restarts of the budget it may cost: at least, at most."""
    cause: tuple[str, ...]
    patience_s: float
    within_s: float | None
    """How soon it has to train again at the latest, where that is promised."""
    back_within_s: float | None
    """The same, from the last start of a launcher after the fault."""
    torchrun: bool
    """It is played on torchrun, too."""
    smoke: bool
    """It is one of those that `make test-all` plays."""


FAULTS: dict[str, Fault] = {}


def fault(
    name: str,
    done: str,
    *,
    needs: str = "",
    outcome: Outcome = Outcome.TRAINS,
    restarts: int | tuple[int, int] = 0,
    cause: tuple[str, ...] = (),
    patience_s: float = 45.0,
    within_s: float | None = None,
    back_within_s: float | None = None,
    torchrun: bool = False,
    smoke: bool = False,
    **setup: Any,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Enter a kind of fault. `needs` names rows of `needs.NEEDS`; what is left over is the job's `Setup`."""

    def enter(play: Callable[..., None]) -> Callable[..., None]:
        assert name not in FAULTS, name
        made = Setup(**setup)
        all_needs = tuple(
            dict.fromkeys((*needs.split(), *(["netns"] if made.network else []), *(["torch"] if made.ddp else [])))
        )
        FAULTS[name] = Fault(
            name=name,
            done=done,
            group=inspect.getmodule(play).__name__.rpartition(".")[2],  # type: ignore[union-attr]
            play=play,
            setup=made,
            needs=all_needs,
            outcome=outcome,
            restarts=(restarts, restarts) if isinstance(restarts, int) else restarts,
            cause=cause,
            patience_s=patience_s,
            within_s=within_s,
            back_within_s=back_within_s,
            torchrun=torchrun,
            smoke=smoke,
        )
        return play

    return enter

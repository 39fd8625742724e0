"""Which words do a rank, its monitor and its launcher exchange? NVRx's names and fields; how they travel is for `wire`."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from holdfast.fault_tolerance._distributed import get_rank

FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR = "FT_RANK_MONITOR_IPC_SOCKET"
"""Environment: path of the socket on which a rank finds a standalone RankMonitorServer."""

FT_LAUNCHER_IPC_SOCKET_ENV_VAR = "FT_LAUNCHER_IPC_SOCKET"
"""Environment: path of the socket on which a rank finds a launcher that listens with an IpcConnector."""


@dataclass
class RankInfo:
    """Who a rank is. `local_rank` is -1 where it is not known."""

    global_rank: int
    local_rank: int
    host: str
    pid: int

    @staticmethod
    def get_for_current_rank() -> RankInfo:
        """This process. Its rank comes from torch's process group, else from RANK; RuntimeError when neither knows it."""
        rank = get_rank()
        if rank is None:
            raise RuntimeError("this process has no rank: torch.distributed is not initialised and RANK is not set")
        return RankInfo(
            global_rank=int(rank),
            local_rank=int(os.environ.get("LOCAL_RANK", -1)),
            host=socket.gethostname(),
            pid=os.getpid(),
        )


@dataclass
class HeartbeatTimeouts:
    """Limits in seconds: `initial` until the first heartbeat, `subsequent` between two. None: no limit."""

    initial: float | None = None
    subsequent: float | None = None
    were_calculated: bool | None = None  # From observed intervals, rather than from the configuration.

    @property
    def are_valid(self) -> bool:
        """Both are set."""
        return self.initial is not None and self.subsequent is not None

    def __str__(self) -> str:
        return (
            f"HeartbeatTimeouts(initial={_shown(self.initial)}, subsequent={_shown(self.subsequent)}, "
            f"were_calculated={self.were_calculated})"
        )


@dataclass
class SectionTimeouts:
    """Limits in seconds: of each section by name, and `out_of_section` while none is open. None: no limit."""

    section: Mapping[str, float | None] = field(default_factory=dict)
    out_of_section: float | None = None
    calculated_sections: Collection[str] = field(default_factory=set)
    """A set, whatever it is given as: the sections whose limits come from observation."""
    is_out_of_section_calculated: bool = False

    def __post_init__(self) -> None:
        self.calculated_sections = set(self.calculated_sections)

    @property
    def were_calculated(self) -> bool:
        """All of them were, `out_of_section` too."""
        return self.calculated_sections == set(self.section) and self.is_out_of_section_calculated

    @property
    def are_valid(self) -> bool:
        """All are set."""
        return None not in self.section.values() and self.out_of_section is not None

    def __str__(self) -> str:
        sections = ", ".join(f"{name}={_shown(limit)}" for name, limit in self.section.items())
        calculated = ", ".join(sorted(self.calculated_sections))
        return (
            f"SectionTimeouts(out_of_section={_shown(self.out_of_section)}, sections=[{sections}], "
            f"calculated_sections=[{calculated}], is_out_of_section_calculated={self.is_out_of_section_calculated})"
        )


Calculated = tuple[HeartbeatTimeouts | None, SectionTimeouts | None]
"""Limits that a rank has calculated; None: it has not."""


@dataclass
class AuthkeyMsg:
    """The first message of a rank to its monitor. NVRx's key unlocks pickles; nothing here is pickled, so it is ignored."""

    authkey: bytes | None = None


@dataclass
class InitMsg:
    """A rank begins: what follows on this connection is about it."""

    rank_info: RankInfo | None = None
    iteration: int | None = None
    num_warmup_iters: int | None = None


@dataclass
class HeartbeatMsg:
    """A rank lives. `state` is kept for its place only."""

    rank: int
    state: Mapping[str, Any] | None = None


class SectionAction(Enum):
    OPEN = 1
    CLOSE = 2
    CLOSE_ALL = 3


@dataclass
class SectionMsg:
    """A rank opens or closes `section`; None with CLOSE_ALL."""

    rank: int
    section: str | None
    action: SectionAction
    iteration: int | None = None


@dataclass
class UpdateConfigMsg:
    """New limits from a rank, or the number of the cycle that begins from the launcher. None: as before."""

    hb_timeouts: HeartbeatTimeouts | None = None
    section_timeouts: SectionTimeouts | None = None
    current_cycle: int | None = None


class OkMsg:
    """Yes. Whatever is told with it becomes an attribute."""

    def __init__(self, **told: Any) -> None:
        vars(self).update(told)

    def __repr__(self) -> str:
        return f"OkMsg({', '.join(vars(self))})"


@dataclass
class ErrorMsg:
    """No, and why."""

    cause: str = "<not set>"

    def __str__(self) -> str:
        return f"ErrorMsg({self.cause})"


class WorkloadAction(Enum):
    """What a rank asks its launcher for."""

    Continue = 0  # Go on as usual.
    ExcludeThisNode = 1  # Go on without this node.
    ShutdownWorkload = 2  # End the job; restart nothing.


class WorkloadControlRequest:
    """A rank's request to its launcher, with a description for people."""

    def __init__(self, action: WorkloadAction, description: str = "<not set>") -> None:
        self.action = action
        self.description = description

    def __str__(self) -> str:
        return f"WorkloadControlRequest(action={self.action}, description={self.description})"


def _shown(limit: float | None) -> str:
    return "None" if limit is None else f"{limit:.2f}"

"""The values of an elastic agent: a worker, a group of workers, its state, and its result."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from holdfast.elastic.multiprocessing import ProcessFailure
from holdfast.elastic.rendezvous import RendezvousHandler, RendezvousInfo

DEFAULT_ROLE = "default"
_REQUIRED = cast(Any, object())


@dataclass
class WorkerSpec:
    """What a group's workers are: `local_world_size` times `entrypoint(*args)` on this node, found by `rdzv_handler`.

    `entrypoint` is a function or a program's name; `fn` is its old name. `monitor_interval` in seconds. `master_addr` and
    `master_port` overrule what the rendezvous says. A size or an interval that is not positive, or no entrypoint, is an
    AssertionError, as torch has it.
    """

    role: str = DEFAULT_ROLE
    local_world_size: int = _REQUIRED
    rdzv_handler: RendezvousHandler = _REQUIRED
    fn: Callable[..., Any] | None = None
    entrypoint: Callable[..., Any] | str | None = None
    args: tuple[Any, ...] = ()
    max_restarts: int = 3
    monitor_interval: float = 0.1
    master_port: int | None = None
    master_addr: str | None = None
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False

    def __post_init__(self) -> None:
        for name in ("local_world_size", "rdzv_handler"):
            if getattr(self, name) is _REQUIRED:
                raise TypeError(f"WorkerSpec needs {name}")
        assert self.local_world_size > 0, f"local_world_size is {self.local_world_size}: at least one worker"
        assert self.monitor_interval > 0, f"monitor_interval is {self.monitor_interval}: seconds, more than 0"
        if self.fn:
            warnings.warn("WorkerSpec.fn is deprecated: use entrypoint", stacklevel=3, category=DeprecationWarning)
            self.entrypoint = self.fn
        assert self.entrypoint, "WorkerSpec needs an entrypoint: a function, or a program's name"

    def get_entrypoint_name(self) -> str:
        """A function's qualified name, or the last part of a program's path."""
        if isinstance(self.entrypoint, str):
            return os.path.basename(self.entrypoint)
        assert self.entrypoint is not None
        return self.entrypoint.__qualname__


@dataclass(slots=True, eq=False, repr=False)
class Worker:
    """One worker of this node. Ranks and sizes are -1 until a round has given them; `id` is the agent's (a pid, here)."""

    local_rank: int
    global_rank: int = -1
    role_rank: int = -1
    world_size: int = -1
    role_world_size: int = -1
    id: Any = field(default=None, init=False)

    def start_as(self, worker_id: Any) -> None:
        """The agent has started it, and calls it so."""
        self.id = worker_id

    def __repr__(self) -> str:
        names = ("local_rank", "global_rank", "role_rank", "world_size", "role_world_size")
        return ",".join(f"{name}={getattr(self, name)}" for name in names)


class WorkerState(str, Enum):  # noqa: UP042  StrEnum would print otherwise than torch's
    """How a group stands, as a whole: one failed worker makes a failed group."""

    UNKNOWN = "UNKNOWN"  # the agent lost track; it gives up
    INIT = "INIT"  # not started yet
    HEALTHY = "HEALTHY"  # running
    UNHEALTHY = "UNHEALTHY"  # running, but not as it should
    STOPPED = "STOPPED"  # stopped by the agent, to be started again
    SUCCEEDED = "SUCCEEDED"  # all have exited with 0
    FAILED = "FAILED"  # one has exited with something else

    @staticmethod
    def is_running(state: WorkerState) -> bool:
        """Whether there are processes."""
        return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)


class WorkerGroup:
    """The workers of one node. Store, ranks and address are None until a round has given them."""

    __slots__ = ["group_rank", "group_world_size", "master_addr", "master_port", "spec", "state", "store", "workers"]

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.workers = [Worker(local_rank=index) for index in range(spec.local_world_size)]
        self.store: Any = None
        self.group_rank: int | None = None
        self.group_world_size: int | None = None
        self.master_addr: str | None = None
        self.master_port: int | None = None
        self.state = WorkerState.INIT

    def enter(self, agreed: RendezvousInfo, workers: list[Worker]) -> None:
        """Take store, ranks and address from a round. An address in the spec overrules the round's."""
        spec, meeting_point = self.spec, agreed.bootstrap_store_info
        self.workers, self.store = workers, agreed.store
        self.group_rank, self.group_world_size = agreed.rank, agreed.world_size
        self.master_addr = spec.master_addr or (meeting_point.master_addr if meeting_point else None)
        self.master_port = spec.master_port or (meeting_point.master_port if meeting_point else None)

    def become(self, state: WorkerState) -> None:
        """From now on the group stands so."""
        self.state = state


@dataclass
class RunResult:
    """How this node's workers ended, by global rank. A worker that the agent stopped itself is in neither map."""

    state: WorkerState
    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Whether the group failed."""
        return self.state == WorkerState.FAILED


class ElasticAgent(ABC):
    """Runs the workers of one node."""

    @abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run them, with restarts, to the end. What it raises has nothing to do with a worker's failure."""

    @abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """The group, as it stands now. It may change while one looks."""

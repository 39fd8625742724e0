"""What is done, and asked, at the beginning of each life? NVRx's names."""

from __future__ import annotations

import abc
from typing import Any

from holdfast.inprocess.exception import RestartAbort


class Initialize(abc.ABC):
    """Called with the `FrozenState`, which it returns."""

    @abc.abstractmethod
    def __call__(self, state: Any) -> Any:
        """An Exception of its begins another life; any other BaseException ends the call."""


class RetryController(Initialize):
    """Ends the call after `max_iterations` lives (None: never), or where fewer ranks are left than the function needs."""

    def __init__(self, max_iterations: int | None = None, min_world_size: int = 1, min_active_world_size: int = 1) -> None:
        self.max_iterations = max_iterations
        self.min_world_size, self.min_active_world_size = min_world_size, min_active_world_size

    def __call__(self, state: Any) -> Any:
        """RestartAbort: it is over, and why."""
        is_late = self.max_iterations is not None and state.iteration >= self.max_iterations
        few = state.world_size < self.min_world_size or state.active_world_size < self.min_active_world_size
        if is_late or few:
            ranks = f"state.world_size={state.world_size}, state.active_world_size={state.active_world_size}"
            wanted = f"max_iterations={self.max_iterations}, min_world_size={self.min_world_size}"
            most = f"{wanted}, min_active_world_size={self.min_active_world_size}"
            raise RestartAbort(f"no further restart: state.iteration={state.iteration}, {ranks}, where {most}")
        return state

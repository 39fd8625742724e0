"""Which lines does a program read that follows layered restarts? NVRx's names and its words, on standard output.

[NestedRestarter] name=[InProcess] state=handling stage=starting
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from holdfast.inprocess.abort import Abort
from holdfast.inprocess.completion import Completion
from holdfast.inprocess.initialize import Initialize
from holdfast.inprocess.terminate import Terminate


class NestedRestarterLogger:
    """Its `restarter_logger` writes the lines."""

    def __init__(self) -> None:
        self.restarter_logger = logging.Logger("InprocessRestarter")
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("[%(asctime)s] [ALWAYS] [%(name)s] %(message)s"))
        self.restarter_logger.addHandler(handler)

    def log_for_restarter(self, message: str) -> None:
        """One line."""
        self.restarter_logger.debug(message)


class NestedRestarterCallback:
    """A stage that says where the restart stands, on the rank `special_rank`."""

    restarter_state = ""
    restarter_stage: str | None = None

    def __init__(
        self,
        restarter_state: str | None = None,
        restarter_stage: str | None = None,
        logger: NestedRestarterLogger | None = None,
        special_rank: int = 0,
    ) -> None:
        self.restarter_state = restarter_state or self.restarter_state
        self.restarter_stage = restarter_stage or self.restarter_stage
        self.logger = logger or NestedRestarterLogger()
        self.special_rank = special_rank

    def __call__(self, state: Any) -> Any:
        """Say it, and return `state`."""
        if state.initial_rank == self.special_rank:
            stage = f" stage={self.restarter_stage}" if self.restarter_stage else ""
            self.logger.log_for_restarter(f"[NestedRestarter] name=[InProcess] state={self.restarter_state}{stage}")
        return state


class NestedRestarterHandlingCompleted(NestedRestarterCallback, Initialize):
    """At the beginning of each life: the first one begins, and each other is a restart that is done."""

    restarter_state = "initialize"

    def __init__(self, special_rank: int = 0) -> None:
        super().__init__(special_rank=special_rank)

    def __call__(self, state: Any) -> Any:
        """Say it, and return `state`."""
        state = super().__call__(state)
        self.restarter_state, self.restarter_stage = "handling", "completed"
        return state


class NestedRestarterHandlingStarting(NestedRestarterCallback, Abort):
    """A life is cut short."""

    restarter_state, restarter_stage = "handling", "starting"


class NestedRestarterFinalized(NestedRestarterCallback, Completion):
    """All ranks have returned."""

    restarter_state = "finalized"


class NestedRestarterAborted(NestedRestarterCallback, Terminate):
    """This rank is out."""

    restarter_state = "aborted"

"""In which phase of a restart is a rank, as its monitor sees it? Layered restarts follow it in a log; it decides nothing.

The first message initialises, a lost connection begins the handling, a check while it lasts says that it goes on, and the
next message completes it; a second loss in the middle aborts it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any


class InvalidStateTransitionException(Exception):
    """There is no way from the one state to the other."""


class RankMonitorState(Enum):
    UNINITIALIZED = auto()
    INITIALIZE = auto()
    HANDLING_START = auto()
    HANDLING_PROCESSING = auto()
    HANDLING_COMPLETED = auto()
    FINALIZED = auto()
    ABORTED = auto()


_S = RankMonitorState

_SHOWN = {
    _S.INITIALIZE: "state=initialize",
    _S.HANDLING_START: "state=handling stage=starting",
    _S.HANDLING_PROCESSING: "state=handling stage=processing",
    _S.HANDLING_COMPLETED: "state=handling stage=completed",
    _S.FINALIZED: "state=finalized",
    _S.ABORTED: "state=aborted",
}
_WAYS = {
    _S.UNINITIALIZED: {_S.INITIALIZE, _S.FINALIZED},
    _S.INITIALIZE: {_S.HANDLING_START, _S.FINALIZED},
    _S.HANDLING_START: {_S.HANDLING_PROCESSING, _S.HANDLING_COMPLETED, _S.ABORTED},
    _S.HANDLING_PROCESSING: {_S.HANDLING_PROCESSING, _S.HANDLING_COMPLETED, _S.ABORTED},
    _S.HANDLING_COMPLETED: {_S.HANDLING_START, _S.FINALIZED},
    _S.ABORTED: {_S.FINALIZED},
    _S.FINALIZED: {_S.FINALIZED},
}
# What each event leads to; states left out take no notice of it.
_ON_MESSAGE = {
    _S.UNINITIALIZED: _S.INITIALIZE,
    _S.HANDLING_START: _S.HANDLING_COMPLETED,
    _S.HANDLING_PROCESSING: _S.HANDLING_COMPLETED,
}
_ON_LOSS = {
    _S.INITIALIZE: _S.HANDLING_START,
    _S.HANDLING_COMPLETED: _S.HANDLING_START,
    _S.HANDLING_START: _S.ABORTED,
    _S.HANDLING_PROCESSING: _S.ABORTED,
}
_ON_SIGNAL = {
    _S.INITIALIZE: _S.FINALIZED,
    _S.HANDLING_START: _S.ABORTED,
    _S.HANDLING_PROCESSING: _S.ABORTED,
    _S.HANDLING_COMPLETED: _S.FINALIZED,
    _S.ABORTED: _S.FINALIZED,
    _S.FINALIZED: _S.FINALIZED,
}


class RankMonitorStateMachine:
    """One rank's phases. `logger` has `log_restarter_event(text)`, or `log_for_restarter(text)` as older monitors' had."""

    def __init__(self, logger: Any) -> None:
        self.state = RankMonitorState.UNINITIALIZED
        self.logger = logger
        self._log = getattr(logger, "log_restarter_event", None) or logger.log_for_restarter

    def is_restarting(self) -> bool:
        """A loss is being handled."""
        return self.state in (_S.HANDLING_START, _S.HANDLING_PROCESSING)

    def handle_heartbeat_msg(self) -> None:
        """A heartbeat came. AssertionError after the end."""
        self._on_message()

    def handle_section_msg(self) -> None:
        """Word of a section came. AssertionError after the end."""
        self._on_message()

    def _on_message(self) -> None:
        if self.state in (_S.FINALIZED, _S.ABORTED):
            raise AssertionError(f"a message came in {self.state}")
        self._follow(_ON_MESSAGE)

    def periodic_restart_check(self) -> None:
        """It is time to say that the handling goes on. AssertionError when none does."""
        if not self.is_restarting():
            raise AssertionError(f"there is no restart to check in {self.state}")
        self.transition_to(_S.HANDLING_PROCESSING)

    def handle_ipc_connection_lost(self) -> None:
        """The rank's connection is gone."""
        self._follow(_ON_LOSS)

    def handle_signal(self) -> None:
        """The monitor was told to end."""
        self._follow(_ON_SIGNAL)

    def _follow(self, ways: dict[RankMonitorState, RankMonitorState]) -> None:
        if self.state in ways:
            self.transition_to(ways[self.state])

    def can_transition_to(self, new_state: RankMonitorState) -> bool:
        """There is a way."""
        return new_state in _WAYS[self.state]

    def transition_to(self, new_state: RankMonitorState) -> None:
        """Go there, and log it. InvalidStateTransitionException when there is no way."""
        if not self.can_transition_to(new_state):
            wrong = f"Invalid transition attempted from {self.state} to {new_state}"
            self._log(wrong)
            raise InvalidStateTransitionException(wrong)
        self._log(f"[NestedRestarter] name=[InJob] {_SHOWN[new_state]}")
        self.state = new_state

"""What may a function say to the `Wrapper` that called it? NVRx's name."""

from __future__ import annotations

import abc
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from holdfast.inprocess.exception import HealthCheckError, in_words
from holdfast.inprocess.state import State

log = logging.getLogger(__name__)


class CallWrapper(abc.ABC):
    """One call of the function, with all its lives. Who leads it: `among_peers` or `beside_agent`."""

    def __init__(self, wrapper: Any) -> None:
        self.wrapper, self.state = wrapper, State.from_env()

    @property
    def iteration(self) -> int:
        """Lives before this one."""
        return self.state.iteration

    @abc.abstractmethod
    def ping(self) -> None:
        """The function makes progress. Once it has said so in a life, it has to say so again within each `soft_timeout`."""

    @abc.abstractmethod
    def atomic(self) -> contextlib.AbstractContextManager[None]:
        """What stands in it is not begun while a life is cut short, and a life is not cut short while it runs."""

    @abc.abstractmethod
    def disable_hang_protection(self) -> contextlib.AbstractContextManager[None]:
        """What stands in it may take as long as it will."""

    @abc.abstractmethod
    def run(self, function: Callable[[], Any]) -> Any:
        """What the function has returned in the last life. RestartAbort, HealthCheckError, RankDiscarded, or what a stage has
        raised: this rank is out."""

    def _before(self) -> None:
        """The stages before the function."""
        if self.wrapper.initialize is not None:
            self.wrapper.initialize(self.state.freeze())
        self._check_health(self.wrapper.health_check)

    def _after(self) -> None:
        """The stages after a life that was cut short."""
        if self.wrapper.finalize is not None:
            self.wrapper.finalize(self.state.freeze())
        self._check_health(self._check_after())

    def _check_after(self) -> Any:
        """What says after a life whether this rank is fit for another. None: nothing does."""
        return self.wrapper.restart_health_check

    def _completed(self) -> None:
        """The stage after the last life."""
        if self.wrapper.completion is not None:
            try:
                self.wrapper.completion(self.state.freeze())
            except Exception as error:
                log.error("rank %s: the completion stage failed: %s", self.state.rank, in_words(error))

    def _check_health(self, check: Any) -> None:
        if check is None:
            return
        try:
            check(self.state.freeze())
        except Exception as error:
            raise HealthCheckError(f"rank {self.state.rank} is not fit: {in_words(error)}") from error

"""What is done after a life that was cut short, before this rank is looked at? NVRx's names."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from holdfast.inprocess.exception import TimeoutError
from holdfast.inprocess.health_check import this_device


class Finalize(abc.ABC):
    """Called with the `FrozenState`, which it returns. The process groups are gone by then."""

    @abc.abstractmethod
    def __call__(self, state: Any) -> Any:
        """What it raises ends the call on this rank."""


class ThreadedFinalize(Finalize):
    """Calls `fn` in a thread, for which the GPU of this rank is the current one."""

    def __init__(
        self,
        timeout: timedelta,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.timeout, self.fn, self.args, self.kwargs = timeout, fn, tuple(args or ()), dict(kwargs or {})

    def __call__(self, state: Any) -> Any:
        """TimeoutError: it took longer than `timeout`, and goes on."""
        device = this_device()

        def call() -> None:
            if device is not None:
                device.use()
            self.fn(*self.args, **self.kwargs)

        thread = threading.Thread(target=call, name=f"{type(self).__name__}-{state.rank}", daemon=True)
        thread.start()
        thread.join(self.timeout.total_seconds())
        if thread.is_alive():
            raise TimeoutError(f"{self.fn!r} takes longer than {self.timeout.total_seconds():g} s")
        return state

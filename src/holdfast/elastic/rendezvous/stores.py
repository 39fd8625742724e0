"""Which key-value store does a rendezvous use: torch's, or one in memory where torch is not loaded?

A one-node job needs no socket and no torch: importing torch costs its launcher more than everything else together. So torch's
stores are used where there are several nodes, or where the program has loaded torch anyway and may expect its types.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .api import RendezvousConnectionError
from .store import PrefixedStore, Store, StoreTimeout

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.1
"""Between two questions to a store. The longest is what a signal may have to wait where a platform restarts the sleep."""


def torch_is_loaded() -> bool:
    """Whether this program has paid for torch already."""
    return sys.modules.get("torch") is not None


def torch_is_there() -> bool:
    """Whether it could be loaded."""
    return torch_is_loaded() or ("torch" not in sys.modules and find_spec("torch") is not None)


def torch_distributed(wanted_for: str) -> Any:
    """The module `torch.distributed`, loaded now. Where there is none, the error says so in terms of `wanted_for`."""
    if not torch_is_there():
        raise RendezvousConnectionError(
            f"{wanted_for} needs torch's stores, and torch is not installed here. "
            "Install it, or take the backend `holdfast`, or start the job with `holdfast run`: neither needs torch."
        )
    return import_module("torch.distributed")


def with_prefix(prefix: str, store: Any) -> Any:
    """A view of `store` in which every key starts with `<prefix>/`."""
    if isinstance(store, Store):
        return PrefixedStore(prefix, store)
    return import_module("torch.distributed").PrefixStore(prefix, store)


class PatientStore:
    """A view of `store` whose `wait` can be interrupted by signals, and leaves the store to other threads meanwhile.

    `each` is called again and again while it waits, and may end the wait by an exception.
    """

    def __init__(self, store: Any, each: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._each = each
        self.timeout: timedelta = store.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """How long `wait` waits. The store itself keeps its own."""
        self.timeout = timeout

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Until all `keys` are there; StoreTimeout otherwise."""
        timeout_s = max(0.0, (self.timeout if timeout is None else timeout).total_seconds())
        if isinstance(self._store, Store):
            self._store._do("wait", keys, wait_s=timeout_s, each=self._each)
            return
        # While one of torch's stores waits, no Python signal handler runs and no other thread can use it: so it is only asked.
        deadline, pause_s = time.monotonic() + timeout_s, FIRST_PAUSE_S
        while not self._store.check(keys):
            self._each()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise StoreTimeout(f"waited {timeout_s:g} s for {', '.join(keys)}, which nobody has set")
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

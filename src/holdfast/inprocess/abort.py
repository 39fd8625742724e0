"""How is a main thread freed that waits for ranks which are gone? From another thread. NVRx's names."""

from __future__ import annotations

import abc
import contextlib
import importlib
from typing import Any

from holdfast.client.in_place import groups


class Abort(abc.ABC):
    """Called with the `FrozenState`, which it returns, in a thread of its own, when a life is to be cut short."""

    @abc.abstractmethod
    def __call__(self, state: Any) -> Any:
        """What it raises is logged, and changes nothing."""


class AbortTorchDistributed(Abort):
    """Ends all collectives of torch's process groups: NCCL's by its abort, gloo's with their connections."""

    def __call__(self, state: Any) -> Any:
        """Within a life, all TCP connections are shut that this process has opened since it began."""
        groups.interrupt(groups.sockets() if _began_with is None else _began_with)
        return state


_began_with: frozenset[str] | None = None
"""The sockets that were open when the life began. None: no life is under way."""


def life_begins() -> None:
    """What is opened from now on goes with the life."""
    global _began_with
    _began_with = groups.sockets()


def life_ends() -> None:
    """For the main thread, once it is out of the function: what torch still knows of the process groups is forgotten."""
    global _began_with
    before, _began_with = _began_with, None
    if before is not None:
        groups.tear_down(before)


class AbortTransformerEngine(Abort):
    """Ends TransformerEngine's user buffers, where it is installed."""

    def __call__(self, state: Any) -> Any:
        """Never raises."""
        with contextlib.suppress(Exception):
            importlib.import_module("transformer_engine.pytorch").module.base.destroy_ub()
        return state

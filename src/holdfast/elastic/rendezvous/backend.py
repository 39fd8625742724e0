"""What does a user give a dynamic rendezvous? A place for the state that its nodes share, and its limits."""

from __future__ import annotations

import binascii
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from holdfast.elastic.events import NodeState, construct_and_record_rdzv_event

from .api import RendezvousParameters, RendezvousStateError

Token = Any  # says which version of the state a node has seen; opaque, each backend has its own kind


class RendezvousBackend(ABC):
    """Stores the state that the nodes share, as bytes. Subclass it to store them in a place of your own."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the backend."""

    @abstractmethod
    def get_state(self) -> tuple[bytes, Token] | None:
        """The state and its token; None: there is none yet.

        Raises RendezvousConnectionError or RendezvousStateError, as `set_state` does.
        """

    @abstractmethod
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write `state` if `token` is still the current one; without a token, if there is no state yet.

        Returns the state after the call, its token, and whether this call wrote it. None: the backend cannot tell.
        """


def state_in(stored: bytes) -> bytes:
    """The state that is stored in base64."""
    try:
        return b64decode(stored, validate=True)
    except binascii.Error as error:
        raise RendezvousStateError("The state object is corrupt. See inner exception for details.") from error


def read_timeout_of(params: RendezvousParameters) -> timedelta:
    """How long a read of the store waits for its key: the setting `read_timeout`, in seconds (60)."""
    seconds = params.get_as_int("read_timeout", 60)
    if seconds is None or seconds <= 0:
        raise ValueError("The read timeout must be a positive integer.")
    return timedelta(seconds=seconds)


@contextmanager
def failure_recorded(run_id: str) -> Iterator[None]:
    """What the block raises is an event of the rendezvous too."""
    try:
        yield
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        construct_and_record_rdzv_event(run_id=run_id, message=message, node_state=NodeState.FAILED, name="create_backend")
        raise


class RendezvousTimeout:
    """How long each step may take; every value must be positive.

    `join`: until a round is formed (600 s). `last_call`: how long a round that has enough nodes waits for more (30 s).
    `close`: until the end is written (30 s). `heartbeat`: until a heartbeat is written (5 s).
    """

    def __init__(
        self,
        join: timedelta | None = None,
        last_call: timedelta | None = None,
        close: timedelta | None = None,
        heartbeat: timedelta | None = None,
    ) -> None:
        self.join = _positive("join", join, 600)
        self.last_call = _positive("last_call", last_call, 30)
        self.close = _positive("close", close, 30)
        self.heartbeat = _positive("heartbeat", heartbeat, 5)


def _positive(name: str, given: timedelta | None, default_s: int) -> timedelta:
    limit = timedelta(seconds=default_s) if given is None else given
    if limit <= timedelta(0):
        raise ValueError(f"The {name} timeout ({limit}) must be positive.")
    return limit


@dataclass(repr=False, eq=False, frozen=True)
class RendezvousSettings:
    """The settings of a rendezvous, the same on all its nodes.

    A node without a heartbeat for `keep_alive_interval` times `keep_alive_max_attempt` counts as dead.
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta
    keep_alive_max_attempt: int

    @property
    def lease(self) -> timedelta:
        """How long a node lives without a heartbeat."""
        return self.keep_alive_interval * self.keep_alive_max_attempt

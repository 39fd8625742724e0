"""What does an agent need of the world around it? Two things answer: this host (`runtime.host`, `runtime.net.network`), and the
simulator (`sim.world`, `sim.network`). Nothing here runs; it is for readers and type checkers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.core.config.binding import Binding
from holdfast.core.machine import Observation
from holdfast.core.wire.messages import Message
from holdfast.runtime.process.process import Fds
from holdfast.runtime.shm.pages import Page


class World(Protocol):
    """Clock and processes of one host. What happens comes out of `wait`, in the order in which it happened."""

    def now(self) -> float:
        """Monotonic seconds, from an origin that means nothing elsewhere."""

    def unix(self) -> float:
        """Seconds since the epoch, as far as this host knows."""

    def wait(self, until: float) -> list[Observation]:
        """What happened, and at the latest at `until` nothing."""

    def start(self, argv: Sequence[str], env: Mapping[str, str], fds: Fds, page: Page | None, binding: Binding | None) -> int:
        """Start a worker, bound or not; its pid. `ProcessDying` and `ProcessGone` follow. Raises StartError."""

    def signal_group(self, pid: int, signum: int) -> None:
        """Signal the process group of a worker."""

    def kill(self, pids: Sequence[int]) -> None:
        """SIGKILL workers with everything below them."""

    def sweep(self) -> set[int]:
        """SIGKILL whatever dead workers left behind; returns the pids."""

    def close(self) -> None:
        """Give everything back."""


class Links(Protocol):
    """The links of one agent. `LinkUp`, `LinkDown` and `Arrived` come out of its World's `wait`."""

    def listen(self) -> bool:
        """Serve the endpoint. False: somebody else does."""

    def connect(self, link: int, endpoint: str = "") -> list[Observation]:
        """Begin a link to `endpoint`, or to the job's; what can be told at once is returned."""

    def transmit(self, link: int, message: Message) -> list[Observation]:
        """Send a message; it is lost when the link is down. Links that go for it are returned."""

    def hang_up(self, link: int) -> None:
        """Say no more over a link; it goes down once everything has been sent."""

    def close(self) -> None:
        """Close every link at once."""

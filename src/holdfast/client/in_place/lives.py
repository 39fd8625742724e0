"""How does a script begin again, in the same process, when another rank has failed?

    def train(life):
        dist.init_process_group()      # rank, world size and meeting point of this life are in the environment as ever
        ...

    client.run_in_place(train)

or, where the script has its training at the top:

    for life in client.lives():
        with life:
            dist.init_process_group()
            ...

When the agent asks this rank to let go of its round, `Regroup` is raised in the main thread, wherever that is. It unwinds to
here; process groups are torn down, the agent is told, and with the next round's environment in place the script begins again.
A rank that is not out in time (--regroup-timeout) is killed, and starts like any other. Without an agent there is one life.
"""

from __future__ import annotations

import os
import sys
from _warnings import warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import TypeVar

    from holdfast.client.in_place.channel import Channel
    from holdfast.client.in_place.state import State

    T = TypeVar("T")

__all__ = ["Life", "Regroup", "lives", "run_in_place"]


class Regroup(BaseException):
    """Another rank has failed, or one has come: this one lets go of its round, to begin the next. Not to be caught."""


class Life:
    """One life of this process: from a round's beginning to its end. A context manager around the training."""

    def __init__(self, number: int, channel: Channel | None, states: list[State]) -> None:
        self.number = number  # 0: the first of this process, which has nothing in memory yet.
        self._channel = channel
        self._states = states
        self.is_last = channel is None  # No other follows it.

    @property
    def is_first(self) -> bool:
        """This process has not trained before."""
        return self.number == 0

    @property
    def state(self) -> State:
        """What this process keeps from one life to the next, and what a newcomer is given by the others."""
        if not self._states:
            from holdfast.client.in_place.state import State  # only scripts that keep their state in memory need it

            channel = self._channel
            self._states.append(State(channel.is_asked.is_set, channel.device) if channel is not None else State())
            if channel is not None:
                channel.watch(self._states[0])
        return self._states[0]

    @property
    def agreed_step(self) -> int | None:
        """The step that all ranks go on from with `state`, agreed before this life began. None: `state.begin()` says it: in a
        first round, where the script restores it, or where nobody knows which part of the model a newcomer is to hold."""
        told = os.environ.get("HOLDFAST_STATE_STEP", "")
        return int(told) if told.isdecimal() else None

    def update(self) -> State:
        """`with life.update():` around all that changes `state`: a rank that is interrupted in it is given another's. Found by
        itself around `optimizer.step()` where nothing but modules and one optimizer is kept."""
        return self.state

    def __enter__(self) -> Life:
        if self._channel is not None:
            self._channel.enter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        channel = self._channel
        if channel is None:
            return False
        goes_on = channel.leave(error, _is_of_regroup(error))
        self.is_last = not goes_on
        return goes_on


def _is_of_regroup(error: BaseException | None) -> bool:
    """It is `Regroup`, or was raised as that unwound: a `finally` may need the group that is aborted."""
    passed: list[BaseException] = []
    while isinstance(error, Exception) and not isinstance(error, Regroup) and error not in passed:  # who wants to end may
        passed.append(error)
        error = error.__context__
    return isinstance(error, Regroup)


def lives(tear_down: Callable[[], object] | None = None) -> Iterator[Life]:
    """The lives of this process, one after the other; after the first whose `with` block ends by itself, or by an error of the
    script's own, there is no other. `tear_down` is called after each that is cut short, before the agent is told.

    For the main thread; elsewhere a RuntimeWarning says that there is one life only."""
    channel = _open(tear_down)
    number = 0
    states: list[State] = []
    while True:
        life = Life(number, channel, states)
        yield life
        if life.is_last or channel is None:
            return
        channel.regroup()
        number += 1


def run_in_place(train: Callable[[Life], T], tear_down: Callable[[], object] | None = None) -> T:
    """Call `train(life)`, again in each life of this process; what it returns at last. See `lives`."""
    for life in lives(tear_down):
        with life:
            result = train(life)
    return result


def _open(tear_down: Callable[[], object] | None) -> Channel | None:
    bootstrap = sys.modules.get("_holdfast_bootstrap")
    if bootstrap is None or bootstrap.words is None or bootstrap.sleep_on is None:
        return None
    from holdfast.client.in_place.channel import open_channel  # only ranks of an agent need it

    try:
        return open_channel(bootstrap, Regroup, tear_down)
    except (ValueError, RuntimeError, OSError) as error:
        warn(f"this rank does not begin again in place, but as a new process: {error}", RuntimeWarning, 4)
        return None

"""What is an assignment of ranks to the next life? NVRx's words for it; which ones there are: `rank_assignment`."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

from holdfast.inprocess.exception import RestartError
from holdfast.inprocess.state import State


class RankDiscarded(RestartError):
    """This rank is not of the next life."""


@dataclasses.dataclass
class RankAssignmentCtx:
    """What an assignment is given, and returns: this rank's state, the store that all ranks share, and who is gone."""

    state: State
    store: Any
    terminated_ranks: set[int]


class RankAssignment(abc.ABC):
    """Called by all ranks that live, with a `RankAssignmentCtx`, which it returns."""

    @abc.abstractmethod
    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """RankDiscarded: this rank is not of the next life. All ranks must come to the same answer."""


class RankFilter(RankAssignment):
    """One that leaves the ranks as they are, and says which of them call the function."""

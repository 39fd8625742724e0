"""Which rank is this, of how many, in which life? What every stage of a `Wrapper` is shown. NVRx's names.

*rank* counts those that live; *active rank* those that call the function, the others wait in reserve; *initial rank* is the
one that the process was started with.
"""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Iterable
from typing import Any


class Mode(enum.Enum):
    """What a rank does in this life."""

    INITIALIZED = enum.auto()  # Not assigned yet.
    ACTIVE = enum.auto()  # It calls the function.
    INACTIVE = enum.auto()  # It waits in reserve.
    TERMINATED = enum.auto()


@dataclasses.dataclass
class State:
    """One rank's. `rank` and `active_rank` are None where there is none."""

    rank: int | None
    world_size: int
    active_rank: int | None = None
    active_world_size: int | None = None
    initial_rank: int | None = None
    initial_world_size: int | None = None
    iteration: int = 0  # Lives before this one.
    mode: Mode = Mode.INITIALIZED
    fn_exception: BaseException | None = None  # What the function has raised here, in this life.

    def __post_init__(self) -> None:
        self.initial_rank = self.rank if self.initial_rank is None else self.initial_rank
        self.initial_world_size = self.world_size if self.initial_world_size is None else self.initial_world_size

    @classmethod
    def from_env(cls) -> State:
        """As the launcher says: RANK and WORLD_SIZE."""
        return cls(int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1))

    def set_distributed_vars(self) -> None:
        """Tell the function: RANK and WORLD_SIZE are those of the active ranks."""
        os.environ.update(RANK=str(self.active_rank), WORLD_SIZE=str(self.active_world_size))

    def having(self, **changes: Any) -> State:
        """The same, but for these."""
        return dataclasses.replace(self, **changes)

    def copy_from(self, other: State, fields: Iterable[str] | None = None) -> None:
        """Take over these fields of the other; None: all."""
        for name, value in fields_of(other).items():
            if fields is None or name in fields:
                setattr(self, name, value)

    def advance(self) -> None:
        """The next life."""
        self.iteration, self.fn_exception = self.iteration + 1, None

    def freeze(self) -> Any:
        """The same, to be read only: a `FrozenState`."""
        return FrozenState(**fields_of(self))


def fields_of(state: State) -> dict[str, Any]:
    """Each field with its value, as it is."""
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}


FrozenState: Any = dataclasses.make_dataclass(
    "FrozenState",
    [(field.name, field.type, field) for field in dataclasses.fields(State)],
    frozen=True,
    namespace={"__doc__": "A `State` whose fields raise `dataclasses.FrozenInstanceError` when they are set."},
)

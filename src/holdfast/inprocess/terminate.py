"""What is done when this rank leaves for good, by an exception? NVRx's name."""

from __future__ import annotations

import abc
from typing import Any


class Terminate(abc.ABC):
    """Called with the `FrozenState`, which it returns."""

    @abc.abstractmethod
    def __call__(self, state: Any) -> Any:
        """What it raises takes the place of the exception."""

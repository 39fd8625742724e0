"""What is done when the function has returned on all ranks? NVRx's name."""

from __future__ import annotations

import abc
from typing import Any


class Completion(abc.ABC):
    """Called with the `FrozenState`, which it returns."""

    @abc.abstractmethod
    def __call__(self, state: Any) -> Any:
        """What it raises is logged, and changes nothing."""

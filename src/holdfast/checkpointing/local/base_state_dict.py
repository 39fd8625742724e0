"""What has a state to be, so that its tensors can be moved and sent apart from the rest?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence, ValuesView
from typing import Any

import torch


class TensorAwareStateDict(ABC):
    """A state that tells its tensors from what else there is. Without them it is *hollow*, and still knows how they were."""

    @abstractmethod
    def pop_tensors(self) -> Sequence[torch.Tensor]:
        """Take the tensors out, and be hollow."""

    @property
    @abstractmethod
    def tensors(self) -> Iterable[torch.Tensor]:
        """The tensors, always in the same order."""

    @property
    @abstractmethod
    def is_hollow(self) -> bool:
        """Are the tensors out?"""

    @abstractmethod
    def insert_tensors(self, tensor_data: Iterable[torch.Tensor]) -> None:
        """Put tensors in, in the order of `pop_tensors`."""

    @abstractmethod
    def init_tensors(self) -> None:
        """Put empty tensors in, which are as those were that have been taken out."""

    @abstractmethod
    def copy_tensors_to_cpu(self, non_blocking: bool = False) -> None:
        """Have copies on the CPU in their place, and remember where they were."""

    @abstractmethod
    def restore_tensor_device(self, non_blocking: bool = True) -> None:
        """Have them where they were."""

    def values(self) -> ValuesView[Any]:
        return vars(self).values()

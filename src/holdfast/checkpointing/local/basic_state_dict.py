"""The state dict that most scripts have: tensors in dicts and lists, beside plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from holdfast.checkpointing.local.base_state_dict import TensorAwareStateDict


class TensorPlaceholder(NamedTuple):
    """Where a tensor was, and how."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str

    def init_tensor(self) -> torch.Tensor:
        """An empty one."""
        return torch.empty(self.shape, dtype=self.dtype, device=_here(self.device))


class BasicTensorAwareStateDict(TensorAwareStateDict):
    """Of `state_dict`, which it changes in place. Tensors may be on any device; they come back to one of the same kind."""

    def __init__(self, state_dict: dict[Any, Any]) -> None:
        self.state_dict = state_dict
        self._is_hollow = False
        self._devices: list[str] | None = (
            None  # Where the tensors were before they were copied to the CPU. None: they are there.
        )

    def pop_tensors(self) -> list[torch.Tensor]:
        assert not self._is_hollow
        taken = list(self.tensors)
        devices = iter(self._devices or [one.device.type for one in taken])
        _map(self.state_dict, torch.Tensor, lambda one: TensorPlaceholder(tuple(one.shape), one.dtype, next(devices)))
        self._is_hollow = True
        return taken

    @property
    def tensors(self) -> Iterator[torch.Tensor]:
        assert not self._is_hollow
        return _each(self.state_dict, torch.Tensor)

    @property
    def is_hollow(self) -> bool:
        return self._is_hollow

    def insert_tensors(self, tensor_data: Iterable[torch.Tensor]) -> None:
        assert self._is_hollow
        self._devices = [one.device for one in _each(self.state_dict, TensorPlaceholder)]
        tensors = iter(tensor_data)
        _map(self.state_dict, TensorPlaceholder, lambda _: next(tensors))
        self._is_hollow = False

    def init_tensors(self) -> None:
        assert self._is_hollow
        self.insert_tensors([one.init_tensor() for one in _each(self.state_dict, TensorPlaceholder)])

    def copy_tensors_to_cpu(self, non_blocking: bool = False) -> None:
        self._devices = self._devices or [one.device.type for one in self.tensors]
        # Those that are on the CPU already are copied too: the script goes on with them while they are written.
        _map(self.state_dict, torch.Tensor, lambda one: one.detach().to("cpu", non_blocking=non_blocking, copy=True))

    def restore_tensor_device(self, non_blocking: bool = True) -> None:
        if self._devices is not None:
            devices = iter(self._devices)
            _map(self.state_dict, torch.Tensor, lambda one: one.to(_here(next(devices)), non_blocking=non_blocking))
            self._devices = None

    def to_state_dict(self) -> dict[Any, Any]:
        return self.state_dict


def _here(kind: str) -> torch.device:
    """This rank's device of that kind; the CPU where there is none."""
    return torch.device("cpu" if kind.startswith("cuda") and not torch.cuda.is_available() else kind)


def _each(value: Any, kind: type) -> Iterator[Any]:
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _each(one, kind)


def _map(value: Any, kind: type, made: Callable[[Any], Any]) -> Any:
    """`value`, with what `made` makes of each of that kind in it, in place."""
    if isinstance(value, kind):
        return made(value)
    if isinstance(value, (dict, list)):
        for at, one in list(value.items() if isinstance(value, dict) else enumerate(value)):
            value[at] = _map(one, kind, made)
    return value

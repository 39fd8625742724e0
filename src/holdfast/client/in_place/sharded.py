"""How is a state told whose tensors are spread over ranks (FSDP)? Each rank tells its own part, as plain tensors.

A DTensor belongs to a device mesh, whose process groups end with the round. So what is kept from one life to the next is what
lies in this rank's memory, and it is put into the DTensors that the script makes in its next life.
"""

from __future__ import annotations

import sys
from zlib import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def is_sharded(value: Any) -> bool:
    """Whether there is a DTensor in it."""
    if isinstance(value, dict):
        return any(is_sharded(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(is_sharded(item) for item in value)
    return _is_dtensor(value)


def local(value: Any) -> Any:
    """The same with this rank's part of each DTensor, which shares its memory."""
    if isinstance(value, dict):
        return {key: local(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(local(item) for item in value)
    return value.to_local().detach() if _is_dtensor(value) else value


def fill(state: dict[str, Any], found: dict[str, Any]) -> None:
    """Copy `found`'s tensors into the parts of `state`'s that this rank has. KeyError, RuntimeError: they do not fit."""
    for name, tensor in local(state).items():
        if hasattr(tensor, "copy_") and not is_same(tensor, found[name]):
            tensor.copy_(found[name])


def is_same(one: Any, other: Any) -> bool:
    """Whether two tensors are the same memory."""
    return hasattr(one, "data_ptr") and hasattr(other, "data_ptr") and bool(one.data_ptr() == other.data_ptr())


def spread(optimizer: Any, found: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state as `local` tells it, with DTensors for the parameters that are such."""
    states = dict(found["state"])
    for told, group in zip(found["param_groups"], optimizer.param_groups):
        for key, parameter in zip(told["params"], group["params"]):
            if key in states and _is_dtensor(parameter):
                states[key] = {name: _like(parameter, value) for name, value in states[key].items()}
    return {**found, "state": states}


def part(names: list[str], states: list[dict[str, Any]]) -> int:
    """A number for which part of the model this rank holds: the same for ranks that hold the same."""
    told = [repr(names)]
    for state in states:
        for name, value in state.items():
            if hasattr(value, "shape"):
                told.append(f"{name} {tuple(value.shape)} {value.dtype} {_place_of(value)}")
    return crc32("\n".join(told).encode())


def is_divided(states: list[dict[str, Any]]) -> bool:
    """Whether some tensor in them is this rank's part of one only."""
    return any(_place_of(value) for state in states for value in state.values())


def _place_of(tensor: Any) -> str:
    """Where in its mesh this rank's part lies, and how large that is, in the dimensions over which it is not replicated."""
    if not _is_dtensor(tensor):
        return ""
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return "none"
    lies = zip(tensor.placements, coordinate, mesh.shape)
    return " ".join(f"{how}@{at}/{size}" for how, at, size in lies if not how.is_replicate())


def _like(parameter: Any, value: Any) -> Any:
    mine = parameter.to_local()
    if not hasattr(value, "shape") or value.shape != mine.shape or not value.dim():
        return value
    return type(parameter).from_local(
        value, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )


def _is_dtensor(value: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)

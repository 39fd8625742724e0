"""How do the ranks exchange times and names? By the script's process group; without one there is one rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def _is_up() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


def get_world_size(group: Any = None) -> int:
    """How many ranks there are."""
    return int(dist.get_world_size(group)) if _is_up() else 1


def get_rank(group: Any = None) -> int:
    """This rank's number in the group."""
    return int(dist.get_rank(group)) if _is_up() else 0


def get_device_for_backend(group: Any = None) -> Any:
    """Where the group's tensors have to be."""
    return torch.device("cuda" if _is_up() and dist.get_backend(group) == dist.Backend.NCCL else "cpu")


def all_gather_object(obj: Any, group: Any = None) -> list[Any]:
    """What each rank gives, in the order of the ranks: by torch's own collective, among the ranks of the script."""
    if (size := get_world_size(group)) == 1:
        return [obj]
    objs: list[Any] = [None] * size
    dist.all_gather_object(objs, obj, group)
    return objs


def all_reduce(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> None:
    """Of all ranks, in place."""
    if get_world_size(group) > 1:
        dist.all_reduce(tensor, op=op, group=group, async_op=async_op)


def gather_on_rank0(tensor: Any, group: Any = None) -> list[Any] | None:
    """Each rank's tensor, on rank 0 alone, and on the device of the one that is given."""
    size = get_world_size(group)
    if size == 1:
        return [tensor]
    given = tensor.to(get_device_for_backend(group))
    is_first = get_rank(group) == 0
    gathered = [torch.empty_like(given) for _ in range(size)] if is_first else None
    dist.gather(given, gathered, dst=dist.get_global_rank(group, 0) if group is not None else 0, group=group)
    return [one.to(tensor.device) for one in gathered] if gathered is not None else None


def is_all_true(flag: bool, group: Any = None) -> bool:
    """Whether all ranks say so."""
    if get_world_size(group) == 1:
        return flag
    told = torch.tensor([float(flag)], device=get_device_for_backend(group))
    dist.all_reduce(told, op=dist.ReduceOp.MIN, group=group)
    return bool(told.item() > 0)

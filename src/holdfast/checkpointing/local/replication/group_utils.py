"""How do the ranks of a group send states to one another? By the group's own collectives, without pickle where it can be."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist

from holdfast.checkpointing.local import state_file
from holdfast.checkpointing.local.base_state_dict import TensorAwareStateDict


@dataclass(frozen=True)
class ExchangePlanEntry:
    """`sender` gives `receiver` the checkpoint `id_`."""

    sender: int
    receiver: int
    id_: Any


@dataclass
class ExchangePlan:
    """Who gives whom what, the same on all ranks of the group."""

    group: GroupWrapper
    _entries: list[ExchangePlanEntry] = field(default_factory=list)

    def plan(self, sender: int, receiver: int, id_: Any) -> None:
        """One more."""
        self._entries.append(ExchangePlanEntry(sender, receiver, id_))

    @property
    def entries(self) -> tuple[ExchangePlanEntry, ...]:
        return tuple(self._entries)

    def required_ids(self, rank: int | None = None) -> set[Any]:
        """What a rank (default: this one) has to give."""
        rank = self.group.my_global_rank if rank is None else rank
        return {one.id_ for one in self._entries if one.sender == rank}


def batched(iterable: Iterable[Any], n: int) -> Iterator[tuple[Any, ...]]:
    """In tuples of `n`; the last may be shorter."""
    if n < 1:
        raise ValueError(f"n: {n!r} is not 1 or more")
    left = iter(iterable)
    while batch := tuple(islice(left, n)):
        yield batch


def parse_group_sequence(replication_jump: int, replication_factor: int, world_size: int) -> list[tuple[int, ...]]:
    """The cliques: `replication_factor` ranks each, `replication_jump` apart, so that no failure reaches two of them."""
    assert replication_jump > 0, f"replication_jump: {replication_jump} would have a rank keep its own copy"
    assert replication_factor > 0, f"replication_factor: {replication_factor} makes no groups"
    size = replication_jump * replication_factor
    assert world_size % size == 0, (
        f"{world_size} ranks cannot be split into groups of {replication_factor} that are {replication_jump} apart: "
        f"{world_size} is no multiple of {size}"
    )
    apart = (range(first, world_size, replication_jump) for first in range(replication_jump))
    return sorted(group for ranks in apart for group in batched(ranks, replication_factor))


class GroupWrapper:
    """A process group; None: all ranks. Without torch.distributed there is one rank."""

    def __init__(self, group: Any = None) -> None:
        self._group = group

    @staticmethod
    def wrap(group: Any) -> GroupWrapper:
        """ValueError: it is no group."""
        if isinstance(group, GroupWrapper):
            return group
        if isinstance(group, dist.ProcessGroup):
            return GroupWrapper(group)
        raise ValueError(f"{type(group).__name__}: a process group is wanted")

    @staticmethod
    def from_list_of_groups(list_of_groups: Iterable[Any]) -> GroupWrapper:
        """The one of them that this rank is in."""
        mine = [group for group in list_of_groups if dist.get_rank() in dist.get_process_group_ranks(group)]
        assert len(mine) == 1, f"rank {dist.get_rank()} is in {len(mine)} of the groups, and should be in one"
        return GroupWrapper(mine[0])

    @property
    def group(self) -> Any:
        return self._group

    @property
    def backend(self) -> str:
        return str(dist.get_backend(self._group))

    @property
    def _is_up(self) -> bool:
        return bool(dist.is_available() and dist.is_initialized())

    @property
    def _device(self) -> torch.device:
        """Where what is sent has to be."""
        return torch.device("cuda" if self.backend == dist.Backend.NCCL else "cpu")

    def get_group_rank(self, global_rank: int | None = None) -> int:
        if global_rank is None:
            return int(dist.get_rank(self._group))
        return global_rank if self._group is None else int(dist.get_group_rank(self._group, global_rank))

    @property
    def my_group_rank(self) -> int:
        return self.get_group_rank()

    def get_global_rank(self, group_rank: int | None = None) -> int:
        if not self._is_up:
            return 0
        if group_rank is None or self._group is None:
            return int(dist.get_rank()) if group_rank is None else group_rank
        return int(dist.get_global_rank(self._group, group_rank))

    @property
    def my_global_rank(self) -> int:
        return self.get_global_rank()

    @property
    def ranks(self) -> list[int]:
        """In the whole world's numbers."""
        if self._group is None:
            return list(range(self.world_size))
        return list(dist.get_process_group_ranks(self._group))

    @property
    def world_size(self) -> int:
        return int(dist.get_world_size(self._group)) if self._is_up else 1

    def __repr__(self) -> str:
        return f"<group of {self.world_size} ranks; this is rank {self.my_group_rank} of it, {self.my_global_rank} of all>"

    # --- to all of them -------------------------------------------------------------------------------------------------

    def all_gather_object(self, my_obj: Any) -> list[Any]:
        """What each gives, by torch's own collective, which pickles it."""
        if self.world_size == 1:
            return [my_obj]
        found: list[Any] = [None] * self.world_size
        dist.all_gather_object(found, my_obj, group=self._group)
        return found

    def all_gather_plain(self, value: Any) -> list[Any]:
        """The same for what JSON can tell."""
        return [json.loads(told) for told in self.all_gather_bytes(json.dumps(value).encode())]

    def all_gather_bytes(self, mine: bytes) -> list[bytes]:
        """The bytes of each."""
        if self.world_size == 1:
            return [mine]
        sizes = [torch.zeros(1, dtype=torch.int64, device=self._device) for _ in range(self.world_size)]
        dist.all_gather(sizes, torch.tensor([len(mine)], dtype=torch.int64, device=self._device), group=self._group)
        most = max(1, *(int(size) for size in sizes))
        room = [torch.zeros(most, dtype=torch.uint8, device=self._device) for _ in sizes]
        dist.all_gather(room, _tensor_of(mine.ljust(most, b"\0")).to(self._device), group=self._group)
        return [_bytes_of(told[: int(size)]) for told, size in zip(room, sizes)]

    def all_gather_states(self, hollow: TensorAwareStateDict) -> list[TensorAwareStateDict]:
        """The hollow state of each: without pickle, if all of them can be told so."""
        told = state_file.to_bytes(hollow)
        if all(self.all_gather_plain(told is not None)):
            return [state_file.from_bytes(one) for one in self.all_gather_bytes(told or b"")]
        return self.all_gather_object(hollow)

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """From `src`, in the whole world's numbers, to all."""
        if tensor.numel() and self.world_size > 1:
            dist.broadcast(tensor, src, group=self._group)

    def all_gather_batch(self, my_tensors: list[torch.Tensor], target_device: Any = None) -> list[list[torch.Tensor]]:
        """The tensors of each, on `target_device`; None: where the group can have them."""
        shapes = self.all_gather_plain([[list(one.shape), str(one.dtype).removeprefix("torch.")] for one in my_tensors])
        found: list[list[torch.Tensor]] = []
        for sender, theirs in enumerate(shapes):
            mine = sender == self.my_group_rank
            found.append([])
            for at, (shape, dtype) in enumerate(theirs):
                tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=self._device)
                if mine:
                    tensor.copy_(my_tensors[at])
                self.broadcast(_as_bytes(tensor), self.get_global_rank(sender))
                found[-1].append(tensor if target_device is None else tensor.to(target_device))
        return found

    # --- to one of them -------------------------------------------------------------------------------------------------

    def execute_plan(self, exchange_plan: ExchangePlan, my_data: Mapping[Any, TensorAwareStateDict]) -> dict[Any, Any]:
        """Give and take as planned; `my_data` is what this rank has to give. What has come, by id."""
        lacking = exchange_plan.required_ids() - my_data.keys()
        assert not lacking, f"this rank is to give {lacking}, and has {[*my_data]}"
        me, came = self.my_global_rank, {}
        for one in exchange_plan.entries:
            if one.sender == me == one.receiver:
                came[one.id_] = my_data[one.id_]
            elif one.sender == me:
                self.send_state(my_data[one.id_], one.receiver)
            elif one.receiver == me:
                came[one.id_] = self.recv_state(one.sender)
        return came

    def send_state(self, state: TensorAwareStateDict, dst: int) -> None:
        """To `dst`, in the whole world's numbers."""
        tensors = list(state.pop_tensors())
        told = state_file.to_bytes(state)
        self._send(torch.tensor([-1 if told is None else len(told)], dtype=torch.int64), dst)
        if told is not None:
            self._send(_tensor_of(told), dst)
        else:
            dist.send_object_list([state], dst, group=self._group, device=self._device)
        for tensor in tensors:
            self._send(_as_bytes(tensor.detach().contiguous()), dst)
        state.insert_tensors(tensors)

    def recv_state(self, src: int) -> TensorAwareStateDict:
        """What `src` sends: its tensors are where they were over there."""
        size = int(self._recv(torch.zeros(1, dtype=torch.int64), src))
        if size >= 0:
            state: TensorAwareStateDict = state_file.from_bytes(
                _bytes_of(self._recv(torch.zeros(size, dtype=torch.uint8), src))
            )
        else:
            came: list[Any] = [None]
            dist.recv_object_list(came, src, group=self._group, device=self._device)
            state = came[0]
        state.init_tensors()
        for tensor in state.tensors:
            with torch.no_grad():
                _as_bytes(tensor).copy_(self._recv(torch.empty_like(_as_bytes(tensor)), src))
        return state

    def _send(self, tensor: torch.Tensor, dst: int) -> None:
        if tensor.numel():
            dist.send(tensor.to(self._device), dst, group=self._group)

    def _recv(self, room: torch.Tensor, src: int) -> torch.Tensor:
        room = room.to(self._device)
        if room.numel():
            dist.recv(room, src, group=self._group)
        return room


ProcessGroupLike = GroupWrapper | Any


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Flat, since not every backend knows every kind of number."""
    return tensor.reshape(-1).view(torch.uint8)


def _tensor_of(told: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(told), dtype=torch.uint8) if told else torch.zeros(0, dtype=torch.uint8)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    tensor = tensor.cpu().contiguous()
    return bytes(state_file.bytes_of(tensor, tensor.numel())) if tensor.numel() else b""

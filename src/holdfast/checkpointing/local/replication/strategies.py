"""Who keeps copies of whose local checkpoint, and who gives it back? A clique of ranks: each has what all of them have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from holdfast.checkpointing.local.base_state_dict import TensorAwareStateDict
from holdfast.checkpointing.local.replication.group_utils import ExchangePlan, GroupWrapper, parse_group_sequence


class NoReplicasAvailableError(Exception):
    """No rank that could give it has that checkpoint."""


class ReplicationStrategy(ABC):
    """What a manager asks. All ranks are asked together."""

    @abstractmethod
    def replicate(self, local_ckpt: TensorAwareStateDict, id_: Any) -> tuple[list[TensorAwareStateDict], list[Any]]:
        """What this rank is to keep, its own among it, and by which ids. `local_ckpt` is hollow afterwards."""

    @abstractmethod
    def retrieve_plan(self, globally_available_ids: Mapping[int, Sequence[Any]], wanted: Sequence[Any]) -> ExchangePlan:
        """Who gives whom what this and the other ranks want, by what each rank has. NoReplicasAvailableError: nobody has it."""

    @abstractmethod
    def retrieve_execute(self, *args: Any, **kwargs: Any) -> Any:
        """Give and take as planned."""


class CliqueReplicationStrategy(ReplicationStrategy):
    """The ranks of `local_group` keep copies of each other's. On `target_device` they are made."""

    def __init__(self, local_group: Any, target_device: Any = "cpu") -> None:
        self.local_group = GroupWrapper.wrap(local_group)
        self.target_device = target_device

    def replicate(self, local_ckpt: TensorAwareStateDict, id_: Any) -> tuple[list[TensorAwareStateDict], list[Any]]:
        tensors = list(local_ckpt.pop_tensors())
        states = self.local_group.all_gather_states(local_ckpt)
        for state, theirs in zip(states, self.local_group.all_gather_batch(tensors, target_device=self.target_device)):
            state.insert_tensors(theirs)
        return states, [tuple(one) if isinstance(one, list) else one for one in self.local_group.all_gather_plain(id_)]

    def retrieve_plan(self, globally_available_ids: Mapping[int, Sequence[Any]], wanted: Sequence[Any]) -> ExchangePlan:
        plan = ExchangePlan(group=self.local_group)
        given: dict[int, int] = {}  # How much each has to give already.
        for receiver, ids in zip(self.local_group.ranks, self.local_group.all_gather_plain(list(wanted))):
            for told in ids:
                id_ = tuple(told) if isinstance(told, list) else told
                having = [rank for rank in self.local_group.ranks if id_ in globally_available_ids[rank]]
                if not having:
                    raise NoReplicasAvailableError(f"none of the ranks {self.local_group.ranks} has {id_}")
                sender = receiver if receiver in having else min(having, key=lambda rank: given.get(rank, 0))
                given[sender] = given.get(sender, 0) + (sender != receiver)
                plan.plan(sender=sender, receiver=receiver, id_=id_)
        return plan

    def retrieve_execute(self, *args: Any, **kwargs: Any) -> Any:
        return self.local_group.execute_plan(*args, **kwargs)

    @classmethod
    def from_replication_params(
        cls, replication_jump: int | None = None, replication_factor: int = 2
    ) -> CliqueReplicationStrategy:
        """Cliques of `replication_factor` ranks, `replication_jump` apart: the number of ranks that one failure takes along
        (default: this node's GPUs, or its ranks). The world's size must be a multiple of both together."""
        jump = replication_jump or torch.cuda.device_count() or 1
        cliques = parse_group_sequence(jump, replication_factor, dist.get_world_size())
        return cls(GroupWrapper.from_list_of_groups([dist.new_group(list(ranks)) for ranks in cliques]))


EagerT = TypeVar("EagerT", bound=ReplicationStrategy)


class LazyReplicationStrategyBuilder(ReplicationStrategy, Generic[EagerT]):
    """A strategy that makes its groups when it is first asked: torch.distributed need not be up before."""

    def __init__(self) -> None:
        self._replication_strategy: EagerT | None = None

    @property
    def replication_strategy(self) -> EagerT:
        if self._replication_strategy is None:
            self._replication_strategy = self._eager_build()
        return self._replication_strategy

    def replicate(self, local_ckpt: TensorAwareStateDict, id_: Any) -> tuple[list[TensorAwareStateDict], list[Any]]:
        return self.replication_strategy.replicate(local_ckpt, id_)

    def retrieve_plan(self, globally_available_ids: Mapping[int, Sequence[Any]], wanted: Sequence[Any]) -> ExchangePlan:
        return self.replication_strategy.retrieve_plan(globally_available_ids, wanted)

    def retrieve_execute(self, *args: Any, **kwargs: Any) -> Any:
        return self.replication_strategy.retrieve_execute(*args, **kwargs)

    @abstractmethod
    def _eager_build(self) -> EagerT:
        """Make it."""


class LazyCliqueReplicationStrategy(LazyReplicationStrategyBuilder[CliqueReplicationStrategy]):
    """As `CliqueReplicationStrategy.from_replication_params`, once it is asked."""

    def __init__(self, replication_jump: int | None = None, replication_factor: int = 2) -> None:
        super().__init__()
        self.replication_jump, self.replication_factor = replication_jump, replication_factor

    def _eager_build(self) -> CliqueReplicationStrategy:
        return CliqueReplicationStrategy.from_replication_params(self.replication_jump, self.replication_factor)

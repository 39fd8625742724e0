"""When is a local checkpoint complete, and which one is the newest? One that every rank has, or can be given.

A checkpoint's parts are written beside those of the one before, which is removed when all ranks have the new one. So whenever
a rank is lost, one of them is whole.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from holdfast.checkpointing.async_ckpt.core import AsyncRequest
from holdfast.checkpointing.local.base_state_dict import TensorAwareStateDict
from holdfast.checkpointing.local.replication.group_utils import GroupWrapper
from holdfast.checkpointing.local.replication.strategies import ReplicationStrategy

logger = logging.getLogger(__name__)

CkptID = tuple[int, int, Any]  # Iteration, rank, session.


class CheckpointingException(Exception):
    """A local checkpoint cannot be saved or loaded."""


class SameMachineReplicationException(CheckpointingException):
    """A part is to be written that is there already: two ranks of one clique write to the same folder."""

    def __init__(self, ckpt_id: CkptID) -> None:
        super().__init__(f"checkpoint {ckpt_id} is there already: do two ranks of a clique write to one folder?")


class BaseCheckpointManager(ABC):
    """Saves and loads, where its subclass says. All ranks call each method together."""

    def __init__(self, session_id: Any, repl_strategy: ReplicationStrategy | None = None) -> None:
        self.session_id, self.repl_strategy = session_id, repl_strategy
        self.latest_iteration = -1  # What `find_latest` has found. -1: nothing, or it has not looked since the last save.
        self.globally_available_ids: dict[int, list[CkptID]] = {}
        self._rank: int | None = None

    @property
    def rank(self) -> int:
        if self._rank is None:
            if not (dist.is_available() and dist.is_initialized()):
                logger.warning("torch.distributed is not initialised: this is taken for rank 0")
            self._rank = GroupWrapper().my_global_rank
        return self._rank

    def _ckpt_id(self, iteration: int) -> CkptID:
        if iteration < 0:
            raise CheckpointingException(f"iteration: {iteration} is negative")
        return iteration, self.rank, self.session_id

    # --- what a subclass says -------------------------------------------------------------------------------------------

    @abstractmethod
    def _my_ckpt_ids(self) -> Iterable[CkptID]:
        """What this rank has."""

    @abstractmethod
    def _load(self, ckpt_id: CkptID) -> TensorAwareStateDict:
        """One of them. CheckpointingException: it cannot be had."""

    @abstractmethod
    def _save(self, state_dict: TensorAwareStateDict, ckpt_id: CkptID) -> None:
        """Keep it. SameMachineReplicationException: it is there already."""

    @abstractmethod
    def _cleanup(self, iteration: int) -> None:
        """That one is complete: remove those before it."""

    @abstractmethod
    def _cleanup_failed_save(self, iteration: int) -> None:
        """That one is not complete: remove what there is of it."""

    # --- finding and loading --------------------------------------------------------------------------------------------

    def find_latest(self) -> int:
        """The newest iteration that every rank can load. -1: there is none."""
        if self.latest_iteration != -1:
            return self.latest_iteration
        mine = [id_ for id_ in self._my_ckpt_ids() if self.repl_strategy is not None or id_[1] == self.rank]
        told = GroupWrapper().all_gather_plain([list(id_) for id_ in mine])
        self.globally_available_ids = {rank: [(*id_,) for id_ in ids] for rank, ids in enumerate(told)}
        having: dict[int, set[int]] = {}
        for ids in self.globally_available_ids.values():
            for iteration, rank, _ in ids:
                having.setdefault(iteration, set()).add(rank)
        everybody = {*GroupWrapper().ranks}
        self.latest_iteration = max((iteration for iteration, ranks in having.items() if ranks == everybody), default=-1)
        return self.latest_iteration

    def load(self) -> tuple[TensorAwareStateDict, CkptID]:
        """This rank's part of what `find_latest` has found, and its id. CheckpointingException: nothing was found."""
        if self.latest_iteration == -1:
            raise CheckpointingException("load: call find_latest() before, which has to find something")
        ckpt_id = self._ckpt_id(self.latest_iteration)
        if self.repl_strategy is None:
            return self._load_fn(ckpt_id), ckpt_id
        plan = self.repl_strategy.retrieve_plan(self.globally_available_ids, [ckpt_id])
        came = self.repl_strategy.retrieve_execute(plan, {id_: self._load_fn(id_) for id_ in plan.required_ids()})
        return came[ckpt_id], ckpt_id

    def _load_fn(self, ckpt_id: CkptID) -> TensorAwareStateDict:
        state = self._load(ckpt_id)
        state.restore_tensor_device(non_blocking=False)
        return state

    # --- saving ---------------------------------------------------------------------------------------------------------

    def save(self, state_dict: TensorAwareStateDict, iteration: int, is_async: bool = False) -> AsyncRequest | None:
        """Save it as that of `iteration`, which grows. With `is_async` what is returned is still to be done
        (`checkpointing.async_ckpt.core`), and the script may go on with its tensors.

        CheckpointingException: a rank could not save its part; the checkpoint before is kept."""
        assert self.latest_iteration < iteration, f"iteration {self.latest_iteration} is saved, and {iteration} is no later"
        ckpt_id = self._ckpt_id(iteration)
        if self.repl_strategy is None:
            kept = {ckpt_id: state_dict}
        else:
            kept = {id_: state for state, id_ in zip(*self.repl_strategy.replicate(state_dict, ckpt_id))}
        kept[ckpt_id].copy_tensors_to_cpu(non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the copies are there
        self.latest_iteration = -1

        def finalize_fn() -> None:
            self._finalize(iteration, is_async)

        if is_async:
            return AsyncRequest(self._save_fn, (kept,), [finalize_fn], async_fn_kwargs={})
        self._save_now(kept, finalize_fn)
        return None

    def _save_now(self, kept: dict[CkptID, TensorAwareStateDict], finalize: Callable[[], None]) -> None:
        """A rank that fails does not leave the others waiting for it: all of them find that it has."""
        failed: Exception | None = None
        try:
            self._save_fn(kept)
        except Exception as error:
            failed = error
        GroupWrapper().all_gather_plain(failed is None)  # all have done what they could
        try:
            finalize()
        except CheckpointingException as error:
            raise (failed if isinstance(failed, CheckpointingException) else error) from failed

    def _save_fn(self, kept: dict[CkptID, TensorAwareStateDict]) -> None:
        for ckpt_id, state in kept.items():
            try:
                self._save(state, ckpt_id)
            except Exception as error:
                logger.error("checkpoint %s is not saved: %s", ckpt_id, error)
                raise

    def _finalize(self, iteration: int, is_async: bool) -> None:
        begun = time.monotonic()
        valid, self.latest_iteration = self.find_latest(), -1
        clean = self._cleanup_failed_save if valid < iteration else self._cleanup
        if is_async:
            threading.Thread(target=clean, args=(iteration,), name="checkpoint cleanup").start()
        else:
            clean(iteration)
        logger.debug("finalize_fn took %.4fs", time.monotonic() - begun)
        if valid < iteration:
            raise CheckpointingException(
                f"not all ranks have saved the local checkpoint of iteration {iteration}: the last complete one is {valid}"
            )

"""How does a Lightning trainer keep local checkpoints between its own? By NVRx's names, over `checkpointing.local`.

    local = LocalCheckpointManager("/local/checkpoints")
    wrap = HierarchicalCheckpointIO.get_partial_wrapper_constructor(local, step_of_checkpoint)
    trainer = Trainer(callbacks=[ModelCheckpoint(...), LocalCheckpointCallback(every_n_train_steps=10)])
    trainer.strategy.checkpoint_io = wrap(trainer.strategy.checkpoint_io)

The callback says when. The checkpoint IO saves there what the callback has asked for, and everything else as before; it loads
whichever is newer.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast.checkpointing.async_ckpt.core import AsyncRequest
from holdfast.checkpointing.local.base_state_dict import TensorAwareStateDict
from holdfast.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
from holdfast.checkpointing.local.ckpt_managers.base_manager import BaseCheckpointManager
from holdfast.fault_tolerance.dict_utils import dict_list_map_outplace

if TYPE_CHECKING:

    class ModelCheckpoint:
        """Lightning's."""

        def __init__(self, *, every_n_train_steps: int | None, train_time_interval: timedelta | None) -> None: ...

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None: ...

    class Strategy:
        """Lightning's."""

        def save_checkpoint(self, checkpoint: Any, filepath: Any, storage_options: Any = None) -> None: ...

    class _WrappingCheckpointIO:
        """Lightning's."""

        def __init__(self, checkpoint_io: Any) -> None: ...

        checkpoint_io: Any

else:
    # Lightning goes by two names, and a trainer of the one takes no callbacks of the other.
    _found = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    ModelCheckpoint = importlib.import_module(f"{_found}.callbacks").ModelCheckpoint
    Strategy = importlib.import_module(f"{_found}.strategies").Strategy
    _WrappingCheckpointIO = importlib.import_module(f"{_found}.plugins.io.wrapper")._WrappingCheckpointIO

__all__ = ["LOCAL_CKPT_OPTS_KEY", "HierarchicalCheckpointIO", "LocalCheckpointCallback"]

logger = logging.getLogger(__name__)

LOCAL_CKPT_OPTS_KEY = "local_checkpoint_options"  # In the trainer's `storage_options`: this one is local.


class LocalCheckpointCallback(ModelCheckpoint):
    """Asks for a local checkpoint every so many steps, or after that time; not at the end of an epoch or a validation."""

    def __init__(self, every_n_train_steps: int | None = None, train_time_interval: timedelta | None = None) -> None:
        super().__init__(every_n_train_steps=every_n_train_steps, train_time_interval=train_time_interval)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """ValueError: only rank 0 would save, and wait for the others for ever."""
        kind = type(trainer.strategy)
        if trainer.world_size > 1 and kind.save_checkpoint is Strategy.save_checkpoint:
            raise ValueError(
                f"LocalCheckpointCallback: of {trainer.world_size} ranks {kind.__name__} has rank 0 alone save; all have to: "
                "give the trainer a strategy whose save_checkpoint saves on all ranks if filepath is None "
                "(docs/how-to/local-checkpoints.md has one)"
            )
        super().setup(trainer, pl_module, stage)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Nothing."""

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Nothing."""

    def _save_topk_checkpoint(self, trainer: Any, monitor_candidates: Any) -> None:
        """No local checkpoint is better than another."""

    def _save_last_checkpoint(self, trainer: Any, monitor_candidates: Any) -> None:
        """It is time."""
        asked = {"ckpt_type": "local", "iteration": trainer.global_step}
        trainer.save_checkpoint(None, storage_options={LOCAL_CKPT_OPTS_KEY: asked})


class HierarchicalCheckpointIO(_WrappingCheckpointIO):
    """Saves local checkpoints by `local_ckpt_manager`, and others by the checkpoint IO that it wraps."""

    def __init__(
        self,
        wrapped_checkpoint_io: Any,
        local_ckpt_manager: BaseCheckpointManager,
        get_global_ckpt_iteration_fn: Callable[[Any], int],
        async_save: bool = False,
    ) -> None:
        """`get_global_ckpt_iteration_fn`: the step of the other kind of checkpoint at a path. `async_save`: `save_checkpoint`
        returns what is still to be done (`BaseCheckpointManager.save`), unless its options say `is_async` themselves."""
        super().__init__(wrapped_checkpoint_io)
        self.local_ckpt_manager = local_ckpt_manager
        self.get_global_ckpt_iteration_fn, self.async_save = get_global_ckpt_iteration_fn, async_save

    @classmethod
    def get_partial_wrapper_constructor(
        cls, local_ckpt_manager: BaseCheckpointManager, get_global_ckpt_iteration_fn: Callable[[Any], int]
    ) -> Callable[..., HierarchicalCheckpointIO]:
        """What only needs the checkpoint IO that is to be wrapped."""
        given = {"local_ckpt_manager": local_ckpt_manager, "get_global_ckpt_iteration_fn": get_global_ckpt_iteration_fn}
        return functools.partial(cls, **given)  # type: ignore[arg-type]

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> AsyncRequest | None:
        """ValueError: a local checkpoint has no path."""
        if not isinstance(storage_options, dict) or LOCAL_CKPT_OPTS_KEY not in storage_options:
            request: AsyncRequest | None = self.checkpoint_io.save_checkpoint(checkpoint, path, storage_options)
            return request
        if path is not None:
            raise ValueError(f"path: {path} is given for a local checkpoint, whose manager knows where it goes")
        return self._save_local_checkpoint(checkpoint, storage_options[LOCAL_CKPT_OPTS_KEY])

    def _save_local_checkpoint(self, checkpoint: Any, local_ckpt_options: dict[str, Any]) -> AsyncRequest | None:
        state, is_async = self.to_tensor_aware_state_dict(checkpoint), local_ckpt_options.get("is_async", self.async_save)
        return self.local_ckpt_manager.save(state, local_ckpt_options["iteration"], is_async=is_async)

    def load_checkpoint(self, path: Any, map_location: Any = None, **kwargs: Any) -> Any:
        """The newest local checkpoint that all ranks have, unless the one at `path` is newer."""
        local = self.local_ckpt_manager.find_latest()
        if local >= 0:
            other = self.get_global_ckpt_iteration_fn(path)
            if local >= other:
                logger.info("Resuming from a local checkpoint of step %d; that at %s is of step %d", local, path, other)
                state, _ = self.local_ckpt_manager.load()
                return self.from_tensor_aware_state_dict(state, **kwargs)
            logger.warning("Resuming from a global checkpoint, of step %d; the local one is of step %d", other, local)
        return self.checkpoint_io.load_checkpoint(path, map_location=map_location, **kwargs)

    def remove_checkpoint(self, path: Any) -> None:
        """One of the other kind; the local ones' manager removes its own."""
        self.checkpoint_io.remove_checkpoint(path)

    def to_tensor_aware_state_dict(self, checkpoint: Any) -> TensorAwareStateDict:
        """What the manager is given. Its dicts and lists are new: an optimizer goes on with its own."""
        return BasicTensorAwareStateDict(dict_list_map_outplace(lambda one: one, checkpoint))

    def from_tensor_aware_state_dict(self, tensor_aware_checkpoint: TensorAwareStateDict, **kwargs: Any) -> Any:
        """What the trainer is given."""
        return tensor_aware_checkpoint.to_state_dict()  # type: ignore[attr-defined]

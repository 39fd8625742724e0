"""How does a Lightning trainer go on in its process when another rank has failed? By `InPlaceCallback`.

    def train(life):
        trainer = Trainer(strategy="ddp", callbacks=[InPlaceCallback(life)])
        trainer.fit(Net(), loader)

    client.run_in_place(train)

`life.state` keeps the module, its optimizers, and where the trainer is. An update begins before the optimizer's step and ends
with the batch: then the state of loops, schedulers, callbacks and random numbers is taken. The next life's trainer is put there
as it begins to fit. It goes on as Lightning does from a checkpoint, but with the validation that was due, and at its place in
the loader.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.client.in_place import random_state
from holdfast.integrations.lightning import Callback

if TYPE_CHECKING:
    from holdfast.client import Life
    from holdfast.client.in_place.state import State

__all__ = ["InPlaceCallback"]

STRATEGIES = ("DDPStrategy", "SingleDeviceStrategy")
"""Those with the whole module in each rank."""
PLACE = "lightning"  # The value in `life.state` that says where the trainer is.
BATCHES, VALIDATION = "epoch_loop.batch_progress", "epoch_loop.val_loop.batch_progress"
"""Of Lightning's names for what its loops have done."""
LOADS = "on_load_checkpoint"  # A callback's hook that takes its state out of a checkpoint, besides load_state_dict.
NOT_RESUMABLE = "You're resuming from a checkpoint that ended before the epoch ended"


class InPlaceCallback(Callback):
    """The last of the trainer's callbacks, but for those that save; for one `fit` in each life.

    `stash_every`: so often, in updates, a stash is made, which is gone on from where no rank has the state any more."""

    def __init__(self, life: Life, *, stash_every: int = 0) -> None:
        self.life, self.stash_every = life, stash_every
        self.place: dict[str, Any] | None = None  # Where the trainer is to go on. None: where it begins by itself.
        self.update: State | None = None  # The update that is under way.
        self.hook: Any = None  # The module's own `on_train_batch_end`, where it has one: the update ends after that.

    # --- Lightning's hooks ----------------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Module and optimizers are made, and the ranks have met: they agree on what to go on with. ValueError: this trainer
        cannot go on in its process; it says why."""
        _check(trainer)
        state = self.life.state
        state.keep("module", lambda: pl_module, anew=True)
        for number, optimizer in enumerate(trainer.optimizers):
            state.keep(f"optimizer {number}", _just(optimizer), anew=True)
        loaded = trainer._checkpoint_connector._loaded_checkpoint
        state.begin(lambda: int(loaded.get("global_step", 0)), stash_every=self.stash_every)
        self.place = state.get(PLACE)
        if self.place is not None:
            _put_back(trainer, self.place)
        if _has_own_hook(pl_module):
            self.hook = pl_module.on_train_batch_end
            _set(pl_module, "on_train_batch_end", self._after_hook(trainer))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The loaders are made."""
        if type(trainer.fit_loop._data_fetcher).__name__ == "_DataLoaderIterDataFetcher":
            raise ValueError("training_step(dataloader_iter) takes its batches by itself: their place cannot be gone on from")
        if self.place is not None:
            # Else the epoch that is gone on with ends without its schedulers of the plateau.
            _set(trainer.fit_loop, "_restarting", False)
            _go_to(trainer.fit_loop, self.place["batches"])
            random_state.put(self.place["random"])
            self.place = None

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """The gradients are there. The optimizer's own step may have begun before, with forward and backward within it."""
        if self.update is None:
            self.update = self.life.update()
            self.update.__enter__()

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        if self.hook is None:
            self._end_update(trainer)

    # --- an update ------------------------------------------------------------------------------------------------------

    def _after_hook(self, trainer: Any) -> Any:
        def on_train_batch_end(*args: Any, **kwargs: Any) -> None:
            self.hook(*args, **kwargs)
            self._end_update(trainer)

        return on_train_batch_end

    def _end_update(self, trainer: Any) -> None:
        if self.update is not None:  # else gradients are accumulated, or nothing was to be done
            self.life.state[PLACE] = _place(trainer)
            self.update.__exit__(None, None, None)
            self.update = None


def _set(owner: Any, name: str, value: Any) -> None:
    """A field of Lightning's, which no method of Lightning's sets."""
    setattr(owner, name, value)


def _just(one: Any) -> Callable[[], Any]:
    return lambda: one


# --- where a trainer is -------------------------------------------------------------------------------------------------------


def _place(trainer: Any) -> dict[str, Any]:
    """Where it is at the end of an update, as plain values."""
    loops = trainer.fit_loop.state_dict()
    batches = loops[BATCHES]["current"]["processed"]
    _end_batch(loops, is_validation_due=trainer.fit_loop.epoch_loop._should_check_val_fx(trainer.fit_loop._data_fetcher))
    return {
        "loops": loops,
        "batches": batches,
        "schedulers": [copy.deepcopy(one.scheduler.state_dict()) for one in trainer.lr_scheduler_configs],
        "callbacks": {one.state_key: copy.deepcopy(one.state_dict()) for one in trainer.callbacks},
        "precision": trainer.precision_plugin.state_dict(),
        "data": trainer.datamodule.state_dict() if trainer.datamodule is not None else {},
        "random": random_state.take(),
    }


def _end_batch(loops: dict[str, Any], *, is_validation_due: bool) -> None:
    """Tell the loops so that Lightning goes on after this batch: first to validation, if that is due, from its beginning."""
    for progress in loops[BATCHES]["total"], loops[BATCHES]["current"]:
        progress["completed"] = progress["processed"]
    validation = loops[VALIDATION]
    done = validation["total"]["completed"]
    validation["total"].update(ready=done + 1, started=done + 1, processed=done)  # Lightning's sign of one that was cut short
    validation["current"].update(ready=0, started=0, processed=0, completed=0)
    validation["is_last_batch"] = False
    if not is_validation_due:  # else it is counted after that
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] += 1


def _put_back(trainer: Any, place: dict[str, Any]) -> None:
    """Put the trainer there, whatever checkpoint its script has given it. Module and optimizers are there already."""
    trainer._checkpoint_connector._loaded_checkpoint.clear()
    _set(trainer, "ckpt_path", None)
    trainer.fit_loop.load_state_dict(place["loops"])
    for config, told in zip(trainer.lr_scheduler_configs, place["schedulers"]):
        config.scheduler.load_state_dict(copy.deepcopy(told))
    for callback in trainer.callbacks:
        if told := place["callbacks"].get(callback.state_key):
            callback.load_state_dict(copy.deepcopy(told))
    if place["precision"]:
        trainer.precision_plugin.load_state_dict(place["precision"])
    if place["data"]:
        trainer.datamodule.load_state_dict(place["data"])
    warnings.filterwarnings("ignore", NOT_RESUMABLE)


class _Later:
    """What a sampler tells, without its first `count`, once."""

    def __init__(self, sampler: Any, count: int) -> None:
        self.sampler, self.count = sampler, count

    def __iter__(self) -> Iterator[Any]:
        count, self.count = self.count, 0
        return itertools.islice(self.sampler, count, None)

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)


def _go_to(fit_loop: Any, batches: int) -> None:
    """Pass over the epoch's first `batches`. Samplers tell what they were; where there is none, they are loaded and dropped."""
    loaders = fit_loop._combined_loader.flattened
    if any(hasattr(one, "load_state_dict") for one in loaders):  # Lightning has told it
        if len(loaders) > 1 and not all(hasattr(one, "load_state_dict") for one in loaders):
            raise ValueError("of several loaders all have a state_dict(), or none: else their places are not the same")
        return
    for one in loaders:
        for sampler in getattr(one, "sampler", None), getattr(getattr(one, "batch_sampler", None), "sampler", None):
            if sampler is not None and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(fit_loop.epoch_progress.current.processed)
    is_told = len(loaders) == 1 and _is_by_sampler(loaders[0])
    if is_told:
        name = "batch_sampler" if loaders[0].batch_sampler is not None else "sampler"
        object.__setattr__(loaders[0], name, _Later(getattr(loaders[0], name), batches))  # a loader refuses it in plain words
    fetcher = iter(fit_loop._data_fetcher)
    if not is_told:
        for _ in range(batches):
            next(fetcher, None)
        _set(fetcher, "fetched", fetcher.fetched - batches)  # Lightning counts them


def _is_by_sampler(loader: Any) -> bool:
    data = sys.modules["torch"].utils.data
    return isinstance(loader, data.DataLoader) and not isinstance(loader.dataset, data.IterableDataset)


# --- what cannot be -----------------------------------------------------------------------------------------------------------


def _check(trainer: Any) -> None:
    strategy = type(trainer.strategy).__name__
    if strategy not in STRATEGIES:
        raise ValueError(f"InPlaceCallback knows {' and '.join(STRATEGIES)}, and this trainer has {strategy}")
    if not hasattr(trainer.fit_loop.epoch_loop, "restarted_on_last"):
        raise ValueError("InPlaceCallback needs Lightning 2.6 or newer")
    for callback in trainer.callbacks:
        loads = getattr(type(callback), LOADS)
        if loads is not getattr(Callback, LOADS) and not loads.__module__.startswith("holdfast."):
            told = f"{type(callback).__name__} has its state in a checkpoint only ({LOADS})"
            raise ValueError(f"{told}: it cannot go on in its process; state_dict() and load_state_dict() can")
    for config in trainer.lr_scheduler_configs:
        if config.reduce_on_plateau and config.interval == "step":
            raise ValueError("a scheduler of the plateau with interval='step' goes by metrics of one batch, which are not kept")


def _has_own_hook(pl_module: Any) -> bool:
    helpers = importlib.import_module(f"{Callback.__module__.partition('.callbacks')[0]}.utilities.model_helpers")
    return bool(helpers.is_overridden("on_train_batch_end", pl_module))

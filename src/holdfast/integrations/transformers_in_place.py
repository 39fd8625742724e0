"""How does a Hugging Face trainer go on in its process when another rank has failed? By `train_in_place` instead of `train`.

    def train(life):
        trainer = Trainer(model=Net(), args=TrainingArguments(...), train_dataset=data)
        train_in_place(trainer, life, resume_from_checkpoint=last)

    client.run_in_place(train)

A callback sees each step, but it is not told its trainer, and where a training begins is settled before the first callback is
called. So this adds the callback, and gives the trainer what it takes for a checkpoint: a folder that says where to go on.
Model and optimizer are in memory already. An update begins before the optimizer's step and ends as the step does. Log,
evaluation and save that were due after it are made up for as the next life begins.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from holdfast.client.in_place import random_state
from holdfast.integrations.transformers import TrainerCallback

if TYPE_CHECKING:
    from holdfast.client import Life
    from holdfast.client.in_place.state import State

__all__ = ["train_in_place"]

PLACE = "transformers"  # The value in `life.state` that says where the trainer is.
STATE_FILE = "trainer_state.json"
TOTALS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")
"""A trainer's sums for its next log, and for the training's mean loss."""
DUE = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")
"""What a step's callbacks have asked for."""


def train_in_place(trainer: Any, life: Life, *, stash_every: int = 0, **arguments: Any) -> Any:
    """`trainer.train(**arguments)`, in each life from where the one before has come to; once in a life.
    `resume_from_checkpoint` is for where no rank has the state any more.

    `stash_every`: so often, in steps, a stash is made, which is taken before that. ValueError: this trainer cannot go on in its
    process; it says why."""
    _check(trainer)
    optimizer = trainer.create_optimizer()
    state = life.state
    state.keep("model", lambda: trainer.model, anew=True)
    state.keep("optimizer", lambda: optimizer, anew=True)
    state.begin(functools.partial(_step_in, arguments.get("resume_from_checkpoint"), trainer), stash_every=stash_every)
    place = state.get(PLACE)
    keeper = _Keeper(trainer, life, place, arguments.get("ignore_keys_for_eval"))
    trainer.add_callback(keeper)
    if place is None:  # no step is made yet
        return trainer.train(**arguments)
    with TemporaryDirectory() as folder:
        keeper.lead(folder)
        try:
            return trainer.train(**(arguments | {"resume_from_checkpoint": folder}))
        finally:
            keeper.give_back()


class _Keeper(TrainerCallback):
    """The last of the trainer's callbacks: says when an update begins and ends, and puts the trainer where it was."""

    def __init__(self, trainer: Any, life: Life, place: dict[str, Any] | None, ignored: Any) -> None:
        self.trainer, self.life, self.place, self.ignored = trainer, life, place, ignored
        self.folder = ""  # That it takes for a checkpoint.
        self.update: State | None = None  # The update that is under way.
        self.rate: Any = None  # The learning rate of this step, which is what its log says.

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All is made; the loop begins after this."""
        if self.place is None:
            return
        place, trainer = self.place, self.trainer
        self.give_back()
        trainer.lr_scheduler.load_state_dict(copy.deepcopy(place["scheduler"]))
        for group, told in zip(trainer.optimizer.param_groups, place["groups"]):
            group.update(copy.deepcopy(told))  # the scheduler has set the rates that a training begins with
        if place["scaler"] is not None:
            trainer.accelerator.scaler.load_state_dict(place["scaler"])
        for callback in trainer.callback_handler.callbacks:
            for name, value in place["callbacks"].get(type(callback).__name__, {}).items():
                setattr(callback, name, value)
        for name in TOTALS:
            value = place["totals"][name]
            setattr(trainer, name, value.to(args.device, copy=True) if hasattr(value, "to") else value)
        random_state.put(place["random"])
        self._make_up_for(state, control, place)
        trainer._save_rng_state(self.folder)  # which it reads after its first batch
        if control.should_training_stop:
            self._leave_out("_run_epoch")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.update = self.life.update()
        self.update.__enter__()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.rate = self.trainer._get_learning_rate()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.update is not None:
            self.life.state[PLACE] = _place(self.trainer, state, control, self.rate)
            self.update.__exit__(None, None, None)
            self.update = None

    def lead(self, folder: str) -> None:
        """Make `folder` a checkpoint for the trainer that says where to go on, and holds no weights."""
        assert self.place is not None
        self.folder = folder
        type(self.trainer.state)(**self.place["state"]).save_to_json(os.path.join(folder, STATE_FILE))
        self._leave_out("_load_from_checkpoint")

    def _leave_out(self, method: str) -> None:
        setattr(self.trainer, method, _nothing)

    def give_back(self) -> None:
        """The trainer's own methods, where it has others."""
        for name in ("_load_from_checkpoint", "_run_epoch"):
            vars(self.trainer).pop(name, None)

    def _make_up_for(self, state: Any, control: Any, place: dict[str, Any]) -> None:
        """Log, evaluate and save what was due after the step, and at the epoch's end, if that was the last of one. The trainer
        and its callbacks have one `control` all the time."""
        for name in DUE:
            setattr(control, name, place["due"][name])
        trainer = self.trainer
        self._log_evaluate_save(place["rate"])
        if place["due"]["should_epoch_stop"] or place["due"]["should_training_stop"] or state.epoch == int(state.epoch):
            trainer.callback_handler.on_epoch_end(trainer.args, state, control)
            self._log_evaluate_save(place["rate"])

    def _log_evaluate_save(self, rate: Any) -> None:
        trainer = self.trainer
        trainer._maybe_log_save_evaluate(
            trainer._tr_loss, None, trainer.model_wrapped, None, trainer.state.epoch, self.ignored, None, learning_rate=rate
        )


def _place(trainer: Any, state: Any, control: Any, rate: Any) -> dict[str, Any]:
    """Where it is at the end of a step, as plain values."""
    scaler = trainer.accelerator.scaler
    return {
        "state": {
            **vars(state),
            "log_history": list(state.log_history),
            "stateful_callbacks": copy.deepcopy(state.stateful_callbacks),
        },
        "scheduler": copy.deepcopy(trainer.lr_scheduler.state_dict()),
        "groups": [
            {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
            for group in trainer.optimizer.param_groups
        ],
        "scaler": scaler.state_dict() if scaler is not None else None,
        "callbacks": {
            type(one).__name__: copy.deepcopy(one.state().get("attributes", {}))
            for one in trainer.callback_handler.callbacks
            if hasattr(one, "state")
        },
        "totals": {name: _copy(getattr(trainer, name)) for name in TOTALS},
        "due": {name: getattr(control, name) for name in DUE},
        "rate": rate,
        "random": random_state.take(),
    }


def _copy(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for what the trainer is not to do."""


def _step_in(checkpoint: Any, trainer: Any) -> int:
    """The step of a checkpoint that the script goes on from, as `Trainer.train` takes it; 0: none."""
    if checkpoint is True:
        found = [name.rpartition("-")[2] for name in os.listdir(trainer.args.output_dir) if name.startswith("checkpoint-")]
        return max((int(name) for name in found if name.isdecimal()), default=0)
    if not checkpoint:
        return 0
    return int(type(trainer.state).load_from_json(os.path.join(checkpoint, STATE_FILE)).global_step)


def _check(trainer: Any) -> None:
    cannot: dict[str, Callable[[], bool]] = {
        "a Transformers older than 5": lambda: not hasattr(trainer, "_run_epoch"),
        "DeepSpeed": lambda: trainer.is_deepspeed_enabled,
        "FSDP": lambda: trainer.is_fsdp_enabled,
        "several GPUs in one process": lambda: trainer.args.n_gpu > 1,
        "model_init=": lambda: trainer.model_init is not None,
        "auto_find_batch_size": lambda: trainer.args.auto_find_batch_size,
    }
    for what, is_so in cannot.items():
        if is_so():
            raise ValueError(f"train_in_place: a trainer cannot go on in its process with {what}")

"""How does a Hugging Face trainer report its progress? By a `TrainerCallback`.

    trainer = Trainer(..., callbacks=[HoldfastCallback()])

Each step is progress, and each batch of an evaluation a heartbeat. `evaluation` and `checkpoint` are sections, which tells a
long save from a step that hangs. Without an agent it does nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast import client

if TYPE_CHECKING:

    class TrainerCallback:
        """Transformers'."""

else:
    TrainerCallback = importlib.import_module("transformers").TrainerCallback

__all__ = ["HoldfastCallback"]

EVALUATION, CHECKPOINT = "evaluation", "checkpoint"


class HoldfastCallback(TrainerCallback):
    """Only `train` is watched: before and after it the script may be silent."""

    def __init__(self) -> None:
        self.open: Any = None  # The section that is open.
        self.silent = False  # A training is over, and silence is allowed.

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """From here on silence is a hang."""
        if self.silent:
            self.silent = False
            client.set_limits()
        client.progress(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step is done; the trainer may evaluate now, and save."""
        client.progress(state.global_step)
        self._begin_what_is_due(control.should_evaluate, control.should_save)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A part of a step: gradients are accumulated."""
        client.heartbeat()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An epoch is done; the trainer may evaluate now, and save."""
        client.heartbeat()
        self._begin_what_is_due(control.should_evaluate, control.should_save)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A batch of an evaluation."""
        client.heartbeat()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The evaluation is over; the save comes after it."""
        client.heartbeat()
        self._begin_what_is_due(False, control.should_save and self.open is not None)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The checkpoint is saved."""
        client.heartbeat()
        self._begin_what_is_due(False, False)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """From here on silence is no hang."""
        self._begin_what_is_due(False, False)
        self.silent = True
        client.set_limits(*[float("inf")] * 3)

    def _begin_what_is_due(self, evaluation: bool, save: bool) -> None:
        """Leave the section that is open, if one is, for the one that comes."""
        if self.open is not None:
            self.open.__exit__(None, None, None)
        name = EVALUATION if evaluation else CHECKPOINT if save else None
        self.open = client.section(name).__enter__() if name else None

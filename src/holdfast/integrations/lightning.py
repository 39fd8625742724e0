"""How is a Lightning trainer watched? By `FaultToleranceCallback`, with NVRx's name and arguments. `Watched` is what it shares
with the one that has sections (`integrations.lightning_sections`).

    trainer = Trainer(callbacks=[FaultToleranceCallback(autoresume=False, calculate_timeouts=True)])

Only `fit` is watched. The limits that were calculated are kept in `exp_dir` for the job's next run.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.client import commit
from holdfast.fault_tolerance import RankMonitorClient
from holdfast.integrations.simulated_fault import SimulatedFaultParams

if TYPE_CHECKING:

    class Callback:
        """Lightning's."""

else:
    # Lightning goes by two names, and a trainer of the one takes no callbacks of the other.
    _NAMES = sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules)
    _found = next((name for name in _NAMES if name in sys.modules or find_spec(name.split(".")[0])), None)
    if _found is None:
        raise ImportError("Lightning is not installed: pip install lightning")
    Callback = importlib.import_module(f"{_found}.callbacks").Callback

__all__ = ["FaultToleranceCallback", "SimulatedFaultParams", "Watched"]

FINISHED_FLAG = "FAULT_TOL_FINISHED_FLAG_FILE"
"""Variable with the path of a file that is made at the end of training: the script that starts the job's runs looks for it."""

LOGGER = "nemo_logger.FaultToleranceCallback"


FIT = "fit"  # The stage of a trainer that is watched.


class Watched(Callback):
    """What both callbacks share: the client, the limits on disk, and the flag that says there is nothing left to do."""

    TIMEOUTS_FILENAME = "_ft_state.json"
    FT_DIR_NAME = "ft_state"

    def __init__(
        self,
        autoresume: bool,
        calculate_timeouts: bool,
        simulated_fault_params: Any = None,
        exp_dir: str | os.PathLike[str] | None = None,
        logger_name: str | None = LOGGER,
    ) -> None:
        """`autoresume`: make the file that $FAULT_TOL_FINISHED_FLAG_FILE names when training is complete. `calculate_timeouts`:
        set limits from what is observed, and load those of the run before. `exp_dir`: an existing directory that all runs of
        the job share; None: `ft_state` in the trainer's log directory. `simulated_fault_params`: a `SimulatedFaultParams`, or
        its fields; for trying things out."""
        self.logger = logging.getLogger(logger_name)
        self.autoresume, self.calculate_timeouts = autoresume, calculate_timeouts
        self.simulated_fault_params = SimulatedFaultParams.parse(simulated_fault_params)
        self.provided_exp_dir = exp_dir
        self.timeouts_file_path: Path | None = None
        self.fault_tol_client: RankMonitorClient | None = None  # None: nothing is watched now.
        self.is_first = False
        self._forget()

    def _forget(self) -> None:
        """Nothing has been seen of this `fit` yet."""
        self.iterations = 0
        self.loaded = False  # A checkpoint was loaded.
        self.saved_at = 0  # Global step of the last checkpoint; 0: none.
        self.failed = False  # By an exception that was not the wish to end well.

    @property
    def is_initialized(self) -> bool:
        """Is this rank watched now?"""
        return self.fault_tol_client is not None

    # --- Lightning's hooks ----------------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != FIT:
            return
        if self.autoresume and not os.environ.get(FINISHED_FLAG):
            raise RuntimeError(f"autoresume needs {FINISHED_FLAG}: set it to the file to make when training is complete")
        self._forget()
        self.is_first = trainer.is_global_zero
        self.timeouts_file_path = self._folder(trainer) / self.TIMEOUTS_FILENAME
        client = RankMonitorClient()
        client.init_workload_monitoring()
        self.fault_tol_client = client
        if self.calculate_timeouts and self.timeouts_file_path.exists():
            client.load_state_dict(json.loads(self.timeouts_file_path.read_text()))
        self.note("watched; limits: %s, %s", client.hb_timeouts, client.section_timeouts)
        if self.simulated_fault_params is not None:
            self.simulated_fault_params.arrange(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == FIT and self.is_initialized:
            if self.is_first and self.autoresume and self._is_complete(trainer):
                self.finished()
            self.last_sign()
            self.shut_down()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.is_initialized:
            self.failed = not (isinstance(exception, SystemExit) and not exception.code)  # `sys.exit(0)` ends well
            self.last_sign()
            self.after_exception(exception)
            self.shut_down()

    def on_load_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self.loaded = True

    def on_save_checkpoint(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        self.saved_at = trainer.global_step

    # --- what the two do differently ------------------------------------------------------------------------------------

    def last_sign(self) -> None:
        """This rank ends: give a last sign of life, and calculate limits if that can be done now."""

    def after_exception(self, exception: BaseException) -> None:
        """Act on the exception that has ended `fit`."""

    # --- for both -------------------------------------------------------------------------------------------------------

    def note(self, text: str, *values: object) -> None:
        """One line in the log, from the first rank."""
        if self.is_first:
            self.logger.info(text, *values)

    def keep_limits(self) -> None:
        """Write down what was calculated: the same on all ranks, so by one, and never half."""
        assert self.fault_tol_client is not None and self.timeouts_file_path is not None
        if self.is_first:
            limits = json.dumps(self.fault_tol_client.state_dict())
            commit(self.timeouts_file_path, lambda path: Path(path).write_text(limits))

    def finished(self) -> None:
        """Make the file that says there is nothing left to do."""
        try:
            Path(os.environ[FINISHED_FLAG]).touch()
        except (OSError, KeyError) as error:
            self.logger.error("cannot make the file that %s names: %s", FINISHED_FLAG, error)

    def shut_down(self) -> None:
        """From now on this rank may be silent."""
        if self.fault_tol_client is not None:
            self.fault_tol_client.shutdown_workload_monitoring()
            self.fault_tol_client = None

    def _is_complete(self, trainer: Any) -> bool:
        """`fit` ends, with nothing left to train. A run that finds its time already over makes one iteration, or none."""
        if self.iterations <= 1 and not self.failed:
            return True
        done = ((trainer.global_step, trainer.max_steps), (trainer.current_epoch, trainer.max_epochs))
        return any(isinstance(limit, int) and 0 < limit <= now for now, limit in done)

    def _folder(self, trainer: Any) -> Path:
        if self.provided_exp_dir is not None:
            folder = Path(self.provided_exp_dir)
        else:
            folder = Path(trainer.log_dir or trainer.default_root_dir) / self.FT_DIR_NAME
            if trainer.is_global_zero:
                folder.mkdir(parents=True, exist_ok=True)
            trainer.strategy.barrier()
        if not folder.is_dir():
            raise ValueError(f"exp_dir: {folder} is not a directory")
        return folder


class FaultToleranceCallback(Watched):
    """A heartbeat at the end of every batch, at the ends of training and validation, and when a checkpoint is saved.

    Limits are calculated as `fit` ends, in a run that has loaded a checkpoint and saved one: they are the long intervals."""

    LEAST_ITERATIONS = 2

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.beats = self.beats_before_save = 0
        self.saw_save = False
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, *args: Any, **kwargs: Any) -> None:
        self._beat()

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self.iterations += 1
        self._beat()

    on_train_end = on_validation_start = on_validation_batch_end = on_validation_end = on_train_start

    def on_save_checkpoint(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """A sign of life before what may take long."""
        super().on_save_checkpoint(trainer)
        self.beats_before_save = self.beats
        self._beat()

    def last_sign(self) -> None:
        self._beat()
        enough = self.iterations >= self.LEAST_ITERATIONS and self.loaded and self.saw_save
        if self.calculate_timeouts and enough and not self.failed and self.fault_tol_client is not None:
            self.fault_tol_client.calculate_and_set_hb_timeouts()
            self.keep_limits()
            self.note("Updated FT timeouts. New values: %s", self.fault_tol_client.hb_timeouts)

    def _beat(self) -> None:
        if self.fault_tol_client is not None:  # validation may run outside of `fit`
            self.fault_tol_client.send_heartbeat()
            self.beats += 1
            self.saw_save = self.saw_save or 0 < self.beats_before_save < self.beats - 1

"""How are a Lightning trainer's phases watched? By `FaultToleranceSectionsCallback`, with NVRx's name and arguments.

    setup           from the beginning of `fit` to the first batch
    step            each batch of training, from its start to its end, and each of validation
    checkpointing   each saving and removing of a checkpoint

The configuration must list these three sections; all other time has the limit for time out of sections.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

from holdfast.fault_tolerance import WorkloadAction, WorkloadControlRequest
from holdfast.integrations.lightning import LOGGER, Watched

SECTIONS = ("setup", "step", "checkpointing")
ASYNC_SAVE = "maybe_finalize_save_checkpoint"
"""A method that the checkpoint IO of NeMo has, where it saves beside the training."""

_ABSENT = object()


class FaultToleranceSectionsCallback(Watched):
    """Limits are calculated after each checkpoint, and as `fit` ends: of `setup` once a checkpoint was loaded, which makes it
    long; of `step` after some iterations; of `checkpointing` unless it goes on beside the training; out of sections after a
    whole run."""

    TIMEOUTS_FILENAME = "_ft_state_.json"
    MIN_TR_ITERS_FOR_STEP_TIMEOUT_UPDATE = 16

    def __init__(
        self,
        autoresume: bool,
        calculate_timeouts: bool,
        simulated_fault_params: Any = None,
        exp_dir: str | os.PathLike[str] | None = None,
        logger_name: str | None = LOGGER,
        exc_handling_policy: Callable[[BaseException], WorkloadControlRequest] | None = None,
    ) -> None:
        """As `Watched`; `exc_handling_policy`: what an exception asks of the job. None: what it always does after a failure."""
        super().__init__(autoresume, calculate_timeouts, simulated_fault_params, exp_dir, logger_name)
        self.exc_handling_policy = exc_handling_policy
        self.depth: Counter[str] = Counter()
        """How often a section was entered and not yet left: checkpoints may be removed while one is saved."""
        self.wrapped: list[tuple[Any, str, Any]] = []
        self.calculated_at = 0

    # --- Lightning's hooks ----------------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """See `Watched`. ValueError: the configuration has other sections."""
        super().setup(trainer, pl_module, stage)
        if self.fault_tol_client is None or self.fault_tol_client.cfg is None:
            return
        listed = self.fault_tol_client.cfg.rank_section_timeouts
        if set(listed) != set(SECTIONS):
            self.shut_down()
            hint = "--ft-rank-section-timeouts setup:600,step:60,checkpointing:300"
            raise ValueError(f"rank_section_timeouts has {sorted(listed)}, not {', '.join(SECTIONS)}: give them as in {hint}")
        self.depth, self.calculated_at = Counter(), 0
        self.saves_beside = hasattr(trainer.strategy.checkpoint_io, ASYNC_SAVE)
        beside = [(trainer.strategy.checkpoint_io, ASYNC_SAVE)] if self.saves_beside else []
        for owner, method in [(trainer.strategy, "save_checkpoint"), (trainer.strategy, "remove_checkpoint"), *beside]:
            self._wrap(owner, method, "checkpointing")
        self._enter("setup")

    def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
        self.iterations += 1
        self._leave("setup")
        self._enter("step")

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """It has ended; if there was a checkpoint since, its saving has ended too."""
        self._leave("step")
        if self.calculated_at < self.saved_at and self.is_initialized:
            self._calculate(whole_run=False)
            self.calculated_at = trainer.global_step

    def on_validation_batch_start(self, *args: Any, **kwargs: Any) -> None:
        self._leave("setup")
        self._enter("step")

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self._leave("step")

    def last_sign(self) -> None:
        assert self.fault_tol_client is not None
        self.fault_tol_client.end_all_sections()
        self.depth.clear()
        self._calculate(whole_run=True)

    def after_exception(self, exception: BaseException) -> None:
        """Ask of the job what the policy says."""
        if self.exc_handling_policy is None or self.fault_tol_client is None:
            return
        request = self.exc_handling_policy(exception)
        if not isinstance(request, WorkloadControlRequest):
            raise TypeError(f"exc_handling_policy must return a WorkloadControlRequest, not {request!r}")
        if request.action is WorkloadAction.ShutdownWorkload:
            self.finished()  # before it is asked for: it is acted on at once
        self.fault_tol_client.send_workload_control_request(request)

    # --- sections -------------------------------------------------------------------------------------------------------

    def _enter(self, section: str) -> None:
        if self.fault_tol_client is not None:
            self.depth[section] += 1
            if self.depth[section] == 1:
                self.fault_tol_client.start_section(section)

    def _leave(self, section: str) -> None:
        if self.fault_tol_client is not None and self.depth[section]:
            self.depth[section] -= 1
            if not self.depth[section]:
                self.fault_tol_client.end_section(section)

    def _wrap(self, owner: Any, method: str, section: str) -> None:
        """Lightning has a hook before a checkpoint is saved, and none after."""
        self.wrapped.append((owner, method, vars(owner).get(method, _ABSENT)))
        inner = getattr(owner, method)

        @functools.wraps(inner)
        def within(*args: Any, **kwargs: Any) -> Any:
            self._enter(section)
            try:
                return inner(*args, **kwargs)
            finally:
                self._leave(section)

        setattr(owner, method, within)

    def shut_down(self) -> None:
        """See `Watched`. The methods are as they were."""
        super().shut_down()
        while self.wrapped:
            owner, method, before = self.wrapped.pop()
            if before is _ABSENT:
                delattr(owner, method)
            else:
                setattr(owner, method, before)

    # --- limits ---------------------------------------------------------------------------------------------------------

    def _calculate(self, *, whole_run: bool) -> None:
        client = self.fault_tol_client
        if not self.calculate_timeouts or self.failed or client is None:
            return
        ready = {
            "setup": self.loaded,
            "step": self.iterations > self.MIN_TR_ITERS_FOR_STEP_TIMEOUT_UPDATE,
            "checkpointing": self.saved_at > 0 and not self.saves_beside,
        }
        selected = [section for section, is_ready in ready.items() if is_ready]
        outside = whole_run and self.saved_at > 0 and {"setup", "step"} <= set(selected)
        if not selected:
            return
        self.note("Updating FT timeouts for: %s, out of sections: %s", ", ".join(selected), "yes" if outside else "no")
        client.calculate_and_set_section_timeouts(selected_sections=selected, calc_out_of_section=outside)
        self.keep_limits()
        self.note("Updated FT timeouts. New values: %s", client.section_timeouts)

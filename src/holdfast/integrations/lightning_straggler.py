"""How does a Lightning trainer find its stragglers? By `StragglerDetectionCallback`, with NVRx's name and arguments.

The strategy's `training_step` is what is measured; every so many seconds rank 0 has the scores of all GPUs, shows them, and may
end the training.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

import torch

from holdfast.integrations.lightning import Callback
from holdfast.straggler import CallableId, Detector, Report
from holdfast.straggler.dist_utils import get_device_for_backend
from holdfast.straggler.reporting import INDIVIDUAL, RELATIVE

__all__ = ["StragglerDetectionCallback"]

LOGGER = "nemo_logger.StragglerDetectionCallback"


class StragglerDetectionCallback(Callback):
    """Watches a `fit`."""

    def __init__(
        self,
        report_time_interval: float,
        calc_relative_gpu_perf: bool,
        calc_individual_gpu_perf: bool,
        num_gpu_perf_scores_to_print: int,
        gpu_relative_perf_threshold: float,
        gpu_individual_perf_threshold: float,
        stop_if_detected: bool,
        enable_ptl_logging: bool,
        profiling_interval: int = 1,
        logger_name: str | None = LOGGER,
    ) -> None:
        """`report_time_interval`: seconds between two reports. `num_gpu_perf_scores_to_print`: so many of the best and of the
        worst; 0: none but stragglers. `stop_if_detected`: end the training where there is one. `enable_ptl_logging`: give the
        trainer's loggers the least, the middle and the greatest score. ValueError: neither kind of score is wanted."""
        self.scores_to_compute = [RELATIVE] * calc_relative_gpu_perf + [INDIVIDUAL] * calc_individual_gpu_perf
        if not self.scores_to_compute:
            raise ValueError("calc_relative_gpu_perf, calc_individual_gpu_perf: one of them has to be True")
        self.logger = logging.getLogger(logger_name)
        self.report_time_interval, self.profiling_interval = report_time_interval, profiling_interval
        self.shown = num_gpu_perf_scores_to_print
        self.thresholds = gpu_relative_perf_threshold, gpu_individual_perf_threshold
        self.stop_if_detected, self.enable_ptl_logging = stop_if_detected, enable_ptl_logging
        self.initialized = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if not self.initialized:
            Detector.initialize(
                scores_to_compute=self.scores_to_compute,
                profiling_interval=self.profiling_interval,
                report_time_interval=self.report_time_interval,
            )
            Detector.wrap_callables([CallableId(trainer.strategy, "training_step")])
            self.initialized = True

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self.initialized:
            Detector.shutdown()
            self.initialized = False

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        report = Detector.generate_report_if_interval_elapsed()
        found = report is not None and self._tell(report, pl_module)
        if self.stop_if_detected and Detector.is_interval_elapsed() and _said_by_rank_0(found):
            self._stop(trainer)

    def _tell(self, report: Report, pl_module: Any) -> bool:
        """Show it. Is there a straggler?"""
        relative, individual = self.thresholds
        slow = report.identify_stragglers(gpu_rel_threshold=relative, gpu_indiv_threshold=individual)
        beside_others, beside_past = slow["straggler_gpus_relative"], slow["straggler_gpus_individual"]
        if beside_others:
            self.logger.warning(
                f"STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. Affected ranks: {beside_others}"
            )
        if beside_past:
            self.logger.warning(f"STRAGGLER DETECTION WARNING: Some GPUs performance dropped. Affected ranks: {beside_past}")
        kinds = (
            (RELATIVE, "relative", report.gpu_relative_perf_scores),
            (INDIVIDUAL, "individual", report.gpu_individual_perf_scores),
        )
        for kind, name, scores in kinds:
            if kind in self.scores_to_compute and self.shown:
                self.logger.info(f"\nGPU {name} performance:\n{self._lines(scores, report.rank_to_node)}")
            if kind in self.scores_to_compute and self.enable_ptl_logging:
                pl_module.log_dict(_summary(f"gpu_{name}_perf", scores), logger=True, batch_size=1, rank_zero_only=True)
        return bool(beside_others or beside_past)

    def _lines(self, scores: Mapping[int, float], nodes: Mapping[int, str]) -> str:
        """The worst first."""
        ordered = sorted(scores, key=lambda rank: (scores[rank], -rank))
        if len(ordered) > 2 * self.shown:
            parts = [("Worst", ordered[: self.shown]), ("Best", ordered[: -self.shown - 1 : -1])]
        else:
            parts = [("", ordered)]
        lines = []
        for what, ranks in parts:
            lines += [f" {what} performing {self.shown}/{len(ordered)} ranks:"] * bool(what)
            lines += [f"  Rank={rank} Node={nodes[rank]} Score={scores[rank]:.2f}" for rank in ranks]
        return "\n".join(lines)

    def _stop(self, trainer: Any) -> None:
        self.logger.error("Detected stragglers. Terminating training...")
        trainer.should_stop = True
        if trainer.checkpoint_callback:
            saves = trainer.checkpoint_callback
            saves._save_last_checkpoint(trainer, saves._monitor_candidates(trainer))
            finalize = getattr(trainer.strategy.checkpoint_io, "maybe_finalize_save_checkpoint", None)
            if finalize is not None:
                finalize(blocking=True)
        sys.exit(1)


def _summary(prefix: str, scores: Mapping[int, float]) -> dict[str, float]:
    values = torch.tensor(list(scores.values()) or [float("nan")])
    told = {"min": values.min(), "median": values.median(), "max": values.max()}
    return {f"{prefix}/{name}": float(value) for name, value in told.items()}


def _said_by_rank_0(flag: bool) -> bool:
    """What rank 0 says, on all ranks."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return flag
    told: Any = torch.tensor([float(flag)], device=get_device_for_backend())
    torch.distributed.broadcast(told, 0)
    return bool(told.item())

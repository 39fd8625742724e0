"""What does a rank tell its monitor, in NVRx's words? Heartbeats, sections, calculated limits, requests to the launcher.

`send_heartbeat`, `start_section` and `end_section` are stores to shared memory (`_reach`): they cannot block, and a monitor
that is gone does not make them fail. Calculated limits go into the same page, where they hold at once.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Collection, Mapping
from typing import Any

from holdfast.client.worker import this_worker
from holdfast.client.writer import Section
from holdfast.fault_tolerance._distributed import get_rank
from holdfast.fault_tolerance._reach import ByAgent, ByServer, Unreachable, reach, write_limits
from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.fault_tolerance.data import (
    FT_LAUNCHER_IPC_SOCKET_ENV_VAR,
    HeartbeatTimeouts,
    RankInfo,
    SectionAction,
    SectionTimeouts,
    WorkloadAction,
    WorkloadControlRequest,
)
from holdfast.fault_tolerance.ipc_connector import IpcConnector
from holdfast.fault_tolerance.timeouts_calc import TimeoutsCalc, TimeoutsCalcError

STEP, WARMUP = "step", "warmup"
"""Sections with a meaning of their own: the first steps are slow, and Megatron leaves them outside of `step`, so before the
first one the time outside of sections has no limit. Where `warmup` is listed too, it is the limit of the first `step`s."""

_ASKED = {
    WorkloadAction.Continue.name: "continue",
    WorkloadAction.ExcludeThisNode.name: "exclude",
    WorkloadAction.ShutdownWorkload.name: "stop",
}
"""By name: the action may be NVRx's (`integrations.nvrx`)."""


class RankMonitorClientError(Exception):
    """Monitoring has not begun or has begun already, cannot begin, or a section is started or ended out of turn."""


class RankMonitorClient:
    """A rank's side. Cheap to make; `init_workload_monitoring` does the rest."""

    CURRENT_TIMEOUTS_STATE_KEY = "current_timeouts"

    def __init__(self) -> None:
        self.logger = logging.getLogger(__name__)
        self.is_initialized = False
        self.rank_info: RankInfo | None = None
        self.cfg: FaultToleranceConfig | None = None
        self.timeouts_calc: TimeoutsCalc | None = None
        self.hb_timeouts: HeartbeatTimeouts | None = None  # In force. None until monitoring begins.
        self.section_timeouts: SectionTimeouts | None = None
        self.loaded_hb_timeouts: HeartbeatTimeouts | None = None
        self.loaded_section_timeouts: SectionTimeouts | None = None
        self._monitor: ByAgent | ByServer | None = None
        self._sections: dict[str, Section] = {}
        self._has_begun = self._has_beaten = self._has_stepped = False
        """It has given a sign of life, sent a heartbeat, and opened `step`, since monitoring began."""
        path = os.environ.get(FT_LAUNCHER_IPC_SOCKET_ENV_VAR)
        self.launcher_connector = IpcConnector(path) if path is not None else None
        # Megatron keeps its iteration where others can read it; its arguments come to be there later than we do.
        self._workload_global_vars_module = sys.modules.get("megatron.training.global_vars")
        self._cached_workload_args: Any = None

    # --- beginning and end ------------------------------------------------------------------------------------------------

    def init_workload_monitoring(self, num_warmup_iters: int | None = None) -> None:
        """Begin. RankMonitorClientError: it has begun already, or there is nobody to monitor us."""
        if self.is_initialized:
            raise RankMonitorClientError("monitoring has already begun")
        self.rank_info = RankInfo.get_for_current_rank()
        iteration = self._get_current_iteration()
        if iteration is None and self._can_report_iterations():
            iteration = 1
        try:
            monitor = reach(self.rank_info, iteration, num_warmup_iters)
            sections = {name: monitor.writer.section(name) for name in monitor.cfg.rank_section_timeouts}
        except (Unreachable, ValueError) as error:
            raise RankMonitorClientError(str(error)) from error
        self._monitor, self._sections, cfg = monitor, sections, monitor.cfg
        self._has_begun = self._has_beaten = self._has_stepped = False
        self.cfg = cfg
        self.timeouts_calc = TimeoutsCalc(sections=sections, safety_factor=cfg.safety_factor)
        beats, spent = monitor.calculated
        configured = HeartbeatTimeouts(cfg.initial_rank_heartbeat_timeout, cfg.rank_heartbeat_timeout, were_calculated=False)
        listed = SectionTimeouts(dict(cfg.rank_section_timeouts), cfg.rank_out_of_section_timeout)
        self.hb_timeouts = self.loaded_hb_timeouts or beats or configured
        self.section_timeouts = self.loaded_section_timeouts or spent or listed
        if sections or cfg.rank_out_of_section_timeout:
            monitor.writer.begin_outside()
        self._enforce()
        if self.loaded_hb_timeouts or self.loaded_section_timeouts:
            monitor.calculate(self.loaded_hb_timeouts, self.loaded_section_timeouts)
        self._tell_megatron(cfg)
        self.is_initialized = True
        if get_rank() in (0, "0"):
            self.logger.debug("monitored; %s, %s", self.hb_timeouts, self.section_timeouts)

    def shutdown_workload_monitoring(self) -> None:
        """End it: silence is no hang any more. It may begin again. No harm when it has not begun."""
        if self._monitor is not None and self.is_initialized:
            self.end_all_sections()
            self._monitor.writer.end_outside()
            self._monitor.close()
            self._monitor = None
            self.is_initialized = False

    def _ready(self) -> tuple[ByAgent | ByServer, TimeoutsCalc]:
        if self._monitor is None or self.timeouts_calc is None:
            raise RankMonitorClientError("monitoring has not begun: call init_workload_monitoring first")
        return self._monitor, self.timeouts_calc

    # --- signs of life ----------------------------------------------------------------------------------------------------

    def send_heartbeat(self) -> None:
        """This rank gets on. RankMonitorClientError before monitoring has begun."""
        monitor, calc = self._ready()
        monitor.writer.heartbeat()
        calc.update_on_heartbeat()
        if not self._has_beaten:
            self._has_beaten = True
            monitor.writer.heartbeat_came()
        self._begins(monitor)

    def _begins(self, monitor: ByAgent | ByServer) -> None:
        if not self._has_begun:
            self._has_begun = True
            monitor.began()

    def start_section(self, section: str) -> None:
        """`section` begins; one that is not in `rank_section_timeouts` is let pass. RankMonitorClientError: it is open."""
        self._section(section, SectionAction.OPEN)

    def end_section(self, section: str) -> None:
        """`section` ends; one that is not in `rank_section_timeouts` is let pass. RankMonitorClientError: it is not open."""
        self._section(section, SectionAction.CLOSE)

    def _section(self, name: str, action: SectionAction) -> None:
        monitor, calc = self._ready()
        section = self._sections.get(name)
        if section is None:
            return
        try:
            calc.update_on_section_event(name, action)
        except TimeoutsCalcError as error:
            raise RankMonitorClientError(str(error)) from error
        self._begins(monitor)
        if action is SectionAction.OPEN:
            section.__enter__()
            if name == STEP:
                self._step(monitor)
        else:
            section.__exit__()

    def _step(self, monitor: ByAgent | ByServer) -> None:
        """A step begins: the warm-up may be over, and Megatron may know which one it is."""
        if not self._has_stepped:
            self._has_stepped = True
            self._enforce()
        if self._can_report_iterations():
            iteration = self._get_current_iteration()
            if iteration is not None:
                monitor.writer.progress(iteration)

    def end_all_sections(self) -> None:
        """End whichever of our sections are open."""
        _, calc = self._ready()
        for name in list(calc.open_sections):
            self._section(name, SectionAction.CLOSE)

    # --- limits -----------------------------------------------------------------------------------------------------------

    def calculate_and_set_hb_timeouts(self, skip_if_not_ready: bool = False) -> bool:
        """Limits for heartbeats from what all ranks have seen; they hold at once. Collective.

        False, or without `skip_if_not_ready` RankMonitorClientError: too little was seen."""
        monitor, calc = self._ready()
        calc.synchronize_all()
        if not calc.can_get_hb_timeouts():
            return _not_yet(skip_if_not_ready, "heartbeats: it takes two")
        self.hb_timeouts = calc.get_hb_timeouts(self.hb_timeouts)
        self._enforce()
        monitor.calculate(self.hb_timeouts, None)
        return True

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Collection[str] | None = None,
        calc_out_of_section: bool = True,
        skip_if_not_ready: bool = False,
    ) -> bool:
        """The same for the sections selected (None: all), and outside of them."""
        monitor, calc = self._ready()
        calc.maybe_bump_oos_time()
        calc.synchronize_all()
        if not calc.can_get_section_timeouts(selected_sections, calc_out_of_section):
            return _not_yet(skip_if_not_ready, "sections: each must have been ended once")
        self.section_timeouts = calc.get_section_timeouts(selected_sections, calc_out_of_section, self.section_timeouts)
        self._enforce()
        monitor.calculate(None, self.section_timeouts)
        return True

    def _enforce(self) -> None:
        """Write the calculated limits into the page: our monitor knows those that are configured."""
        assert self._monitor is not None and self.hb_timeouts is not None and self.section_timeouts is not None
        warms_up = STEP in self._sections and WARMUP not in self._sections and not self._has_stepped
        write_limits(self._monitor.writer, self.hb_timeouts, self.section_timeouts, warms_up=warms_up)

    def state_dict(self) -> dict[str, Any]:
        """The limits that were calculated: the same on all ranks, ready for JSON."""
        beats, spent = self.hb_timeouts or self.loaded_hb_timeouts, self.section_timeouts or self.loaded_section_timeouts
        state: dict[str, Any] = {}
        if beats is not None and beats.were_calculated and beats.are_valid:
            state["heartbeat"] = dataclasses.asdict(beats)
        if spent is not None and (spent.calculated_sections or spent.is_out_of_section_calculated):
            state["section"] = dataclasses.asdict(spent) | {"calculated_sections": sorted(spent.calculated_sections)}
        return {self.CURRENT_TIMEOUTS_STATE_KEY: state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over limits that `state_dict` gave, before monitoring begins or while it goes on."""
        kept = state.get(self.CURRENT_TIMEOUTS_STATE_KEY, {})
        if "heartbeat" in kept:
            self.loaded_hb_timeouts = HeartbeatTimeouts(**kept["heartbeat"])
        if "section" in kept:
            self.loaded_section_timeouts = SectionTimeouts(**kept["section"])
        if self._monitor is not None and self.is_initialized:
            self.hb_timeouts = self.loaded_hb_timeouts or self.hb_timeouts
            self.section_timeouts = self.loaded_section_timeouts or self.section_timeouts
            self._enforce()
            self._monitor.calculate(self.loaded_hb_timeouts, self.loaded_section_timeouts)

    # --- requests ---------------------------------------------------------------------------------------------------------

    def send_workload_control_request(self, req: WorkloadControlRequest) -> None:
        """Ask for `req.action`; under `holdfast run` it is acted on at once. RuntimeError: there is no launcher."""
        if this_worker.ask(_ASKED[req.action.name], req.description):
            return
        if self.launcher_connector is None:
            raise RuntimeError(f"{req.action.name} cannot be asked for: `holdfast run` did not start this rank")
        rank_info = self.rank_info or RankInfo.get_for_current_rank()
        self.launcher_connector.send((rank_info.global_rank, req))

    # --- Megatron ---------------------------------------------------------------------------------------------------------

    def _can_report_iterations(self) -> bool:
        """There is Megatron, or there will be."""
        return self._workload_global_vars_module is not None

    def _get_current_iteration(self) -> int | None:
        """Megatron's iteration. None: there is no Megatron, or it does not know yet."""
        if self._cached_workload_args is None:
            self._cached_workload_args = getattr(self._workload_global_vars_module, "_GLOBAL_ARGS", None)
        for name in ("curr_iteration", "iteration"):
            found: int | None = getattr(self._cached_workload_args, name, None)
            if found is not None:
                return found
        return None

    def _tell_megatron(self, cfg: FaultToleranceConfig) -> None:
        """So many of its first steps it leaves outside of `step`, since they are slow."""
        integration: Any = sys.modules.get("megatron.training.ft_integration")
        if self._can_report_iterations() and integration is not None:
            integration._NUM_WARMUP_ITERS = cfg.num_warmup_iterations


def _not_yet(skip: bool, lacking: str) -> bool:
    if skip:
        return False
    raise RankMonitorClientError(f"too little has been seen to calculate limits for {lacking}")

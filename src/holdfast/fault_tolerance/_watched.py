"""Does one rank make progress? For a server of its own: the rank's page, the machine that judges it, the signal that ends it.

Only a server's process loads this module: it uses the agent's packages.
"""

from __future__ import annotations

import logging
import os
import select
import signal
from collections.abc import Callable
from typing import Any

from holdfast.client.writer import Writer
from holdfast.core.machine import Action, Tick
from holdfast.core.page import layout
from holdfast.fault_tolerance._reach import write_limits
from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.fault_tolerance.data import Calculated, HeartbeatMsg, RankInfo, SectionAction, SectionMsg
from holdfast.monitor import messages
from holdfast.monitor.machine import Monitor
from holdfast.runtime.process import process
from holdfast.runtime.shm.pages import Page, create_page


class Watched:
    """One rank, from its InitMsg on. OSError if its process is not there, ValueError if `page_fd` is no page."""

    def __init__(
        self,
        cfg: FaultToleranceConfig,
        rank_info: RankInfo,
        pid: int,
        page_fd: int,
        calculated: Calculated,
        logger: logging.Logger,
        clock: Callable[[], float],
    ) -> None:
        """`page_fd`: what it has handed over; -1: nothing, so that its messages go into a page of ours."""
        if page_fd >= 0 and os.fstat(page_fd).st_size < layout.SIZE:
            os.close(page_fd)
            raise ValueError("it passed an invalid page")
        self.shares_page = page_fd >= 0
        self.pidfd = os.pidfd_open(pid)  # Readable once it has ended.
        self._page = Page(page_fd) if self.shares_page else create_page()
        self._page.close_fd()
        self._writer = Writer()
        if not self.shares_page:
            self._writer.attach(self._page.words)
            self._writer.await_heartbeat()
            write_limits(self._writer, *calculated)
        self._cfg, self._rank, self._pid, self._logger = cfg, rank_info.global_rank, pid, logger
        self._machine = Monitor(cfg.to_core())
        self._kill_again_at = float("inf")
        self._look_at = float("inf")  # When to look, at the latest, since it has said something.
        self._clock = clock
        now = clock()
        self._perform(self._machine.observe(messages.RankStarted(local_rank=0, rank=self._rank, started_at=now), now))

    def close(self) -> None:
        if open_ones := [section.name for section in self._page.signs().sections if section.open_since is not None]:
            self._logger.warning("rank %s left with sections open: %s; end_all_sections ends them", self._rank, open_ones)
        self._page.close()
        os.close(self.pidfd)

    # --- what it says in messages -------------------------------------------------------------------------------------------

    def told(self, word: HeartbeatMsg | SectionMsg) -> str:
        """Take it down; a rank that shares its page has done that itself. What is wrong with it, or nothing."""
        if self.shares_page:
            return ""
        if isinstance(word, HeartbeatMsg):
            self._writer.heartbeat()
            self._writer.heartbeat_came()
        elif word.action is SectionAction.CLOSE_ALL:
            self._writer.close_all()
        else:
            section = self._writer.section(word.section or "")
            if word.action is SectionAction.OPEN:
                if section.depth:
                    return f"section {word.section!r} is open already"
                section.__enter__()
            else:
                if not section.depth:
                    return f"section {word.section!r} is not open"
                section.__exit__()
        self._look_at = self._clock()
        return ""

    def limits_changed(self, calculated: Calculated) -> None:
        """It has calculated others."""
        if not self.shares_page:
            write_limits(self._writer, *calculated)
        self._look_at = self._clock()

    # --- judging it -----------------------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """When it must be looked at next, monotonic."""
        due: float = self._machine.deadline()
        return min(due, self._look_at, self._kill_again_at)

    def look_if_due(self, now: float) -> None:
        """Look at it, if it is time, and end it if it hangs. Whatever it has said by `now` has been told."""
        if now >= self._look_at:
            self._look_at = float("inf")
            self.look()
        if now >= self._machine.deadline():
            self._perform(self._machine.observe(Tick(), now))
        if now >= self._kill_again_at:
            self._kill()

    def look(self) -> None:
        seen = messages.RankSeen(local_rank=0, signs=self._page.signs())
        self._perform(self._machine.observe(seen, self._clock()))

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case messages.SeeRanks():
                    self.look()
                case messages.MeasureRanks():
                    cpu_s, io_bytes = process.spent(self._pid)
                    state = process.state(self._pid) or ""
                    measured = messages.RankMeasured(local_rank=0, cpu_s=cpu_s, io_bytes=io_bytes, state=state)
                    self._perform(self._machine.observe(messages.RanksMeasured(ranks=(measured,)), self._clock()))
                case messages.AskGpus():  # nobody asks them here: the processors decide
                    self._perform(self._machine.observe(messages.GpusSeen(busy=None), self._clock()))
                case messages.Overdue(reason=reason):
                    self._logger.error("rank %s (pid %s) hangs: %s", self._rank, self._pid, reason)
                    self._kill()

    def _kill(self) -> None:
        """SIGCONT, since a stopped process would not get the other. Again after a while, as long as it lives."""
        if select.select([self.pidfd], [], [], 0)[0]:
            self._kill_again_at = float("inf")
            return
        signum: Any = self._cfg.rank_termination_signal
        for one in (signal.SIGCONT, signum):
            try:
                signal.pidfd_send_signal(self.pidfd, one)
            except OSError as error:
                self._logger.error("rank %s (pid %s) does not get %s: %s", self._rank, self._pid, one.name, error)
        self._logger.info("sent SIGCONT and %s to rank %s (pid %s)", signum.name, self._rank, self._pid)
        self._kill_again_at = self._clock() + self._cfg.workload_check_interval

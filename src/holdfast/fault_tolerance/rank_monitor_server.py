"""Who watches a rank that runs under another launcher than ours? One RankMonitorServer per rank, in a process of its own.

It listens for its rank, reads the page that the rank hands over, and runs the machine of Holdfast's agent (`monitor.liveness`).
A rank that exceeds a limit gets SIGCONT and the termination signal. One rank at a time; the next waits until the one before has
gone, and gets the limits that it had calculated. A rank without a page says everything in messages.

A rank loads this module too, so it loads nothing of the agent's.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import selectors
import signal
import socket
import tempfile
import time
from typing import TYPE_CHECKING, Any

from holdfast.fault_tolerance import data, wire
from holdfast.fault_tolerance._link import Link
from holdfast.fault_tolerance._monitor_log import RankMonitorLogger
from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.fault_tolerance.rank_monitor_state_machine import RankMonitorState, RankMonitorStateMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.fault_tolerance._watched import Watched

_OVER = (RankMonitorState.ABORTED, RankMonitorState.FINALIZED)
_NEVER = float("inf")

LOOK_S = 0.1  # How often `run_in_subprocess` looks whether the server has died.


class RankMonitorServer:
    """The server of one rank. Start it with `run_in_subprocess`."""

    RANK_MONITOR_INIT_TIMEOUT = 180.0  # Seconds that `run_in_subprocess` waits for the server to listen.

    def __init__(
        self,
        cfg: FaultToleranceConfig,
        ipc_socket_path: str,
        rank_monitor_ready_event: Any,
        logger: logging.Logger,
        is_restarter_logger: bool,
    ) -> None:
        self.cfg = cfg
        self.ipc_socket_path = ipc_socket_path
        self.launcher_ipc_socket_path = f"{tempfile.gettempdir()}/_ft_launcher{os.getpid()}_to_rmon.socket"
        self.rank_monitor_ready_event = rank_monitor_ready_event
        self.logger = logger
        ours = isinstance(logger, RankMonitorLogger)
        self.rmlogger: Any = logger if ours else RankMonitorLogger(level=logger.level, is_restarter_logger=is_restarter_logger)
        self.state_machine = RankMonitorStateMachine(self.rmlogger)
        self.rank_info: data.RankInfo | None = None
        self.current_cycle: int | None = None
        self.calculated: data.Calculated = None, None  # Limits that a rank has calculated: its next life is told.
        self._selector = selectors.DefaultSelector()
        self._link: Link | None = None
        self._watched: Watched | None = None
        self._clock: Callable[[], float] = time.monotonic
        self._ending = False
        self._check_restart_at = _NEVER

    # --- starting ---------------------------------------------------------------------------------------------------------

    @staticmethod
    def run_in_subprocess(
        cfg: FaultToleranceConfig,
        ipc_socket_path: str,
        is_restarter_logger: bool = False,
        mp_ctx: Any = multiprocessing,
        env: Mapping[str, str] | None = None,
    ) -> Any:
        """Start one in a process of its own (`mp_ctx.Process`), which ends with ours. RuntimeError if it does not come up."""
        ready = mp_ctx.Event()
        arguments = (cfg, ipc_socket_path, ready, is_restarter_logger, env)
        process = mp_ctx.Process(target=RankMonitorServer.run, args=arguments, daemon=True)
        process.start()
        for _ in range(int(RankMonitorServer.RANK_MONITOR_INIT_TIMEOUT / LOOK_S) + 1):
            if ready.wait(LOOK_S):
                return process
            if not process.is_alive():
                break
        raise RuntimeError(f"the rank monitor for {ipc_socket_path} did not start (exit code {process.exitcode})")

    @staticmethod
    def run(
        cfg: FaultToleranceConfig,
        ipc_socket_path: str,
        rank_monitor_ready_event: Any,
        is_restarter_logger: bool,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Be one, until SIGTERM, SIGINT, a launcher's `shutdown` or the end of the process that started us."""
        os.environ.update(env or {})
        logger = RankMonitorLogger(level=cfg.log_level, is_restarter_logger=is_restarter_logger)
        RankMonitorServer(cfg, ipc_socket_path, rank_monitor_ready_event, logger, is_restarter_logger)._serve()

    def _serve(self) -> None:
        from holdfast.fault_tolerance._watched import Watched  # no rank loads what watches it, and none waits for this

        self._watch = Watched
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._on_signal)
        waker, woken = socket.socketpair()
        for end in (waker, woken):
            end.setblocking(False)
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        self._listen_to(waker, lambda: waker.recv(64))
        parent = multiprocessing.parent_process()
        if parent is not None:
            self._listen_to(parent.sentinel, self._end)
        self._door = wire.listen(self.ipc_socket_path)
        servers = {self.ipc_socket_path: self._door}
        self._listen_to(self._door, self._take_in_rank)
        try:
            for_launcher = servers[self.launcher_ipc_socket_path] = wire.listen(self.launcher_ipc_socket_path)
            self._listen_to(for_launcher, lambda: self._take_in_launcher(for_launcher))
        except OSError as error:  # a name that anybody may have taken: ranks are watched all the same
            self.rmlogger.log_for_restarter(f"no launcher can ask here: {self.launcher_ipc_socket_path}: {error.strerror}")
        self.rank_monitor_ready_event.set()
        try:
            while not self._ending:
                self._turn()
        finally:
            signal.set_wakeup_fd(-1)
            self._rank_is_gone()
            for path, server in servers.items():
                server.close()
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            for end in (waker, woken):
                end.close()
            self._selector.close()

    def _turn(self) -> None:
        """Wait for what comes next, and do it."""
        deadline = min(self._check_restart_at, self._watched.deadline() if self._watched else _NEVER)
        now = self._clock()
        ready = self._selector.select(None if deadline == _NEVER else max(0.0, deadline - now))
        try:
            for key, _ in ready:
                if key.fd in self._selector.get_map():  # what came before it may have closed it
                    key.data()
            if ready:
                return  # and judge nobody by what it had said before
            if self._watched is not None:
                self._watched.look_if_due(now)
            if now >= self._check_restart_at:
                self.state_machine.periodic_restart_check()
                self._check_restart_at = now + self.cfg.restart_check_interval
        except Exception:
            # Better a rank that is not watched now than a server that no rank can reach in its next life.
            self.logger.exception("the monitor has failed; rank %s is not watched any more", self.rank_info)
            self._rank_is_gone()

    def _listen_to(self, source: Any, act: Callable[[], Any]) -> None:
        self._selector.register(source, selectors.EVENT_READ, act)

    def _on_signal(self, signum: int, frame: object) -> None:
        self.state_machine.handle_signal()
        self._end()

    def _end(self) -> None:
        self._ending = True

    # --- the launcher -----------------------------------------------------------------------------------------------------

    def _take_in_launcher(self, server: socket.socket) -> None:
        link = self._accept(server)
        if link is not None:
            self._listen_to(link.connection, lambda: self._hear_launcher(link))

    def _hear_launcher(self, link: Link) -> None:
        words = link.hear()
        for word in words or ():
            match word:
                case "close_worker_ipc_connection":
                    self._rank_is_gone()
                case "shutdown":
                    self._end()
                case data.UpdateConfigMsg(current_cycle=int(cycle)):
                    self.current_cycle = cycle
                case _:
                    self.logger.warning("unknown message from the launcher: %r", word)
        if words is None:
            self._selector.unregister(link.connection)
            link.close()

    def _accept(self, server: socket.socket) -> Link | None:
        try:
            connection, _ = server.accept()
        except OSError:
            return None
        try:
            return Link(connection)
        except OSError as error:
            self.logger.warning("turned away: %s", error)
            connection.close()
            return None

    # --- the rank ---------------------------------------------------------------------------------------------------------

    def _take_in_rank(self) -> None:
        link = self._accept(self._door)
        if link is not None:
            self._link = link
            self._listen_to(link.connection, self._hear_rank)
            self._selector.unregister(self._door)  # the next one waits at the door until this one has gone

    def _hear_rank(self) -> None:
        link = self._link
        assert link is not None
        words = link.hear()
        for word in words or ():
            answer = self._answer(word, link)
            if answer is not None:
                link.say(answer)
            if self._link is not link:
                return
        if words is None:
            self._rank_is_gone()

    def _answer(self, word: Any, link: Link) -> data.OkMsg | data.ErrorMsg | None:
        """None: there is no answer."""
        match word:
            case data.AuthkeyMsg():
                return data.OkMsg()
            case data.InitMsg(rank_info=data.RankInfo()):
                return self._begin(word, link)
            case data.HeartbeatMsg() | data.SectionMsg() | data.UpdateConfigMsg() if self._watched is not None:
                return self._told(word, self._watched)
        return data.ErrorMsg(f"{type(word).__name__} is not expected here")

    def _begin(self, init: data.InitMsg, link: Link) -> data.OkMsg | data.ErrorMsg:
        assert init.rank_info is not None
        if self._watched is not None:
            return data.ErrorMsg("this connection is about a rank already")
        self.rank_info = init.rank_info
        self.cfg = self.cfg.with_warmup(init.num_warmup_iters)
        pid = link.pid or init.rank_info.pid
        try:
            page_fd, calculated = link.take_page(), self.calculated
            self._watched = self._watch(self.cfg, init.rank_info, pid, page_fd, calculated, self.logger, self._clock)
        except (OSError, ValueError) as error:
            return data.ErrorMsg(f"rank {init.rank_info.global_rank} cannot be watched: {error}")
        self._listen_to(self._watched.pidfd, self._rank_is_gone)
        self.rmlogger.set_connected_rank(init.rank_info.global_rank)
        beats, sections = self.calculated
        return data.OkMsg(cfg=self.cfg, hb_timeouts=beats, section_timeouts=sections)

    def _told(self, word: Any, watched: Watched) -> data.OkMsg | data.ErrorMsg | None:
        if isinstance(word, data.UpdateConfigMsg):
            self.calculated = word.hb_timeouts or self.calculated[0], word.section_timeouts or self.calculated[1]
            watched.limits_changed(self.calculated)
            return None if watched.shares_page else data.OkMsg()
        self._check_restart_at = _NEVER
        if self.state_machine.state not in _OVER:
            self.state_machine.handle_heartbeat_msg()
        wrong = watched.told(word)
        if wrong:
            self.logger.error("rank %s: %s", word.rank, wrong)
        if watched.shares_page or self.cfg.skip_section_response:
            return None
        return data.ErrorMsg(wrong) if wrong else data.OkMsg()

    def _rank_is_gone(self) -> None:
        """The connection is lost, or to be given up, or its process has ended: whatever comes first."""
        link, watched, self._link, self._watched = self._link, self._watched, None, None
        if link is None:
            return
        self._selector.unregister(link.connection)
        link.close()
        if watched is not None:
            self._selector.unregister(watched.pidfd)
            watched.close()
        self.rank_info = None
        self.rmlogger.set_connected_rank(None)
        self.state_machine.handle_ipc_connection_lost()
        if self.state_machine.is_restarting():
            self._check_restart_at = self._clock() + self.cfg.restart_check_interval
        self._listen_to(self._door, self._take_in_rank)

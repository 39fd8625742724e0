"""How does a rank reach its monitor? By a page, in either case.

Under `holdfast run` the bootstrap has mapped the page, the agent reads it, and the configuration is in the environment. Beside
a standalone RankMonitorServer the rank makes the page and hands it over on the server's socket, once. After that the rank never
waits for the server.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
import tempfile
from typing import Any

from holdfast.client.worker import this_worker
from holdfast.client.writer import Writer
from holdfast.core.page import layout
from holdfast.core.page.silences import BEAT, FIRST, OUT, in_section
from holdfast.fault_tolerance import data, wire
from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.fault_tolerance.utils import read_obj_from_ipc_socket

CONFIG_ENV, LIMITS_ENV = "HOLDFAST_FT_CONFIG", "HOLDFAST_CALCULATED_LIMITS"
"""Environment of a worker (`agent.workers.launch`), as JSON: settings, and the newest limits calculated in the job."""

SERVER_PATIENCE_S = 180.0
"""How long a rank waits for its server to take it in: it may still have the rank of the life before. NVRx's server: 180."""

LEAST_CALCULATED_S = 10.0
"""No calculated limit is enforced below this. A heartbeat right after the start would make one of milliseconds, which the next
pause of the machine exceeds; a busy host, a slow file server or the end of the interpreter take seconds."""

MOST_UNSENT = 65536  # Bytes that are held for a server that does not read; what is to be said after them it misses.


class Unreachable(Exception):
    """There is nobody to monitor this rank, or it does not answer."""


class ByAgent:
    """Under `holdfast run`."""

    def __init__(self, num_warmup_iters: int | None) -> None:
        self.writer = this_worker
        self.cfg = FaultToleranceConfig.from_core(json.loads(os.environ.get(CONFIG_ENV, "{}"))).with_warmup(num_warmup_iters)
        if num_warmup_iters is not None:
            self.writer.set_warmup(num_warmup_iters)
        self.calculated = _limits_of(json.loads(os.environ.get(LIMITS_ENV, "{}")), self.cfg)
        """Limits that the ranks have calculated, in this life or one before."""
        self.writer.await_heartbeat()

    def began(self) -> None:
        """The first sign of life was given."""

    def calculate(self, heartbeats: data.HeartbeatTimeouts | None, sections: data.SectionTimeouts | None) -> None:
        """New limits are in force. The agent is told, for its ranks' next lives: by one of them, since theirs are the same."""
        self.calculated = beats, spent = heartbeats or self.calculated[0], sections or self.calculated[1]
        if os.environ.get("LOCAL_RANK") != "0":
            return
        initial = subsequent = out = None
        inside: dict[str, float] = {}
        if beats is not None and beats.were_calculated:
            initial, subsequent = beats.initial, beats.subsequent
        if spent is not None:
            out = spent.out_of_section if spent.is_out_of_section_calculated else None
            inside = {name: limit for name in spent.calculated_sections if (limit := spent.section.get(name)) is not None}
        self.writer.tell_calculated(initial, subsequent, out, inside)

    def close(self) -> None:
        """From now on this rank may be silent."""
        self.writer.set_limits(*[float("inf")] * 3)
        self.writer.heartbeat_came()


class ByServer:
    """Beside a standalone RankMonitorServer at `path`. Unreachable if it is not there, or does not take us in."""

    def __init__(self, path: str, init: data.InitMsg) -> None:
        self.writer = Writer()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._unsent = b""
        try:
            answer = self._introduce(path, init)
        except OSError as error:
            self._socket.close()
            raise Unreachable(f"the rank monitor at {path} cannot be reached: {error}") from error
        if not isinstance(answer, data.OkMsg):
            self._socket.close()
            raise Unreachable(f"the rank monitor at {path} does not take this rank in: {answer}")
        self._socket.setblocking(False)
        self.writer.await_heartbeat()
        told = vars(answer)
        self.cfg: FaultToleranceConfig = told["cfg"]
        self.calculated: data.Calculated = told["hb_timeouts"], told["section_timeouts"]

    def _introduce(self, path: str, init: data.InitMsg) -> Any:
        self._socket.settimeout(SERVER_PATIENCE_S)
        self._socket.connect(path)
        wire.peer_pid(self._socket)
        fd = _nameless_file()
        try:
            os.ftruncate(fd, layout.SIZE)
            self.writer.own(memoryview(mmap.mmap(fd, layout.SIZE)).cast("Q"))
            socket.send_fds(self._socket, [wire.frame(init)], [fd])
        finally:
            os.close(fd)
        return read_obj_from_ipc_socket(self._socket, raise_exc=True)

    def began(self) -> None:
        """The first sign of life was given: the server would find it, but later."""
        self._mention(data.HeartbeatMsg(rank=-1))

    def calculate(self, heartbeats: data.HeartbeatTimeouts | None, sections: data.SectionTimeouts | None) -> None:
        """New limits are in the page: the server keeps them for the rank's next life."""
        self._mention(data.UpdateConfigMsg(heartbeats, sections))

    def _mention(self, word: Any) -> None:
        """Say it without waiting. A server that does not listen misses it; that is no reason to stop training."""
        if len(self._unsent) < MOST_UNSENT:
            self._unsent += wire.frame(word)
        with contextlib.suppress(OSError):
            self._unsent = self._unsent[self._socket.send(self._unsent) :]

    def close(self) -> None:
        """From now on this rank is not monitored."""
        self._socket.close()


def reach(rank_info: data.RankInfo, iteration: int | None, num_warmup_iters: int | None) -> ByAgent | ByServer:
    """Who monitors this rank. Unreachable if nobody does."""
    if this_worker.words is not None:
        return ByAgent(num_warmup_iters)
    path = os.environ.get(data.FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR)
    if path is None:
        raise Unreachable(
            f"nobody monitors this rank: start it with `holdfast run`, or set {data.FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR} "
            "to the socket of its RankMonitorServer"
        )
    return ByServer(path, data.InitMsg(rank_info, iteration, num_warmup_iters))


def write_limits(
    writer: Writer, beats: data.HeartbeatTimeouts | None, spent: data.SectionTimeouts | None, *, warms_up: bool = False
) -> None:
    """Write the calculated limits into the page: its reader knows those that are configured.

    `warms_up`: for now the time outside of sections has no limit."""
    initial = beat = out = None
    if beats is not None and beats.were_calculated:
        initial, beat = _sane(beats.initial), _sane(beats.subsequent)
    if spent is not None:
        out = _sane(spent.out_of_section) if spent.is_out_of_section_calculated else None
        for name in spent.calculated_sections:
            writer.section(name, _sane(spent.section[name]))
        if warms_up and spent.out_of_section is not None:
            out = float("inf")
    writer.set_limits(initial, beat, out)


def _limits_of(calculated_s: dict[str, float], cfg: FaultToleranceConfig) -> data.Calculated:
    """What `ByAgent.calculate` told, in NVRx's words; what was not calculated is as configured. None: nothing was."""
    beats = spent = None
    if FIRST in calculated_s and BEAT in calculated_s:
        beats = data.HeartbeatTimeouts(calculated_s[FIRST], calculated_s[BEAT], were_calculated=True)
    inside = {name: calculated_s[kind] for name in cfg.rank_section_timeouts if (kind := in_section(name)) in calculated_s}
    if inside or OUT in calculated_s:
        outside = calculated_s.get(OUT, cfg.rank_out_of_section_timeout)
        spent = data.SectionTimeouts({**cfg.rank_section_timeouts, **inside}, outside, set(inside), OUT in calculated_s)
    return beats, spent


def _sane(limit_s: float | None) -> float:
    return float("inf") if limit_s is None else max(limit_s, LEAST_CALCULATED_S)


def _nameless_file() -> int:
    try:
        return os.memfd_create("holdfast-page", os.MFD_CLOEXEC)
    except OSError:  # refused by a seccomp filter
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())

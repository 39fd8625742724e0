"""One host's daemon: what Google's clients and our agents say reaches the table, and people can see it.

    gRPC's threads ──▶ HostTable ◀── the loop: socket, ends of agents, silence
                          │
                          └──▶ journal (a thread, waited for only while the disk is well)

A caller never waits for a disk, a terminal or another caller: the table is in memory, behind one lock. After a restart it is
read from the journal, and our running agents are found again: those that it knew, and those whose job's directory says so.
"""

from __future__ import annotations

import _thread
import os
import select
import signal
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

from holdfast.agent.control.control_client import ask
from holdfast.agent.control.control_socket import ControlSocket, Request
from holdfast.agent.logs.nonblocking_writer import Stderr
from holdfast.core.config.grammar import shown_endpoint
from holdfast.core.errors import HoldfastError, ProtocolError, UsageError
from holdfast.core.job.failure import signal_name
from holdfast.core.job.xid import DeviceFault
from holdfast.core.machine import Action, Observation, Say, Signalled, Tick
from holdfast.core.value import replace
from holdfast.core.wire.google_wire import WorkerInfo
from holdfast.core.wire.protobuf import Message
from holdfast.runtime.host import Host
from holdfast.runtime.net.ports import holders
from holdfast.runtime.peer_user import is_ours
from holdfast.runtime.process.environments import environments
from holdfast.runtime.process.process import dying, pidfd_open
from holdfast.supervisor.daemon.google_service import COMMANDS, serve, socket_of
from holdfast.supervisor.daemon.host_repairs import HostRepairs, resumed
from holdfast.supervisor.daemon.host_table import (
    SILENCE_S,
    Agent,
    AgentGone,
    AgentTold,
    CordonTold,
    HostRepair,
    HostTable,
    Keep,
    PeerGone,
    RpcHeard,
    StartRepair,
    shown,
)
from holdfast.supervisor.daemon.host_uplink import HostUplink, Supervisor
from holdfast.supervisor.daemon.host_watch import HostWatch
from holdfast.supervisor.daemon.journal import Journal
from holdfast.supervisor.daemon.sensor_reports import GoogleServices
from holdfast.telemetry.record import locks
from holdfast.telemetry.record.io_thread import IoThread
from holdfast.telemetry.record.state_dir import daemon_socket, job_dirs, make_home, running_nodes
from holdfast.telemetry.report.safe_text import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.supervisor.daemon.sensor_link import SensorLink

ADOPT_S = 1.0
"""How long an agent has to say that it is there, when it is looked for."""

GOODBYE_S = 1.0
"""How long calls that are under way may take to end."""

FOLDER_HINT = "name another folder with --state-dir"

MOST_REFUSED = 24
"""Users who are told of, so that nobody fills the log."""

MOST_FOLLOWED = 256
"""Connections whose processes are waited for, at a descriptor each. The oldest make room: their ranks' silence decides."""

AGENT: dict[str, Any] = {"job": str, "node": str, "pid": int, "job_dir": str}
"""What an agent says of itself."""


class Daemon:
    """The process. HoldfastError: another one has this home, or the port is taken."""

    def __init__(
        self, home: str, host: str, port: int, silence_s: float = SILENCE_S,
        supervisor: Supervisor | GoogleServices | None = None,
        users: Collection[int] | None = (), repairs: HostRepairs | None = None, watch: HostWatch | None = None
    ) -> None:
        """`users`: whose ranks are heard beside our user's and root's; None: everybody's. `repairs` None: the host never is.
        `watch` None: only ranks are."""
        self.host = Host(self.say)
        self.host.catch((signal.SIGTERM, signal.SIGINT))  # before anybody is told that it listens
        self.home, self.since_unix = home, self.host.unix()
        try:
            make_home(home)
        except OSError as error:
            hint = "name a folder that this user may write to"
            raise UsageError(f"--state-dir: {home} cannot be used: {error.strerror}", hint=hint) from error
        self._lock_fd = _claim(os.path.join(home, "daemon.lock"))
        try:
            self.journal = Journal(os.path.join(home, "daemon.jsonl"))
        except OSError as error:
            raise HoldfastError(f"cannot keep a table in {home}: {error.strerror}", hint=FOLDER_HINT) from error
        self.table = HostTable.of(self.journal.rows, silence_s, self.host.now())
        self.stderr, self.io_thread = Stderr(), IoThread()
        self.users = users
        self._refused: set[int | None] = set()
        """Who was told of."""
        self.trouble = ""
        """Why the table could not be kept last."""
        self._lock = _thread.allocate_lock()
        self._agents: dict[int, Agent] = {}
        """By pidfd."""
        self._peers: dict[str, int | None] = {}
        """By connection of a rank: its process's pidfd; None: not looked for yet; -1: not found, so its silence decides."""
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Wakes the loop: the table has changed, in whichever thread, or there is a fault."""
        self._faults: list[DeviceFault] = []
        """What the watch has found, and the supervisor has not been told."""
        self.repairs, self.watch = repairs or HostRepairs({}, ()), watch
        offers, boot, self.uplink = self.repairs.offers, self.repairs.boot(), None
        if isinstance(supervisor, Supervisor):
            self.uplink = HostUplink(self.host, supervisor, self.say, self.see, offers, boot)
        self.address = host
        self.server, self.port = serve(host, port, self._hear, self._may_speak)
        self.listens = shown_endpoint(host, self.port)
        self.commands: Any = None
        """The server of Google's actuator, where other hosts reach it."""
        try:
            self.sensor = self._sensor(supervisor) if isinstance(supervisor, GoogleServices) else None
            self.control = ControlSocket(daemon_socket(home))
        except OSError as error:
            self.server.stop(None)
            raise HoldfastError(f"cannot listen at {daemon_socket(home)}: {error.strerror}", hint=FOLDER_HINT) from error
        except HoldfastError:
            self.server.stop(None)
            raise

    def _sensor(self, google: GoogleServices) -> SensorLink:
        from holdfast.supervisor.daemon.sensor_link import SensorLink  # grpcio's client, of which `serve` has said if it lacks

        address = self.listens
        if google.commands is not None:
            self.commands, port = serve(*google.commands, self._hear, lambda user: True, COMMANDS)
            address = shown_endpoint(google.commands[0], port)
        return SensorLink(google, address, self.say, self.see)

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; returns the exit code."""
        self.host.watch(self.control.fileno(), select.EPOLLIN, self._asked)
        self.host.watch(self._news, select.EPOLLIN, self._tell)
        os.eventfd_write(self._news, 1)
        _thread.start_new_thread(self._adopt, ())
        if self.watch is not None:
            self.watch.start(self._found)
        if self.table.repair is not None and not self.table.repair.is_over:
            self.see(resumed(self.table.repair, self.repairs.boot()))
        while True:
            for seen in self.host.wait(self._until()):
                if isinstance(seen, Signalled):
                    return 0
                if self.uplink is not None:
                    self.uplink.observe(seen)
            self.see(Tick())
            if self.uplink is not None:
                self.uplink.due()
            with self._lock:
                self.stderr.due()

    def close(self) -> None:
        """Take no more calls, and leave the table on disk."""
        if self.watch is not None:
            self.watch.close()
        if self.sensor is not None:
            self.sensor.close()
        for server in (self.server, self.commands):
            if server is not None:
                server.stop(GOODBYE_S).wait()
        if self.uplink is not None:
            self.uplink.close()
        self.control.close()
        if self.io_thread.close():
            self.journal.close()
        self.stderr.close()
        self.host.close()
        os.close(self._lock_fd)

    def say(self, text: str) -> None:
        with self._lock:
            self._say(text)

    def _say(self, text: str) -> None:
        self.stderr.say(f"holdfast daemon: {plain(text)}\n")

    def _may_speak(self, user: int | None) -> bool:
        if self.users is None or is_ours(user) or user in self.users:
            return True
        if user not in self._refused and len(self._refused) < MOST_REFUSED:
            self._refused.add(user)
            hint = "--allow-user UID, or any, lets others in"
            self.say(f"what {'nobody' if user is None else f'uid {user}'} says of ranks here is not heard: {hint}")
        return False

    def _hear(self, peer: str, method: str, message: Message) -> None:
        self.see(RpcHeard(peer=peer, method=method, message=message, at_unix=self.host.unix()))
        if peer not in self._peers and isinstance(message, WorkerInfo):
            self._peers[peer] = None
            os.eventfd_write(self._news, 1)

    def _follow(self) -> None:
        """Wait for the ends of the processes behind new connections. In the loop: no caller waits for the look at /proc."""
        new = [peer for peer, fd in list(self._peers.items()) if fd is None]
        sockets = {peer: found[1] for peer in new if (found := socket_of(peer, (self.address, self.port))) is not None}
        pids = holders(sockets.values())
        for peer in new:
            pid = pids.get(sockets.get(peer, 0))
            self._peers[peer] = -1
            if pid is not None and (fd := pidfd_open(pid)) is not None:
                self._peers[peer] = fd
                self.host.watch(fd, select.EPOLLIN, partial(self._peer_ended, peer, pid))
        for peer in list(self._peers)[: max(0, len(self._peers) - MOST_FOLLOWED)]:
            self._let_go(peer)

    def _peer_ended(self, peer: str, pid: int, events: int) -> list[Observation]:
        end = dying(pid)  # None: its parent has asked for its end already, and the kernel tells nobody else
        by = signal_name(end.exitcode) if end is not None else None
        self._let_go(peer)
        self.see(PeerGone(peer=peer, how=f"was killed by {by}" if by else "has ended without a word"))
        return []

    def _let_go(self, peer: str) -> None:
        if (fd := self._peers.pop(peer, None)) is not None and fd >= 0:
            self.host.unwatch(fd)
            os.close(fd)

    def see(self, seen: Observation) -> None:
        """Show the table what has happened; from any thread."""
        with self._lock:
            actions = self.table.observe(seen, self.host.now())
            self._perform(actions)
        if actions:
            os.eventfd_write(self._news, 1)

    def _tell(self, events: int) -> list[Observation]:
        os.eventfd_read(self._news)
        self._follow()
        with self._lock:
            faults, self._faults = self._faults, []
        if self.uplink is not None:
            for fault in faults:
                self.uplink.suffers(fault)
        for told in (self.uplink, self.sensor):
            if told is not None:
                with self._lock:
                    table = self.table.copy()  # no caller waits until it is told
                told.shows(table)
        return []

    def _found(self, faults: Sequence[DeviceFault]) -> None:
        for fault in faults:
            self.say(fault.what)
        with self._lock:
            self._faults += faults
        os.eventfd_write(self._news, 1)

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Keep(key=key, row=row):
                    trouble = self.io_thread.attempt(lambda key=key, row=row: self.journal.keep(key, row))  # type: ignore[misc]
                    if trouble and trouble != self.trouble:
                        self._say(f"the table cannot be kept on disk: {trouble}")
                    self.trouble = trouble
                case StartRepair(repair=repair):
                    _thread.start_new_thread(self._repair, (repair, self.table.copy()))
                case Say(text=text):
                    self._say(text)

    def _repair(self, repair: HostRepair, table: HostTable) -> None:
        if (ended := self.repairs.carry_out(repair, table)) is not None:
            self.see(ended)

    def _until(self) -> float:
        """At most the time of silence from now: a worker that another thread hears meanwhile may be silent after that."""
        with self._lock:
            due = min(self.host.now() + self.table.silence_s, self.table.deadline(), self.stderr.due_at)
        return due if self.uplink is None else min(due, self.uplink.deadline())

    def _asked(self, events: int) -> list[Observation]:
        for request in self.control.requests():
            self._answer(request)
        return []

    def _answer(self, request: Request) -> None:
        match request.ask:
            case "table":
                with self._lock:
                    table = shown(self.table, self.host.now())
                own = {"pid": os.getpid(), "listens": self.listens, "since_unix": self.since_unix, "home": self.home}
                request.reply({"daemon": own, "table": table})
            case "register":
                try:
                    agent = Agent(**{name: kind(request.arguments[name]) for name, kind in AGENT.items()})
                except (KeyError, ValueError, TypeError):
                    request.refuse(f"an agent says its {', '.join(AGENT)}")
                    return
                request.reply({} if self._know(agent) else {"ok": False, "error": f"there is no process {agent.pid}"})
            case "uncordon":
                self.see(CordonTold(on=False))
                request.reply({})
            case _:
                request.refuse(f"the daemon knows no {request.ask!r}; it knows table, register and uncordon")

    def _know(self, agent: Agent) -> bool:
        """Take up an agent and wait for its end; False: it has ended."""
        agent = replace(agent, workload=_environ(agent.pid).get("GCP_WORKLOAD_NAME", ""))
        try:
            fd = os.pidfd_open(agent.pid)
        except (OSError, OverflowError):
            self.see(AgentGone(job_dir=agent.job_dir, node=agent.node))
            return False
        if agent in list(self._agents.values()):
            os.close(fd)
            return True
        self.see(AgentTold(agent=agent))
        self._agents[fd] = agent
        self.host.watch(fd, select.EPOLLIN, lambda events: self._ended(fd))
        return True

    def _ended(self, fd: int) -> list[Observation]:
        self.host.unwatch(fd)
        os.close(fd)
        agent = self._agents.pop(fd)
        if not any((other.job_dir, other.node) == (agent.job_dir, agent.node) for other in list(self._agents.values())):
            self.see(AgentGone(job_dir=agent.job_dir, node=agent.node))
        return []

    def _adopt(self) -> None:
        """Find the agents that run: a thread's, since a job's directory may be on a file server that hangs."""
        with self._lock:
            known = list(self.table.agents.values())
        for agent in known:
            if agent.node in running_nodes(agent.job_dir):
                self._know(agent)
            else:
                self.see(AgentGone(job_dir=agent.job_dir, node=agent.node))
        tried = {(agent.job_dir, agent.node) for agent in known}
        there = [(path, node) for path in job_dirs(self.home) for node in running_nodes(path)]
        for path, node in [one for one in there if one not in tried]:
            try:
                pid = int(ask(path, node, {"ask": "status"}, ADOPT_S)["pid"])
            except (OSError, ProtocolError, KeyError, ValueError):
                continue  # another host's, or on its way out
            self._know(Agent(job=os.path.basename(path), node=node, pid=pid, job_dir=path))


def _environ(pid: int) -> dict[str, str]:
    """What a process was started with; empty: it is another user's, gone, or stuck in the kernel."""
    pairs = environments([pid]).get(pid, b"").decode(errors="replace").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _claim(path: str) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not locks.take(fd):
        pid = os.read(fd, 20).decode(errors="replace").strip()
        os.close(fd)
        hint = "`holdfast daemon --status` shows it"
        raise HoldfastError(f"a daemon already uses this state directory, as pid {pid}", hint=hint)
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd

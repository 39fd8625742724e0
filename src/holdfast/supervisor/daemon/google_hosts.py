"""What does our supervisor hear of hosts whose daemon is Google's? The machine of who stands where Google's sensor has been.

Each host has a table and reporters, as one with our own daemon has; what its daemon says is told to the table as its ranks'
clients would have told it. Google's daemon says less than they do, and not always what is: docs/decisions/0056 has what was
measured. In short:

    an event               a rank has failed, or is not heard; one for all ranks of the host, until all of them run again
    a heartbeat with it    is of the same turn, and says how things were before: it is passed over
    a later heartbeat      all ranks of the host run, whatever it says of each
    no heartbeat           ranks have failed or completed, or the host is lost: so the daemon itself is called every PROBE_S
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from holdfast.core.machine import NEVER, Action, Observation, Say, Tick
from holdfast.core.value import replace
from holdfast.core.wire.fleet import TroubleKind
from holdfast.core.wire.google_sensor import ECC, HANG, WORKER_HB, XID, EventReport, HostInfo
from holdfast.core.wire.google_wire import COMPLETE, FAILED, RUNNING, Method, WorkerInfo
from holdfast.core.wire.links import Arrived, Connect, LinkDown, LinkUp
from holdfast.supervisor.daemon.host_reports import HostReports, ShowTable
from holdfast.supervisor.daemon.host_table import CordonTold, HostTable, RpcHeard, Worker

EVERY_S = 15.0
"""Between two heartbeats of a daemon. Google's recipes: 15 (HEARTBEAT_POLLING_PERIOD_S)."""

SAME_TURN_S = 0.5
"""A daemon's turns are whole seconds apart, and the calls of one turn follow each other within milliseconds."""

PROBE_S = 2.0
"""Between two calls of a daemon."""

DEAF_S = 5.0
"""A daemon that has answered us before, and is not heard for so long, is silent. One that has never is heard by its heartbeats
alone: twice their time, as Google's sensor has it."""

COMPLETE_AFTER = 3
"""So many heartbeats are missing, though the daemon answers and has reported no failure: its ranks have ended well."""

UNLISTED_S = 30.0
"""A daemon that was started again learns of its ranks anew: so long a rank that it does not name is taken to be there."""

LOOK_S = 0.2
"""Between two looks at all hosts."""

ECC_XID = 48
"""The driver's number for an error of memory that could not be corrected."""

MOST_HOSTS = 4096
"""Nothing on this wire says who speaks: above so many, a new one takes the place of one that is silent."""


class HostTold(Observation):
    """A host's daemon has called."""

    said: HostInfo
    event: EventReport | None = None
    """What has happened. None: it says how the host is."""
    at: float
    """When it came."""
    at_unix: float


class DaemonCalled(Observation):
    """A call of a host's daemon has ended."""

    name: str
    is_there: bool
    has_ended: bool = False
    """Its host says that nobody listens there."""


class CallDaemon(Action):
    """Call a host's daemon: `DaemonCalled` follows."""

    name: str
    address: str
    method: str
    """Of Google's `HostService`. Empty: to see that it is there."""


class ForgetHost(Action):
    """No call goes to it any more."""

    name: str


class GoogleHost:
    """One of them."""

    def __init__(self, told: HostTold, reports: HostReports, every_s: float) -> None:
        self.said, self.reports, self.every_s = told.said, reports, every_s
        self.table = HostTable(silence_s=NEVER)
        self.heard_at = self.beaten_at = self.probe_at = told.at
        self.failed_at = -NEVER
        self.listed: dict[str, float] = {}
        """Key of a worker → when the daemon named it last."""
        self.has_answered = self.has_ended = self.has_passed_over = False

    def is_silent(self, now: float) -> bool:
        return self.has_ended or now - self.heard_at > (DEAF_S if self.has_answered else 2 * self.every_s)

    # --- what its daemon says -------------------------------------------------------------------------------------------

    def told(self, told: HostTold, now: float) -> list[Action]:
        self.heard_at, self.has_ended = max(self.heard_at, told.at), False
        if told.event is None and told.at - self.failed_at < SAME_TURN_S:
            return []
        if told.event is None or not self.table.workers:
            self._stands(told)
        troubles = self._suffers(told.event, told, now) if told.event is not None else []
        return [*self.reports.shows(self.shown(), now), *troubles]

    def _stands(self, told: HostTold) -> None:
        self.said, self.beaten_at = told.said, told.at
        if self.said.workload.workload_name:
            self._hear(told, Method.REGISTER_WORKLOAD)
        for worker in self.said.workers:
            self._beats(told, worker, COMPLETE if worker.state == COMPLETE else RUNNING)
        self._forget(told.at)

    def shown(self) -> HostTable:
        """The table, for the supervisor. A host at work that names no ranks is no spare: no client speaks to its daemon."""
        table = self.table.copy()
        if self.said.state == RUNNING and not self.said.workers:
            table.observe(CordonTold(on=True), 0.0)
        return table

    def _hear(self, told: HostTold, method: str, message: WorkerInfo | None = None) -> None:
        message_said = self.said.workload if message is None else message
        self.table.observe(RpcHeard(peer=self.reports.name, method=method, message=message_said, at_unix=told.at_unix), told.at)

    def _beats(self, told: HostTold, worker: WorkerInfo, state: int) -> None:
        self._hear(told, Method.HEARTBEAT, replace(worker, state=state))
        newest = next(reversed(self.table.workers))
        self.listed[newest] = told.at

    def _forget(self, at: float) -> None:
        """Workers of an earlier workload, and those that the daemon has not named for a while."""
        name = self.said.workload.workload_name
        gone = [
            key
            for key, worker in self.table.workers.items()
            if (name and worker.workload != name) or at - self.listed.get(key, at) > UNLISTED_S
        ]
        for key in gone:
            del self.table.workers[key]
            self.listed.pop(key, None)

    def _suffers(self, event: EventReport, told: HostTold, now: float) -> list[Action]:
        """What has gone wrong: a rank's failure goes to the table, the rest to the supervisor."""
        match event.kind:
            case kind if kind == WORKER_HB and (worker := self._worker(event)) is not None:
                self.failed_at = told.at
                self._beats(told, worker.info, FAILED)
                return []
            case kind if kind in (XID, ECC):
                number = event.xid or (ECC_XID if kind == ECC else 0)
                return self.reports.suffers(TroubleKind.DEVICE, event.what, now, xid=number, device=event.device)
            case kind if kind in (WORKER_HB, HANG):
                self.failed_at = told.at
                return self.reports.suffers(TroubleKind.HANG if kind == HANG else TroubleKind.WORKER, event.what, now)
        if self.has_passed_over:
            return []
        self.has_passed_over = True
        return [Say(text=f"{self.reports.name}: an event of kind {event.kind} is passed over, as more such are: {event.what}")]

    def _worker(self, event: EventReport) -> Worker | None:
        """Of which worker it tells: by its device, and best by its name too, since devices may be called alike."""
        alike = [one for one in self.table.workers.values() if one.info.worker_id == event.device]
        named = [one for one in alike if one.info.worker_name and one.info.worker_name in event.what]
        return next(iter(named or alike), None)

    # --- what time and calls of it tell ---------------------------------------------------------------------------------

    def called(self, seen: DaemonCalled, now: float) -> list[Action]:
        if seen.is_there:
            self.heard_at, self.has_answered, self.has_ended = now, True, False
        elif seen.has_ended and self.has_answered and not self.has_ended:
            self.has_ended = True
            return [Say(text=f"{seen.name}: Google's daemon there has ended", level="warning"), *self.reports.breaks(now)]
        return []

    def due(self, now: float) -> list[Action]:
        actions: list[Action] = []
        if now >= self.probe_at:
            self.probe_at = now + PROBE_S
            actions.append(CallDaemon(name=self.reports.name, address=self.said.address, method=""))
        if self.is_silent(now):
            return actions  # nor is the supervisor given a sign of life
        if self.has_answered and self.beaten_at > self.failed_at and now - self.beaten_at > COMPLETE_AFTER * self.every_s:
            self.beaten_at = NEVER
            told = HostTold(said=self.said, at=now, at_unix=0.0)
            for worker in list(self.table.workers.values()):
                self._beats(told, worker.info, COMPLETE)
            actions += self.reports.shows(self.shown(), now)
        return actions + (self.reports.observe(Tick(), now) if now >= self.reports.deadline() else [])


class GoogleHosts:
    """All of them."""

    def __init__(
        self, life: str, endpoints: tuple[str, ...], haste: float, every_s: float = EVERY_S, most: int = MOST_HOSTS
    ) -> None:
        """`life`: what no other one's is called; `endpoints`, `haste`: as of `Uplink`; `most`: there is room for so many."""
        self.life, self.endpoints, self.haste, self.every_s, self.most = life, endpoints, haste, every_s, most
        self.hosts: dict[str, GoogleHost] = {}
        """By name."""
        self.by_link: dict[int, GoogleHost] = {}
        self.links: Iterator[int] = count(1)
        self.lives: Iterator[int] = count(1)
        self.look_at = NEVER
        self.is_crowded = False
        """There have been too many, and that was said."""

    def deadline(self) -> float:
        return self.look_at

    def observe(self, seen: Observation, now: float) -> list[Action]:
        match seen:
            case HostTold():
                return self._told(seen, now)
            case DaemonCalled(name=name) if name in self.hosts:
                host = self.hosts[name]
                return self._out(host, host.called(seen, now))
            case LinkUp(link=link) | LinkDown(link=link) | Arrived(link=link) if link in self.by_link:
                host = self.by_link[link] if not isinstance(seen, LinkDown) else self.by_link.pop(link)
                return self._out(host, host.reports.observe(seen, now))
            case Tick() if now >= self.look_at:
                self.look_at = now + LOOK_S
                return [action for host in list(self.hosts.values()) for action in self._out(host, host.due(now))]
        return []

    def close(self, now: float) -> list[Action]:
        """We end, and not the daemons: nobody says goodbye for them."""
        return [action for host in self.hosts.values() for action in host.reports.breaks(now)]

    def _told(self, told: HostTold, now: float) -> list[Action]:
        name = told.said.name or told.said.address
        said: list[Action] = []
        if name and name not in self.hosts:
            said = self._makes_room(now)
            if len(self.hosts) < self.most:
                life = f"{name}-{next(self.lives)}-{self.life}"
                reports = HostReports(name, life, self.endpoints, self.haste, links=self.links)
                self.hosts[name] = GoogleHost(told, reports, self.every_s)
                self.look_at = now
                if not self.is_crowded:
                    said.append(Say(text=f"{name}: Google's daemon there, at {told.said.address}, is heard"))
        host = self.hosts.get(name)
        return [*said, *self._out(host, host.told(told, now))] if host is not None else said

    def _makes_room(self, now: float) -> list[Action]:
        """Forget the host that has been silent longest, if there are as many as may be."""
        if len(self.hosts) < self.most:
            return []
        what = f"{self.most} hosts are known: each new one takes the place of the one that has been silent longest, if one has"
        hint = "A larger fleet needs a higher limit of open files (LimitNOFILE=); of a smaller one, see who reaches this port"
        said: list[Action] = [] if self.is_crowded else [Say(text=f"{what}. {hint}", level="warning")]
        self.is_crowded = True
        silent = [name for name, host in self.hosts.items() if host.is_silent(now)]
        if silent:
            name = min(silent, key=lambda one: self.hosts[one].heard_at)
            gone = self.hosts.pop(name)
            said += [*self._out(gone, gone.reports.breaks(now)), ForgetHost(name=name)]
            for link in [link for link, host in self.by_link.items() if host is gone]:
                del self.by_link[link]
        return said

    def _out(self, host: GoogleHost, actions: Iterable[Action]) -> list[Action]:
        """What the World is to do of what a host's reporters want done."""
        out: list[Action] = []
        for action in actions:
            match action:
                case Connect(link=link):
                    self.by_link[link] = host
                    out.append(action)
                case ShowTable(seen=seen):
                    host.table.observe(seen, 0.0)
                    if isinstance(seen, CordonTold) and seen.on:
                        out.append(CallDaemon(name=host.reports.name, address=host.said.address, method=Method.TRIGGER_CORDON))
                case _:
                    out.append(action)
        return out

"""Who is running on this host, for which job, and how are they? The machine behind the host daemon.

What Google's clients say comes in (workloads, heartbeats, commands), and what our agents say of themselves. What has to outlive
the daemon goes out as `Keep`: rows by key, from which `HostTable.of` makes the table again.

A heartbeat names its worker and not its workload. A client registers that over the same connection, so the connection (`peer`)
tells; after a restart of the daemon, whose clients do not register again, the kept row of the worker does. So two jobs of one
host keep apart though both call their ranks by the same addresses. Unknown workers are welcome: nobody is ever refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.machine import NEVER, Action, Observation, Say, Tick
from holdfast.core.value import Value, replace, to_plain
from holdfast.core.wire.google_wire import (
    COMPLETE,
    FAILED,
    LONGEST_TEXT,
    RUNNING,
    SPARE,
    UNDEFINED,
    Method,
    WorkerInfo,
    WorkloadInfo,
    state_name,
)
from holdfast.core.wire.protobuf import Message

MOST_WORKERS, MOST_WORKLOADS, MOST_AGENTS, MOST_PEERS = 1024, 64, 256, 4096
"""Nothing on the wire says who speaks, so what is kept is bounded: the longest silent makes room. The largest hosts have some
hundred ranks."""

FORGET_S = 3600.0
"""How long a worker that failed, completed or fell silent is shown."""

SILENCE_S = 30.0
"""A running worker that is not heard for so long is silent. Google's recipes: 30 (HEARTBEAT_TIMEOUT_S)."""

# ---- what is seen -----------------------------------------------------------------------------------------------------


class RpcHeard(Observation):
    """A call of Google's wire, or our `Goodbye`."""

    peer: str
    """The connection."""
    method: str
    message: Message
    at_unix: float


class PeerGone(Observation):
    """The process behind a connection has ended."""

    peer: str
    how: str


class CordonTold(Observation):
    """This host is to have no more work, or some again."""

    on: bool


class Agent(Value):
    """An agent of ours on this host."""

    job: str
    node: str
    pid: int
    job_dir: str
    """Where its socket and record are."""
    workload: str = ""
    """What it calls the job to the daemon (GCP_WORKLOAD_NAME). Empty: as the job is called."""


class AgentTold(Observation):
    """An agent has said that it is there, or was found."""

    agent: Agent


class AgentGone(Observation):
    """An agent has ended."""

    job_dir: str
    node: str


class TroubleHeard(Observation):
    """The supervisor knows what a worker's row has owed it."""

    key: str
    what: str
    """What it knows; the row may owe it something newer."""


class RepairOrdered(Observation):
    """The supervisor orders to repair this host."""

    order: str
    act: str
    boot: str
    """Of the host, now."""


class RepairEnded(Observation):
    """What came of it."""

    order: str
    text: str
    ok: bool = False
    is_busy: bool = False


class HostRepair(Value):
    """The last order to repair this host, and what came of it."""

    order: str
    act: str
    boot: str
    is_over: bool = False
    ok: bool = False
    is_busy: bool = False
    text: str = ""


class StartRepair(Action):
    """Carry it out; `RepairEnded` follows, perhaps in the daemon's next life."""

    repair: HostRepair


class Keep(Action):
    """Keep `row` under `key` for the daemon's next life; None: forget it."""

    key: str
    row: dict[str, Any] | None


# ---- the machine ------------------------------------------------------------------------------------------------------


KEPT = ("info", "workload", "since_unix", "is_silent", "is_dead", "owed")
"""What of a worker outlives the daemon."""


class Worker(Value):
    """A worker as it was heard last."""

    info: WorkerInfo
    workload: str
    since_unix: float
    """Since when it is in this state."""
    heard_at: float
    """Monotonic seconds."""
    is_silent: bool = False
    is_dead: bool = False
    """Its process ended without a word of it."""
    peer: str = ""
    """The connection over which it was heard last."""
    owed: str = ""
    """Its failure or silence, in words, until the supervisor has heard of it."""

    @property
    def key(self) -> str:
        return worker_key(self.workload, self.info.worker_address)

    def kept(self) -> Keep:
        return Keep(key=self.key, row={name: to_plain(getattr(self, name)) for name in KEPT})

    @property
    def is_awaited(self) -> bool:
        """Whether its silence would mean something."""
        return self.info.state in (RUNNING, UNDEFINED) and not self.is_silent

    def __str__(self) -> str:
        of = f" of {self.workload}" if self.workload else ""
        return f"rank {self.info.global_rank} ({self.info.worker_address}){of}"


def worker_key(workload: str, address: str) -> str:
    """One place per worker: addresses are a job's own."""
    return f"worker/{workload}/{address}"


class HostTable:
    """The machine."""

    def __init__(
        self,
        silence_s: float = SILENCE_S,
        workers: Mapping[str, Worker] | None = None,
        workloads: Mapping[str, WorkloadInfo] | None = None,
        agents: Mapping[str, Agent] | None = None,
        cordoned: bool = False,
        repair: HostRepair | None = None,
    ) -> None:
        self.silence_s, self.cordoned, self.repair = silence_s, cordoned, repair
        self.workers = dict(workers or {})
        """By key; who was heard last comes last."""
        self.workloads, self.agents = dict(workloads or {}), dict(agents or {})
        self.peers: dict[str, str] = {}
        """By connection: the workload's name."""

    @classmethod
    def of(cls, rows: Mapping[str, Mapping[str, Any]], silence_s: float, now: float) -> HostTable:
        """The table that `rows` were kept of. Who ran then has the time of silence, from now, to be heard again."""
        workers: dict[str, Worker] = {}
        workloads: dict[str, WorkloadInfo] = {}
        agents: dict[str, Agent] = {}
        repair: HostRepair | None = None
        for key, row in rows.items():
            try:
                match key.partition("/")[0]:
                    case "workload":
                        workloads[row["workload_name"]] = WorkloadInfo(**row)
                    case "worker":
                        workers[key] = Worker(**{**row, "info": WorkerInfo(**row["info"])}, heard_at=now)
                    case "agent":
                        agents[key] = Agent(**row)
                    case "repair":
                        repair = HostRepair(**row)
            except (KeyError, TypeError):
                continue  # of another version of ours: what it was about is heard again, or over
        return cls(silence_s, workers, workloads, agents, "cordoned" in rows, repair)

    def copy(self) -> HostTable:
        return HostTable(self.silence_s, self.workers, self.workloads, self.agents, self.cordoned, self.repair)

    def observe(self, seen: Observation, now: float) -> list[Action]:
        match seen:
            case RpcHeard(method=Method.GOODBYE, peer=peer, message=WorkerInfo() as worker):
                return self._forget(self._key_of(peer, worker))
            case RpcHeard(peer=peer, message=WorkerInfo() as worker, at_unix=at_unix):
                return self._beaten(peer, worker, at_unix, now)
            case RpcHeard(peer=peer, message=WorkloadInfo() as workload):
                return self._workload_told(peer, workload)
            case RpcHeard(method=Method.TRIGGER_RESET):
                return [Say(text="all workers of this host were reset, as the actuator asked"), *self._forget(*self.workers)]
            case RpcHeard(method=Method.TRIGGER_CORDON):
                return self._cordon_told(True)
            case PeerGone(peer=peer, how=how):
                return self._peer_gone(peer, how)
            case CordonTold(on=on):
                return self._cordon_told(on)
            case TroubleHeard(key=key, what=what):
                return self._trouble_heard(key, what)
            case RepairOrdered() | RepairEnded():
                return self._repair_told(seen)
            case AgentTold(agent=agent):
                return self._agent_told(agent)
            case AgentGone(job_dir=job_dir, node=node):
                key = f"agent/{job_dir}/{node}"
                return [Keep(key=key, row=None)] if self.agents.pop(key, None) else []
            case Tick():
                return self._late(now)
        raise AssertionError(f"a host table cannot see {seen!r}")

    def deadline(self) -> float:
        return min((one.heard_at + self._patience_s(one) for one in self.workers.values()), default=NEVER)

    def _patience_s(self, worker: Worker) -> float:
        return self.silence_s if worker.is_awaited else max(FORGET_S, self.silence_s)

    @property
    def state(self) -> int:
        """How the host is, in Google's words: one that failed counts more than those that run."""
        states = {worker.info.state for worker in self.workers.values()}
        return next((state for state in (FAILED, RUNNING, COMPLETE) if state in states), SPARE)

    def own_workloads(self) -> set[str]:
        return {agent.workload or agent.job for agent in self.agents.values()}

    def _beaten(self, peer: str, said: WorkerInfo, at_unix: float, now: float) -> list[Action]:
        key, info = self._key_of(peer, said), _clipped(said)
        known = self.workers.pop(key, None)
        if known is not None and known.info == info:
            worker = self.workers[key] = replace(known, heard_at=now, is_silent=False, is_dead=False, peer=peer)
            return [worker.kept(), Say(text=f"{known} is heard again")] if known.is_silent else []
        workload = known.workload if known is not None else self.peers.get(peer, "")
        owed = known.owed if known else ""
        worker = Worker(info=info, workload=workload, since_unix=at_unix, heard_at=now, peer=peer, owed=owed)
        said_so: list[Action] = []
        if known is not None and known.info.state == info.state:
            worker = replace(worker, since_unix=known.since_unix)
        elif info.state == FAILED:
            worker = replace(worker, owed=f"{worker} has failed")
            said_so = [Say(text=f"{worker} is FAILED", level="warning")]
        else:
            said_so = [Say(text=f"{worker} is {state_name(info.state)}")]
        self.workers[key] = worker
        return [worker.kept(), *said_so, *_oldest(self.workers, MOST_WORKERS)]

    def _key_of(self, peer: str, worker: WorkerInfo) -> str:
        """Which worker speaks: of the connection's workload, else the one that is known by that address, and best by name and
        rank too."""
        address = worker.worker_address[:LONGEST_TEXT]
        if peer in self.peers:
            return worker_key(self.peers[peer], address)
        known = [one for one in self.workers.values() if one.info.worker_address == address]
        name = worker.worker_name, worker.global_rank
        alike = [one for one in known if (one.info.worker_name, one.info.global_rank) == name]
        return next((one.key for one in reversed(alike or known)), worker_key("", address))

    def _workload_told(self, peer: str, workload: WorkloadInfo) -> list[Action]:
        workload = _clipped(workload)
        name = workload.workload_name
        self.peers.pop(peer, None)
        self.peers[peer] = name
        _oldest(self.peers, MOST_PEERS)
        known = self.workloads.pop(name, None)
        self.workloads[name] = workload
        if known == workload:
            return []
        return [Keep(key=f"workload/{name}", row=to_plain(workload)), *_oldest(self.workloads, MOST_WORKLOADS, "workload/")]

    def _peer_gone(self, peer: str, how: str) -> list[Action]:
        actions: list[Action] = []
        for worker in [one for one in self.workers.values() if one.peer == peer and one.is_awaited]:
            what = f"the process of {worker} {how}"
            worker = self.workers[worker.key] = replace(worker, is_silent=True, is_dead=True, owed=what)
            actions += [worker.kept(), Say(text=what, level="warning")]
        return actions

    def _trouble_heard(self, key: str, what: str) -> list[Action]:
        if key not in self.workers or self.workers[key].owed != what:
            return []
        worker = self.workers[key] = replace(self.workers[key], owed="")
        return [worker.kept()]

    def _cordon_told(self, on: bool) -> list[Action]:
        was, self.cordoned = self.cordoned, on
        said = "was cordoned, at the actuator's word" if on else "is cordoned no more"
        return [Say(text=f"this host {said}"), Keep(key="cordoned", row={} if on else None)] if was != on else []

    def _repair_told(self, seen: RepairOrdered | RepairEnded) -> list[Action]:
        """An order that is known is not carried out again; an end that another order has followed is of no matter."""
        known, then = self.repair, list[Action]()
        is_known = known is not None and known.order == seen.order
        if isinstance(seen, RepairOrdered) and not is_known:
            self.repair = HostRepair(order=seen.order, act=seen.act, boot=seen.boot)
            then = [Say(text=f"{seen.act}: the supervisor has ordered it", level="warning"), StartRepair(repair=self.repair)]
        elif isinstance(seen, RepairEnded) and known is not None and is_known:
            self.repair = replace(known, is_over=True, ok=seen.ok, is_busy=seen.is_busy, text=seen.text)
            then = [Say(text=f"{known.act}: {seen.text}")]
        return [Keep(key="repair", row=to_plain(self.repair)), *then] if then else []

    def _agent_told(self, agent: Agent) -> list[Action]:
        key = f"agent/{agent.job_dir}/{agent.node}"
        known, self.agents[key] = self.agents.get(key), agent
        return _oldest(self.agents, MOST_AGENTS) + ([] if known == agent else [Keep(key=key, row=to_plain(agent))])

    def _late(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for worker in [one for one in self.workers.values() if now >= one.heard_at + self._patience_s(one)]:
            if not worker.is_awaited:
                actions += self._forget(worker.key)
                continue
            what = f"{worker} has not been heard of for {self.silence_s:g} s"
            worker = self.workers[worker.key] = replace(worker, is_silent=True, owed=what)
            actions += [worker.kept(), Say(text=what, level="warning")]
        return actions

    def _forget(self, *keys: str) -> list[Action]:
        return [Keep(key=key, row=None) for key in keys if self.workers.pop(key, None)]


def shown(table: HostTable, now: float) -> dict[str, Any]:
    """The whole table for people and programs, by workload."""
    names = dict.fromkeys([*table.workloads, *(worker.workload for worker in table.workers.values())])
    by_rank = sorted(table.workers.values(), key=lambda one: (one.info.global_rank, one.info.worker_address))
    return {
        "state": state_name(table.state),
        "cordoned": table.cordoned,
        "workloads": [
            {
                **to_plain(table.workloads.get(name, WorkloadInfo(workload_name=name))),
                "workers": [_row(one, now) for one in by_rank if one.workload == name],
            }
            for name in names
        ],
        "agents": [to_plain(agent) for agent in table.agents.values()],
    }


def _row(worker: Worker, now: float) -> dict[str, Any]:
    info = worker.info
    return {
        "rank": info.global_rank,
        "local_rank": info.local_rank,
        "state": state_name(info.state),
        "since_unix": worker.since_unix,
        "heard_s": round(now - worker.heard_at, 3),
        "silent": worker.is_silent,
        "address": info.worker_address,
        "name": info.worker_name,
        "device": info.worker_id,
    }


def _clipped(message: Any) -> Any:
    texts = {name: value for name in message.__fields__ if isinstance(value := getattr(message, name), str)}
    long = {name: value[:LONGEST_TEXT] for name, value in texts.items() if len(value) > LONGEST_TEXT}
    return replace(message, **long) if long else message


def _oldest(rows: dict[str, Any], most: int, prefix: str = "") -> list[Action]:
    """Make room: forget who is first."""
    forgotten: list[Action] = []
    while len(rows) > most:
        key = next(iter(rows))
        del rows[key]
        forgotten.append(Keep(key=prefix + key, row=None))
    return forgotten

"""What does Google's sensor hear of this host? The machine of a daemon that stands where Google's own has been.

It says what Google's daemon says: who it is, to sensor, controller and actuator; a heartbeat with the state of host and ranks;
and an event for each rank that has failed, fell silent or died. Events and changes are told at once, and not at the next
heartbeat. Who does not answer may have been started anew, and is told first who we are. On this wire a host has one workload:
the one that was heard last.
"""

from __future__ import annotations

from holdfast.core.machine import Observation
from holdfast.core.value import Value
from holdfast.core.wire.google_sensor import SENSOR, HostNames, host_info, worker_event
from holdfast.core.wire.google_wire import COMPLETE, FAILED, RUNNING, SPARE
from holdfast.supervisor.daemon.host_table import HostTable, TroubleHeard, Worker

EVERY_S = 15.0
"""Between two heartbeats. Google's recipes: 15 (HEARTBEAT_POLLING_PERIOD_S), and a host is lost after 30."""

AGAIN_S = 1.0
"""After a call that has failed."""


class GoogleServices(Value):
    """Where Google's sensor is, what else is to know this host, and what this host is called there."""

    addresses: dict[str, str]
    """`HOST:PORT` by the service's name (`google_sensor.SENSOR`, and others)."""
    name: str
    every_s: float = EVERY_S
    commands: tuple[str, int] | None = None
    """Where commands are taken from other hosts. None: where ranks are heard."""


class Call(Value):
    """One to be made."""

    service: str
    method: str
    data: bytes
    key: str = ""
    """Of the worker whose trouble it tells. Empty: it tells none."""
    what: str = ""
    """That trouble."""


class SensorReports:
    """`calls` says what is to be said now, `answered` what has come of it; `deadline` is when to ask again."""

    def __init__(self, host: HostNames, others: tuple[str, ...] = (), every_s: float = EVERY_S) -> None:
        """`others`: the services beside the sensor's that are to know this host."""
        self.host, self.others, self.every_s = host, others, every_s
        self.table = HostTable()
        self.unknown = {SENSOR, *others}
        """Who has not heard yet who we are."""
        self.told: dict[str, str] = {}
        """Key of a worker → its trouble, of which the sensor has heard."""
        self.beaten = b""
        """The last heartbeat that was heard."""
        self.due_at = 0.0

    def shows(self, table: HostTable) -> None:
        """How things are."""
        self.table = table
        self.told = {key: what for key, what in self.told.items() if key in table.workers and table.workers[key].owed}

    def deadline(self) -> float:
        return self.due_at

    def calls(self, now: float) -> list[Call]:
        """What is to be said, all at once. A sensor that does not know this host hears nothing else."""
        beat = self._info(self._workload())
        if SENSOR in self.unknown:
            introduced = (SENSOR, *self.others) if now >= self.due_at else ()
            return [Call(service=one, method="RegisterHost", data=beat) for one in introduced if one in self.unknown]
        owing = [one for one in self.table.workers.values() if one.owed and self.told.get(one.key) != one.owed]
        events = [self._event(one) for one in owing]
        if now < self.due_at and beat == self.beaten:
            return events
        introduced = tuple(one for one in self.others if one in self.unknown)
        again = [Call(service=one, method="RegisterHost", data=beat) for one in introduced]
        return [*events, *again, Call(service=SENSOR, method="Heartbeat", data=beat)]

    def answered(self, call: Call, ok: bool, now: float) -> list[Observation]:
        """What has come of a call."""
        if not ok:
            self.unknown.add(call.service)
            self.due_at = now + AGAIN_S if call.service == SENSOR else self.due_at
        elif call.method == "RegisterHost":
            self.unknown.discard(call.service)
        elif call.method == "Heartbeat":
            self.beaten, self.due_at = call.data, now + self.every_s
        else:
            self.told[call.key] = call.what
            return [TroubleHeard(key=call.key, what=call.what)]
        return []

    def _workload(self) -> str:
        """The one that was heard last."""
        return next((one.workload for one in reversed(self.table.workers.values())), "")

    def _info(self, workload: str, state: int | None = None) -> bytes:
        workers = [one for one in self.table.workers.values() if one.workload == workload]
        states = {FAILED if one.is_silent else one.info.state for one in workers}
        found = next((each for each in (RUNNING, FAILED, COMPLETE) if each in states), SPARE)
        said = self.table.workloads.get(workload) if workers else None
        by_rank = sorted((one.info for one in workers), key=lambda info: info.local_rank)
        return host_info(self.host, found if state is None else state, by_rank, said)

    def _event(self, worker: Worker) -> Call:
        data = worker_event(worker.owed, worker.info.worker_id, self._info(worker.workload, FAILED))
        return Call(service=SENSOR, method="ReportEvent", data=data, key=worker.key, what=worker.owed)

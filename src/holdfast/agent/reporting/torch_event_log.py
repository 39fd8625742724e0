"""Shows torch elastic's own events on stderr, for `--event-log-handler console`, in its words, from those of ours.

One JSON object a line, as torchrun writes them: a round is RENDEZVOUS and ASSIGN_WORKER_RANKS, a worker START, and at the end
SUCCEEDED, FAILED, or TERMINATED where it has no failure and the group has one; then the agent. `timestamp` is filled in
(milliseconds), where torchrun leaves 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.agent.component import Component
from holdfast.agent.group.machine import Group
from holdfast.agent.reporting.agent_log import AgentLog
from holdfast.agent.workers.launch import program_name
from holdfast.core.config.config import RunConfig
from holdfast.core.job.events import AgentStarted, Event, FailureSeen, JobEnded, RoundFormed, WorkerExited, WorkerStarted
from holdfast.core.job.failure import Failure
from holdfast.core.job.report import Outcome
from holdfast.core.wire.messages import Assigned


class TorchEventLog(Component):
    """Those of one agent."""

    notes = (Event,)

    def __init__(self, config: RunConfig, agent_log: AgentLog, group: Group) -> None:
        self.events = TorchEvents(config, agent_log.name, program_name(config))
        self.agent_log, self.group = agent_log, group

    def recorded(self, event: Event, at_unix: float) -> None:
        for line in self.events.heard(event, at_unix, self.group.assigned):
            self.agent_log.stderr.say(f"{line}\n")


class TorchEvents:
    """A fold over the events of one agent, which gives lines."""

    def __init__(self, config: RunConfig, host: str, entry_point: str) -> None:
        self._config, self._host, self._entry_point = config, host, entry_point
        self._began_unix = 0.0
        self._assigned: Assigned | None = None
        self._restarts = 0
        self._workers: dict[int, WorkerStarted] = {}
        self._exitcodes: dict[int, int] = {}
        self._failures: dict[int, Failure] = {}

    def heard(self, event: Event, at_unix: float, assigned: Assigned | None) -> Iterator[str]:
        """Lines, without their ends, about `event`. `assigned`: this node's part in the round that has just been formed."""
        match event:
            case AgentStarted():
                self._began_unix = at_unix
            case RoundFormed(waited_s=waited_s):
                self._restarts = assigned.restart_count if assigned else 0
                yield self._agent("RENDEZVOUS", at_unix, duration_ms=waited_s * 1000)
                yield self._agent("ASSIGN_WORKER_RANKS", at_unix, duration_ms=0.0)
                self._assigned = assigned  # not before: torchrun's two do not say it either
                self._workers, self._exitcodes, self._failures = {}, {}, {}
            case WorkerStarted(pid=pid):
                self._workers[pid] = event
                yield self._worker("START", at_unix, event)
            case FailureSeen(failure=failure):
                self._failures[failure.pid] = failure
            case WorkerExited(pid=pid, exitcode=exitcode):
                self._exitcodes[pid] = exitcode
            case JobEnded(outcome=Outcome.STOPPED, reason=reason):
                yield self._agent("FAILED", at_unix, raw_error=reason)
            case JobEnded():
                yield from (self._ended(worker, at_unix, event.outcome) for worker in self._workers.values())
                yield self._agent("SUCCEEDED", at_unix)
            case _:
                pass

    def _ended(self, worker: WorkerStarted, at_unix: float, outcome: Outcome) -> str:
        if outcome == Outcome.SUCCEEDED:
            return self._worker("SUCCEEDED", at_unix, worker)
        if not (exitcode := self._exitcodes.get(worker.pid, 0)):
            return self._worker("TERMINATED", at_unix, worker)
        failure = self._failures.get(worker.pid)
        said = failure.error_record if failure and failure.error_record else {"message": "<NONE>"}
        return self._worker("FAILED", at_unix, worker, raw_error=json.dumps(said), exitcode=exitcode)

    def _agent(self, state: str, at_unix: float, *, duration_ms: float | None = None, raw_error: str | None = None) -> str:
        return self._line(state, "AGENT", at_unix, {}, duration_ms=duration_ms, raw_error=raw_error)

    def _worker(
        self, state: str, at_unix: float, worker: WorkerStarted, *, raw_error: str | None = None, exitcode: int | None = None
    ) -> str:
        assigned = self._assigned
        details = {  # each in a list of one, as readers of torch's events expect
            "local_rank": [worker.local_rank],
            "role_rank": [assigned.role_base_rank + worker.local_rank if assigned else None],
            "role_world_size": [assigned.role_world_size if assigned else None],
            "exit_code": [exitcode],
            "worker_pid": [worker.pid if exitcode else None],
        }
        return self._line(state, "WORKER", at_unix, details, worker=worker, raw_error=raw_error)

    def _line(
        self,
        state: str,
        source: str,
        at_unix: float,
        details: Mapping[str, Any],
        *,
        worker: WorkerStarted | None = None,
        duration_ms: float | None = None,
        raw_error: str | None = None,
    ) -> str:
        assigned = self._assigned
        known = {"group_world_size": assigned.group_world_size if assigned else None, "entry_point": self._entry_point}
        metadata = {
            "run_id": self._config.rdzv_id,
            "global_rank": worker.rank if worker else None,
            "group_rank": assigned.group_rank if assigned else None,
            "worker_id": str(worker.pid) if worker else None,
            "role": self._config.role,
            "hostname": self._host,
            "state": state,
            "total_run_time": int(at_unix - self._began_unix),
            "rdzv_backend": self._config.rdzv_backend,
            "raw_error": raw_error,
            "metadata": json.dumps({**known, **details}),
            "agent_restarts": self._restarts,
            "duration_ms": duration_ms,
        }
        name = f"torchelastic.worker.status.{state}"
        return json.dumps({"name": name, "source": source, "timestamp": int(at_unix * 1000), "metadata": metadata})

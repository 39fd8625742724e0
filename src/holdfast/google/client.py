"""How does a program report one rank to the host daemon? Google's class by its own name, whose calls only leave a word.

What differs from Google's on purpose: no call waits for the daemon, `workload_name` may be left out, a host without
`nvidia-smi` is no error, and `close` says goodbye. All clients of a process that name the same daemon share a connection.
"""

from __future__ import annotations

import atexit

from holdfast.core.value import replace
from holdfast.core.wire.google_wire import UNDEFINED, DeviceState, WorkerInfo, WorkloadInfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast.runtime.daemon_client import DaemonClient

TOLD = DeviceState.RUNNING, DeviceState.FAILED, DeviceState.COMPLETE

_shared: dict[tuple[int, str], DaemonClient] = {}
"""By the daemon's port and the workload: a heartbeat does not name its workload, so the daemon knows it by the connection."""


def _of_workload(name: str, doc: str) -> Any:
    """A field of the workload, to read."""
    return property(lambda client: getattr(client._workload, name), doc=doc)


class GoogleCloudResiliencyClient:
    """One worker, as the daemon of this host is to see it. Each call takes some microseconds, however the daemon is."""

    def __init__(
        self,
        port: int,
        host_port: int | str,
        local_rank: int,
        global_rank: int,
        workload_name: str = "",
        job_name: str = "",
        container_name: str = "",
        num_data_replicas: int = 0,
        max_num_data_replicas: int = 0,
        min_num_data_replicas: int = 0,
        num_nodes_per_data_replica: int = 0,
        container_termination_threshold_s: int = 60,
        workload_downtime_threshold_s: int = 180,
        max_in_job_restarts: int = 0,
        max_workload_restarts: int = 1,
        workload_scaling_enabled: bool = False,
    ) -> None:
        """`port`: the daemon's + local rank + 1, by which it tells workers apart; `host_port`: the daemon's."""
        given = locals()
        from holdfast.runtime.daemon_client import worker_at  # only a process with a daemon needs it

        self._worker = worker_at(f"localhost:{port}", local_rank, global_rank)
        self._workload = WorkloadInfo(**{name: given[name] for name in WorkloadInfo.__fields__})
        self._reports = _reports(int(host_port), workload_name)
        self._reports.register(self._worker.worker_address, self._workload)

    workload_name: str = _of_workload("workload_name", "The job's name; in Kubernetes the JobSet's.")
    job_name: str = _of_workload("job_name", "The name within the workload.")
    container_name: str = _of_workload("container_name", "The container that runs it.")
    num_data_replicas: int = _of_workload("num_data_replicas", "Replicas with which the job has begun.")
    max_num_data_replicas: int = _of_workload("max_num_data_replicas", "Most replicas that it may have.")
    min_num_data_replicas: int = _of_workload("min_num_data_replicas", "Fewest replicas that it can work with.")
    num_nodes_per_data_replica: int = _of_workload("num_nodes_per_data_replica", "Nodes of a replica.")
    container_termination_threshold_s: int = _of_workload(
        "container_termination_threshold_s", "Seconds that a container may take to end."
    )
    workload_downtime_threshold_s: int = _of_workload(
        "workload_downtime_threshold_s", "Seconds that the job may be down before it is recreated."
    )
    max_in_job_restarts: int = _of_workload("max_in_job_restarts", "Restarts within the job before the job is restarted.")
    max_workload_restarts: int = _of_workload("max_workload_restarts", "Restarts of the job before a node is swapped.")
    workload_scaling_enabled: bool = _of_workload("workload_scaling_enabled", "Whether fewer replicas will do.")

    @property
    def worker_info(self) -> WorkerInfo:
        """The worker as it is now: a value, which does not change with it."""
        return self._worker

    @property
    def worker_name(self) -> str:
        """Host and GPU."""
        return self._worker.worker_name

    @property
    def worker_id(self) -> str:
        """The GPU's address on the PCI bus; without one host and local rank."""
        return self._worker.worker_id

    @property
    def local_rank(self) -> int:
        """Its place on this host, from 0."""
        return self._worker.local_rank

    @local_rank.setter
    def local_rank(self, value: int) -> None:
        self._worker = replace(self._worker, local_rank=value)

    @property
    def global_rank(self) -> int:
        """Its rank in the job."""
        return self._worker.global_rank

    @global_rank.setter
    def global_rank(self, value: int) -> None:
        self._worker = replace(self._worker, global_rank=value)

    @property
    def state(self) -> DeviceState:
        """What the next heartbeat says. ValueError when it is set to what no worker says of itself."""
        return DeviceState(self._worker.state)

    @state.setter
    def state(self, value: DeviceState) -> None:
        if not isinstance(value, DeviceState) or value not in TOLD:
            raise ValueError(f"a worker is RUNNING, FAILED or COMPLETE, not {value!r}")
        if value != self._worker.state:
            self._worker = replace(self._worker, state=int(value))

    def update_info(self, worker_info: Any) -> None:
        """Take over all fields of `worker_info`, of ours or of Google's."""
        self._worker = _like(WorkerInfo, worker_info)

    def export_info(self) -> WorkerInfo:
        """The worker as it goes over the wire."""
        return self._worker

    def update_workload_info(self, workload_info: Any) -> None:
        """Take over all fields of `workload_info`, of ours or of Google's; the daemon is told."""
        self._workload = _like(WorkloadInfo, workload_info)
        self._reports.register(self._worker.worker_address, self._workload)

    def export_workload_info(self) -> WorkloadInfo:
        """The workload as it goes over the wire."""
        return self._workload

    def send_heartbeat(self) -> None:
        """Have the daemon told how the worker is. Returns at once."""
        self._reports.say(self._worker)

    def update_state(self, state: DeviceState) -> None:
        """Set the state, and have the daemon told. ValueError as for `state`."""
        self.state = state
        self.send_heartbeat()

    def close(self) -> None:
        """Say goodbye: silence from now on is nobody's failure. Returns at once; what was said before is told first."""
        if self._worker.state != UNDEFINED:
            self._reports.leave(self._worker)


def _reports(port: int, workload: str) -> DaemonClient:
    if (port, workload) not in _shared:
        from holdfast.runtime.daemon_client import DaemonClient  # only a process with a daemon needs it

        _shared[port, workload] = reports = DaemonClient(port)
        atexit.register(lambda: reports.close())  # the last word, often COMPLETE, has been left but perhaps not told yet
    return _shared[port, workload]


def _like(kind: Any, other: Any) -> Any:
    """A value of `kind` with the fields of `other`, whose enumerations are numbers here."""
    taken = {name: getattr(other, name) for name in kind.__fields__}
    return kind(**{name: getattr(value, "value", value) for name, value in taken.items()})

"""How does a program report one rank to the host daemon? Google's class by its own name, whose calls only leave a word.

What differs from Google's on purpose: no call waits for the daemon, `workload_name` may be left out, a host without
`nvidia-smi` is no error, and `close` says goodbye. All clients of a process that name the same daemon share a connection.
"""

from __future__ import annotations

import atexit
import enum

from holdfast.core.value import replace
from holdfast.core.wire.google_wire import UNDEFINED, WorkerInfo, WorkloadInfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast.runtime.daemon_client import HostReports


class DeviceState(enum.Enum):
    """How a worker is. A client says RUNNING, FAILED or COMPLETE; the numbers are the wire's."""

    UNDEFINED = 0
    RUNNING = 1
    SPARE = 2
    FAILED = 3
    COMPLETE = 4


TOLD = DeviceState.RUNNING, DeviceState.FAILED, DeviceState.COMPLETE

_shared: dict[int, HostReports] = {}
"""By the daemon's port."""


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
        from holdfast.runtime.daemon_client import worker_at  # only a process with a daemon needs it

        self._worker = worker_at(f"localhost:{port}", local_rank, global_rank)
        self._workload = WorkloadInfo(
            workload_name=workload_name,
            job_name=job_name,
            container_name=container_name,
            num_data_replicas=num_data_replicas,
            max_num_data_replicas=max_num_data_replicas,
            min_num_data_replicas=min_num_data_replicas,
            num_nodes_per_data_replica=num_nodes_per_data_replica,
            container_termination_threshold_s=container_termination_threshold_s,
            workload_downtime_threshold_s=workload_downtime_threshold_s,
            max_in_job_restarts=max_in_job_restarts,
            max_workload_restarts=max_workload_restarts,
            workload_scaling_enabled=workload_scaling_enabled,
        )
        self._reports = _reports(int(host_port))
        self._reports.register(self._worker.worker_address, self._workload)

    # --- the worker -------------------------------------------------------------------------------------------------------

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
        if value not in TOLD:
            raise ValueError(f"a worker is RUNNING, FAILED or COMPLETE, not {value}")
        if value.value != self._worker.state:
            self._worker = replace(self._worker, state=value.value)

    def update_info(self, worker_info: Any) -> None:
        """Take over all fields of `worker_info`, of ours or of Google's."""
        self._worker = _like(WorkerInfo, worker_info)

    def export_info(self) -> WorkerInfo:
        """The worker as it goes over the wire."""
        return self._worker

    # --- the workload -----------------------------------------------------------------------------------------------------

    @property
    def workload_name(self) -> str:
        """The job's name; in Kubernetes the JobSet's."""
        return self._workload.workload_name

    @property
    def job_name(self) -> str:
        """The name within the workload."""
        return self._workload.job_name

    @property
    def container_name(self) -> str:
        """The container that runs it."""
        return self._workload.container_name

    @property
    def num_data_replicas(self) -> int:
        """With how many replicas the job has begun."""
        return self._workload.num_data_replicas

    @property
    def max_num_data_replicas(self) -> int:
        """So many it may have."""
        return self._workload.max_num_data_replicas

    @property
    def min_num_data_replicas(self) -> int:
        """So many it needs."""
        return self._workload.min_num_data_replicas

    @property
    def num_nodes_per_data_replica(self) -> int:
        """Nodes of a replica."""
        return self._workload.num_nodes_per_data_replica

    @property
    def container_termination_threshold_s(self) -> int:
        """How long a container may take to end, in seconds."""
        return self._workload.container_termination_threshold_s

    @property
    def workload_downtime_threshold_s(self) -> int:
        """How long the job may be down before it is made anew, in seconds."""
        return self._workload.workload_downtime_threshold_s

    @property
    def max_in_job_restarts(self) -> int:
        """Restarts within the job before the job itself is restarted."""
        return self._workload.max_in_job_restarts

    @property
    def max_workload_restarts(self) -> int:
        """Restarts of the job before a node is swapped."""
        return self._workload.max_workload_restarts

    @property
    def workload_scaling_enabled(self) -> bool:
        """Whether it may run with fewer replicas."""
        return self._workload.workload_scaling_enabled

    def update_workload_info(self, workload_info: Any) -> None:
        """Take over all fields of `workload_info`, of ours or of Google's; the daemon is told."""
        self._workload = _like(WorkloadInfo, workload_info)
        self._reports.register(self._worker.worker_address, self._workload)

    def export_workload_info(self) -> WorkloadInfo:
        """The workload as it goes over the wire."""
        return self._workload

    # --- telling ----------------------------------------------------------------------------------------------------------

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


def _reports(port: int) -> HostReports:
    if port not in _shared:
        from holdfast.runtime.daemon_client import HostReports  # only a process with a daemon needs it

        _shared[port] = reports = HostReports(port)
        atexit.register(lambda: reports.close())  # the last word, often COMPLETE, has been left but perhaps not told yet
    return _shared[port]


def _like(kind: Any, other: Any) -> Any:
    """A value of `kind` with the fields of `other`, whose enumerations are numbers here."""
    taken = {name: getattr(other, name) for name in kind.__fields__}
    return kind(**{name: getattr(value, "value", value) for name, value in taken.items()})

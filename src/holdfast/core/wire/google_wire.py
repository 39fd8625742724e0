"""What is said between ranks and Google's host daemon? The messages of `supervisor_core_proto.HostService`, for both sides.

    RegisterWorker(WorkerInfo)   RegisterWorkload(WorkloadInfo)   Heartbeat(WorkerInfo)
    TriggerReset(Command)        TriggerCordon(Command)           each → HostResponse

gRPC over HTTP/2 without TLS, unary, from and to loopback.
"""

from __future__ import annotations

from enum import IntEnum

from holdfast.core.wire.protobuf import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SERVICE = "supervisor_core_proto.HostService"
OWN_SERVICE = "holdfast.HostService"
"""Of `Goodbye`: Google's daemon answers that it has no such method."""


class DeviceState(IntEnum):
    """How a worker or a host is. A client says RUNNING, FAILED or COMPLETE."""

    UNDEFINED = 0
    RUNNING = 1
    SPARE = 2
    FAILED = 3
    COMPLETE = 4


UNDEFINED, RUNNING, SPARE, FAILED, COMPLETE = DeviceState

LONGEST_TEXT = 255
"""Characters of a name that we send or keep: host and Kubernetes names have no more."""


class WorkerInfo(Message):
    """One rank."""

    worker_address: str = ""
    """`localhost:PORT`, with PORT = the daemon's + local rank + 1: a name, nobody listens there."""
    worker_id: str = ""
    """Its GPU's PCI bus id."""
    worker_name: str = ""
    local_rank: int = 0
    global_rank: int = 0
    state: int = 0
    """A `DeviceState`, or one of a later version."""


class WorkloadInfo(Message):
    """The job that the ranks belong to, and what may be done with it."""

    workload_name: str = ""
    job_name: str = ""
    container_name: str = ""
    num_data_replicas: int = 0
    max_num_data_replicas: int = 0
    min_num_data_replicas: int = 0
    num_nodes_per_data_replica: int = 0
    container_termination_threshold_s: int = 0
    workload_downtime_threshold_s: int = 0
    max_in_job_restarts: int = 0
    max_workload_restarts: int = 0
    workload_scaling_enabled: bool = False


class Command(Message):
    """What a daemon is told to do. Its fields are passed over: a daemon has but one host."""


class HostResponse(Message):
    """The daemon's answer: a text that nobody reads."""

    response: str = ""


class Method:
    """What a daemon can be called for: Google's five, and our goodbye. No StrEnum: a script's Python may be 3.10."""

    REGISTER_WORKER = "RegisterWorker"
    REGISTER_WORKLOAD = "RegisterWorkload"
    HEARTBEAT = "Heartbeat"
    TRIGGER_RESET = "TriggerReset"
    TRIGGER_CORDON = "TriggerCordon"
    GOODBYE = "Goodbye"


METHODS: Mapping[str, type[Message]] = {
    Method.REGISTER_WORKER: WorkerInfo,
    Method.REGISTER_WORKLOAD: WorkloadInfo,
    Method.HEARTBEAT: WorkerInfo,
    Method.TRIGGER_RESET: Command,
    Method.TRIGGER_CORDON: Command,
}
"""What each of Google's methods takes. `Goodbye` takes a WorkerInfo."""


def worker_address(host_port: int, local_rank: int) -> str:
    """By what a daemon at `host_port` knows that rank."""
    return f"localhost:{host_port + local_rank + 1}"


def state_name(state: int) -> str:
    """For people; the state may be one of a later version."""
    return DeviceState(state).name if 0 <= state < len(DeviceState) else f"state {state}"

"""torchrun with the two hooks of Google's quickstart and Google's own client, as a user would have them.

The published patch applies to older versions of PyTorch. Here the two methods are followed at run time, with what was wrong
mended: the port is the agent's own variable, the workload has its name, and clients are made once.
"""

from __future__ import annotations

import os
import sys

import supervisor
from supervisor.client.python import utils
from torch.distributed.elastic.agent.server.api import WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.run import main

utils.launch_sync_proc = lambda command: f"00000000:{int(command[-1]):02X}:00.0\n"  # there is no nvidia-smi at its fixed path

STATES = {
    WorkerState.HEALTHY: supervisor.DeviceState.RUNNING,
    WorkerState.FAILED: supervisor.DeviceState.FAILED,
    WorkerState.SUCCEEDED: supervisor.DeviceState.COMPLETE,
}
clients: dict[int, supervisor.GoogleCloudResiliencyClient] = {}
start, monitor = LocalElasticAgent._start_workers, LocalElasticAgent._monitor_workers


def start_workers(self, worker_group):
    pids = start(self, worker_group)
    host_port = int(os.environ["GCP_HOST_DAEMON_PORT"])
    for worker in worker_group.workers:
        if worker.global_rank not in clients:
            port = host_port + worker.local_rank + 1
            made = supervisor.GoogleCloudResiliencyClient(port, host_port, worker.local_rank, worker.global_rank, "train")
            clients[worker.global_rank] = made
    return pids


def monitor_workers(self, worker_group):
    result = monitor(self, worker_group)
    ranks = result.failures if result.state == WorkerState.FAILED else clients
    for rank in ranks if result.state in STATES else ():
        clients[rank].update_state(STATES[result.state])
    return result


LocalElasticAgent._start_workers, LocalElasticAgent._monitor_workers = start_workers, monitor_workers
main(sys.argv[1:])

"""NVRx's own side of the node health service's protocol, in a process that has NVRx 0.6 on its path.

    client ENDPOINT           prints whether its launcher would take the node for healthy
    server SOCKET REPLY       from its own stubs; answers with the fields of HealthCheckResponse in the file REPLY (JSON)
"""

from __future__ import annotations

import json
import signal
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def client(endpoint: str) -> None:
    sys.modules["httpx"] = types.ModuleType("httpx")  # for its attribution service only, which is in the same module
    from nvidia_resiliency_ext.shared_utils.health_check import NodeHealthCheck

    check = NodeHealthCheck(endpoint=endpoint, args=["--no-slurm"])
    assert check._pb2 is not None, "it has no gRPC, and would call everything healthy"
    print(check())


def server(path: str, reply: str) -> None:
    import grpc
    from nvidia_resiliency_ext.shared_utils.proto import nvhcd_pb2, nvhcd_pb2_grpc

    class Servicer(nvhcd_pb2_grpc.HealthCheckServiceServicer):
        def RunHealthCheck(self, request, context):
            print("args", *request.args, flush=True)
            return nvhcd_pb2.HealthCheckResponse(**json.loads(Path(reply).read_text()))

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    serving = grpc.server(ThreadPoolExecutor(2))
    nvhcd_pb2_grpc.add_HealthCheckServiceServicer_to_server(Servicer(), serving)
    serving.add_insecure_port(f"unix:{path}")
    serving.start()
    print("listening", flush=True)
    signal.sigwait({signal.SIGTERM})
    serving.stop(None).wait()


if __name__ == "__main__":
    {"client": client, "server": server}[sys.argv[1]](*sys.argv[2:])

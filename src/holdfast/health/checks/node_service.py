"""What does the node's own health service say? Calls `nvhcd.HealthCheckService/RunHealthCheck` by gRPC over a Unix socket.

As with ft_launcher, the node is unfit where the service says no, or counts failed checks. Whatever keeps it from saying so (no
socket, no grpcio, no answer, a report that cannot be read) makes the node degraded: it takes part, with an event and a warning.
A service that breaks does so on every node at once, and must not cost a job whole segments.
"""

from __future__ import annotations

import json
import os

from holdfast.health.check import Look
from holdfast.health.verdict import Verdict, degraded, fit, unfit
from holdfast.health.wire import METHOD, Request, Response

TIMEOUT_S = 60.0  # ft_launcher's, for the whole call.
ARGS = ("--no-slurm", "--group", "prolog", "epilog", "logs", "gpu")  # What it sends.

SILENT = "does it still run? it is not held against the node"
UNREADABLE = "it has to be a JSON object with fail_count, and nothing else (stderr?); it is not held against the node"
NOT_ASKED = "it is not held against the node: start the service, or leave the check out"


def socket_path(endpoint: str) -> str:
    """`/path`, `./path` or `unix:///path` → the path. Empty: it is none of these, and nobody is asked."""
    path = endpoint.removeprefix("unix://") if endpoint.startswith("unix:///") else endpoint
    return path if path.startswith(("/", "./")) else ""


def node_service(look: Look) -> Verdict:
    """Ask it."""
    path = socket_path(look.argument)
    if not path:
        return degraded(f"not asked: {look.argument} is no Unix socket's path", NOT_ASKED)
    if not os.path.exists(path):
        return degraded(f"not asked: there is no {path}", NOT_ASKED)
    try:
        import grpc  # type: ignore[import-untyped]
    except ImportError:
        return degraded("not asked: grpcio is not installed", "pip install 'holdfast[grpc]'; it is not held against the node")
    try:
        with grpc.insecure_channel(f"unix:{os.path.abspath(path)}") as channel:
            call = channel.unary_unary(METHOD, request_serializer=Request.encode, response_deserializer=Response.decode)
            response: Response = call(Request(args=ARGS), timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        return degraded(f"not known: the service at {path} gives no answer ({error.code().name})", SILENT)
    return judge(response)


def judge(response: Response) -> Verdict:
    """What an answer means: unfit if it says no, or its report counts failures."""
    why = response.error or response.output.strip()[-200:]
    if not response.success:
        return unfit(f"the health service says no, with exit code {response.exit_code}: {why}")
    try:
        report = json.loads(response.output)
    except (ValueError, RecursionError):
        report = None
    failed = report.get("fail_count") if isinstance(report, dict) else None
    if not isinstance(failed, int | float) or isinstance(failed, bool) or failed != failed:  # NaN is no count
        return degraded(f"the health service's report cannot be read: {response.output[:200]!r}", UNREADABLE)
    if failed > 0:
        names = report.get("failed_checks") or []
        told = ", ".join(map(str, names)) if isinstance(names, list) else str(names)
        count = f"{min(failed, 1e9):g}"  # an int may have any length
        return unfit(f"the health service counts {count} failed checks: {told or 'it does not name them'}")
    return fit("the health service says that all is well")

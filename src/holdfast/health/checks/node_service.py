"""What does the node's own health service say? Calls `nvhcd.HealthCheckService/RunHealthCheck` by gRPC over a Unix socket.

As with ft_launcher, a failure or an unreadable report makes the node unfit. Without a socket or grpcio the node is fit.
Without an answer the node is degraded; ft_launcher continues with a warning.
"""

from __future__ import annotations

import json
import os

from holdfast.health.verdict import degraded, fit, unfit
from holdfast.health.wire import METHOD, Request, Response

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.health.check import Look
    from holdfast.health.verdict import Verdict

TIMEOUT_S = 60.0  # ft_launcher's, for the whole call.
ARGS = ("--no-slurm", "--group", "prolog", "epilog", "logs", "gpu")  # What it sends.

SILENT = "does it still run? it is not held against the node"
UNREADABLE = "it has to be a JSON object with fail_count: what does the service run?"


def socket_path(endpoint: str) -> str:
    """`/path`, `./path` or `unix:///path` → the path. Empty: it is none of these, and nobody is asked."""
    path = endpoint.removeprefix("unix://") if endpoint.startswith("unix:///") else endpoint
    return path if path.startswith(("/", "./")) else ""


def node_service(look: Look) -> Verdict:
    """Ask it."""
    path = socket_path(look.argument)
    if not path:
        return fit(f"not asked: {look.argument} is no Unix socket's path")
    if not os.path.exists(path):
        return fit(f"not asked: there is no {path}")
    try:
        import grpc  # type: ignore[import-untyped]
    except ImportError:
        return fit("not asked: grpcio is not installed (pip install 'holdfast[grpc]')")
    try:
        with grpc.insecure_channel(f"unix:{os.path.abspath(path)}") as channel:
            call = channel.unary_unary(METHOD, request_serializer=Request.encode, response_deserializer=Response.decode)
            response: Response = call(Request(args=ARGS), timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        return degraded(f"not known: the service at {path} gives no answer ({error.code().name})", SILENT)
    return judge(response)


def judge(response: Response) -> Verdict:
    """What an answer means: unfit unless it says yes, and its report counts no failure."""
    why = response.error or response.output.strip()[-200:]
    if not response.success:
        return unfit(f"the health service says no, with exit code {response.exit_code}: {why}")
    try:
        report = json.loads(response.output)
        failed = int(report["fail_count"])
    except (ValueError, KeyError, TypeError):
        return unfit(f"the health service's report cannot be read: {response.output[:200]!r}", UNREADABLE)
    if failed:
        names = report.get("failed_checks") or []
        told = ", ".join(map(str, names)) if isinstance(names, list) else str(names)
        return unfit(f"the health service counts {failed} failed checks: {told or 'it does not name them'}")
    return fit("the health service says that all is well")

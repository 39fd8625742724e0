"""How can other programs ask for our checks? By the protocol of `nvhcd.HealthCheckService`, a node health service.

`holdfast health-service` serves it, over gRPC on a Unix socket; ft_launcher and our own agents are its clients. A client's
arguments, which name groups of other checks, are ignored: the checks are those that the service was started with.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

from holdfast.core.errors import HoldfastError, UsageError
from holdfast.health.check import Wanted
from holdfast.health.runner import Examination
from holdfast.health.verdict import DEGRADED, UNFIT, Standing, Verdict
from holdfast.health.wire import SERVICE, Request, Response

AT_ONCE = 4  # Requests that may wait for an answer at a time.


def report(verdicts: Sequence[Verdict]) -> Response:
    """The answer: success where the report could be made; whether the node is fit stands in the report."""
    failed = [one for one in verdicts if one.state == UNFIT]
    told = {
        "fail_count": len(failed),
        "failed_checks": [one.check for one in failed],
        "degraded_checks": [one.check for one in verdicts if one.state == DEGRADED],
        "checks": [{"name": one.check, "state": one.state, "reason": one.reason, "advice": one.advice} for one in verdicts],
    }
    error = "; ".join(f"{one.check}: {one.reason}" for one in failed)
    return Response(success=not failed, exit_code=1 if failed else 0, output=json.dumps(told), error=error)


class ThisNode:
    """What the service's clients ask about. Its checks remember their last look, and their answers in a row count."""

    def __init__(self, wanted: Sequence[Wanted], root: str = "/") -> None:
        self.examination = Examination(wanted, root=root)
        self.standings = [Standing(one.check.bad_in_a_row, one.check.good_in_a_row) for one in wanted]
        self.turn = Lock()

    def asked(self) -> Response:
        """Look, and report. One look at a time: each check compares with its last one."""
        with self.turn:
            verdicts = self.examination.take()
            return report([standing.judge(verdict) for standing, verdict in zip(self.standings, verdicts)])


def serve(path: str, wanted: Sequence[Wanted], root: str = "/", mode: int = 0o600) -> Any:
    """Listen on the Unix socket `path`, which gets `mode`; returns gRPC's server, which runs until its `stop`.

    HoldfastError: it cannot. UsageError: nobody could there."""
    try:
        import grpc  # type: ignore[import-untyped]
    except ImportError as error:
        raise HoldfastError("grpcio is not installed", hint="pip install 'holdfast[grpc]'") from error

    node = ThisNode(wanted, root)

    def run(request: Request, context: object) -> Response:
        return node.asked()

    handler = grpc.unary_unary_rpc_method_handler(run, request_deserializer=Request.decode, response_serializer=Response.encode)
    server = grpc.server(ThreadPoolExecutor(AT_ONCE))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"RunHealthCheck": handler}),))
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise UsageError(f"cannot listen at {path}: its folder does not exist", hint="make it, or give another path")
    if os.path.exists(path) and not stat.S_ISSOCK(os.stat(path).st_mode):
        raise UsageError(f"cannot listen at {path}: it exists and is no socket", hint="give another path")
    if os.path.exists(path) and not _answers(path):
        os.unlink(path)  # somebody's before us, who was killed
    if os.path.exists(path):
        raise HoldfastError(f"another service listens at {path}", hint="give another path, or stop that service")
    before = os.umask(0o177)  # no client before the mode is set: its request starts processes as us
    try:
        bound = server.add_insecure_port(f"unix:{os.path.abspath(path)}")
    except RuntimeError:
        bound = 0
    finally:
        os.umask(before)
    if not bound:
        raise HoldfastError(f"cannot listen at {path}", hint="may you write there? a socket's path has at most 107 characters")
    os.chmod(path, mode)
    server.start()
    return server


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True

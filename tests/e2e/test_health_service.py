"""Both sides of the node health service, over real gRPC: our client and service, and a stranger's of each."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'holdfast[grpc]'")

from kit.jobs.ranks import WAITS  # noqa: E402

from holdfast.health.check import Look  # noqa: E402
from holdfast.health.checks.node_service import ARGS, judge, node_service  # noqa: E402
from holdfast.health.verdict import DEGRADED, FIT, UNFIT, Verdict  # noqa: E402
from holdfast.health.wire import METHOD, SERVICE, Request, Response  # noqa: E402

PRINTS = "print('trained')"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`service(reply)`: a health service that somebody else has written; `reply` makes bytes of the request's bytes."""
    servers = []

    def start(reply: Callable[[bytes], bytes]) -> Path:
        path = tmp_path / f"service-{len(servers)}.sock"
        server = grpc.server(ThreadPoolExecutor(2))
        handler = grpc.unary_unary_rpc_method_handler(lambda request, context: reply(request))  # raw bytes both ways
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"RunHealthCheck": handler}),))
        server.add_insecure_port(f"unix:{path}")
        server.start()
        servers.append(server)
        return path

    yield start
    for server in servers:
        server.stop(None).wait()


def answers(**fields: Any) -> Callable[[bytes], bytes]:
    return lambda request: Response(**fields).encode()


def asked(endpoint: object) -> Verdict:
    return node_service(Look(argument=str(endpoint)))


def test_it_is_asked_as_ft_launcher_asks(service):
    heard: list[bytes] = []

    def reply(request: bytes) -> bytes:
        heard.append(request)
        return Response(success=True, output='{"fail_count": 0}').encode()

    assert asked(service(reply)).state == FIT
    assert [Request.decode(request).args for request in heard] == [ARGS]


@pytest.mark.parametrize(
    ("fields", "state", "word"),
    [
        ({"success": True, "output": '{"fail_count": 0}'}, FIT, "all is well"),
        ({"success": True, "output": '{"fail_count": 2, "failed_checks": ["ecc", "nvlink"]}'}, UNFIT, "ecc, nvlink"),
        ({"success": False, "exit_code": 3, "error": "GPU 5 is lost"}, UNFIT, "GPU 5 is lost"),
        ({"success": False, "exit_code": 1, "output": '{"fail_count": 0}'}, UNFIT, "exit code 1"),
        ({}, UNFIT, "says no"),
    ],
)
def test_an_answer_is_judged_as_ft_launcher_judges_it(service, fields, state, word):
    verdict = asked(service(answers(**fields)))
    assert verdict.state == state and word in verdict.reason


UNREADABLE = [
    "", "no JSON", "null", "[]", "3", '"fine"', "{", '{"failed_checks": []}', '{"ok": 1}', '{"fail_count": null}',
    '{"fail_count": NaN}', '{"fail_count": "2"}', '{"fail_count": true}', '{"fail_count": [3]}',
    'warning: no route\n{"fail_count": 0}', 'warning: no route\n{"fail_count": 2}',
    '{"fail_count": 0}\n{"fail_count": 0}', "[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("output", UNREADABLE, ids=lambda output: repr(output[:40]))
def test_a_report_that_cannot_be_read_is_told_and_costs_the_node_nothing(output):
    verdict = judge(Response(success=True, output=output))
    assert verdict.state == DEGRADED and "cannot be read" in verdict.reason and "not held against" in verdict.advice


@pytest.mark.parametrize(("count", "state"), [(0, FIT), (0.0, FIT), (-1, FIT), (1, UNFIT), (2.0, UNFIT), (10**400, UNFIT)])
def test_a_node_is_unfit_by_a_number_above_zero(count, state):
    assert judge(Response(success=True, output=json.dumps({"fail_count": count}))).state == state


def test_who_gives_no_answer_or_is_not_there_is_told_and_costs_the_node_nothing(service, tmp_path):
    def breaks(request: bytes) -> bytes:
        raise RuntimeError("out of luck")

    assert asked(service(breaks)).state == DEGRADED and "gives no answer (UNKNOWN)" in asked(service(breaks)).reason
    assert asked(service(lambda request: b"\x0b")).state == DEGRADED, "no message"
    assert asked(tmp_path / "nobody.sock").state == DEGRADED and "there is no" in asked(tmp_path / "nobody.sock").reason
    (tmp_path / "file.sock").touch()
    assert "gives no answer (UNAVAILABLE)" in asked(tmp_path / "file.sock").reason
    assert asked("localhost:50051").state == DEGRADED and "no Unix socket" in asked("localhost:50051").reason


def test_both_forms_of_an_endpoint(service):
    path = service(answers(success=False, error="no"))
    assert asked(path).state == UNFIT and asked(f"unix://{path}").state == UNFIT


def test_a_launcher_heeds_its_node_s_service(holdfast, script, service):
    ill = service(answers(success=False, exit_code=1, error="GPU 5 is lost"))
    well = service(answers(success=True, output='{"fail_count": 0}'))
    done = holdfast("ft_launcher", "--ft-node-health-check-endpoint", ill, script(PRINTS))
    assert done.returncode == 1 and "GPU 5 is lost" in done.stderr and not done.stdout
    done = holdfast("ft_launcher", "--ft-node-health-check-endpoint", f"unix://{well}", script(PRINTS))
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


@pytest.mark.parametrize("broken", ["a resolver's warning", "no socket"])
def test_a_launcher_goes_on_where_its_node_s_service_is_broken_and_says_so(holdfast, script, service, tmp_path, broken):
    path = tmp_path / "nobody.sock"
    if broken != "no socket":
        path = service(answers(success=True, output='warning: no route\n{"fail_count": 0}'))
    done = holdfast("ft_launcher", "--ft-node-health-check-endpoint", path, script(PRINTS))
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "not held against the node" in done.stderr
    (told,) = holdfast.events("HealthChanged")
    assert told["state"] == "degraded" and told["check"].startswith("node-service")


@pytest.fixture
def ours(holdfast: Any, tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`ours("memory")`: `holdfast health-service` with these checks."""
    running = []

    def start(*checks: str) -> Path:
        path = tmp_path / "ours.sock"
        service = holdfast.start("health-service", path, *checks)
        running.append(service)
        service.wait_for_output("listening at")
        return path

    yield start
    for service in running:
        service.kill(signal.SIGTERM)
        assert service.wait().returncode == 0


def call(path: Path, request: bytes) -> Response:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        return Response.decode(channel.unary_unary(METHOD)(request, timeout=30))


def test_our_service_speaks_the_protocol(ours, tmp_path):
    broken = tmp_path / "broken"
    path = ours("memory", f"command=echo the fan stands still; test ! -e {broken}")
    assert path.stat().st_mode & 0o777 == 0o600
    response = call(path, Request(args=("--no-slurm",)).encode())
    assert response.success and response.exit_code == 0 and json.loads(response.output)["fail_count"] == 0
    assert asked(path).state == FIT
    broken.touch()
    response = call(path, b"")
    report = json.loads(response.output)
    assert not response.success and report["fail_count"] == 1 and report["failed_checks"][0].startswith("command=")
    assert "the fan stands still" in response.error and asked(path).state == UNFIT


def test_what_it_cannot_listen_at_is_told_and_left_as_it_is(holdfast, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("precious")
    done = holdfast("health-service", file)
    assert done.returncode == 2 and "it exists and is no socket" in done.stderr
    assert file.read_text() == "precious"
    done = holdfast("health-service", tmp_path / "nowhere" / "x.sock")
    assert done.returncode == 2 and "its folder does not exist" in done.stderr
    assert holdfast("health-service", tmp_path / "x.sock", "--deadline", "0").returncode == 2


def test_a_service_that_was_killed_is_told_once_and_one_in_its_place_is_asked_again(holdfast, script, tmp_path, wait_until):
    folder = tmp_path / "ranks"
    folder.mkdir()
    service = holdfast.start("health-service", tmp_path / "node.sock", "memory")
    service.wait_for_output("listening at")
    asked = ("--check-during", f"node-service={tmp_path}/node.sock", "--check-every", "0.2")
    running = holdfast.start("run", *asked, script(WAITS), folder)
    wait_until(lambda: (folder / "0.0.1").exists())
    service.kill(signal.SIGKILL)
    service.wait()
    running.wait_for_output("gives no answer (UNAVAILABLE)")
    again = holdfast.start("health-service", tmp_path / "node.sock", "memory")
    again.wait_for_output("listening at")
    running.wait_for_output("fit: the health service says that all is well")
    (folder / "finish").touch()
    done = running.wait()
    again.kill(signal.SIGTERM)
    assert (done.returncode, again.wait().returncode) == (0, 0) and done.stderr.count("gives no answer") == 1


def test_a_launcher_and_our_service_together(ours, holdfast, script):
    path = ours("command=echo the fan stands still; exit 1")
    done = holdfast("ft_launcher", "--ft-node-health-check-endpoint", path, script(PRINTS))
    assert done.returncode == 1 and "the fan stands still" in done.stderr
    again = holdfast("health-service", path)
    assert again.returncode == 1 and "another service listens" in again.stderr

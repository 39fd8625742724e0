"""Do we and NVRx understand each other about a node's health? Its client asks our service, and ours one of its stubs.

NVRx has this client since 0.5, and those versions cannot be installed on every system that has 0.4.1: `make nvrx` puts 0.6's
files into a folder of their own, which only the processes here have on their path.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from kit import KIT

pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'holdfast[grpc]'")

from holdfast.health.check import Look
from holdfast.health.checks.node_service import ARGS, node_service
from holdfast.health.verdict import DEGRADED, FIT, UNFIT

SCRIPT = str(KIT / "hosts" / "nvrx_health.py")


@pytest.fixture(scope="module")
def environ() -> dict[str, str]:
    """Of a process that has NVRx 0.6."""
    try:
        folder = Path(str(metadata.distribution("nvidia-resiliency-ext").locate_file(""))).parents[2] / "nvrx-0.6"
    except metadata.PackageNotFoundError:
        pytest.skip("no NVRx to compare with: make nvrx")
    if not folder.exists():
        pytest.skip("no NVRx that has a client for this: make nvrx (0.6, for Python 3.10 to 3.12)")
    return os.environ | {"PYTHONPATH": str(folder)}


@pytest.fixture
def nvrx_says(environ: dict[str, str]) -> Callable[[object], bool]:
    """Whether its launcher would take the node for healthy."""

    def ask(endpoint: object) -> bool:
        line = [sys.executable, SCRIPT, "client", str(endpoint)]
        done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return {"True": True, "False": False}[done.stdout.splitlines()[-1]]

    return ask


@pytest.fixture
def nvrx_serves(environ: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`nvrx_serves(success=True, …)`: a service from its stubs that answers so, from now on."""
    path, reply = tmp_path / "nvrx.sock", tmp_path / "reply.json"
    started: list[subprocess.Popen[str]] = []

    def serve(**fields: Any) -> Path:
        reply.write_text(json.dumps(fields))
        if not started:
            line = [sys.executable, SCRIPT, "server", str(path), str(reply)]
            started.append(subprocess.Popen(line, env=environ, stdout=subprocess.PIPE, text=True))
            assert started[0].stdout is not None and started[0].stdout.readline() == "listening\n"
        return path

    yield serve
    for server in started:
        server.send_signal(signal.SIGTERM)
        told, _ = server.communicate(timeout=60)
        assert {line for line in told.splitlines() if "--group" in line} <= {f"args {' '.join(ARGS)}"}


def test_nvrx_s_launcher_heeds_our_service(holdfast, tmp_path, nvrx_says):
    path, broken = tmp_path / "ours.sock", tmp_path / "broken"
    service = holdfast.start("health-service", path, "memory", f"command=echo the fan stands still; test ! -e {broken}")
    service.wait_for_output("listening at")
    assert nvrx_says(path) and nvrx_says(f"unix://{path}")
    broken.touch()
    assert not nvrx_says(path)
    service.kill(signal.SIGTERM)
    assert service.wait().returncode == 0
    assert nvrx_says(path), "nobody is there to ask"


REPLIES = [
    ({"success": True, "output": '{"fail_count": 0}'}, FIT),
    ({"success": True, "output": json.dumps({"fail_count": 0, "log": "é" * 100_000})}, FIT),
    ({"success": True, "output": '{"fail_count": 2, "failed_checks": ["ecc", "nvlink"]}'}, UNFIT),
    ({"success": False, "exit_code": -9, "error": "killed"}, UNFIT),
    ({}, UNFIT),
]


@pytest.mark.parametrize(("fields", "state"), REPLIES, ids=lambda value: str(value)[:40])
def test_what_its_service_answers_means_to_us_what_it_means_to_nvrx(nvrx_serves, nvrx_says, fields, state):
    path = nvrx_serves(**fields)
    found = node_service(Look(argument=str(path)))
    assert (found.state, nvrx_says(path)) == (state, state == FIT), found
    assert node_service(Look(argument=f"unix://{path}")).state == state


@pytest.mark.parametrize("output", ["", "no JSON", '{"ok": 1}', '{"fail_count": "many"}'])
def test_a_report_that_nobody_can_read_is_not_held_against_the_node_as_by_versions_after_0_6(nvrx_serves, nvrx_says, output):
    path = nvrx_serves(success=True, output=output)
    found = node_service(Look(argument=str(path)))
    assert found.state == DEGRADED and "cannot be read" in found.reason
    assert not nvrx_says(path), "0.6 evicted the node"

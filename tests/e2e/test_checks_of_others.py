"""What have others found out about a node? Kubernetes, gpud and DCGM are asked, each through its own client."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from kit import KIT
from kit.hosts.checked_host import CheckedHost, See, judged

from holdfast.health.verdict import DEGRADED, FIT, UNFIT


@pytest.fixture
def host(tmp_path: Path) -> CheckedHost:
    return CheckedHost(tmp_path / "host")


@pytest.fixture
def see(host: CheckedHost) -> See:
    return host.verdict


SAMPLES = KIT / "hosts" / "outside"


@pytest.mark.parametrize(
    ("check", "file", "state", "words"),
    [
        ("kubernetes", "node.json", FIT, ("4 conditions",)),
        (
            "kubernetes",
            "node-nvsentinel.json",
            UNFIT,
            ("SysLogsXIDError is True", "ErrorCode:79", "xid-error=true:NoExecute"),
        ),
        ("kubernetes", "node-npd.json", UNFIT, ("KernelDeadlock is True: DockerHung", "blocked for more than 120 seconds")),
        ("gpud", "gpud-well.json", FIT, ("2 components",)),
        ("gpud", "gpud-states.json", UNFIT, ("accelerator-nvidia-error-xid: XID 79",)),
        ("dcgm", "dcgm-well.json", FIT, ("1 results",)),
        ("dcgm", "dcgm-health.json", UNFIT, ("3 NVLink system: Failure: GPU 3's NvLink link 4",)),
        ("dcgm", "dcgm-diag.json", UNFIT, ("Hardware Memory GPU 1: Fail: Double Bit ECC",)),
        ("kubernetes", "dcgm-well.json", DEGRADED, ("that is no node",)),
        ("gpud", "node.json", DEGRADED, ("no list of components",)),
        ("dcgm", "gpud-well.json", DEGRADED, ("no report",)),
    ],
)
def test_what_others_say_of_the_node(host, see, check, file, state, words):
    host.put(file, (SAMPLES / file).read_text())
    judged(see(f"{check}=/{file}"), state, *words)


@pytest.mark.parametrize("check", ["kubernetes", "gpud", "dcgm"])
def test_whom_we_cannot_ask_is_named_and_the_node_is_not_unfit(see, check):
    judged(see(check, PATH="/nowhere"), DEGRADED, "not known: ", "No such file")


def test_why_gpud_does_not_answer_is_said(see):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        judged(see(f"gpud=http://127.0.0.1:{nobody.getsockname()[1]}/v1/states"), DEGRADED, "curl ended with 7", "connect")


def test_gpud_is_asked_over_its_port(see):
    class States(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/v1/states" else 404)
            self.end_headers()
            self.wfile.write((SAMPLES / "gpud-states.json").read_bytes())

        def log_message(self, format: str, *args: object) -> None:
            pass

    if not shutil.which("curl"):
        pytest.skip("no curl: apt-get install curl")
    with HTTPServer(("127.0.0.1", 0), States) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        judged(see(f"gpud=http://127.0.0.1:{server.server_port}/v1/states"), UNFIT, "XID 79")
        judged(see(f"gpud=http://127.0.0.1:{server.server_port}/v2/states"), DEGRADED, "not known: curl ended with 22")
        server.shutdown()


def test_dcgmi_is_asked_for_its_watches(see, tmp_path):
    dcgmi = tmp_path / "bin" / "dcgmi"
    dcgmi.parent.mkdir()
    dcgmi.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat "{SAMPLES}/dcgm-health.json"\n')
    dcgmi.chmod(0o755)
    judged(see("dcgm", PATH=f"{dcgmi.parent}:{os.environ['PATH']}"), UNFIT, "NvLink link 4 is currently down")
    assert (tmp_path / "asked").read_text().split() == ["health", "--check", "--json"]


def test_kubectl_is_asked_for_the_node_of_the_pod(see, tmp_path):
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat "{SAMPLES}/node.json"\n')
    kubectl.chmod(0o755)
    judged(see("kubernetes", NODE_NAME="n07", PATH=f"{kubectl.parent}:{os.environ['PATH']}"), FIT)
    assert (tmp_path / "asked").read_text().split() == ["get", "node", "n07", "-o", "json"]

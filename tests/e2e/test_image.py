"""The image that deploy/Dockerfile makes: a fleet in containers of it swaps a node, as in the guide of Google's client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'holdfast[grpc]'")

from kit.fleet.daemons import Fleet
from kit.hosts.checked_host import CheckedHost
from kit.hosts.image import InImage, built, missing

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=f"no image is built: {missing()}"),
    pytest.mark.timeout(300),  # it is made from the checkout first
]

WAITS = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


@pytest.fixture
def image(tmp_path: Path) -> Iterator[InImage]:
    volume = tmp_path / "volume"
    volume.mkdir()
    with built(tmp_path) as (root, config):
        holdfast = InImage(volume, root, config)
        yield holdfast
        holdfast.stop_all()


def test_a_gpu_s_xid_costs_a_node_its_place_though_the_job_only_knows_the_port_of_a_daemon(
    image: InImage, wait_until: Any
) -> None:
    """Supervisor, daemons and job run as the image's user, from a root that is read-only."""
    volume = image.folder
    fleet = Fleet(image, volume, wait_until)
    fleet.start("--policy", "google", "--policy-option", "max_workload_restarts=0")
    hosts = {name: CheckedHost(volume / f"root-{name}") for name in ("a", "b")}
    for name, host in hosts.items():
        fleet.daemon(name, "--check", "xid", "--check-every", 0.1, env={"HOLDFAST_CHECK_ROOT": str(host.root)})
    fleet.becomes({"a": "spare", "b": "spare"})

    (volume / "train.py").write_text(WAITS)
    env = {"GCP_HOST_DAEMON_PORT": str(fleet.ports["a"]), "GCP_WORKLOAD_NAME": "train"}
    job = image.start("run", "--nproc-per-node", 2, volume / "train.py", volume / "go", env=env)
    for rank in range(2):
        job.wait_for_output(f"setup_goodput_client for rank {rank} successful")
    fleet.becomes({"a": "fit", "b": "spare"})
    assert Path(f"/proc/{job.pid}/status").read_text().split("Uid:")[1].split()[:2] == ["65532", "65532"]

    hosts["a"].say("NVRM: Xid (PCI:0000:9b:00): 79, pid=7, name=python, GPU has fallen off the bus.")
    fleet.wait_until(lambda: "swap of job train on a (policy google)" in fleet.why("a"), what=lambda: fleet.why("a"))
    (volume / "go").touch()
    assert job.wait().returncode == 0

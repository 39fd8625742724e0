"""Stock torchrun reports its ranks with no line of it changed: as `holdfast torchrun`, and by its own plug-in group."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'holdfast[grpc]'")

from kit.hosts.daemons import DaemonHere

from holdfast.elastic.reporting import culprits

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

PATIENCE_S = 150.0
"""torchrun and its import of PyTorch, on a busy machine."""

FAILS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
mark = sys.argv[1] + "/" + os.environ["RANK"]
open(mark, "a").close()
while not os.path.exists(sys.argv[1] + "/go"):
    time.sleep(0.01)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "1":
        sys.exit(3)
    while True:
        time.sleep(0.01)  # not signal.pause(): a signal just before it is noted at its end
"""
"""Rank 0 would be told as failed, too, by who goes by exit codes: it ends with 1 when it is stopped."""


@pytest.fixture
def daemon(holdfast: Any, free_port: int, wait_until: Any) -> DaemonHere:
    made = DaemonHere(holdfast, free_port, wait_until)
    made.start()
    return made


@pytest.fixture
def plugged_in(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with our entry point in it, as an installation has it."""
    folder = tmp_path / "site"
    info = folder / "holdfast_plug-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast-plug\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torchrun.logs_specs]\nholdfast_reports = holdfast.elastic.reporting:logs_specs\n")
    return folder


@pytest.mark.parametrize("way", ["holdfast torchrun", "holdfast patch torch", "torchrun --logs-specs"])
def test_it_reports_who_runs_who_failed_and_who_is_done(
    way: str, daemon: DaemonHere, plugged_in: Path, script: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    plug = "torch.distributed.run", "--logs-specs", "holdfast_reports"
    module = way.split() if way.startswith("holdfast") else plug
    env = {**os.environ, "GCP_HOST_DAEMON_PORT": str(daemon.port), "GCP_WORKLOAD_NAME": "train", "OMP_NUM_THREADS": "1"}
    env |= {"PYTHONPATH": str(plugged_in)}
    command = [sys.executable, "-m", *module, "--nproc-per-node", "2", "--max-restarts", "1", script(FAILS), folder]
    with (tmp_path / "log").open("wb") as log:
        torchrun = subprocess.Popen(list(map(str, command)), env=env, stdout=log, stderr=log)
    daemon.wait_until(lambda: len(list(folder.iterdir())) == 2 and daemon.history(1) == ["RUNNING"], PATIENCE_S)
    (folder / "go").touch()
    assert torchrun.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
    daemon.wait_for(1, "RUNNING", "FAILED", "RUNNING", "COMPLETE")
    daemon.wait_for(0, "RUNNING", "COMPLETE")
    assert daemon.states() == {"train": ["COMPLETE", "COMPLETE"]}
    assert "setup_goodput_client for rank 1 successful" in (tmp_path / "log").read_text()


def failed(**codes: int) -> list[Any]:
    return [types.SimpleNamespace(local_rank=int(rank[1:]), exitcode=code) for rank, code in codes.items()]


@pytest.mark.parametrize(
    ("failures", "ended", "blamed"),
    [
        (failed(r0=1, r1=3, r2=-15), [1], [1]),
        (failed(r0=-15, r1=3, r2=-9), [], [1]),
        (failed(r0=-15, r1=-15), [], [0, 1]),
        (failed(r1=3), [0, 1], [1]),
    ],
    ids=["who had ended before", "else who was not stopped", "else all", "who ended well is not to blame"],
)
def test_who_is_to_blame(failures: list[Any], ended: list[int], blamed: list[int]) -> None:
    assert culprits(failures, ended) == blamed

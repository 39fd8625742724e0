"""Does a supervisor do under a real Slurm what docs/how-to/slurm.md says? With the batch script that stands there."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.ports import ports
from kit.servers import slurm as infra
from test_slurm import STAYS, Cluster

pytestmark = pytest.mark.skipif(bool(infra.why_not()), reason=infra.why_not())

FAILS_AT_FIRST = "import os, sys\nif not os.environ['TORCHELASTIC_RUN_ID'].endswith('-r1'): sys.exit(1)\n"
PAGE = Path(__file__).parents[2] / "docs/how-to/slurm.md"


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[infra.Slurm]:
    started = infra.Slurm(tmp_path_factory.mktemp("slurm") / "cluster", size=4)
    yield started
    started.stop()


@pytest.fixture
def cluster(slurm: infra.Slurm, tmp_path: Path, wait_until: Callable[..., Any], test_mark: str) -> Iterator[Cluster]:
    made = Cluster(slurm, tmp_path, wait_until)
    yield made
    made.clean()


class Supervised:
    """A supervisor on the cluster's login node, which this host is, and the page's job."""

    def __init__(self, cluster: Cluster, script: Callable[..., Path]) -> None:
        self.cluster, self.holdfast = cluster, (sys.executable, "-m", "holdfast")
        self.token, self.fleet = cluster.folder / "fleet.token", cluster.folder / "fleet"
        cluster.run(*self.holdfast, "token", "--write", self.token)
        (port,) = ports(1)
        where = ("--listen", f"127.0.0.1:{port}", "--state", self.fleet, "--token-file", self.token)
        running = cluster.start(*self.holdfast, "supervisor", "--orchestrator", "slurm", *where, "--lease", "2")
        cluster.wait_until(lambda: "listening at" in running.output)
        (page,) = re.findall(r"<!-- file: spare.sbatch -->\n```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
        wrapped = " ".join(map(str, (*self.holdfast, "run")))
        words = {
            "holdfast token": " ".join((*self.holdfast, "token")),
            "holdfast run": wrapped,
            "head:29800": f"127.0.0.1:{port}",
            "fleet.token": str(self.token),
            "--check-during auto": "--check-during xid --check-every 0.5",
            " train.py": f" {script(STAYS)} {cluster.notes_file}",
        }
        for word, instead in words.items():
            assert word in page
            page = page.replace(word, instead)
        self.batch = cluster.folder / "spare.sbatch"
        self.batch.write_text(page)

    def ask(self, *words: object) -> str:
        code, output = self.cluster.run(*self.holdfast, *words, "--state", self.fleet)
        assert code == 0, output
        return output

    def nodes(self) -> dict[str, str]:
        """Name → state."""
        return {node["name"]: node["state"] for node in json.loads(self.ask("nodes", "--json"))}

    def until(self, *states: str) -> dict[str, str]:
        """The nodes, once they are in these states."""
        self.cluster.wait_until(lambda: sorted(self.nodes().values()) == sorted(states), what=f"{states}")
        return self.nodes()

    def submit(self) -> str:
        """The page's job; its number."""
        code, output = self.cluster.run("sbatch", "-o", self.cluster.folder / "batch.out", self.batch)
        assert code == 0, output
        return output.split()[-1]

    def drained(self, node: str) -> str:
        """The reason for which Slurm gives it no work; once it does not."""
        ask = ("scontrol", "show", "node", node, "--oneliner")
        line = self.cluster.wait_until(lambda: next((said for said in [self.cluster.slurm.ask(*ask)] if "DRAIN" in said), None))
        return str(line.partition(" Reason=")[2])


@pytest.fixture
def fleet(cluster: Cluster, script: Callable[..., Path]) -> Supervised:
    return Supervised(cluster, script)


def test_a_node_whose_gpu_fails_is_drained_with_the_reason_and_the_spare_takes_over(fleet, monkeypatch):
    monkeypatch.setenv("HOLDFAST_ALLOW_INJECT", "1")
    job = fleet.submit()
    nodes = fleet.until("fit", "fit", "spare")
    sick = sorted(name for name, state in nodes.items() if state == "fit")[-1]
    fleet.ask("inject", "xid", sick)
    assert fleet.until("fit", "fit", "unfit")[sick] == "unfit"
    assert "Xid 79" in fleet.drained(sick)
    fleet.cluster.until_noted("up", f"0/2 {job}.0-llama", f"1/2 {job}.0-llama")
    assert fleet.cluster.slurm.ask("squeue", "-h", "-o", "%i %T") == f"{job} RUNNING"
    fleet.cluster.folder.joinpath("notes.finish").touch()
    fleet.cluster.wait_until(lambda: not fleet.cluster.job())
    assert "may be used again" in fleet.ask("uncordon", sick)


def test_a_job_that_fails_is_queued_again_as_the_last_resort(cluster, script):
    fleet = Supervised(cluster, lambda source: script(f"{FAILS_AT_FIRST}{source}"))
    job = fleet.submit()
    cluster.until_noted("up", f"0/2 {job}.0-llama-r1", f"1/2 {job}.0-llama-r1")
    # The spare, too: if it came after the end, it would wait for the beginning.
    records = cluster.folder / "state" / "jobs" / f"{job}.0-llama-r1"
    cluster.wait_until(lambda: sum(file.read_text().count("NodeJoined") for file in records.glob("events-*")) == 3)
    cluster.folder.joinpath("notes.finish").touch()
    cluster.wait_until(lambda: not cluster.job())

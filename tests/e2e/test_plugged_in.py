"""Do other packages' rendezvous handlers and logs specs, registered in torchrun's entry-point groups, work under `run`?"""

from __future__ import annotations

from pathlib import Path

import pytest

PLUGIN = """
from holdfast.elastic.multiprocessing import DefaultLogsSpecs
from holdfast.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from holdfast.elastic.rendezvous.memory_store import MemoryStore


class Alone(RendezvousHandler):
    def __init__(self, params):
        self.params = params
        self.round = 0

    def get_backend(self):
        return "alone"

    def next_rendezvous(self):
        self.round += 1
        store = MemoryStore()
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo.build(0, store, "127.0.0.1"))

    def is_closed(self):
        return False

    def set_closed(self):
        pass

    def num_nodes_waiting(self):
        return 0

    def get_run_id(self):
        return self.params.run_id

    def shutdown(self):
        return True


def get_handler():
    return Alone


class Shouting(DefaultLogsSpecs):
    def reify(self, envs):
        for env in envs.values():
            env["SHOUT"] = "yes"
        return super().reify(envs)
"""

ENTRY_POINTS = """
[torchrun.handlers]
alone = plugin:get_handler

[torchrun.logs_specs]
shouting = plugin:Shouting
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """An environment in which a package offers a rendezvous handler and logs specs."""
    site = tmp_path / "site"
    info = site / "plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "plugin.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return {"PYTHONPATH": str(site)}


def test_a_registered_rendezvous_handler_is_used(holdfast, script, installed):
    program = script("import os; print(os.environ['RANK'], os.environ['MASTER_ADDR'])")
    done = holdfast("run", "--rdzv-backend", "alone", "--rdzv-endpoint", "nowhere:1", program, env=installed)
    assert (done.returncode, done.stdout) == (0, "0 127.0.0.1\n"), done.stderr


def test_a_failure_under_a_registered_handler_ends_with_the_box(holdfast, script, installed):
    done = holdfast("run", "--rdzv-backend", "alone", "--rdzv-endpoint", "nowhere:1", script("raise ValueError"), env=installed)
    assert done.returncode == 1
    assert "Root Cause (first observed failure):" in done.stderr


def test_registered_logs_specs_are_used(holdfast, script, installed):
    program = script("import os; print(os.environ['SHOUT'])")
    done = holdfast("run", "--logs-specs", "shouting", program, env=installed)
    assert (done.returncode, done.stdout) == (0, "yes\n"), done.stderr

"""Do other packages' rendezvous handlers and logs specs, registered in torchrun's entry-point groups, work under `run`?"""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.jobs.ranks import FAILS_ONCE

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


def test_a_token_that_is_required_is_one_that_the_rendezvous_proves(holdfast, script, installed, tmp_path, free_port):
    holdfast.run("token", "--write", tmp_path / "token")
    program, token = script("print('ran')"), ("--token-file", tmp_path / "token")
    start = ("run", "--require-token", "--nnodes", "1:2", "--rdzv-endpoint", f"localhost:{free_port}")
    start = (*start, "--rdzv-conf", "last_call_timeout=0.1")
    torchs = holdfast(*start, *token, "--logs-specs", "shouting", program, env=installed)
    assert torchs.returncode == 2 and "c10d are not known to prove a token" in torchs.stderr
    assert "--token-file ignored: --logs-specs" in torchs.stderr
    ours = (*start, "--rdzv-backend", "holdfast")
    without = holdfast(*ours, program)
    assert without.returncode == 2 and "has no token" in without.stderr
    done = holdfast(*ours, *token, program)
    assert (done.returncode, done.stdout) == (0, "ran\n") and "unauthenticated" not in done.stderr


# --- several nodes ----------------------------------------------------------------------------------------------------------

CHECKED = """
from holdfast.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from holdfast.elastic.rendezvous.registry import get_rendezvous_handler


class Checked(RendezvousHandler):
    '''Holdfast's rendezvous, and the nodes tell one another who they are.'''

    def __init__(self, params):
        settings = {"node_name": params.get("called"), "last_call_timeout": 1}
        ours = RendezvousParameters(
            "holdfast", params.endpoint, params.run_id, params.min_nodes, params.max_nodes, params.local_addr, **settings
        )
        self.called, self.inner = params.get("called"), get_rendezvous_handler(ours)

    def get_backend(self):
        return "checked"

    use_agent_store = property(lambda self: self.inner.use_agent_store)

    def next_rendezvous(self):
        info = self.inner.next_rendezvous()
        info.store.set(f"node/{info.rank}", self.called)
        names = info.store.multi_get([f"node/{rank}" for rank in range(info.world_size)])
        print("round of", b",".join(sorted(names)).decode(), "visited", info.store.add("visits", 1), flush=True)
        return info

    def is_closed(self):
        return self.inner.is_closed()

    def set_closed(self):
        self.inner.set_closed()

    def num_nodes_waiting(self):
        return self.inner.num_nodes_waiting()

    def get_run_id(self):
        return self.inner.get_run_id()

    def shutdown(self):
        return self.inner.shutdown()


def get_handler():
    return Checked
"""


def test_a_handler_of_several_nodes_has_the_coordinator_s_store_round_by_round(holdfast, script, tmp_path, free_port):
    site = tmp_path / "site"
    info = site / "checked-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "checked.py").write_text(CHECKED)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: checked\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torchrun.handlers]\nchecked = checked:get_handler\n")
    fails_once = script(FAILS_ONCE)
    agents = [
        holdfast.start(
            *("run", "--nnodes", 2, "--rdzv-backend", "checked", "--rdzv-endpoint", f"localhost:{free_port}"),
            *("--rdzv-id", "pair", "--rdzv-conf", f"called={name}", "--max-restarts", 1, fails_once, tmp_path / "life"),
            env={"PYTHONPATH": str(site)},
        )
        for name in ("a", "b")
    ]
    ended = [agent.wait() for agent in agents]
    assert [one.returncode for one in ended] == [0, 0], "\n".join(one.output for one in ended)
    for one in ended:
        rounds = one.stdout.splitlines()
        assert len(rounds) == 2 and set(rounds) <= {"round of a,b visited 1", "round of a,b visited 2"}, one.output

"""Two supervisors over a real etcd: one leads, and whatever becomes of it the other goes on where it was, once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.fleet.supervised import Supervised
from kit.jobs.ranks import Cluster
from kit.ports import ports
from kit.servers import etcd as infra

pytestmark = infra.NEEDED

ASKS = """
import os
try:
    os.close(os.open(os.path.join({folder!r}, os.environ["HOLDFAST_REPLACES_KEY"]), os.O_WRONLY | os.O_CREAT | os.O_EXCL))
except FileExistsError:
    pass
"""
"""What `--replace-with` starts: whoever asks for the same key again has asked for nothing."""


class Pair(Supervised):
    """Two of them, of which `self.state` is the one that leads."""

    def __init__(self, holdfast: Any, job: Cluster, folder: Path, wait_until: Any, etcd: infra.Etcd) -> None:
        self.ports = ports(2)
        super().__init__(holdfast, job, f"127.0.0.1:{self.ports[0]},127.0.0.1:{self.ports[1]}", folder, wait_until)
        self.folder, self.etcd = folder, etcd
        self.store = f"etcd://{etcd.endpoints}/fleets/{folder.name}"
        self.both: list[Any] = [None, None]

    def start(self, which: int, *flags: str) -> Any:
        state = self.folder / f"fleet-{which}"
        listen = ("--listen", f"127.0.0.1:{self.ports[which]}", "--state", state, "--store", self.store)
        self.both[which] = self.holdfast.start("supervisor", *listen, "--lease", "2", *flags)
        return self.both[which]

    def leads(self, which: int, times: int = 1) -> None:
        """Wait until it has begun to lead so often, and look at it from now on."""
        self.wait_until(lambda: self.both[which].stdout.count("listening at") >= times, what=self.both[which].stderr)
        self.state = self.folder / f"fleet-{which}"

    def begin(self, *flags: str) -> list[Any]:
        """Both, the first of which leads, and a job of two nodes with a spare."""
        self.start(0, *flags)
        self.leads(0)
        self.start(1, *flags).wait_for_output("standing by: ")
        agents = self.agents("a", "b", "c")
        self.wait_until(lambda: self.states() == {"a": "fit", "b": "fit", "c": "spare"})
        return agents

    def swapped_once(self, agents: list[Any]) -> None:
        """The swap of b has been done, and the job ends well."""
        deed = self.over("b")
        assert deed["outcome"] == "c has taken over in round 2" and len(self.why("b")) == 1
        self.wait_until(lambda: self.states() == {"a": "fit", "b": "unfit", "c": "fit"})
        assert [event["name"] for event in self.holdfast.events("NodeExcluded")] == ["b"]
        assert self.job.rank(0, 0, 2) and self.job.rank(1, 0, 2)
        self.job.finish()
        assert [agent.wait().returncode for agent in agents] == [0, 0, 0]


@pytest.fixture
def pair(holdfast: Any, job: Cluster, tmp_path: Path, wait_until: Callable[..., Any], etcd: infra.Etcd) -> Pair:
    return Pair(holdfast, job, tmp_path, wait_until, etcd)


def hanging(pair: Pair, which: int) -> Any:
    """An orchestrator that hangs, for as long as what is returned is open: a swap stays where it is."""
    import fcntl

    folder = pair.folder / f"fleet-{which}" / "local"
    folder.mkdir(parents=True, exist_ok=True)
    held = (folder / "nodes.json.lock").open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    return held


def test_the_leader_is_killed_in_the_middle_of_a_swap_and_the_other_completes_it_once(pair, tmp_path, script):
    asked = tmp_path / "asked"
    asked.mkdir()
    agents = pair.begin("--replace-with", f"python3 {script(ASKS.format(folder=str(asked)), 'asks.py')}")
    with hanging(pair, 0):
        pair.drain("b")
        pair.wait_until(lambda: pair.why("b")[-1]["done"])
        pair.both[0].kill()
        pair.leads(1)
    pair.swapped_once(agents)
    pair.wait_until(lambda: any(asked.iterdir()), what="another node to be asked for")
    assert len(list(asked.iterdir())) == 1, "another node was asked for more than once"
    assert "generation 2" in pair.both[1].stdout


def test_a_leader_that_is_stopped_beyond_its_lease_does_nothing_when_it_goes_on(pair):
    agents = pair.begin()
    with hanging(pair, 0):
        pair.drain("b")
        pair.wait_until(lambda: pair.why("b")[-1]["done"])
        pair.both[0].kill(signal.SIGSTOP)
        pair.leads(1)
        deed = pair.over("b")
    pair.both[0].kill(signal.SIGCONT)
    pair.both[0].wait_for_output("acts no more until it leads again")
    pair.both[0].wait_for_output("standing by: ")
    assert pair.why("b") == [deed]
    pair.both[0].wait_for_output(f"{pair.ports[1]}) leads")
    refused = pair.holdfast.run("nodes", "--state", pair.folder / "fleet-0")
    assert refused.returncode == 1 and f"{pair.ports[1]}) leads" in refused.stderr
    pair.swapped_once(agents)


def test_one_that_is_told_to_end_hands_over_and_can_take_over_again(pair):
    agents = pair.begin()
    pair.both[0].kill(signal.SIGTERM)
    assert pair.both[0].wait().returncode == 0
    pair.leads(1)
    pair.wait_until(lambda: pair.states() == {"a": "fit", "b": "fit", "c": "spare"})
    pair.start(0).wait_for_output("standing by: ")
    pair.both[1].kill(signal.SIGTERM)
    pair.leads(0)
    pair.drain("b")
    pair.swapped_once(agents)


def test_etcd_is_away_for_a_while(holdfast, job, tmp_path, wait_until, own_etcd):
    store = own_etcd()
    pair = Pair(holdfast, job, tmp_path, wait_until, store)
    agents = pair.begin()
    store.kill()
    os.kill(job.rank(0, 0, 1)[0], signal.SIGKILL)
    job.rank(0, 1, 2)
    job.rank(1, 1, 2)  # the job does not wait for that
    pair.both[0].wait_for_output("acts no more until it leads again")
    store.start()
    lives = lambda: [one.stdout.count("listening at") for one in pair.both]
    wait_until(lambda: lives() != [1, 0])
    pair.state = pair.folder / ("fleet-0" if lives()[0] == 2 else "fleet-1")
    wait_until(lambda: pair.states() == {"a": "fit", "b": "fit", "c": "spare"})
    wait_until(lambda: {job["round"] for node in pair.nodes().values() for job in node["jobs"] if job["ranks"]} == {2})
    job.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0, 0]


def test_what_is_no_store_is_said(holdfast, tmp_path):
    for where, said in (
        ("ftp://x/y", "is no store"),
        ("etcd://h:1/p?colour=red", "colour= is not known"),
        ("etcd://h:1/p", "127.0.0.1:0 with --store: agents could not find a random port"),
    ):
        told = holdfast.run("supervisor", "--listen", "127.0.0.1:0", "--state", tmp_path / "fleet", "--store", where)
        assert told.returncode == 2 and said in told.stderr, told.output


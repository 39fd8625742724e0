"""Two supervisors over a real etcd: one leads, and whatever becomes of it the other goes on where it was, once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.fleet.pair import ASKS, Pair, hanging
from kit.jobs.ranks import Cluster
from kit.servers import etcd as infra

pytestmark = infra.NEEDED


def of(etcd: infra.Etcd, folder: Path) -> str:
    """A store of this test's own."""
    return f"etcd://{etcd.endpoints}/fleets/{folder.name}"


@pytest.fixture
def pair(holdfast: Any, job: Cluster, tmp_path: Path, wait_until: Callable[..., Any], etcd: infra.Etcd) -> Pair:
    return Pair(holdfast, job, tmp_path, wait_until, of(etcd, tmp_path))


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
    pair = Pair(holdfast, job, tmp_path, wait_until, of(store, tmp_path))
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


def test_what_is_no_store_is_said(holdfast, tmp_path, free_port):
    for where, said in (
        ("ftp://x/y", "is no store"),
        ("etcd://h:1/p?colour=red", "colour= is not known"),
        ("kubernetes://Not_a_name", "is no name of Kubernetes'"),
        ("kubernetes://fleet", "this is no pod of Kubernetes"),
        ("etcd://h:1/p", "127.0.0.1:0 with --store: agents could not find a random port"),
    ):
        listen = f"127.0.0.1:{0 if where == 'etcd://h:1/p' else free_port}"
        told = holdfast.run("supervisor", "--listen", listen, "--state", tmp_path / "fleet", "--store", where)
        assert told.returncode == 2 and said in told.stderr, told.output

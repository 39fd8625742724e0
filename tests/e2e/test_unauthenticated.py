"""What can who has guessed the run id of a job without a token do from another host? Give no order, and read no state."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from kit.hosts.hung_mount import HungMount, why_not

pytestmark = pytest.mark.root

GIVES_ORDERS = """
import sys
from kit.network.security_peer import Peer
from holdfast.core.job.events import ExcludedBy
from holdfast.core.wire.messages import Join, Reply, Request, RequestKind

host, port = sys.argv[1].rsplit(":", 1)
peer = Peer(int(port), host=host)
peer.prove("net", token="")
peer.say(Join(node="x-1-aa", name="x", addr="10.77.0.3", master_port=1, nproc=1, role="default"))
kinds = [RequestKind.STOP, RequestKind.EXCLUDE, RequestKind.READMIT, RequestKind.CHECK, RequestKind.INJECT]
for ask, kind in enumerate(kinds):
    for by in (ExcludedBy.OPERATOR, ExcludedBy.ITSELF):
        peer.say(Request(node="x-1-aa", kind=kind, target="b", ask=ask, by=by, reason="because I say so", checks=("gpu",)))
answers = []
while len(answers) < 2 * len(kinds):
    if isinstance(told := peer.told(), Reply):
        answers.append((told.ok, told.text))
assert not any(ok for ok, text in answers), answers
assert all("has no token" in text for ok, text in answers), answers
print("refused", len(answers))
"""


PROVES_THE_RUN_ID = """
import sys
from kit.network.security_peer import Peer

host, port = sys.argv[1].rsplit(":", 1)
Peer(int(port), host=host).prove("net", token="")
"""


def test_who_has_guessed_the_run_id_gives_no_order(hosts):
    job = hosts("a", "b", "c")
    job.running("a", "b")
    place = job.switch.places["c"]
    command = [*place.through, sys.executable, "-c", GIVES_ORDERS, job.endpoint]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={"PYTHONPATH": str(Path(__file__).parents[1])}
    )
    assert (done.returncode, done.stdout) == (0, "refused 10\n"), done.stderr
    status = job.commands["a"]("status").stdout
    assert "degraded  unauthenticated: no job token" in status and "holdfast token --write" in status
    assert "refused: this job has no token" in job.agents["a"].stderr
    job.finish("a", "b")
    assert job.rounds() == {1}


def test_an_operator_is_heard_where_the_coordinator_is_and_told_elsewhere_what_to_do(hosts):
    job = hosts("a", "b")
    job.running("a", "b")
    refused = job.commands["b"]("exclude", "a", "--reason", "to see")
    assert refused.returncode != 0 and "this job has no token" in refused.output and "--token-file" in refused.output
    stopped = job.commands["a"]("stop", "net")
    assert stopped.returncode == 0, stopped.output
    assert [agent.wait().returncode for agent in job.agents.values()] == [1, 1]


def test_with_a_token_the_same_order_is_carried_out(hosts, monkeypatch):
    monkeypatch.setenv("HOLDFAST_TOKEN", "a secret of enough characters")
    job = hosts("a", "b")
    job.running("a", "b")
    assert job.commands["b"]("stop", "net").returncode == 0
    assert [agent.wait().returncode for agent in job.agents.values()] == [1, 1]


def test_no_state_is_replicated_where_anybody_could_read_it(hosts, wait_until):
    job = hosts("a", "b")
    job.running("a", "b", options=("--stash-replicate",))
    for agent in job.agents.values():
        wait_until(lambda agent=agent: "states are not replicated: the job has no token" in agent.stderr)
    job.finish("a", "b")


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_nodes_that_keep_their_records_together_have_a_token_without_anybody_giving_one(hosts, tmp_path):
    with closing(HungMount(tmp_path / "shared", kind="fuse.sshfs")) as mount:
        job = hosts("a", "b", "c")
        for name in "ab":
            (tmp_path / name / "state").symlink_to(mount.path)
        job.running("a", "b", options=("--require-token",))
        assert "unauthenticated" not in job.agents["a"].stderr
        command = [*job.switch.places["c"].through, sys.executable, "-c", PROVES_THE_RUN_ID, job.endpoint]
        env = {"PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
        assert "wrong job token" in done.stdout + done.stderr and done.returncode != 0
        assert job.commands["b"]("stop", "net").returncode == 0
        assert [agent.wait().returncode for agent in job.agents.values()] == [1, 1]

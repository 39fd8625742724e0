"""One supervisor for the agents of real jobs: what it is told, what it does about it, and what its death costs nobody."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from kit.fleet.supervised import Supervised
from kit.jobs.ranks import Cluster, agent_pid
from kit.ports import port_of, ports


@pytest.fixture
def fleet(holdfast: Any, job: Cluster, tmp_path: Path, wait_until: Any) -> Supervised:
    return Supervised(holdfast, job, f"127.0.0.1:{ports(1)[0]}", tmp_path, wait_until)


# --- what it is told, and does --------------------------------------------------------------------------------------------


def test_it_knows_its_nodes_and_swaps_one_that_is_drained(fleet):
    fleet.start()
    agents = fleet.agents("a", "b", "c")
    fleet.wait_until(lambda: fleet.states() == {"a": "fit", "b": "fit", "c": "spare"})
    table = fleet.holdfast.run("nodes", "--state", fleet.state).stdout
    assert [line.split()[:2] for line in table.splitlines()][1:] == [["a", "fit"], ["b", "fit"], ["c", "spare"]]
    assert "b is draining" in fleet.drain("b").stdout
    deed = fleet.over("b")
    assert (deed["act"], deed["outcome"]) == ("swap", "c has taken over in round 2")
    fleet.wait_until(lambda: fleet.states() == {"a": "fit", "b": "unfit", "c": "fit"})
    shown = fleet.holdfast.run("why", "b", "--state", fleet.state).stdout
    assert "b is unfit: its fan is loud" in shown and "outcome: c has taken over in round 2" in shown
    again = fleet.drain("b")
    assert again.returncode == 1 and "b is unfit already" in again.stderr
    assert "b may be used again" in fleet.holdfast.run("uncordon", "b", "--state", fleet.state).stdout
    fleet.wait_until(lambda: fleet.states()["b"] == "spare")
    fleet.job.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0, 0]


def test_a_rank_that_fails_is_told_at_once_and_what_came_of_it_is_known(fleet):
    fleet.start()
    agents = fleet.agents("a", "b")
    fleet.wait_until(lambda: fleet.states() == {"a": "fit", "b": "fit"})
    os.kill(fleet.job.rank(0, 0, 1)[0], signal.SIGKILL)
    first = fleet.job.host()
    broken = fleet.wait_until(lambda: next((name for name in ("a", "b") if fleet.why(name)), None))
    deed = fleet.over(broken)
    assert (deed["trouble"], deed["act"], deed["outcome"]) == ("worker", "restart-workers", "round 2 runs")
    assert "SIGKILL" in deed["seen"] and first in ("a", "b")
    fleet.job.rank(1, 1, 2)
    fleet.job.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_whoever_has_it_listen_at_any_port_is_told_which_one_it_got(fleet, host):
    fleet.where = f"{host}:0"
    fleet.where = f"{host}:{port_of(fleet.start())}"
    (agent,) = fleet.agents("a")
    fleet.wait_until(lambda: fleet.states() == {"a": "spare"})
    agent.kill()


def test_an_unknown_node_is_not_drained(fleet):
    fleet.start()
    refused = fleet.drain("nobody")
    assert refused.returncode == 1 and "no node nobody has ever been heard of" in refused.stderr


# --- who may speak for a job -----------------------------------------------------------------------------------------------


def test_an_agent_with_its_token_speaks_for_no_job_whose_secret_it_has_not(fleet, tmp_path, script):
    """Neither before nor after the supervisor is killed, nor when the job's agents are others; and the job is steered on."""
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("a secret of enough characters")
    waits = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]):\n    time.sleep(0.01)\n"
    fails = script(f"{waits}raise SystemExit(3)", "fails.py")
    fleet.start()
    agents = fleet.agents("a", "b", flags=("--token-file", secret))
    fleet.wait_until(lambda: fleet.states() == {"a": "fit", "b": "fit"})
    for life in range(2):
        named = ("--node-name", f"thief{life}", "--rdzv-id", "several", "--supervisor", fleet.where)
        thief = fleet.holdfast.start("run", *named, fails, tmp_path / f"refused{life}")
        thief.wait_for_output("refuses this node")
        (tmp_path / f"refused{life}").touch()
        assert thief.wait().returncode == 1 and "has no secret" in fleet.running.stderr
        assert set(fleet.states()) == {"a", "b"} and not fleet.why("a")
        fleet.kill()
        fleet.start()
    stop = ("stop", "several", "--supervisor", "--state", fleet.state)
    fleet.wait_until(lambda: fleet.holdfast.run(*stop).returncode == 0, what="the job to be back, and to be stopped")
    assert all("stop" in agent.wait().stderr for agent in agents)


# --- no spare waits, and the job needs all its nodes ------------------------------------------------------------------------


def test_a_drained_node_without_a_spare_stays_until_another_that_was_asked_for_has_come(fleet, tmp_path, script):
    asked = tmp_path / "asked.json"
    starts = script(f"import sys\nopen({str(asked)!r}, 'w').write(sys.stdin.read())", "asks.py")
    fleet.start("--replace-with", f"python3 {starts}")
    agents = fleet.agents("a", "b")
    fleet.wait_until(lambda: fleet.states() == {"a": "fit", "b": "fit"})
    told = fleet.drain("b")
    assert told.returncode == 0
    assert "b is draining and gets no more work; it waits for another node" in told.stdout
    need = json.loads(fleet.wait_until(lambda: asked.exists() and asked.read_text(), what="another node to be asked for"))
    assert (need["node"], need["trouble"], need["reason"], need["is_urgent"]) == ("b", "operator", "its fan is loud", False)
    assert fleet.states() == {"a": "fit", "b": "draining"} and "it waits for another node" in fleet.drain("b").stderr
    agents.append(fleet.job.agent("c", "2", "--supervisor", fleet.where, "--max-restarts", "3", nproc=1))
    assert fleet.over("b")["outcome"] == "c has taken over in round 2"
    fleet.wait_until(lambda: fleet.states() == {"a": "fit", "b": "unfit", "c": "fit"})
    fleet.job.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0, 0]


def test_a_job_that_may_be_smaller_runs_on_with_a_drained_node_until_the_one_is_there_that_was_said_to_come(fleet):
    fleet.start("--replacement-time", "90", "--replace-with", "true")
    flags = "--supervisor", fleet.where, "--max-restarts", "3"
    agents = [fleet.job.agent(name, "1:2", *flags, nproc=1) for name in "ab"]
    fleet.wait_until(lambda: fleet.states() == {"a": "fit", "b": "fit"})
    table = fleet.holdfast.run("nodes", "--state", fleet.state).stdout
    assert "the orchestrator gives one within 1 min 30 s, as the operator has said" in table
    before = fleet.nodes()["a"]["jobs"][0]["round"]
    assert "it waits for another node: several has no spare, and goes on with one node less" in fleet.drain("b").stdout
    agents.append(fleet.job.agent("c", "1:2", *flags, nproc=1))
    deed = fleet.over("b")
    assert (deed["act"], deed["outcome"]) == ("replace", f"c has taken over in round {before + 1}")
    assert "another node comes within 90 s, as the operator has said: the job runs on until then" in deed["reason"]
    fleet.job.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0, 0]


def test_a_drain_that_waits_is_taken_back_by_uncordon(fleet):
    fleet.start()
    agents = fleet.agents("a", "b")
    fleet.wait_until(lambda: fleet.states() == {"a": "fit", "b": "fit"})
    fleet.drain("b")
    fleet.wait_until(lambda: any("no replacement is requested" in step for step in fleet.why("b")[-1]["done"]))
    assert "b may be used again" in fleet.holdfast.run("uncordon", "b", "--state", fleet.state).stdout
    assert fleet.states() == {"a": "fit", "b": "fit"}
    fleet.job.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0]


def test_a_node_lost_without_a_spare_is_asked_for_and_the_job_goes_on_with_the_one_that_comes(fleet, tmp_path, script):
    asked = tmp_path / "asked.json"
    starts = script(f"import sys\nopen({str(asked)!r}, 'w').write(sys.stdin.read())", "asks.py")
    fleet.start("--replace-with", f"python3 {starts}")
    agents = dict(zip("ab", fleet.agents("a", "b"), strict=True))
    fleet.wait_until(lambda: fleet.states() == {"a": "fit", "b": "fit"})
    lost = next(name for name in "ab" if name != fleet.job.host())
    os.kill(agent_pid(fleet.holdfast, lost), signal.SIGKILL)
    need = json.loads(fleet.wait_until(lambda: asked.exists() and asked.read_text(), what="another node to be asked for"))
    assert (need["node"], need["trouble"], need["is_urgent"]) == (lost, "lost", True)
    agents["c"] = fleet.job.agent("c", "2", "--supervisor", fleet.where, "--max-restarts", "3", nproc=1)
    deed = fleet.over(lost)
    assert (deed["act"], deed["outcome"]) == ("replace", "the job goes on with 2 nodes in round 2")
    fleet.job.finish()
    assert [agent.wait().returncode for name, agent in agents.items() if name != lost] == [0, 0]


# --- what its death costs -------------------------------------------------------------------------------------------------


def test_its_death_changes_nothing_for_a_job_and_it_finds_it_again(fleet):
    fleet.start()
    agents = fleet.agents("a", "b")
    fleet.wait_until(lambda: fleet.states() == {"a": "fit", "b": "fit"})
    fleet.kill()
    os.kill(fleet.job.rank(0, 0, 1)[0], signal.SIGKILL)
    assert fleet.job.rank(0, 1, 2)[1] == fleet.job.rank(1, 1, 2)[1] == 2
    fleet.start()
    fleet.wait_until(lambda: [node["jobs"][0]["round"] for node in fleet.nodes().values() if node["jobs"]] == [2, 2])
    assert set(fleet.states().values()) == {"fit"}
    fleet.job.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0]


def test_killed_in_the_middle_of_a_swap_it_is_done_exactly_once(fleet, tmp_path, script):
    asked = tmp_path / "asked"
    started = script(f"import os\nos.write(os.open({str(asked)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), b'x')", "asks.py")
    flags = ("--replace-with", f"python3 {started}")
    fleet.start(*flags)
    agents = fleet.agents("a", "b", "c")
    fleet.wait_until(lambda: fleet.states() == {"a": "fit", "b": "fit", "c": "spare"})
    with open(fleet.state / "local" / "nodes.json.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # the orchestrator hangs: the swap stays where it is
        fleet.drain("b")
        fleet.wait_until(lambda: fleet.why("b")[-1]["done"])
        fleet.kill()
        fleet.start(*flags)
        fleet.kill()  # and again, before it has gone on
    fleet.start(*flags)
    deed = fleet.over("b")
    assert deed["outcome"] == "c has taken over in round 2" and len(fleet.why("b")) == 1
    fleet.wait_until(lambda: fleet.states() == {"a": "fit", "b": "unfit", "c": "fit"})
    fleet.wait_until(lambda: asked.exists() and asked.read_text(), what="another node to be asked for")
    assert [event["name"] for event in fleet.holdfast.events("NodeExcluded")] == ["b"]
    assert fleet.job.rank(0, 0, 2) and fleet.job.rank(1, 0, 2)
    fleet.job.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0, 0]
    assert asked.read_text() == "x", "another node was asked for more than once"


def test_one_that_hangs_costs_a_job_nothing(fleet):
    running = fleet.start()
    agents = fleet.agents("a", "b")
    fleet.wait_until(lambda: fleet.states() == {"a": "fit", "b": "fit"})
    running.kill(signal.SIGSTOP)
    os.kill(fleet.job.rank(0, 0, 1)[0], signal.SIGKILL)
    fleet.job.rank(0, 1, 2)
    fleet.job.rank(1, 1, 2)
    fleet.job.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0]
    running.kill(signal.SIGCONT)


def test_without_its_token_nobody_speaks_for_a_node(fleet, tmp_path):
    secret = tmp_path / "secret"
    assert fleet.holdfast.run("token", "--write", secret).returncode == 0
    fleet.start("--token-file", str(secret))
    strangers = fleet.agents("a", "b")
    fleet.wait_until(lambda: "the supervisor at" in strangers[0].stderr)
    assert fleet.nodes() == {}
    fleet.job.finish()
    assert [agent.wait().returncode for agent in strangers] == [0, 0]


def test_a_state_that_cannot_be_kept_is_refused(holdfast):
    refused = holdfast.run("supervisor", "--listen", "127.0.0.1:0", "--http", "off", "--state", "/proc/nowhere")
    assert refused.returncode == 2 and "--state: /proc/nowhere cannot be used" in refused.stderr, refused.output


def test_two_on_one_state_are_refused_and_so_is_an_open_door_without_a_token(fleet):
    fleet.start()
    second = fleet.holdfast.run("supervisor", "--listen", "127.0.0.1:0", "--state", fleet.state)
    assert second.returncode == 2 and "another supervisor runs on" in second.stderr
    open_door = fleet.holdfast.run("supervisor", "--listen", "0.0.0.0:0", "--state", fleet.state / "other")
    assert open_door.returncode == 2 and "without a token" in open_door.stderr

"""Does a node's health decide whether it takes part? Real jobs whose nodes are made unfit; and `holdfast check`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from kit.hosts import fuse
from kit.hosts.checked_host import CheckedHost
from kit.jobs.ranks import WAITS
from test_several_nodes import Cluster

from holdfast.runtime.process import process

PRINTS = "import os; print('endpoint', os.environ.get('HOLDFAST_NODE_HEALTH_CHECK_ENDPOINT'))"


@pytest.fixture
def cluster(holdfast, free_port, tmp_path, script, wait_until) -> Cluster:
    return Cluster(holdfast, free_port, tmp_path / "ranks", script(WAITS), wait_until)


def breaks_when(path: Path) -> str:
    """A check that finds the node unfit once that file is there."""
    return f"command=echo it hangs on {path.name}; test ! -e {path}"


def changed(holdfast: Any, node: str) -> list[tuple[str, str]]:
    return [(event["before"], event["state"]) for event in holdfast.events("HealthChanged") if event["node"] == node]


# --- before a round -------------------------------------------------------------------------------------------------------


def test_an_unfit_node_stays_out_with_its_reason_and_a_spare_takes_its_place(cluster, holdfast, tmp_path):
    broken = tmp_path / "broken"
    broken.touch()
    every = ("--check-every", "0.2")
    b = cluster.agent("b", "2", "--check-before", breaks_when(broken), *every, nproc=1)
    cluster.wait_until(lambda: changed(holdfast, "b") == [("fit", "unfit")])
    a, c = (cluster.agent(name, "2", nproc=1) for name in "ac")
    assert [cluster.rank(rank, 0, 1)[1] for rank in range(2)] == [2, 2]
    formed = cluster.wait_until(lambda: holdfast.events("RoundFormed"))
    assert sorted(formed[0]["nodes"]) == ["a", "c"]
    (excluded,) = cluster.wait_until(lambda: holdfast.events("NodeExcluded"))
    assert (excluded["name"], excluded["by"]) == ("b", "itself") and "it hangs on broken" in excluded["reason"]
    cluster.wait_until(lambda: "spare (excluded: command=echo it hangs on broken" in holdfast.run("status").stdout)
    broken.unlink()  # somebody has mended it
    cluster.wait_until(lambda: holdfast.events("NodeReadmitted"))
    cluster.finish()
    assert [agent.wait().returncode for agent in (a, b, c)] == [0, 0, 0]


def test_a_job_of_one_unfit_node_ends_at_once_and_says_why(holdfast, script):
    done = holdfast("run", "--check-before", "memory,command=echo no fan; exit 1", script(PRINTS))
    assert done.returncode == 1 and done.stdout == ""
    assert "this node is unfit, and the job has no other: command=echo no fan; exit 1: exit code 1: no fan" in done.stderr


def test_a_degraded_node_takes_part_and_says_so(holdfast, script):
    done = holdfast("run", "--check-before", "command=echo a fan is slow; exit 3", script(PRINTS))
    assert (done.returncode, done.stdout) == (0, "endpoint None\n")
    assert "health: command=echo a fan is slow; exit 3: degraded: exit code 3: a fan is slow" in done.stderr


def test_a_check_that_does_not_exist_is_an_error_before_anything_starts(holdfast, script):
    done = holdfast("run", "--check-before", "memry", script(PRINTS))
    assert done.returncode == 2 and "did you mean memory?" in done.stderr and not done.stdout


def test_a_check_that_hangs_costs_a_start_its_deadline_and_no_more(holdfast, script, tmp_path):
    if reason := fuse.why_not():
        pytest.skip(reason)
    (tmp_path / "silent").mkdir()
    mount = fuse.SilentMount(tmp_path / "silent", deaf=True)
    try:
        done = holdfast("run", "--check-before", f"paths={mount.path}", script(PRINTS))
    finally:
        mount.close()
    assert done.returncode == 1 and f"{mount.path}: no answer within 5 s" in done.stderr


# --- after a failure, and while ranks run ---------------------------------------------------------------------------------


def test_after_a_failure_more_is_checked_and_the_node_that_failed_it_is_left_out(cluster, holdfast, tmp_path):
    options = ("2", "--max-restarts", 3, "--check-after")
    suspect = f"command=echo GPU 0 is lost; test ! -e {tmp_path}/lost-$HOLDFAST_TEST_NODE"
    agents = {name: cluster.agent(name, *options, suspect, nproc=1, env={"HOLDFAST_TEST_NODE": name}) for name in "ab"}
    pids = [cluster.rank(rank, 0, 1)[0] for rank in range(2)]
    agents["c"] = cluster.agent("c", *options, suspect, nproc=1, env={"HOLDFAST_TEST_NODE": "c"})
    cluster.wait_until(lambda: len(holdfast.events("NodeJoined")) == 3)
    nodes = holdfast.events("RoundFormed")[0]["nodes"]
    victim = nodes[1] if nodes[1] != cluster.host() else nodes[0]
    (tmp_path / f"lost-{victim}").touch()
    os.kill(pids[nodes.index(victim)], signal.SIGKILL)
    cluster.wait_until(lambda: changed(holdfast, victim) == [("fit", "unfit")])
    rounds = lambda: [e["nodes"] for e in holdfast.events("RoundFormed") if e["round"] > 1 and victim not in e["nodes"]]
    formed = cluster.wait_until(rounds)
    assert len(formed[0]) == 2
    cluster.finish()
    for agent in agents.values():
        agent.wait()


def test_a_node_that_becomes_unfit_while_it_trains_is_left_out(cluster, holdfast, tmp_path):
    broken = tmp_path / "broken"
    during = ("--check-every", "0.2", "--check-during")
    a = cluster.agent("a", "2", nproc=1)
    b = cluster.agent("b", "2", *during, breaks_when(broken), nproc=1)
    cluster.rank(0, 0, 1)
    c = cluster.agent("c", "2", nproc=1)
    cluster.wait_until(lambda: len(holdfast.events("NodeJoined")) == 3)
    broken.touch()
    assert [cluster.rank(rank, 0, 2)[1] for rank in range(2)] == [2, 2]
    formed = cluster.wait_until(lambda: [e for e in holdfast.events("RoundFormed") if e["round"] == 2])
    assert sorted(formed[0]["nodes"]) == ["a", "c"]
    (excluded,) = cluster.wait_until(lambda: holdfast.events("NodeExcluded"))  # of another agent than the first RoundFormed
    assert (excluded["name"], excluded["by"]) == ("b", "itself")
    broken.unlink()
    cluster.wait_until(lambda: holdfast.events("NodeReadmitted"))
    cluster.finish()
    assert [agent.wait().returncode for agent in (a, b, c)] == [0, 0, 0]


def test_an_unfit_node_that_the_job_cannot_do_without_goes_on_and_says_so(holdfast, script, tmp_path, wait_until):
    broken, folder = tmp_path / "broken", tmp_path / "ranks"
    folder.mkdir()
    options = ("--check-during", breaks_when(broken), "--check-every", "0.2")
    running = holdfast.start("run", *options, script(WAITS), folder)
    wait_until(lambda: (folder / "0.0.1").exists())
    broken.touch()
    running.wait_for_output("the job cannot go on without it")
    (folder / "finish").touch()
    assert running.wait().returncode == 0


TOUCHES = """
import os
def touches(look):
    os.listdir(os.environ["DEAF_MOUNT"])
"""


def test_a_check_that_sleeps_in_the_kernel_is_named_once_and_the_job_goes_on(holdfast, script, tmp_path, wait_until, alive):
    if reason := fuse.why_not():
        pytest.skip(reason)
    script(TOUCHES, "touching.py")
    info = tmp_path / "touching-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: touching\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[holdfast.checks]\ntouching = touching:touches\n")
    (tmp_path / "deaf").mkdir()
    folder = tmp_path / "ranks"
    folder.mkdir()
    mount = fuse.SilentMount(tmp_path / "deaf", deaf=True)
    try:
        counted = f"command=echo >> {tmp_path}/count"
        options = ("--check-during", f"touching,{counted}", "--check-every", "0.2")
        env = {"PYTHONPATH": str(tmp_path), "DEAF_MOUNT": mount.path}
        running = holdfast.start("run", *options, script(WAITS), folder, env=env)
        running.wait_for_output("cannot be killed (state D")
        before = (tmp_path / "count").stat().st_size
        wait_until(lambda: (tmp_path / "count").stat().st_size > before + 5, what="five more looks")
        asleep = lambda: [pid for pid in alive() if process.state(pid) == "D"]
        wait_until(lambda: len(asleep()) == 1, what="it alone: others are so for a moment, a second one stays")
        assert running.stderr.count("cannot be killed") == 1
        (folder / "finish").touch()
        wait_until(lambda: holdfast.events("JobEnded"))
    finally:
        mount.close()
    assert running.wait().returncode == 0


def test_at_the_end_a_check_that_sleeps_in_the_kernel_is_left_there_and_named(holdfast, script, tmp_path, wait_until):
    if reason := fuse.why_not():
        pytest.skip(reason)
    (tmp_path / "deaf").mkdir()
    folder = tmp_path / "ranks"
    folder.mkdir()
    mount = fuse.SilentMount(tmp_path / "deaf", deaf=True)
    try:
        running = holdfast.start("run", "--check-during", f"paths={mount.path}", "--check-every", "0.2", script(WAITS), folder)
        wait_until(lambda: mount.asked)
        (folder / "finish").touch()
        done = running.wait()  # the mount is as silent as before
        (said,) = [line for line in done.stderr.splitlines() if "left to the kernel" in line]
        left = int(said.partition(": pid ")[2].split()[0])
        assert process.state(left) == "D" and "state D" in said
    finally:
        mount.close()
    assert done.returncode == 0


# --- ft_launcher's flags --------------------------------------------------------------------------------------------------


def test_ft_launcher_s_storage_paths_are_read_before_a_round(holdfast, script, tmp_path):
    asked = ("--ft-storage-health-check-path", f"{tmp_path},{tmp_path}/gone")
    done = holdfast("ft_launcher", *asked, script(PRINTS))
    assert done.returncode == 1 and f"{tmp_path}/gone: No such file or directory" in done.stderr
    (tmp_path / "gone").write_text("here")
    assert holdfast("ft_launcher", *asked, script(PRINTS)).returncode == 0


def test_ft_launcher_s_distributed_storage_is_checked_before_a_round(holdfast, script, tmp_path):
    host = CheckedHost(tmp_path / "host")
    host.put("sys/fs/lustre/health_check", "NOT HEALTHY\n")
    env = {"HOLDFAST_CHECK_ROOT": str(host.root)}
    done = holdfast("ft_launcher", "--ft-enable-dist-storage-healthcheck", "true", script(PRINTS), env=env)
    assert done.returncode == 1 and "Lustre says of itself: NOT HEALTHY" in done.stderr
    host.put("sys/fs/lustre/health_check", "healthy\n")
    assert holdfast("ft_launcher", "--ft-enable-dist-storage-healthcheck", "true", script(PRINTS), env=env).returncode == 0


def test_ft_launcher_s_segment_health_is_looked_at_before_a_round(holdfast, script, tmp_path):
    env = {"SLURM_ARRAY_JOB_ID": "123", "SLURM_ARRAY_TASK_ID": "7"}
    asked = ("--ft-segment-health-check-dir", tmp_path)
    assert holdfast("ft_launcher", *asked, script(PRINTS), env=env).returncode == 0
    (tmp_path / "segment_health_check.123.7").write_text("node07,DRAIN\n")
    done = holdfast("ft_launcher", *asked, script(PRINTS), env=env)
    assert done.returncode == 1 and "unhealthy" in done.stderr and "node07,DRAIN" in done.stderr


def test_ft_launcher_s_nic_checks(holdfast, script, tmp_path):
    host = CheckedHost(tmp_path / "host")
    host.nic(state="1: DOWN")
    env = {"HOLDFAST_CHECK_ROOT": str(host.root)}
    done = holdfast("ft_launcher", "--ft-enable-nic-healthcheck", "true", script(PRINTS), env=env)
    assert done.returncode == 1 and "none of 1 ports is active" in done.stderr
    host.put("state/mlx5_0", "4: ACTIVE\n")
    template = ("--ft-link-state-path-template", "/state/{nic}")
    assert holdfast("ft_launcher", "--ft-enable-nic-healthcheck", "true", *template, script(PRINTS), env=env).returncode == 0


def test_the_health_service_s_endpoint_is_told_to_the_ranks(holdfast, script):
    done = holdfast("ft_launcher", "--ft-node-health-check-endpoint", "/run/nobody.sock", script(PRINTS))
    assert (done.returncode, done.stdout) == (0, "endpoint /run/nobody.sock\n"), done.stderr


# --- holdfast check -------------------------------------------------------------------------------------------------------


def test_check_shows_a_table_and_its_exit_code_is_the_verdict(holdfast, tmp_path):
    host = CheckedHost(tmp_path / "host")
    well = holdfast("check", "--root", host.root)
    assert well.returncode == 0 and "this node is fit" in well.stdout, well.output
    host.say("NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', GPU has fallen off the bus.")
    ill = holdfast("check", "xid", "memory", "--root", host.root)
    assert ill.returncode == 1 and "this node is unfit" in ill.stdout and "restart the host" in ill.stdout
    plain = json.loads(holdfast("check", "xid", "memory", "--root", host.root, "--json").stdout)
    (verdicts,) = plain["nodes"].values()
    assert plain["state"] == "unfit" and [one["state"] for one in verdicts] == ["unfit", "fit"]
    for wrong in (("nothing",), ("memory", "--deadline", "0"), ("memory", "--root", host.root / "gone"), ("paths=data",)):
        assert holdfast("check", *wrong).returncode == 2
    together = holdfast("check", "--job", "several", "--deadline", "5")
    assert together.returncode == 2 and "--deadline and --job do not go together" in together.stderr


def test_a_deadline_of_one_s_own(holdfast):
    done = holdfast("check", "command=sleep 100", "--deadline", "0.5")
    assert done.returncode == 1 and "no answer within 0.5 s" in done.stdout


def test_all_nodes_of_a_running_job_are_checked_through_its_agents(cluster, holdfast, tmp_path):
    own = "command=echo all is well"
    agents = [cluster.agent(name, "3", "--check-before", own, nproc=1) for name in "abc"]
    for rank in range(3):
        cluster.rank(rank, 0, 1)
    done = holdfast("check", "--job", "several", "--json", "memory", own)
    nodes = json.loads(done.stdout)["nodes"]
    assert done.returncode == 0 and list(nodes) == ["a", "b", "c"], done.output
    assert {tuple((one["check"], one["state"]) for one in said) for said in nodes.values()} == {
        (("memory", "fit"), (own, "fit"))
    }
    cluster.wait_until(lambda: holdfast("check", "--job", "several", "clock").stdout.count("most other nodes (±") == 3)
    ill = holdfast("check", "--job", "several", f"paths={tmp_path}:{tmp_path}/gone")
    assert ill.returncode == 1 and ill.stdout.count("gone: No such file or directory") == 3
    assert not holdfast.events("NodeExcluded") and not holdfast.events("HealthChanged"), "it was only a question"
    refused = holdfast("check", "--job", "several", "nothing")
    assert refused.returncode == 2 and "there is no check 'nothing'" in refused.stderr
    cluster.finish()
    for agent in agents:
        assert agent.wait().returncode == 0


def test_no_node_runs_a_command_at_another_s_word(cluster, holdfast, tmp_path):
    agents = [cluster.agent(name, nproc=1) for name in "ab"]
    for rank in range(2):
        cluster.rank(rank, 0, 1)
    done = holdfast("check", "--job", "several", f"command=touch {tmp_path}/run")
    assert done.stdout.count("not run at another node's request") == 2 and not (tmp_path / "run").exists(), done.output
    cluster.finish()
    for agent in agents:
        assert agent.wait().returncode == 0

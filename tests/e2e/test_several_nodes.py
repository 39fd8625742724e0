"""Do several agents make one job? Two agents on this host, over real sockets."""

from __future__ import annotations

import json
import os
import signal

import pytest
from kit.jobs.ranks import WAITS, Cluster, agent_pid


@pytest.fixture
def cluster(holdfast, free_port, tmp_path, script, wait_until) -> Cluster:
    return Cluster(holdfast, free_port, tmp_path / "ranks", script(WAITS), wait_until)


def test_two_agents_form_one_world(cluster):
    a, b = cluster.agent("a"), cluster.agent("b")
    worlds = {cluster.rank(rank, 0, 1)[1:] for rank in range(4)}
    assert len(worlds) == 1 and worlds.pop()[0] == 4
    cluster.finish()
    assert (a.wait().returncode, b.wait().returncode) == (0, 0)


@pytest.mark.parametrize("victim", [0, 3])
def test_a_failure_on_one_node_restarts_both_on_a_fresh_port(cluster, victim):
    a, b = cluster.agent("a", "2", "--max-restarts", 1), cluster.agent("b", "2", "--max-restarts", 1)
    pid, _, port = cluster.rank(victim, 0, 1)
    for rank in range(4):
        cluster.rank(rank, 0, 1)
    os.kill(pid, signal.SIGKILL)
    assert all(cluster.rank(rank, 1, 2)[2] != port for rank in range(4))
    cluster.finish()
    assert (a.wait().returncode, b.wait().returncode) == (0, 0)
    for agent in (a, b):
        assert f"rank {victim} (local {victim % 2})" in agent.stderr and "SIGKILL" in agent.stderr


def test_the_coordinator_s_host_shows_every_node_on_request(cluster, holdfast):
    agents = [cluster.agent("a", "1:2")]
    cluster.host()
    agents += [cluster.agent(name, "1:2") for name in "bc"]
    for rank in range(4):
        cluster.rank(rank, 0, 1)

    def shown() -> list[list[str]]:
        rows = [row.split() for row in holdfast.run("status", "--nodes").stdout.splitlines()]
        return rows if [row[1] for row in rows] == ["STATE", "running", "running", "ready"] else []

    rows = cluster.wait_until(shown, what="the spare's row")
    assert rows[0] == ["NODE", "STATE", "GROUP", "RANK", "RANKS"]
    assert rows[1] == ["a", "running", "0", "0-1"]
    assert rows[2][2:] == ["1", "2-3"] and rows[3][2:] == ["-", "-"]
    cluster.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0, 0]
    ended = holdfast.run("status", "--nodes")
    assert ended.returncode == 1 and "ask on the coordinator's host" in ended.stderr


def test_the_budget_is_the_job_s_and_not_each_agent_s(cluster, holdfast):
    options = ("2", "--max-restarts", 1)
    a, b = cluster.agent("a", *options), cluster.agent("b", *options)
    for rank in range(4):
        cluster.rank(rank, 0, 1)
    os.kill(cluster.rank(0, 0, 1)[0], signal.SIGKILL)
    for rank in range(4):
        cluster.rank(rank, 1, 2)
    os.kill(cluster.rank(3, 1, 2)[0], signal.SIGKILL)
    assert (a.wait().returncode, b.wait().returncode) == (1, 1)


def test_both_nodes_print_the_same_first_failure(cluster, holdfast):
    a, b = cluster.agent("a"), cluster.agent("b")
    for rank in range(4):
        cluster.rank(rank, 0, 1)
    os.kill(cluster.rank(2, 0, 1)[0], signal.SIGKILL)
    ends = [agent.wait() for agent in (a, b)]
    assert [end.returncode for end in ends] == [1, 1]
    boxes = [end.stderr[end.stderr.index("holdfast: job several failed") :] for end in ends]
    assert boxes[0] == boxes[1]
    report = json.loads((holdfast.jobs()[-1] / "report.json").read_text())
    assert (report["failures"][0]["rank"], report["failures"][0]["signal"]) == (2, "SIGKILL")


def test_of_two_failures_on_two_nodes_every_node_names_the_one_first_that_was_heard_of_first(cluster, holdfast):
    agents = {"a": cluster.agent("a"), "b": cluster.agent("b")}
    for rank in range(4):
        cluster.rank(rank, 0, 1)
    host = cluster.host()
    other = "b" if host == "a" else "a"
    rank_of = {event["node"]: event["rank"] for event in cluster.started(4)}
    asleep = agent_pid(holdfast, other)
    os.kill(asleep, signal.SIGSTOP)  # its own rank dies first, and is heard of last
    try:
        for node in (other, host):
            os.kill(cluster.rank(rank_of[node], 0, 1)[0], signal.SIGKILL)
        cluster.wait_until(lambda: holdfast.events("WorkerExited"), what="the first failure")
    finally:
        os.kill(asleep, signal.SIGCONT)
    ends = {name: agent.wait() for name, agent in agents.items()}
    boxes = [end.stderr[end.stderr.index("holdfast: job several failed") :] for end in ends.values()]
    assert boxes[0] == boxes[1]
    failures = json.loads((holdfast.jobs()[-1] / "report.json").read_text())["failures"]
    assert [failure["rank"] for failure in failures[:2]] == [rank_of[host], rank_of[other]], failures


def test_a_lost_node_s_replacement_is_taken_in_and_spends_no_restart(cluster, holdfast):
    agents = {name: cluster.agent(name, "2", "--max-restarts", 0) for name in ("a", "b")}
    for rank in range(4):
        cluster.rank(rank, 0, 1)
    host = cluster.host()
    lost = "b" if host == "a" else "a"
    os.kill(agent_pid(holdfast, lost), signal.SIGKILL)
    replacement = cluster.agent("c", "2", "--max-restarts", 0)
    assert {cluster.rank(rank, 0, 2)[1] for rank in range(4)} == {4}
    cluster.finish()
    assert (agents[host].wait().returncode, replacement.wait().returncode) == (0, 0)
    assert agents[lost].wait().returncode != 0


def test_a_job_within_min_and_max_shrinks_and_grows(cluster, holdfast):
    a = cluster.agent("a", "1:2", "--rdzv-conf", "last_call_timeout=1")
    assert cluster.rank(0, 0, 1)[1] == 2
    b = cluster.agent("b", "1:2")
    assert {cluster.rank(rank, 0, 2)[1] for rank in range(4)} == {4}
    os.kill(agent_pid(holdfast, "b"), signal.SIGKILL)
    assert {cluster.rank(rank, 0, 3)[1] for rank in range(2)} == {2}
    b.wait()
    cluster.finish()
    assert a.wait().returncode == 0


SAVES_WHEN_TOLD = """
import os, sys
from holdfast.client import section
folder, rank, round = sys.argv[1], os.environ["RANK"], os.environ["HOLDFAST_ROUND"]
name = f"{folder}/{rank}.{os.environ['TORCHELASTIC_RESTART_COUNT']}.{round}"
open(name + ".tmp", "w").write(f"{os.getpid()} {os.environ['WORLD_SIZE']} {os.environ['MASTER_PORT']}")
os.rename(name + ".tmp", name)
import time
while not os.path.exists(f"{folder}/finish"):
    if rank == "0" and os.path.exists(f"{folder}/save"):
        with section("checkpoint"):
            os.unlink(f"{folder}/save")
    time.sleep(0.02)
"""


def test_a_job_grows_when_a_checkpoint_has_been_written(cluster, script, wait_until):
    cluster.program = script(SAVES_WHEN_TOLD)
    grows = ("--grow", "at-checkpoint", "--grow-after", 0, "--rdzv-conf", "last_call_timeout=0.1")
    a = cluster.agent("a", "1:2", *grows)
    cluster.rank(0, 0, 1)
    b = cluster.agent("b", "1:2", *grows)
    wait_until(lambda: len(cluster.holdfast.events("NodeJoined")) == 2, what="b is there")
    (cluster.folder / "save").touch()
    assert {cluster.rank(rank, 0, 2)[1] for rank in range(4)} == {4}
    cluster.finish()
    assert (a.wait().returncode, b.wait().returncode) == (0, 0)
    assert cluster.holdfast.events("Decided")[0]["reason"] == "b joined, and a checkpoint has been written"


def test_a_leaving_agent_says_so_and_is_not_waited_for(cluster, holdfast):
    a = cluster.agent("a", "1:2", "--rdzv-conf", "last_call_timeout=60")
    cluster.wait_until(lambda: holdfast.events("NodeJoined"))
    b = cluster.agent("b", "1:2")
    for rank in range(4):
        cluster.rank(rank, 0, 1)
    b.kill(signal.SIGTERM)
    assert cluster.rank(0, 0, 2)[1] == 2
    assert b.wait().returncode == 1
    cluster.finish()
    assert a.wait().returncode == 0
    assert [event["name"] for event in holdfast.events("NodeLeft")] == ["b"]


def test_a_surplus_agent_waits_and_ends_with_zero(cluster, holdfast):
    a, b = cluster.agent("a"), cluster.agent("b")
    for rank in range(4):
        cluster.rank(rank, 0, 1)
    c = cluster.agent("c")
    cluster.wait_until(lambda: len(holdfast.events("NodeJoined")) == 3)
    cluster.finish()
    assert [agent.wait().returncode for agent in (a, b, c)] == [0, 0, 0]


def test_sigterm_to_the_hosting_agent_ends_the_job_on_every_node(cluster, holdfast):
    agents = {"a": cluster.agent("a"), "b": cluster.agent("b")}
    for rank in range(4):
        cluster.rank(rank, 0, 1)
    host = cluster.host()
    agents[host].kill(signal.SIGTERM)
    for agent in agents.values():
        assert agent.wait().returncode == 1
        assert "received SIGTERM" in agent.stderr


def test_when_the_hosting_agent_is_lost_the_others_say_so_and_end(cluster, holdfast):
    agents = {name: cluster.agent(name, "2", "--lease", 2) for name in ("a", "b")}
    for rank in range(4):
        cluster.rank(rank, 0, 1)
    host = cluster.host()
    os.kill(agent_pid(holdfast, host), signal.SIGKILL)
    other = agents["b" if host == "a" else "a"]
    assert other.wait(90).returncode == 1
    assert f"localhost:{cluster.port}" in other.stderr


def test_static_ranks_are_those_given(holdfast, free_port, tmp_path, script):
    program = script("import os; print(os.environ['GROUP_RANK'], os.environ['RANK'], os.environ['MASTER_PORT'])")
    nodes = [
        holdfast.start(
            *("run", "--nnodes", 2, "--nproc-per-node", 1, "--node-rank", rank, "--rdzv-id", "static"),
            *("--master-addr", "127.0.0.1", "--master-port", free_port, "--node-name", f"n{rank}", program),
        )
        for rank in (1, 0)
    ]
    ends = [node.wait() for node in nodes]
    assert [end.returncode for end in ends] == [0, 0]
    assert [end.stdout.split() for end in ends] == [["1", "1", str(free_port)], ["0", "0", str(free_port)]]


@pytest.fixture
def apart(holdfast, free_port, tmp_path, wait_until):
    """`apart(program)`: the agents of two nodes with given ranks, the first one of which hosts. Neither sees the other's
    record: `apart.seen(0, "JobEnded")`."""
    (tmp_path / "ranks").mkdir()

    def seen(rank: int, event: str) -> list[dict[str, int]]:
        lines = [line for path in (tmp_path / f"n{rank}").rglob(f"events-n{rank}.jsonl") for line in path.open()]
        return [json.loads(line) for line in lines if f'"{event}"' in line and line.endswith("\n")]

    def start(program):
        agents = []
        for rank in (0, 1):
            agents.append(
                holdfast.start(
                    *("run", "--nnodes", 2, "--nproc-per-node", 1, "--node-rank", rank, "--rdzv-id", "static"),
                    *("--master-addr", "127.0.0.1", "--master-port", free_port, "--node-name", f"n{rank}"),
                    *(program, tmp_path / "ranks"),
                    env={"HOLDFAST_STATE_DIR": str(tmp_path / f"n{rank}")},
                )
            )
            wait_until(lambda rank=rank: seen(rank, "AgentStarted"), what="its first line")
        return agents

    start.seen = seen
    return start


def test_with_static_ranks_every_node_is_told_the_failure_that_ends_the_job(apart, script):
    agents = apart(script("import os, time; time.sleep(60) if os.environ['RANK'] == '0' else os._exit(7)"))
    assert [agent.wait().returncode for agent in agents] == [1, 1]
    assert all("job static failed: rank 1 (local 0) on n1 exited with code 7" in agent.stderr for agent in agents)


def test_with_static_ranks_a_node_that_is_asleep_as_the_job_ends_is_waited_for_and_told(
    apart, tmp_path, script, wait_until, holdfast
):
    agents = apart(script(ONE_STAYS))
    wait_until(lambda: apart.seen(1, "WorkerExited"), what="the end of its part")
    status = holdfast.run("status", "--json", env={"HOLDFAST_STATE_DIR": str(tmp_path / "n1")})
    assert json.loads(status.stdout)["nodes"][0]["answers"], "who answers has told the other what it has recorded"
    asleep = apart.seen(1, "AgentStarted")[0]["pid"]
    os.kill(asleep, signal.SIGSTOP)
    try:
        (tmp_path / "ranks" / "finish").touch()
        wait_until(lambda: apart.seen(0, "JobEnded"), what="the end of the job")
        assert agents[0].process.poll() is None, "it waits for the other"
    finally:
        os.kill(asleep, signal.SIGCONT)
    assert [agent.wait().returncode for agent in agents] == [0, 0], [agent.stderr for agent in agents]


def test_a_wrong_token_is_turned_away_and_costs_the_job_nothing(cluster, holdfast, tmp_path):
    a = cluster.holdfast.start  # the first agent has the token, a stranger another
    common = (
        *("--nnodes", 1, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{cluster.port}", "--rdzv-id", "several"),
        *(cluster.program, cluster.folder),
    )
    job = a("run", *common, env={"HOLDFAST_TOKEN": "right"})
    cluster.rank(0, 0, 1)
    stranger = a("run", "--rdzv-conf", "join_timeout=5", *common, env={"HOLDFAST_TOKEN": "wrong"})
    assert stranger.wait().returncode == 1
    assert "token" in stranger.stderr
    cluster.finish()
    assert job.wait().returncode == 0
    assert "turned away a connection" in job.stderr


def test_an_operator_excludes_a_node_a_spare_takes_its_place_and_it_can_come_back(cluster, holdfast):
    agents = {"a": cluster.agent("a", nproc=1)}
    cluster.wait_until(lambda: "joining: waiting for nodes: 1 of 2 are ready (a)" in holdfast.run("status").stdout)
    agents["b"] = cluster.agent("b", nproc=1)
    assert [cluster.rank(rank, 0, 1)[1] for rank in range(2)] == [2, 2]
    agents["c"] = cluster.agent("c", nproc=1)
    cluster.wait_until(lambda: "this node waits as a spare: the job has its 2 nodes" in agents["c"].stderr)
    said = holdfast.run("exclude", "b", "--reason", "its fan is broken")
    assert (said.returncode, said.stdout) == (0, "b is excluded: the ranks are restarted without it\n"), said.stderr
    assert [cluster.rank(rank, 0, 2)[1] for rank in range(2)] == [2, 2]
    second = lambda: [event["nodes"] for event in holdfast.events("RoundFormed") if event["round"] == 2]
    nodes = cluster.wait_until(second, what="the record of round 2")  # a rank may run before its agent has written its own
    assert sorted(nodes[0]) == ["a", "c"]
    cluster.wait_until(lambda: "spare (excluded: its fan is broken" in holdfast.run("status").stdout)
    status, why = holdfast.run("status").stdout, holdfast.run("why").stdout
    assert "excluded  b: its fan is broken (`holdfast exclude`) (operator" in status
    assert "  exclude\n    b: its fan is broken" in why and "b is excluded: its fan is broken" in why
    needed = holdfast.run("exclude", "c")
    assert needed.returncode == 1 and "the job cannot go on without it" in needed.stderr
    assert holdfast.run("readmit", "b").stdout == "b may take part again\n"
    cluster.wait_until(lambda: "\nexcluded " not in holdfast.run("status").stdout, what="it to be known")
    os.kill(agent_pid(holdfast, "c"), signal.SIGTERM)  # and is needed again
    assert [cluster.rank(rank, 0, 3)[1] for rank in range(2)] == [2, 2]
    cluster.finish()
    assert [agents[name].wait().returncode for name in "ab"] == [0, 0]


IN_PLACE = f"""
from holdfast import client
source = {WAITS!r}.replace("time.sleep(0.02)", "client.heartbeat(), time.sleep(0.02)")
client.run_in_place(lambda life: exec(source, globals()))
"""


def test_a_process_whose_node_was_excluded_is_told_of_the_larger_world_that_it_comes_back_to(cluster, script, holdfast):
    """Meanwhile warm spares are made there, for the largest world that there may be: what they are given is not what it has."""
    cluster.program = script(IN_PLACE)
    agents = [cluster.agent(name, "2:3", "--max-restarts", 1, "--grow", "next-failure", nproc=1) for name in "ab"]
    pids = [cluster.rank(rank, 0, 1)[0] for rank in range(2)]
    [other] = [name for name in "ab" if name != cluster.host()]
    agents.append(cluster.agent("c", "2:3", "--max-restarts", 1, "--grow", "next-failure", nproc=1))
    spares = lambda: [event for event in holdfast.events("SpareReady") if event["node"] == "c"]
    cluster.wait_until(spares, what="c, which waits, to be told what is imported, as any that waits from now on")
    assert holdfast.run("exclude", other).returncode == 0
    second = [cluster.rank(rank, 0, 2) for rank in range(2)]
    assert [world for _, world, _ in second] == [2, 2]
    assert holdfast.run("readmit", other).returncode == 0
    [of_c] = {pid for pid, _, _ in second} - {*pids}
    os.kill(of_c, signal.SIGKILL)
    told = [cluster.rank(rank, 1, 3) for rank in range(3)]
    assert [world for _, world, _ in told] == [3, 3, 3] and {*pids} < {pid for pid, _, _ in told}
    cluster.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0, 0]


ONE_STAYS = """
import os, sys, time
folder, rank = sys.argv[1], os.environ["RANK"]
open(f"{folder}/{rank}.{os.getpid()}", "w").close()
while rank == "0" and not os.path.exists(f"{folder}/finish"):
    time.sleep(0.02)
"""


def test_a_run_that_is_started_while_the_last_one_s_end_is_told_is_a_run_of_its_own(cluster, tmp_path, script, wait_until):
    cluster.program, elsewhere = script(ONE_STAYS), tmp_path / "elsewhere"
    away = {"HOLDFAST_STATE_DIR": str(elsewhere)}
    first = cluster.agent("a", nproc=1)
    assert cluster.host() == "a"
    cluster.agent("b", nproc=1, env=away)

    def at_b() -> str:
        return "".join(path.read_text() for path in elsewhere.rglob("events-b.jsonl"))

    def ran() -> int:
        return len([path for path in cluster.folder.iterdir() if path.name[0] in "01"])

    wait_until(lambda: '"WorkerExited"' in at_b(), what="the end of b's part")
    asleep = next(json.loads(line)["pid"] for line in at_b().splitlines() if '"AgentStarted"' in line)
    os.kill(asleep, signal.SIGSTOP)  # it does not hear of the end, so the other stays for a while
    try:
        cluster.finish()
        wait_until(lambda: cluster.holdfast.events("JobEnded"), what="the first run's end")
        assert ran() == 2 and first.process.poll() is None
        second = cluster.agent("a", nproc=1), cluster.agent("c", nproc=1, env=away)
        assert [agent.wait().returncode for agent in second] == [0, 0]
        assert ran() == 4, "the second run has had ranks of its own"
    finally:
        os.kill(asleep, signal.SIGKILL)


@pytest.mark.parametrize("is_lost", [False, True], ids=["was still counted on", "had been given up"])
def test_a_spare_that_slept_through_the_end_hears_it_or_gives_up_soon_and_says_what_is_likely(cluster, tmp_path, is_lost):
    elsewhere = tmp_path / "elsewhere"
    lease = ("--lease", 2 if is_lost else 30)  # which is not over before the job is, however slow its end
    agents = [cluster.agent(name, "2", *lease, nproc=1) for name in "ab"]
    cluster.rank(1, 0, 1)
    spare = cluster.agent("c", "2", *lease, nproc=1, env={"HOLDFAST_STATE_DIR": str(elsewhere), "LOGLEVEL": "DEBUG"})
    spare.wait_for_output("the 3 nodes choose another")
    started = lambda: [line for path in elsewhere.rglob("events-c.jsonl") for line in path.open() if '"AgentStarted"' in line]
    asleep = json.loads(cluster.wait_until(started, what="its record")[0])["pid"]
    os.kill(asleep, signal.SIGSTOP)
    try:
        if is_lost:
            cluster.wait_until(lambda: cluster.holdfast.events("NodeLost"), what="the end of its lease")
        cluster.finish()
        assert [agent.wait().returncode for agent in agents] == [0, 0]
    finally:
        os.kill(asleep, signal.SIGCONT)
    assert spare.wait().returncode == int(is_lost)
    assert ("most likely this node, a spare, was cut off as it ended" in spare.stderr) == is_lost


def test_a_node_that_was_cut_off_at_the_end_is_told_it_by_the_next_run_and_takes_no_part_in_that(cluster, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    first = [cluster.agent("a", nproc=1)]
    assert cluster.host() == "a"
    first.append(cluster.agent("b", nproc=1))
    cluster.rank(1, 0, 1)
    spare = cluster.agent("c", nproc=1, env={"HOLDFAST_STATE_DIR": str(elsewhere)})
    joined = lambda: any(event["name"] == "c" for event in cluster.holdfast.events("NodeJoined"))
    cluster.wait_until(joined, what="the spare")
    started = lambda: [line for path in elsewhere.rglob("events-c.jsonl") for line in path.open() if '"AgentStarted"' in line]
    asleep = json.loads(cluster.wait_until(started, what="its record")[0])["pid"]
    os.kill(asleep, signal.SIGSTOP)
    try:
        cluster.finish()
        assert [agent.wait().returncode for agent in first] == [0, 0]
        second = [cluster.agent("a", nproc=1)]
        cluster.wait_until(lambda: len(cluster.holdfast.jobs()) == 2, what="the next run")
    finally:
        os.kill(asleep, signal.SIGCONT)
    assert spare.wait().returncode == 0, "as its own run has ended"
    second.append(cluster.agent("b", nproc=1))
    assert [agent.wait().returncode for agent in second] == [0, 0]
    assert "no longer leads the job" not in second[0].stderr
    reports = [json.loads((job / "report.json").read_text()) for job in cluster.holdfast.jobs()]
    assert [(report["rounds"], report["nodes"]) for report in reports] == [(1, ["a", "b"])] * 2

"""Does a job outlive the agent that leads it, and the store that elects it? A real etcd, real agents."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.jobs.ranks import WAITS, Ranks, agent_pid
from kit.servers import etcd as infra

pytestmark = infra.NEEDED

LONG = ("--lease", 30)
"""For jobs that are not to notice that etcd was away: longer than an etcd takes to start, or to elect a leader of its own."""


class Job(Ranks):
    """Agents of one job whose coordinator is elected by an etcd."""

    def __init__(self, holdfast: Any, folder: Path, program: Path, wait_until: Callable[..., Any]) -> None:
        super().__init__(folder, wait_until)
        self.holdfast, self.program = holdfast, program
        self.store: infra.Etcd
        self.id = folder.parent.name

    def agent(self, name: str, nnodes: str = "2", *options: object, env: dict[str, str] | None = None) -> Any:
        return self.holdfast.start(
            "run",
            *("--nnodes", nnodes, "--nproc-per-node", 1, "--node-name", name, "--rdzv-id", self.id),
            *("--rdzv-backend", "etcd", "--rdzv-endpoint", self.store.endpoints, "--lease", 2, "--monitor-interval", 1),
            *options,
            *(self.program, self.folder),
            env={"LOGLEVEL": "INFO"} | (env or {}),
        )

    def key(self, name: str) -> dict[str, Any] | None:
        return self.store.get(f"/holdfast/{self.id}/{name}")

    def keeps(self, **wanted: int) -> None:
        """Until etcd has it: the leader has it written beside the round, which waits for no store."""
        kept = lambda: (self.key("state") or {"value": {}})["value"]
        self.wait_until(lambda: wanted.items() <= kept().items(), what=f"etcd to keep {wanted}")

    def two(self, nnodes: str = "2", *options: object) -> tuple[Any, Any]:
        """Two agents in round 1: the one that leads, and the one that follows."""
        first = self.agent("a", nnodes, *options)
        first.wait_for_output("this agent leads the job")
        second = self.agent("b", nnodes, *options)
        assert [self.rank(rank, 0, 1)[1] for rank in range(2)] == [2, 2]
        return first, second

    def ends_well(self, *agents: Any) -> None:
        self.finish()
        assert [agent.wait().returncode for agent in agents] == [0] * len(agents)

    def rounds(self) -> int:
        return max(event["round"] for event in self.holdfast.events("RoundFormed"))


@pytest.fixture
def lone_job(holdfast: Any, tmp_path: Path, script: Any, wait_until: Any) -> Job:
    return Job(holdfast, tmp_path / "ranks", script(WAITS), wait_until)


@pytest.fixture
def job(lone_job: Job, etcd: infra.Etcd) -> Job:
    lone_job.store = etcd
    return lone_job


# --- everyday ---------------------------------------------------------------------------------------------------------------


def test_two_agents_form_a_round_and_leave_nothing_in_etcd(job: Job) -> None:
    agents = job.two()
    leader = job.key("leader")
    assert leader is not None and leader["value"]["endpoint"].startswith("127.0.0.1:")
    job.keeps(round=1, members=2)
    job.ends_well(*agents)
    assert job.key("leader") is None and job.key("state") is None


def test_a_failure_restarts_both_nodes_and_etcd_knows(job: Job) -> None:
    agents = job.two("2", "--max-restarts", 1)
    os.kill(job.rank(1, 0, 1)[0], signal.SIGKILL)
    assert [job.rank(rank, 1, 2)[1] for rank in range(2)] == [2, 2]
    job.keeps(round=2, restarts=1)
    job.ends_well(*agents)


def test_a_surplus_agent_waits_as_a_spare(job: Job) -> None:
    agents = job.two()
    spare = job.agent("c")
    agents[0].wait_for_output("c waits as a spare")
    job.ends_well(*agents, spare)
    assert job.rounds() == 1


def test_the_command_line_of_pytorch_s_example_works_as_it_stands(job: Job) -> None:
    job.finish()
    flags = ("--nnode=1", "--nproc_per_node=2", f"--rdzv_endpoint={job.store.endpoints}")
    done = job.holdfast.run("run", *flags, job.program, job.folder, env={"PET_RDZV_BACKEND": "etcd", "PET_RDZV_ID": job.id})
    assert done.returncode == 0, done.output
    assert job.rank(1, 0, 1)[1] == 2


def test_everybody_is_told_the_failure_that_ends_the_job(job: Job) -> None:
    agents = *job.two("2", "--max-restarts", 0), job.agent("c", "2", "--max-restarts", 0)
    agents[0].wait_for_output("c waits as a spare")
    os.kill(job.rank(1, 0, 1)[0], signal.SIGKILL)
    assert [agent.wait().returncode for agent in agents] == [1, 1, 1]
    assert all("rank 1 (local 0) on " in agent.stderr and "was killed by SIGKILL" in agent.stderr for agent in agents)
    assert job.key("leader") is None and job.key("state") is None


def test_whoever_slept_through_the_end_is_told_it_by_etcd(job: Job, tmp_path: Path) -> None:
    agents = job.two()
    spare = job.agent("c", env={"HOLDFAST_STATE_DIR": str(tmp_path / "elsewhere")})
    agents[0].wait_for_output("c waits as a spare")
    started = lambda: [line for path in (tmp_path / "elsewhere").rglob("events-c.jsonl") for line in path.open()]
    asleep = json.loads(job.wait_until(started, what="its record")[0])["pid"]
    os.kill(asleep, signal.SIGSTOP)
    try:
        job.wait_until(lambda: job.holdfast.events("NodeLost"), what="the spare to be missed")
        job.ends_well(*agents)
        state = job.key("state")
        assert state is not None and state["value"]["report"]["outcome"] == "succeeded", "etcd keeps it for who was lost"
    finally:
        os.kill(asleep, signal.SIGCONT)
    assert spare.wait().returncode == 0


# --- who leads ------------------------------------------------------------------------------------------------------------


def test_the_leader_s_death_moves_the_lead_and_a_replacement_is_taken_in(job: Job) -> None:
    first, second = job.two("1:2", "--max-restarts", 0)
    job.store.compact()  # nobody may need what etcd has forgotten
    os.kill(agent_pid(job.holdfast, "a"), signal.SIGKILL)
    second.wait_for_output("this agent leads the job")
    assert job.rank(0, 0, 2)[1] == 1
    replacement = job.agent("c", "1:2", "--max-restarts", 0)
    assert [job.rank(rank, 0, 3)[1] for rank in range(2)] == [2, 2]
    job.ends_well(second, replacement)
    assert first.wait().returncode != 0


def test_a_leader_that_leaves_hands_over_at_once(job: Job) -> None:
    first, second = job.two("1:2", "--lease", 30)
    first.kill(signal.SIGTERM)
    assert job.rank(0, 0, 2)[1] == 1
    assert first.wait().returncode == 1
    job.ends_well(second)


def test_a_stopped_leader_s_workers_end_before_another_round_begins(job: Job) -> None:
    first, second = job.two("1:2")
    round = job.rounds()  # on a busy machine a lease may have run out, which costs a round
    asleep = job.rank(0, 0, round)[0]
    os.kill(agent_pid(job.holdfast, "a"), signal.SIGSTOP)
    assert job.rank(0, 0, round + 1)[1] == 1
    assert not Path(f"/proc/{asleep}").exists(), "a worker of the old round beside the new one"
    assert first.wait().returncode != 0
    job.ends_well(second)


def test_a_lease_revoked_by_hand_costs_one_round_and_no_restart(job: Job) -> None:
    agents = job.two("2", "--max-restarts", 0)
    leader = job.key("leader")
    assert leader is not None
    job.store.ask("/lease/revoke", {"ID": leader["lease"]})
    assert [job.rank(rank, 0, 2)[1] for rank in range(2)] == [2, 2]
    job.ends_well(*agents)
    assert any("no longer leads the job" in agent.stderr and "revoked" in agent.stderr for agent in agents)


# --- etcd's own troubles --------------------------------------------------------------------------------------------------


def test_etcd_restarted_within_the_lease_is_not_noticed_by_the_workers(lone_job: Job, own_etcd: Any) -> None:
    lone_job.store = own_etcd()
    agents = lone_job.two("2", "--max-restarts", 1, *LONG)
    lone_job.store.kill()
    agents[0].wait_for_output("does not answer")
    lone_job.store.start()
    agents[0].wait_for_output("answers again")
    assert lone_job.rounds() == 1
    os.kill(lone_job.rank(0, 0, 1)[0], signal.SIGKILL)
    assert [lone_job.rank(rank, 1, 2)[1] for rank in range(2)] == [2, 2]
    lone_job.ends_well(*agents)


def test_etcd_away_for_longer_stops_the_workers_until_it_is_back(lone_job: Job, own_etcd: Any) -> None:
    lone_job.store = own_etcd()
    agents = lone_job.two("2", "--max-restarts", 0)
    pids = [lone_job.rank(rank, 0, 1)[0] for rank in range(2)]
    lone_job.store.kill()
    agents[0].wait_for_output("no longer leads the job")
    lone_job.wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    lone_job.store.start()
    assert [lone_job.rank(rank, 0, 2)[1] for rank in range(2)] == [2, 2]
    lone_job.ends_well(*agents)


def test_an_etcd_of_three_may_lose_any_one(lone_job: Job, own_etcd: Any) -> None:
    lone_job.store = store = own_etcd(3, heartbeat_ms=50)
    agents = lone_job.two("2", "--max-restarts", 1, *LONG)
    lost = store.leader()
    store.kill(lost)
    store.wait_until_it_answers()
    store.start(lost)
    lone_job.wait_until(lambda: _answers(store, lost), what="the member that came back")
    store.kill(next(member for member in store.processes if member != store.leader()))
    os.kill(lone_job.rank(0, 0, 1)[0], signal.SIGKILL)
    assert [lone_job.rank(rank, 1, 2)[1] for rank in range(2)] == [2, 2]
    lone_job.ends_well(*agents)


def test_an_etcd_of_three_restarted_whole_costs_no_restart_of_the_budget(lone_job: Job, own_etcd: Any) -> None:
    lone_job.store = store = own_etcd(3, heartbeat_ms=50)
    agents = lone_job.two("2", "--max-restarts", 0)
    store.stop()
    agents[0].wait_for_output("does not answer")
    for member in range(3):
        store.start(member)
    store.wait_until_it_answers()
    agents[0].wait_for_output("answers again")
    for rank in range(2):  # of the round that goes on, or of the one after it where the lease was over meanwhile
        lone_job.rank(rank, 0, lone_job.rounds())
    lone_job.ends_well(*agents)


def _answers(store: infra.Etcd, member: int) -> bool:
    try:
        return bool(store.ask("/kv/range", {"key": "eA=="}, member))
    except OSError:
        return False


def test_history_that_is_compacted_under_the_watches_costs_nothing(lone_job: Job, own_etcd: Any) -> None:
    lone_job.store = store = own_etcd()
    agents = lone_job.two("2", "--max-restarts", 1, *LONG)

    def forget() -> None:
        """Revisions after the one that the follower watches from, of which none is kept."""
        for value in ("eA==", "eQ=="):
            store.ask("/kv/put", {"key": "eA==", "value": value})
        store.compact()

    forget()
    forget()
    store.kill()  # a watch that is made anew finds its revision gone
    agents[0].wait_for_output("does not answer")
    store.start()
    agents[0].wait_for_output("answers again")
    forget()
    assert lone_job.rounds() == 1
    os.kill(lone_job.rank(0, 0, 1)[0], signal.SIGKILL)
    assert [lone_job.rank(rank, 1, 2)[1] for rank in range(2)] == [2, 2]
    lone_job.ends_well(*agents)


def test_wrong_credentials_are_an_error_and_right_ones_work(lone_job: Job, own_etcd: Any) -> None:
    lone_job.store = own_etcd()
    lone_job.store.demand_credentials("s3cret")
    lone_job.finish()
    for given in ("user=root,password=wrong", "join_timeout=600"):
        refused = lone_job.agent("a", "1", "--rdzv-conf", given).wait()
        assert refused.returncode == 1 and "etcd does not let us in" in refused.stderr, refused.output
    right = {"HOLDFAST_ETCD_USER": "root", "HOLDFAST_ETCD_PASSWORD": "s3cret"}
    assert lone_job.agent("a", "1", env=right).wait().returncode == 0


def test_tls_with_certificates_on_both_sides(lone_job: Job, own_etcd: Any, tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    ca, paths = trustme.CA(), [tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem")]
    issued = ca.issue_cert("127.0.0.1", "localhost")
    for path, blob in zip(paths, (issued.cert_chain_pems[0], issued.private_key_pem, ca.cert_pem)):
        blob.write_to_path(str(path))
    lone_job.store = own_etcd(tls=tuple(paths))
    lone_job.finish()
    strange = lone_job.agent("a", "1", "--rdzv-conf", "protocol=https").wait()
    assert strange.returncode == 1 and "not signed by a CA that we know" in strange.stderr, strange.output
    conf = "protocol=https,cert={},key={},cacert={}".format(*paths)
    assert lone_job.agent("a", "1", "--rdzv-conf", conf).wait().returncode == 0


def test_an_etcd_that_is_not_there_is_tried_for_the_join_timeout(holdfast: Any, free_port: int, script: Any) -> None:
    flags = ("--nnodes", 1, "--rdzv-backend", "etcd-v2", "--rdzv-endpoint", f"localhost:{free_port}")
    # The client is loaded in that time too: 1 s may be over before it has tried.
    done = holdfast.run("run", *flags, "--rdzv-conf", "join_timeout=4", script("pass"))
    assert done.returncode == 1 and "refused" in done.stderr, done.output
    assert f"the coordinator at the place that etcd at localhost:{free_port} names is out of reach" in done.stderr, done.output


@pytest.mark.torch
def test_the_example_without_docker_forms_one_process_group() -> None:
    example = Path(__file__).parents[2] / "examples/multi_container/without_docker.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"rank={rank}, world_size=4" in done.stdout for rank in range(4))

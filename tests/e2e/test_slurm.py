"""Does `srun holdfast run train.py` do what a user of Slurm expects? A real Slurm, whose nodes are all on this host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.servers import slurm as infra

pytestmark = pytest.mark.skipif(bool(infra.why_not()), reason=infra.why_not())

HOLDFAST = (sys.executable, "-m", "holdfast")
TRAIN = """
import os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
os.write(1, f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item()}\\n".encode())
dist.destroy_process_group()
"""
ENDS = "import os, sys; sys.exit(int(sys.argv[1]) if os.environ['RANK'] == '1' else 0)"
ENDS_WITH_THREE_NODES = """
import os, time
from pathlib import Path
os.write(1, f'{os.environ["RANK"]}/{os.environ["WORLD_SIZE"]}\\n'.encode())
def joined():
    files = Path(os.environ["HOLDFAST_STATE_DIR"]).glob("jobs/*/events-*.jsonl")
    return max(file.read_text().count('"NodeJoined"') for file in files)
while joined() < 3:
    time.sleep(0.02)
"""
STAYS = """
import os, signal, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(what):
    os.write(file, f"{what} {os.environ['RANK']}/{os.environ['WORLD_SIZE']} {os.environ['TORCHELASTIC_RUN_ID']}\\n".encode())
def save(signum, frame):
    signal.signal(signum, signal.SIG_IGN)
    note("saving")
    time.sleep(0.5)
    note("saved")
    sys.exit(0)
signal.signal(signal.SIGUSR1, lambda signum, frame: note("USR1"))
signal.signal(signal.SIGTERM, save)
note("up")
while not os.path.exists(sys.argv[1] + ".finish"):
    time.sleep(0.02)
"""


class Command:
    """One of Slurm's commands at work."""

    def __init__(self, words: tuple[str, ...], env: dict[str, str], folder: Path) -> None:
        folder.mkdir()
        self.file = folder / "output"
        with self.file.open("wb") as out:
            self.process = subprocess.Popen(words, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    @property
    def output(self) -> str:
        return self.file.read_text(errors="replace")

    def wait(self) -> int:
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running; it said:\n{self.output}")


class Cluster:
    """A Slurm, and what one test does with it."""

    def __init__(self, slurm: infra.Slurm, folder: Path, wait_until: Callable[..., Any]) -> None:
        self.slurm, self.folder, self.wait_until = slurm, folder, wait_until
        self.state = folder / "state"
        self.notes_file = folder / "notes"
        self.commands: list[Command] = []

    def start(self, *words: object, env: dict[str, str] | None = None) -> Command:
        full = os.environ | self.slurm.env | {"HOLDFAST_STATE_DIR": str(self.state)} | (env or {})
        self.commands.append(Command(tuple(map(str, words)), full, self.folder / f"command-{len(self.commands)}"))
        return self.commands[-1]

    def run(self, *words: object) -> tuple[int, str]:
        """A command's exit code and all that it said."""
        command = self.start(*words)
        return command.wait(), command.output

    def notes(self, what: str) -> list[str]:
        """What the workers noted of that kind: `rank/world run`, sorted."""
        lines = self.notes_file.read_text().splitlines() if self.notes_file.exists() else []
        return sorted(line.partition(" ")[2] for line in lines if line.startswith(f"{what} "))

    def until_noted(self, what: str, *expected: str) -> None:
        self.wait_until(lambda: set(expected) <= set(self.notes(what)), what=f"{what}: {expected}, not {self.notes(what)}")

    def job(self) -> str:
        """Number of the one job there is."""
        return self.slurm.ask("squeue", "-h", "-o", "%i")

    def jobs(self) -> list[str]:
        return sorted(path.name for path in (self.state / "jobs").iterdir() if path.is_dir())

    def nodes(self, job: str) -> list[str]:
        """Nodes that kept a record of a job."""
        return sorted(path.stem.removeprefix("events-") for path in (self.state / "jobs" / job).glob("events-*.jsonl"))

    def clean(self) -> None:
        for command in self.commands:
            if command.process.poll() is None:
                command.process.kill()
                command.process.wait()
        for job in self.slurm.ask("squeue", "-h", "-o", "%i").split():
            self.slurm.ask("scancel", job)
        self.slurm.wait_until_idle(len(self.slurm.alive))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[infra.Slurm]:
    started = infra.Slurm(tmp_path_factory.mktemp("slurm") / "cluster", switches=("n1,n3", "n2"))
    yield started
    started.stop()


@pytest.fixture
def cluster(slurm: infra.Slurm, tmp_path: Path, wait_until: Callable[..., Any], test_mark: str) -> Iterator[Cluster]:
    made = Cluster(slurm, tmp_path, wait_until)
    yield made
    made.clean()


# --- starting -----------------------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_srun_trains_on_two_nodes_without_a_flag(cluster, script):
    code, output = cluster.run("srun", "-N2", "--job-name", "llama", *HOLDFAST, "run", script(TRAIN))
    assert code == 0, output
    assert {"rank 0 of 2: 3", "rank 1 of 2: 3"} <= set(output.splitlines())
    (job,) = cluster.jobs()
    assert re.fullmatch(r"\d+\.0-llama", job) and len(cluster.nodes(job)) == 2


def test_nodes_without_a_shared_folder_prove_by_munge_whose_they_are(cluster, script):
    """Nobody gives a token, and each node's records are its own host's as far as anybody can tell."""
    ranks = script("import os; print(os.environ['RANK'])")
    code, output = cluster.run("srun", "-N2", *HOLDFAST, "run", "--require-token", ranks)
    assert code == 0 and {"0", "1"} <= set(output.split()), output
    assert "unauthenticated" not in output


def test_every_value_says_which_variable_it_comes_from(cluster, script):
    options = ("-N2", "-w", "n[2-3]", "--gpus-per-node=2")
    code, output = cluster.run("srun", *options, *HOLDFAST, "run", "--print-config", script(""))
    assert code == 0, output
    lines = [re.split(r"\s{2,}", line) for line in output.splitlines()]
    for name, value, origin in (
        ("max_nodes", "2", "SLURM_STEP_NUM_NODES"),
        ("nproc_per_node", "2", "SLURM_GPUS_ON_NODE"),
        ("rdzv_host", "127.0.0.1", "SLURM_STEP_NODELIST, its NodeAddr, SLURM_JOB_ID"),
        ("node_name", "n3", "SLURMD_NODENAME"),
        ("is_host", "yes", "SLURM_NODEID"),
        ("is_host", "no", "SLURM_NODEID"),
    ):
        assert [name, value, origin] in lines, output


def test_nodes_under_one_switch_have_neighbouring_ranks(cluster, script):
    source = "import os; os.write(1, f'rank {os.environ[\"RANK\"]} on {os.environ[\"SLURMD_NODENAME\"]}\\n'.encode())"
    code, output = cluster.run("srun", "-N3", *HOLDFAST, "run", script(source))
    assert code == 0, output
    assert sorted(output.splitlines()) == ["rank 0 on n1", "rank 1 on n3", "rank 2 on n2"]


def test_components_of_a_heterogeneous_step_are_one_job(cluster, script):
    code, output = cluster.run("srun", "-N1", ":", "-N2", *HOLDFAST, "run", script("import os; os.write(1, b'ran\\n')"))
    assert code == 0 and output.splitlines().count("ran") == 3, output


def test_ft_launchers_line_keeps_a_spare_and_writes_about_cycles_under_the_jobs_number(cluster, script, free_port):
    options = ("--nnodes", "2:3", "--nproc_per_node", 2, "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{free_port}")
    logs = ("--ft_per_cycle_applog_prefix", cluster.folder / "job.log", "--ft_cycle_info_dir", cluster.folder / "info")
    code, output = cluster.run("srun", "-N3", *HOLDFAST, "ft_launcher", *options, *logs, script(ENDS_WITH_THREE_NODES))
    assert code == 0, output
    said = (cluster.folder / "job_cycle0.log").read_text().splitlines()
    assert sorted(said) == ["0: 0/4", "1: 1/4", "2: 2/4", "3: 3/4"]
    (written,) = (cluster.folder / "info").glob("cycle_info.*.0.0")
    about = json.loads(written.read_text())
    assert about["job_id"].isdecimal() and about["active_ranks"] == "0-1" and about["cycle_end_time"]


def test_several_agents_on_a_node_are_refused_with_the_way_out(cluster, script):
    code, output = cluster.run("srun", "-N1", "-n2", *HOLDFAST, "run", script(""))
    assert code == 2 and "--ntasks-per-node=1" in output, output


def test_a_batch_script_that_forgets_srun_is_told_so(cluster, script):
    batch = cluster.folder / "batch.sh"
    batch.write_text(f"#!/bin/sh\n{' '.join(HOLDFAST)} run {script('')}\n")
    code, _ = cluster.run("sbatch", "--wait", "-N2", "-o", cluster.folder / "batch.out", batch)
    said = (cluster.folder / "batch.out").read_text()
    assert code == 2 and "has 2 nodes" in said and "srun holdfast run" in said


# --- ending -------------------------------------------------------------------------------------------------------------


def test_srun_ends_with_the_agents_exit_code_which_is_torchruns(cluster, script):
    code, output = cluster.run("srun", "-N2", *HOLDFAST, "run", script(ENDS), 7)
    assert code == 1 and re.search(r"rank 1 \(local 0\) on n\d exited with code 7", output), output


@pytest.mark.parametrize(("status", "code"), [(0, 0), (7, 1)])
def test_a_task_that_starts_when_the_job_has_ended_ends_as_that_did_and_holds_nobody_up(cluster, script, status, code):
    late = cluster.folder / "late.sh"
    wait = f"until ls {cluster.state}/jobs/*/report.json; do sleep 0.05; done 2> /dev/null"
    late.write_text(f'if [ "$SLURM_PROCID" = 1 ]; then {wait}; fi\nexec "$@"\n')
    holdfast = (*HOLDFAST, "run", "--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0.1")
    run = cluster.start("srun", "-N2", "sh", late, *holdfast, script(f"raise SystemExit({status})"))
    assert run.wait() == code, run.output
    (job,) = cluster.jobs()
    assert len(cluster.nodes(job)) == 2 and run.output.count("the job has ended, as ") == 1, run.output


def test_scancel_lets_every_rank_save_and_leaves_nothing(cluster, script):
    run = cluster.start("srun", "-N2", *HOLDFAST, "run", script(STAYS), cluster.notes_file)
    job = cluster.wait_until(cluster.job)
    name = f"{job}.0-{Path(sys.executable).name}"
    cluster.until_noted("up", f"0/2 {name}", f"1/2 {name}")
    cluster.slurm.ask("scancel", job)
    assert run.wait() != 0
    assert cluster.notes("saving") == cluster.notes("saved") == [f"0/2 {name}", f"1/2 {name}"]
    assert f"job {name} was stopped" in run.output


def test_a_signal_before_the_time_limit_reaches_every_rank_once(cluster, script):
    run = cluster.start("srun", "-N2", "--job-name", "j", *HOLDFAST, "run", script(STAYS), cluster.notes_file)
    job = cluster.wait_until(cluster.job)
    ranks = [f"{rank}/2 {job}.0-j" for rank in range(2)]
    cluster.until_noted("up", *ranks)
    cluster.slurm.ask("scancel", "--signal=USR1", job)  # what --signal=USR1@60 does, when the time has come
    cluster.until_noted("USR1", *ranks)
    cluster.folder.joinpath("notes.finish").touch()
    assert run.wait() == 0, run.output
    assert cluster.notes("USR1") == ranks


def test_a_lost_node_requeues_the_job_and_its_next_life_trains_elsewhere(cluster, script):
    batch = cluster.folder / "batch.sh"
    words = " ".join(map(str, (*HOLDFAST, "run", script(STAYS), cluster.notes_file)))
    batch.write_text(f"#!/bin/sh\nsrun {words}\n")
    options = ("--requeue", "-J", "big", "-N2", "-o", cluster.folder / "batch.out", "--open-mode=append")
    code, output = cluster.run("sbatch", "--parsable", *options, batch)
    assert code == 0, output
    job = cluster.job()
    cluster.until_noted("up", f"0/2 {job}.0-big", f"1/2 {job}.0-big")
    first = cluster.nodes(f"{job}.0-big")
    cluster.slurm.lose(first[1])
    # Not waiting for Slurm's own pings to fail:
    cluster.slurm.ask("scontrol", "update", f"nodename={first[1]}", "state=down", "reason=lost")
    try:
        cluster.until_noted("up", f"0/2 {job}.0-big-r1", f"1/2 {job}.0-big-r1")
        assert cluster.nodes(f"{job}.0-big-r1") == [name for name in cluster.slurm.names if name != first[1]]
        cluster.folder.joinpath("notes.finish").touch()
        cluster.wait_until(lambda: not cluster.job())
    finally:
        cluster.slurm.start(first[1])


def test_with_no_kill_the_others_go_on_when_a_node_is_lost(cluster, script):
    batch = cluster.folder / "batch.sh"
    words = " ".join(map(str, (*HOLDFAST, "run", "--nnodes", "2:3", script(STAYS), cluster.notes_file)))
    batch.write_text(f"#!/bin/sh\nsrun --no-kill --kill-on-bad-exit=0 {words}\n")
    options = ("--no-kill", "-J", "on", "-N3", "-o", cluster.folder / "batch.out")
    code, output = cluster.run("sbatch", "--parsable", *options, batch)
    assert code == 0, output
    job = cluster.job()
    cluster.until_noted("up", *(f"{rank}/3 {job}.0-on" for rank in range(3)))
    lost = cluster.slurm.names[-1]
    cluster.slurm.lose(lost)
    try:
        cluster.until_noted("up", *(f"{rank}/2 {job}.0-on" for rank in range(2)))
        cluster.folder.joinpath("notes.finish").touch()
        ended = cluster.state / "jobs" / f"{job}.0-on" / "report.json"
        cluster.wait_until(ended.exists)
        assert json.loads(ended.read_text())["outcome"] == "succeeded"
        cluster.slurm.ask("scontrol", "update", f"nodename={lost}", "state=down", "reason=lost")
        cluster.wait_until(lambda: not cluster.job())
    finally:
        cluster.slurm.start(lost)

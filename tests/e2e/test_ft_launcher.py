"""Is `holdfast ft_launcher` what its users know? Its command lines, its file, its membership, its logs, its exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.jobs.ranks import WAITS, Ranks
from kit.jobs.succession import begin, lose

PRINTS = """
import os, sys
print(*sys.argv[1:], os.environ["WORLD_SIZE"], os.environ["TORCHELASTIC_RESTART_COUNT"])
"""

LINES = [
    # what ft_launcher's guide teaches, a line each: options, and what is said because it is not acted on yet
    (("--ft-node-health-check-endpoint", "/var/run/nodehealth.sock"), ""),
    (("--ft-node_health_check_endpoint", "unix:///var/run/nodehealth.sock"), ""),
    (("--max-restarts", "3", "--ft-restart-policy", "any-failed"), ""),
    (("--max-restarts=3", "--ft-restart_policy=min-healthy"), ""),
    (("--ft-enable-dist-storage-healthcheck", "true"), ""),
    (("--ft_enable_dist_storage_healthcheck", "true"), ""),
    (("--ft-storage-health-check-path", "/etc/passwd,/usr"), ""),
    (("--ft_storage_health_check_path", "/etc/passwd,/usr"), ""),
    (("--ft-attrsvc-host", "127.0.0.1", "--ft-attrsvc-port", "8000"), "the attribution service is not used without"),
    (("--ft_attrsvc_host", "127.0.0.1", "--ft_attrsvc_port", "8000"), "without the log of --ft-per-cycle-applog-prefix"),
    (("--ft-attribution-endpoint", "grpc://host:50050"), "the attribution service is not used, since grpc://host:50050"),
    (("--ft_attribution_endpoint=unix:///run/service.sock",), "cannot be spoken to: give --ft-attribution-endpoint http://"),
    (("--ft-attrsvc-port", "8000"), "without the log of --ft-per-cycle-applog-prefix and --ft-attrsvc-host"),
    (("--max-restarts", "1", "--ft-gpu-memory-reclaim-timeout", "50", "--ft-gpu-memory-tolerance-mb", "512"), ""),
    (("--ft-gpu-memory-poll-interval", "2.0", "--ft-gpu-memory-reclaim-timeout=0"), ""),
    (("--ft-use-infra-group-rank=True",), ""),
    (("--ft-use-infra-group-rank=False",), ""),
    (("--ft-rank-heartbeat-timeout", "600", "--ft-initial-rank-heartbeat-timeout", "900"), ""),
    (("--ft-rank_section_timeouts", "setup:1800,step:60,checkpointing:1200", "--ft-rank_out_of_section_timeout=300"), ""),
    (("--ft-rank-termination-signal", "SIGTERM", "--ft-log-level", "WARNING", "--ft-safety-factor", "4"), ""),
    (("--fault-tol-cfg-path", "none.yaml", "--ignore-missing-fault-tol-cfg", "--ft-param-workload_check_interval", "1"), ""),
    (("--rdzv-backend=c10d", "--rdzv-conf", "join_timeout=60,last_call_timeout=1,is_host=1", "--rdzv-endpoint"), ""),
    (("--term-timeout", "60", "--workers-stop-timeout", "5", "--monitor-interval", "1", "--no-python"), ""),
]


@pytest.mark.parametrize(("options", "said"), LINES, ids=lambda given: " ".join(given) if isinstance(given, tuple) else "")
def test_a_command_line_of_the_guide_runs_and_says_what_is_not_done_yet(holdfast, script, free_port, options, said):
    words = [*options, f"localhost:{free_port}"] if options[-1] == "--rdzv-endpoint" else list(options)
    program = ["echo", "lr", "1", "0"] if "--no-python" in options else [script(PRINTS), "lr"]
    done = holdfast("ft_launcher", *words, *program)
    assert (done.returncode, done.stdout) == (0, "lr 1 0\n"), done.stderr
    assert said in done.stderr if said else "WARNING" not in done.stderr


GUIDE_FILE = """
trainer: {steps: 10}
callbacks:
- other: {}
- fault_tolerance:
    rank_heartbeat_timeout: 600
    rank_section_timeouts: {step: 60, checkpointing: null}
    rank_termination_signal: SIGTERM
    log_level: WARNING
    # absolute, separated by commas
    storage_healthcheck_path: "/etc/passwd,/usr"
    attrsvc_host: "127.0.0.1"
    attrsvc_port: 8000
    use_infra_group_rank: false
"""


@pytest.mark.parametrize("command", ["ft_launcher", "run"])
def test_the_file_of_the_guide_is_read_and_the_command_line_goes_before_it(holdfast, script, tmp_path, command):
    (tmp_path / "ft.yaml").write_text(GUIDE_FILE)
    options = ("--ft-cfg-path", "ft.yaml", "--ft-rank-heartbeat-timeout", "30", "--print-config=json")
    shown = json.loads(holdfast(command, *options, script("")).stdout)
    assert shown["ft.rank_heartbeat_timeout"] == {"value": 30.0, "origin": "--ft-rank-heartbeat-timeout"}
    assert shown["ft.rank_section_timeouts"]["value"] == {"step": 60.0, "checkpointing": None}
    assert shown["ft.rank_termination_signal"]["value"] == signal.SIGTERM
    assert shown["ft.storage_healthcheck_path"]["value"] == ["/etc/passwd", "/usr"]
    assert shown["ft.attrsvc_port"] == {"value": 8000, "origin": "ft.yaml fault_tolerance.attrsvc_port"}
    assert shown["ft.use_infra_group_rank"]["value"] is False
    done = holdfast(command, "--ft-cfg-path", "ft.yaml", script(PRINTS))
    assert done.returncode == 0 and "the attribution service is not used without" in done.stderr


def test_a_file_that_is_no_yaml_is_an_error(holdfast, script, tmp_path):
    (tmp_path / "ft.yaml").write_text("a: [1")
    done = holdfast("ft_launcher", "--ft-cfg-path", "ft.yaml", script(""))
    assert done.returncode == 2 and "ft.yaml is not valid YAML" in done.stderr


def test_several_launchers_on_one_node_are_refused_unless_they_are_wanted(holdfast, script, tmp_path):
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NNODES": "1", "SLURM_JOB_NUM_NODES": "1"}
    step |= {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "n1", "SLURM_JOB_NODELIST": "n1"}
    done = holdfast("ft_launcher", script(PRINTS), env=step)
    assert done.returncode == 2 and "NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE=1" in done.stderr
    done = holdfast("ft_launcher", "--standalone", script(PRINTS), env=step | {"NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE": "1"})
    assert done.returncode == 0, done.stderr


# --- membership -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def agent(holdfast, free_port, tmp_path, script) -> Callable[..., Any]:
    """`agent("a", "2:3", …)`: an agent of one job, as `holdfast ft_launcher` starts it."""
    program = script(WAITS)

    def start(name: str, nnodes: str, *options: object) -> Any:
        meeting = ("--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-id", "ft")
        nodes = ("--nnodes", nnodes, "--nproc-per-node", 2, "--node-name", name)
        return holdfast.start("ft_launcher", *nodes, *meeting, *options, program, tmp_path / "ranks")

    return start


def test_the_least_number_of_nodes_runs_and_a_spare_takes_a_lost_ones_place(agent, tmp_path, wait_until):
    ranks = Ranks(tmp_path / "ranks", wait_until)
    first = [agent("a", "2:3"), agent("b", "2:3")]
    assert {ranks.rank(rank, 0, 1)[1] for rank in range(4)} == {4}  # WORLD_SIZE: two nodes, two workers each
    spare = agent("c", "2:3")
    leaver = next(one for one in first if not _hosts(one, tmp_path, wait_until))
    wait_until(lambda: _joined(tmp_path, "c"), what="the spare")
    leaver.kill(signal.SIGTERM)
    assert leaver.wait().returncode == 1  # its workers died of the signal
    assert {ranks.rank(rank, 1, 2)[1] for rank in range(4)} == {4}  # cycle 1, though no restart was spent
    ranks.finish()
    stayed = next(one for one in first if one is not leaver)
    assert (stayed.wait().returncode, spare.wait().returncode) == (0, 0)


def test_a_spare_that_was_never_needed_exits_with_0(agent, tmp_path, wait_until):
    ranks = Ranks(tmp_path / "ranks", wait_until)
    active = agent("a", "1:2")
    assert {ranks.rank(rank, 0, 1)[1] for rank in range(2)} == {2}
    spare = agent("b", "1:2")
    wait_until(lambda: _joined(tmp_path, "b"), what="the spare")
    ranks.finish()
    assert (active.wait().returncode, spare.wait().returncode) == (0, 0)
    assert len(list((tmp_path / "ranks").glob("*.*.*"))) == 2


def _records(tmp_path: Path) -> list[dict[str, Any]]:
    files = (tmp_path / "state/jobs").glob("*/events-*.jsonl")
    lines = [line for file in files for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(line) for line in lines]


def _joined(tmp_path: Path, name: str) -> bool:
    return any(record["event"] == "NodeJoined" and record["name"] == name for record in _records(tmp_path))


def _hosts(running: Any, tmp_path: Path, wait_until: Any) -> bool:
    joined = lambda: [record["node"] for record in _records(tmp_path) if record["event"] == "NodeJoined"]
    host = wait_until(joined, what="the coordinator's record")[0]
    return f"--node-name\0{host}\0" in Path(f"/proc/{running.pid}/cmdline").read_text()


# --- signals --------------------------------------------------------------------------------------------------------------

OBEYS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *ignored: sys.exit(0))
print("ready", flush=True)
while True:
    time.sleep(0.01)  # short: a signal just before it is noted at its end
"""
IGNORES = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(120)
"""


@pytest.mark.parametrize(("command", "code"), [("ft_launcher", 0), ("run", 1)])
def test_a_signal_that_every_worker_obeys_with_0_is_a_success_of_ft_launcher(holdfast, script, command, code):
    running = holdfast.start(command, script(OBEYS))
    running.wait_for_output("ready")
    running.kill(signal.SIGTERM)
    done = running.wait()
    assert done.returncode == code and f"exit code {code}" in done.stderr


def test_a_signal_to_the_agent_has_a_grace_period_of_its_own(holdfast, script):
    running = holdfast.start("ft_launcher", "--workers-stop-timeout", 600, "--term-timeout", 0.2, script(IGNORES))
    running.wait_for_output("ready")
    running.kill(signal.SIGTERM)
    done = running.wait()
    assert done.returncode == 1 and "SIGKILL in 0.2 s" in done.stderr
    (given_s,) = map(float, re.findall(r"rank 0 did not stop within ([\d.]+) s", done.stderr))
    assert 0.2 <= given_s < 60  # a busy machine may be late, and not by the 600 s of the other limit


# --- logs -----------------------------------------------------------------------------------------------------------------

TALKS = """
import os, signal, sys
rank, cycle = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
for number in range(int(sys.argv[1])):
    stream = sys.stderr if number % 2 else sys.stdout
    print(f"{rank}/{cycle} says {number} " + "x" * 100, file=stream, flush=True)
if (rank, cycle) == ("1", "0"):
    print("last words", end="", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_each_cycle_has_a_log_with_every_line_of_every_rank_in_its_order(holdfast, script, tmp_path):
    lines, log = 3000, tmp_path / "new" / "job.log"
    options = ("--nproc-per-node", 2, "--max-restarts", 1, "--ft-per-cycle-applog-prefix", log)
    done = holdfast("ft_launcher", *options, script(TALKS), lines, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    first, second = ((log.parent / f"job_cycle{cycle}.log").read_text().splitlines() for cycle in (0, 1))
    padding = "x" * 100
    said = [f"1: 1/0 says {number} {padding}" for number in range(lines)]
    assert [line for line in first if line.startswith("1: ")] == [*said, "1: last words"]
    for rank in (0, 1):
        wanted = [f"{rank}: {rank}/1 says {number} {padding}" for number in range(lines)]
        assert [line for line in second if line.startswith(f"{rank}: ")] == wanted


def test_all_nodes_append_to_one_log(holdfast, script, tmp_path, free_port):
    lines, log = 500, tmp_path / "job.log"
    meeting = ("--nnodes", 2, "--rdzv-endpoint", f"localhost:{free_port}", "--nproc-per-node", 2)
    options = (*meeting, "--max-restarts", 1, "--ft-per-cycle-applog-prefix", log, script(TALKS), lines)
    agents = [holdfast.start("ft_launcher", "--node-name", name, *options) for name in "ab"]
    assert [agent.wait().returncode for agent in agents] == [0, 0]
    found = (tmp_path / "job_cycle1.log").read_text().splitlines()
    wanted = [f"{rank}: {rank}/1 says {number} {'x' * 100}" for rank in range(4) for number in range(lines)]
    assert sorted(found) == sorted(wanted)


def test_streams_that_are_asked_for_apart_stay_apart_and_are_gathered_too(holdfast, script, tmp_path):
    talks = script('import sys\nprint("out")\nprint("err", file=sys.stderr)')
    done = holdfast("run", "--tee", 1, "--log-dir", "logs", "--ft-per-cycle-applog-prefix", tmp_path / "job.log", talks)
    assert done.stdout == "[default0]:out\n"
    assert sorted((tmp_path / "job_cycle0.log").read_text().splitlines()) == ["0: err", "0: out"]
    (stdout,) = (tmp_path / "logs").glob("*/attempt_0/0/stdout.log")
    assert stdout.read_text() == "out\n" and stdout.with_name("stderr.log").read_text() == "err\n"


def test_a_log_that_cannot_be_written_costs_a_line_and_not_the_job(holdfast, script, tmp_path):
    (tmp_path / "job_cycle0.log").mkdir()
    done = holdfast("ft_launcher", "--ft-per-cycle-applog-prefix", tmp_path / "job.log", script("print(1)"))
    assert done.returncode == 0
    assert "is incomplete; the ranks' own files are complete" in done.stderr
    (kept,) = (tmp_path / "state").glob("jobs/*/logs/*/attempt_0/0/output.log")
    assert kept.read_text() == "1\n"


def test_a_log_that_nobody_takes_holds_up_neither_the_workers_nor_a_restart(holdfast, script, tmp_path, wait_until):
    os.mkfifo(tmp_path / "job_cycle0.log")  # opening it for writing waits for a reader who never comes
    options = ("--nproc-per-node", 2, "--max-restarts", 1, "--ft-per-cycle-applog-prefix", tmp_path / "job.log")
    running = holdfast.start("ft_launcher", *options, script(TALKS), 500)
    wait_until(lambda: (tmp_path / "job_cycle1.log").exists(), what="the second cycle's log")
    with (tmp_path / "job_cycle0.log").open() as reader:  # now somebody does, long after that cycle's end
        late = reader.read().splitlines()
    assert running.wait().returncode == 0
    assert late.count("1: last words") == 1 and sum(line.startswith("1: ") for line in late) == 501


def test_our_own_messages_go_to_the_log_file_that_is_asked_for(holdfast, script, tmp_path):
    done = holdfast("ft_launcher", "--ft-nvrx-logfile", "logs/own.log", script("raise SystemExit(3)"))
    assert (done.returncode, done.output) == (1, "")
    assert "exited with code 3" in (tmp_path / "logs/own.log").read_text()


def test_files_tell_of_each_cycle(holdfast, script, tmp_path):
    program = """
import json, os
about = json.load(open(os.environ["NVRX_CURRENT_CYCLE_INFO"]))
assert about["cycle_number"] == int(os.environ["TORCHELASTIC_RESTART_COUNT"]) and not about["cycle_end_time"]
raise SystemExit(about["cycle_number"] == 0)
"""
    options = ("--nproc-per-node", 2, "--max-restarts", 1, "--node-name", "n07", "--rdzv-id", "job")
    logs = ("--ft-cycle-info-dir", "info", "--ft-per-cycle-applog-prefix", tmp_path / "job.log")
    done = holdfast("ft_launcher", *options, *logs, script(program))
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path / "info")) == ["cycle_info.job.0.0", "cycle_info.job.0.1", "cycle_info.job.current"]
    assert os.readlink(tmp_path / "info/cycle_info.job.current") == "cycle_info.job.0.1"
    first = json.loads((tmp_path / "info/cycle_info.job.0.0").read_text())
    assert first.pop("cycle_start_time") < first.pop("cycle_end_time")
    assert first == {
        "job_id": "job",
        "attempt_index": 0,
        "cycle_number": 0,
        "cycle_log_file": str(tmp_path / "job_cycle0.log"),
        "active_nodes": "n07",
        "standby_nodes": "",
        "active_ranks": "0",
        "generation": 1,
    }


def test_a_successor_goes_on_with_the_files_and_ends_the_last_one_of_its_predecessor(job, tmp_path, wait_until):
    current = tmp_path / "info/cycle_info.several.current"

    def cycle(number: int) -> dict[str, Any]:
        """What is told of it, once it is: workers of other nodes wait for no file of the coordinator's."""
        told = lambda: current.exists() and json.loads(current.read_text())
        return wait_until(lambda: (about := told()) and about["cycle_number"] == number and about, what=f"cycle {number}")

    agents = begin(job, "abc", "2:3", "--ft-cycle-info-dir", tmp_path / "info")
    before = cycle(0)
    assert (sorted(before["active_nodes"]), before["active_ranks"], before["cycle_end_time"]) == (list(",,abc"), "0-2", "")
    lose(job, agents, "a")
    assert [job.rank(rank, 0, 2)[1] for rank in range(2)] == [2, 2]
    after = cycle(1)
    assert (sorted(after["active_nodes"]), after["cycle_end_time"]) == (list(",bc"), "")
    before = json.loads((tmp_path / "info/cycle_info.several.0.0").read_text())
    assert before["cycle_end_time"] >= before["cycle_start_time"] and before["generation"] == 1
    job.finish()
    assert [agents[name].wait().returncode for name in "bc"] == [0, 0]

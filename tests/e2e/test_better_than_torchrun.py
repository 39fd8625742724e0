"""Where torchrun 2.13 surprises: are we free of what we promise to be free of, and do we keep what people rely on?

    what torchrun does                                      ours          shown by
    ------------------------------------------------------  ------------  -------------------------------------------------------
    two agents of a growing job wait for each other         fixed         here::test_a_second_node_and_the_first_find_each_other
    a restarted worker reads a dead one's address           fixed         test_worker_contract::test_gloo_comes_back_at_every_restart
    a worker's exit code is not passed on                   kept          test_worker_contract::test_the_exit_code_is_torchrun_s
    --rdzv-id is thrown away on one node                    fixed         here::test_the_job_keeps_the_name_it_was_given
    --node-rank, --master-addr do nothing if not static     kept          here::test_rank_and_address_are_for_the_static_backend
    SIGTERM is ignored while it waits for other nodes       fixed         here::test_sigterm_is_heard_while_waiting_for_other_nodes
    the third signal leaves workers running                 fixed         here::test_no_number_of_signals_leaves_a_worker_running
    SIGKILL of the launcher leaves workers running          fixed         test_supervision::test_however_the_agent_ends_nothing_is_left_a_second_later
    a dead worker's children live on                        fixed         here::test_children_of_a_worker_that_has_gone_go_too
    a worker stuck in the kernel: exit code 0               fixed         here::test_a_worker_stuck_in_the_kernel_fails_the_job
    nobody is told of a node's failure                      fixed         here::test_with_static_ranks_too_a_failed_node_ends_the_job
    each agent counts restarts for itself                   the job's     test_several_nodes::test_the_budget_is_the_job_s_and_not_each_agent_s
    a membership change erases the logs so far              fixed         here::test_logs_survive_a_membership_change
    a temporary folder stays behind after every run         fixed         here::test_nothing_is_left_in_the_temporary_folder
    unnamed timers share one name                           fixed         compat/test_elastic_timer::test_unnamed_blocks_are_named_after_the_line_that_opens_them
    an expired timer kills the launcher                     fixed         test_watchdog::test_a_worker_that_is_late_is_a_failure_like_any_other
    -r and -t cannot name local ranks above 9               fixed         here::test_redirects_and_tee_name_any_rank
    --tee joins unfinished lines of two ranks               fixed         here::test_tee_never_joins_the_lines_of_two_ranks
    duplicate filters need --tee                            fixed         test_tee::test_the_filters_work_on_redirected_streams_too
    failures without a file share one dictionary            fixed         compat/test_elastic_errors::test_failures_without_a_record_share_nothing
    stopped siblings are failures with exit code -15        kept          here::test_the_failure_box_is_torchrun_s_to_the_letter
    odd spaces in the failure box                           kept          here::test_the_failure_box_is_torchrun_s_to_the_letter
    events: time 0, numbers in lists                        shape kept    compat/test_elastic_agent::test_an_events_metadata
    events on the console                                   shape kept    here::test_the_console_shows_torch_elastic_s_events
    events: time 0                                          filled in     compat/test_elastic_events_metrics::test_a_missing_timestamp_is_filled_in_when_the_event_is_recorded
    --shutdown-timeout is not for stopped siblings          fixed         here::test_the_grace_period_holds_for_stopped_siblings_too
    defaults of command line and LaunchConfig differ        kept          here::test_the_two_sets_of_defaults_stay_as_they_are
    --standalone --nnodes 2 waits ten minutes               fixed         here::test_standalone_with_two_nodes_is_an_error_at_once
    a node too many crashes at the end                      fixed         test_several_nodes::test_a_surplus_agent_waits_and_ends_with_zero
    two flags have no variable                              added         here::test_every_flag_has_its_variable
    stdin is shared by all workers                          kept          test_worker_contract::test_stdin_is_inherited
    imports torch before it starts anything                 fixed         test_startup::test_nothing_heavy_is_loaded_before_the_first_worker_of_one_node_starts
    $ in arguments is template syntax                       kept          here::test_dollars_in_arguments_are_templates
"""  # noqa: E501 (a name in one piece can be searched for)

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit import TESTS
from kit.orphans import GRACE_S

SHOWN_BY = [line.split()[-1] for line in (__doc__ or "").splitlines() if "::" in line]

MEETS = """
# Rank 0 listens where the environment says that the job meets; the others come there.
import os, socket, sys, time
rank, world, folder = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1]
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if world == 1:
    open(f"{folder}/alone", "w").close()
    time.sleep(300)
if rank == 0:
    with socket.create_server(address, reuse_port=False) as server:
        peer, _ = server.accept()
        peer.sendall(b"hello")
else:
    deadline = time.time() + 60
    while True:
        try:
            with socket.create_connection(address) as link:
                assert link.recv(5) == b"hello"
            break
        except ConnectionRefusedError:
            assert time.time() < deadline
            time.sleep(0.02)
os.write(1, f"met {rank}\\n".encode())
"""

STUBBORN = """
import os, signal, sys, time
for signum in (signal.SIGTERM, signal.SIGINT):
    signal.signal(signum, signal.SIG_IGN)
sys.stdout.write("up " + os.environ["RANK"] + chr(10))
sys.stdout.flush()
open(f"{__file__}.{os.environ['RANK']}", "w").close()
if os.environ["RANK"] in sys.argv[1:]:
    while not all(os.path.exists(f"{__file__}.{rank}") for rank in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.01)
    sys.exit(3)
time.sleep(300)
"""
"""Deaf to a stop. A rank that is named in the arguments fails, once all are deaf."""


def agents(holdfast, port, program, *args, names="ab", options=()):
    """One agent per letter, of one job, each with one worker."""
    return [
        holdfast.start(
            *("run", "--nnodes", len(names), "--node-name", name, "--rdzv-backend", "c10d", "--rdzv-id", "better"),
            *("--rdzv-endpoint", f"localhost:{port}", *options, program, *args),
        )
        for name in names
    ]


@pytest.mark.parametrize("place", SHOWN_BY)
def test_the_table_above_names_tests_that_exist(place):
    file, _, name = place.partition("::")
    path = {"here": Path(__file__)}.get(file) or (TESTS / f"{file}.py" if "/" in file else TESTS / "e2e" / f"{file}.py")
    assert f"\ndef {name}(" in path.read_text()


# --- nodes ------------------------------------------------------------------------------------------------------------------


def test_a_second_node_and_the_first_find_each_other(holdfast, script, free_port, tmp_path, wait_until):
    program, options = script(MEETS), ("--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=1")
    (first,) = agents(holdfast, free_port, program, tmp_path, names="a", options=options)
    wait_until((tmp_path / "alone").exists)
    (second,) = agents(holdfast, free_port, program, tmp_path, names="b", options=options)
    ends = first.wait(), second.wait()
    assert [end.returncode for end in ends] == [0, 0], ends
    assert sorted("".join(end.stdout for end in ends).splitlines()) == ["met 0", "met 1"]


def test_logs_survive_a_membership_change(holdfast, script, free_port, tmp_path, wait_until):
    logs = tmp_path / "logs"
    program = script(MEETS)
    options = ("--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=1", "--redirects", 1, "--log-dir", logs)
    (first,) = agents(holdfast, free_port, program, tmp_path, names="a", options=options)
    wait_until((tmp_path / "alone").exists)
    (second,) = agents(holdfast, free_port, program, tmp_path, names="b", options=options)
    assert (first.wait().returncode, second.wait().returncode) == (0, 0)
    attempts = {path.name for path in logs.glob("better_*/attempt_*")}
    assert attempts == {"attempt_0", "attempt_0.r2"}, "the lone node's first round is still there"


def test_with_static_ranks_too_a_failed_node_ends_the_job(holdfast, script, free_port):
    program = script("import os, sys, time\nif os.environ['GROUP_RANK'] == '1':\n    sys.exit(3)\ntime.sleep(300)\n")
    nodes = [
        holdfast.start(
            *("run", "--nnodes", 2, "--node-rank", rank, "--master-addr", "127.0.0.1", "--master-port", free_port),
            *("--node-name", f"n{rank}", "--rdzv-id", "static", program),
        )
        for rank in (0, 1)
    ]
    ends = [node.wait() for node in nodes]
    assert [end.returncode for end in ends] == [1, 1]
    assert all("rank 1 (local 0) on n1 exited with code 3" in end.stderr for end in ends)


@pytest.mark.parametrize("waits", ["for the others to join", "for the others to finish"])
def test_sigterm_is_heard_while_waiting_for_other_nodes(holdfast, script, free_port, wait_until, waits):
    program = script("import os, time\nif os.environ['RANK'] == '1':\n    time.sleep(300)\n")
    if waits == "for the others to join":
        (job,) = agents(holdfast, free_port, program, names="a", options=("--nnodes", 2))
        wait_until(lambda: holdfast.events("JoinRequested"))
        job.kill(signal.SIGTERM)
        assert job.wait(20).returncode == -signal.SIGTERM
        return
    nodes = agents(holdfast, free_port, program)
    (done,) = wait_until(lambda: holdfast.events("WorkerExited"))
    early = nodes["ab".index(done["node"])]
    early.kill(signal.SIGTERM)
    assert early.wait(20).returncode == 1


# --- what is left behind --------------------------------------------------------------------------------------------------


def test_no_number_of_signals_leaves_a_worker_running(holdfast, script, alive, wait_until):
    job = holdfast.start("run", "--nproc-per-node", 2, "--shutdown-timeout", 600, script(STUBBORN))
    for rank in (0, 1):
        job.wait_for_output(f"up {rank}")

    def ends_though_signals_rain() -> bool:
        if not job.ended:
            job.kill(signal.SIGTERM)
        return job.ended

    wait_until(ends_though_signals_rain)
    assert job.wait().returncode == 1
    wait_until(lambda: not alive(), GRACE_S, "the end of all that it has started")


@pytest.mark.parametrize("end", [0, 3])
def test_children_of_a_worker_that_has_gone_go_too(holdfast, script, alive, wait_until, end):
    # The leader of the group ends before anybody signals the group; its child ignores SIGTERM.
    source = f"""
import signal, subprocess, sys
code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(300)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
sys.exit({end})
"""
    assert holdfast("run", "--nproc-per-node", 2, script(source)).returncode == (1 if end else 0)
    wait_until(lambda: not alive(), GRACE_S, "the end of all that it has started")


def test_nothing_is_left_in_the_temporary_folder(holdfast, script, tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    program = script("import os; open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').close()")
    for watchdog in ("0", "1"):
        env = {"TMPDIR": str(temporary), "TORCHELASTIC_ENABLE_FILE_TIMER": watchdog}
        assert holdfast("run", "--nproc-per-node", 2, program, env=env).returncode == 0
    assert os.listdir(temporary) == []


def test_the_grace_period_holds_for_stopped_siblings_too(holdfast, script):
    done = holdfast("run", "--nproc-per-node", 2, "--shutdown-timeout", 1, script(STUBBORN), 1)
    assert done.returncode == 1
    (given_s,) = map(float, re.findall(r"rank 0 did not stop within ([\d.]+) s", done.stderr))
    assert 1 <= given_s < 20  # a busy machine may be late, and not by the 30 s that are given otherwise


def test_a_worker_stuck_in_the_kernel_fails_the_job(holdfast, script, tmp_path):
    # posix_spawn sleeps uninterruptibly until its child has called exec, and this child waits for a writer before that.
    source = """
import os, sys, time
if os.environ["RANK"] == "1":
    os.mkfifo(sys.argv[1])
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 5, sys.argv[1], os.O_RDONLY, 0)])
time.sleep(300)
"""
    env = {"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "0.5"}
    options = ("--nproc-per-node", 2, "--max-restarts", 3, "--shutdown-timeout", 1)
    done = holdfast("run", *options, script(source), tmp_path / "pipe", env=env)
    assert done.returncode == 1
    (failure,) = [event["failure"] for event in holdfast.events("FailureSeen") if event["failure"]["cause"] != "stopped"]
    assert (failure["rank"], failure["cause"]) == (1, "stuck")
    assert "stuck in the kernel" in done.stderr
    # What it holds (a GPU, a mount) a new process on that node would need: torchrun does not restart either.
    assert len(holdfast.events("RoundFormed")) == 1


# --- the command line -----------------------------------------------------------------------------------------------------


def test_the_job_keeps_the_name_it_was_given(holdfast, script):
    program = script("import os; print(os.environ['TORCHELASTIC_RUN_ID'])")
    assert holdfast("run", "--rdzv-id", "job7", program).stdout == "job7\n"


def test_rank_and_address_are_for_the_static_backend(holdfast, script, free_port):
    program = script("import os; print(os.environ['GROUP_RANK'], os.environ['MASTER_ADDR'])")
    endpoint = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}")
    done = holdfast("run", *endpoint, "--node-rank", 1, "--master-addr", "192.0.2.1", program)
    assert (done.returncode, done.stdout.split()[0]) == (0, "0")
    assert "192.0.2.1" not in done.stdout
    assert "--node-rank" in done.stderr, "a warning says so"


def test_redirects_and_tee_name_any_rank(holdfast, script, tmp_path):
    program = script("import os; os.write(1, ('rank ' + os.environ['RANK'] + chr(10)).encode())")
    done = holdfast("run", "--nproc-per-node", 12, "-r", "10:1", "-t", "11:1", "--log-dir", tmp_path / "logs", program)
    shown = set(done.stdout.splitlines())
    assert shown == {f"rank {rank}" for rank in range(10)} | {"[default11]:rank 11"}
    (kept,) = (tmp_path / "logs").glob("*/attempt_0/10/stdout.log")
    assert kept.read_text() == "rank 10\n"


def test_tee_never_joins_the_lines_of_two_ranks(holdfast, script):
    # Each rank writes the first half of its line, and the second when the other has written its first.
    source = """
import os, sys, time
rank, folder = os.environ["RANK"], os.path.dirname(__file__)
os.write(1, b"half-")
open(f"{folder}/{rank}.half", "w").close()
while not all(os.path.exists(f"{folder}/{other}.half") for other in "01"):
    time.sleep(0.01)
os.write(1, b"whole")
"""
    done = holdfast("run", "--nproc-per-node", 2, "--tee", 1, script(source))
    assert sorted(done.stdout.splitlines()) == ["[default0]:half-whole", "[default1]:half-whole"]


def test_standalone_with_two_nodes_is_an_error_at_once(holdfast, script):
    done = holdfast("run", "--standalone", "--nnodes", 2, script("print('no')"), timeout=20)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--standalone" in done.stderr and "--nnodes" in done.stderr


def test_every_flag_has_its_variable(holdfast, script):
    done = holdfast("run", script("print('no')"), env={"PET_NUMA_BINDING": "node", "PET_LOGS_SPECS": "nobody"})
    assert done.returncode == 2 and "PET_" in done.stderr


def test_dollars_in_arguments_are_templates(holdfast, script):
    program = script("import sys; print(*sys.argv[1:])")
    done = holdfast("run", program, "${local_rank}", "$local_rank", "a$$b", "$HOME")
    assert done.stdout == "0 0 a$b $HOME\n"


def test_the_two_sets_of_defaults_stay_as_they_are(holdfast, script):
    from holdfast.elastic.launcher.api import LaunchConfig

    library = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1)
    assert (library.max_restarts, library.role) == (3, "default_role")
    program = script("import os; print(os.environ['TORCHELASTIC_MAX_RESTARTS'], os.environ['ROLE_NAME'])")
    assert holdfast("run", program).stdout == "0 default\n"


@pytest.mark.torch
def test_the_console_shows_torch_elastic_s_events(holdfast, script, tmp_path):
    program = script("import os, time\nif os.environ['RANK'] == '1':\n    raise SystemExit(3)\ntime.sleep(300)\n")
    args = ["--event-log-handler", "console", "--nproc-per-node", "2", "--max-restarts", "1", "--role", "r", str(program)]
    theirs = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *args], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert _shown(holdfast("run", *args).stderr) == _shown(theirs.stderr)
    assert not _shown(holdfast("run", script("")).stderr)


def _shown(stderr):
    """What each event says, without what differs from run to run, and from launcher to launcher."""
    events = [json.loads(line) for line in stderr.splitlines() if line.startswith('{"name": "torchelastic.')]
    for event in events:
        del event["timestamp"]
        kept = event["metadata"]
        for key in ("run_id", "hostname", "rdzv_backend", "total_run_time", "worker_id", "raw_error", "duration_ms"):
            kept[key] = kept[key] is not None
        kept["metadata"] = {name: value for name, value in json.loads(kept["metadata"]).items() if name != "worker_pid"}
    return events


# --- the box ----------------------------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize("how", [("--nproc-per-node", "2"), ("--run-path",)], ids=["script", "run-path"])
def test_the_failure_box_is_torchrun_s_to_the_letter(holdfast, script, tmp_path, how):
    last = "os.environ['RANK'] == str(int(os.environ['WORLD_SIZE']) - 1)"
    program = script(f"import os, time\nif {last}:\n    os._exit(3)\ntime.sleep(300)\n")
    args = [*how, str(program)]
    theirs = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *args], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    ours = holdfast("run", "--failure-box", *args)
    assert _box(ours.stderr) == _box(theirs.stderr)
    if "2" in how:
        assert "exitcode  : -15 (pid: PID)  (SIGTERM)" in _box(ours.stderr), "the sibling that was stopped"


def _box(stderr: str) -> str:
    """The box at the end, without what differs from run to run."""
    text = stderr[stderr.rindex("\n", 0, stderr.index(" FAILED\n---")) :]
    text = re.sub(r"(pid: |PID )\d+", r"\1PID", text)
    return re.sub(r"(time|host) +: \S+", r"\1", text)

"""Is a worker that does not leave its scope in time ended, named and restarted, and is the agent's own health to be asked?"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import urllib.error
import urllib.request

import pytest
from kit.ports import ports

LATE = """
# Rank 1 stays too long in its scope in the first attempt; with torch's own client, or with its line in the pipe.
import json, os, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
path, how, signum = os.environ["TORCHELASTIC_TIMER_FILE"], sys.argv[1], int(sys.argv[2])

def tell(expiration_time, signal):
    line = {"version": 1, "pid": os.getpid(), "scope_id": "train.py#40", "expiration_time": expiration_time, "signal": signal}
    with open(path, "wb", buffering=0) as pipe:
        pipe.write(json.dumps(line).encode() + b"\\n")

if how == "torch":
    from torch.distributed.elastic import timer
    timer.configure(timer.FileTimerClient(path, signal=signum))
    with timer.expires(after=60, scope="in time"):
        pass
    with timer.expires(after=0.2 if rank == 1 and attempt == 0 else 60, scope="train.py#40"):
        time.sleep(300 if rank == 1 and attempt == 0 and signum > 0 else 1)
elif rank == 1 and attempt == 0:
    tell(time.time() + 60, 9)
    tell(-1, 0)
    tell(time.time() + 0.2, signum)
    while signum > 0 or not os.path.exists(sys.argv[3]):
        time.sleep(0.01)
os.write(1, f"done {rank}\\n".encode())
"""

RUBBISH = """
import os, sys
path, me = os.environ["TORCHELASTIC_TIMER_FILE"], os.getpid()
lines = [
    b"", b"no json", b"[]", b"null", b"7", b'{"pid": 1}', b"\\xff" * 3000, b"[" * 4000,
    b'{"pid": "x", "scope_id": "s", "expiration_time": 1, "signal": 9}',
    b'{"pid": %d, "scope_id": "s", "expiration_time": NaN, "signal": 9}' % me,
    b'{"pid": %d, "scope_id": "s", "expiration_time": Infinity, "signal": 9}' % me,
    b'{"pid": Infinity, "scope_id": "s", "expiration_time": 1, "signal": 9}',
    b'{"pid": %d, "scope_id": "s", "expiration_time": 1, "signal": 4711}' % me,
    b'{"pid": 1, "scope_id": "s", "expiration_time": 1, "signal": 9}',
    b'{"pid": %d, "scope_id": "unnamed", "expiration_time": 1, "signal": 0}' % me,
]
with open(path, "wb", buffering=0) as pipe:
    for line in lines:
        pipe.write(line + b"\\n")
    pipe.write(b"x" * 200_000)  # no end of line, and more than the pipe holds at once
print("written", flush=True)
"""

ON = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}


@pytest.mark.parametrize("how", ["the pipe", pytest.param("torch", marks=pytest.mark.torch)])
def test_a_worker_that_is_late_is_a_failure_like_any_other(holdfast, script, how):
    done = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 1, script(LATE), how, 9, env=ON)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines())[-2:] == ["done 0", "done 1"]
    (expired,) = holdfast.events("WatchdogExpired")
    assert expired["scope"] == "train.py#40"
    (failure,) = [event["failure"] for event in holdfast.events("FailureSeen") if event["failure"]["cause"] != "stopped"]
    assert (failure["rank"], failure["cause"], failure["exitcode"]) == (1, "watchdog", -9)


def test_the_report_names_the_scope(holdfast, script):
    done = holdfast("run", "--nproc-per-node", 2, "--failure-box", script(LATE), "the pipe", 15, env=ON)
    assert done.returncode == 1
    report = json.loads((holdfast.jobs()[-1] / "report.json").read_text())
    assert report["failures"][0]["message"] == "did not leave scope train.py#40 in time"
    assert done.stderr.count("train.py#40") >= 3, "when it happens, in the report, and in the box at the end"


def test_a_timer_without_a_signal_is_only_told_of(holdfast, script, tmp_path, wait_until):
    job = holdfast.start("run", "--nproc-per-node", 2, script(LATE), "the pipe", 0, tmp_path / "go", env=ON)
    wait_until(lambda: holdfast.events("WatchdogExpired"))
    (tmp_path / "go").touch()
    done = job.wait()
    assert done.returncode == 0
    assert "did not leave scope train.py#40 in time; its timer asks for no signal" in done.stderr
    assert [event["scope"] for event in holdfast.events("WatchdogExpired")] == ["train.py#40"]


def test_rubbish_in_the_pipe_harms_nobody(holdfast, script):
    done = holdfast("run", script(RUBBISH), env=ON)
    assert (done.returncode, done.stdout) == (0, "written\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_the_pipe_lies_where_it_was_asked_for_and_goes_with_the_agent(holdfast, script, tmp_path):
    path = tmp_path / "pipe"
    path.write_text("left by an earlier run")
    source = "import os; path = os.environ['TORCHELASTIC_TIMER_FILE']; print(path, oct(os.stat(path).st_mode))"
    done = holdfast("run", script(source), env=ON | {"TORCHELASTIC_TIMER_FILE": str(path)})
    assert done.stdout.split() == [str(path), oct(stat.S_IFIFO | 0o600)]
    assert not path.exists()


def test_without_a_name_the_pipe_is_made_and_passed_on(holdfast, script):
    source = "import os; path = os.environ['TORCHELASTIC_TIMER_FILE']; print(path, oct(os.stat(path).st_mode))"
    path, mode = holdfast("run", script(source), env=ON).stdout.split()
    assert mode == oct(stat.S_IFIFO | 0o600) and not os.path.exists(path)


def test_a_pipe_that_cannot_be_made_costs_the_watchdog_and_not_the_job(holdfast, script):
    done = holdfast("run", script("print('trained')"), env=ON | {"TORCHELASTIC_TIMER_FILE": "/no/such/folder/pipe"})
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "no watchdog" in done.stderr and "/no/such/folder/pipe" in done.stderr


@pytest.mark.parametrize("value", ["0", "yes", ""])
def test_only_1_switches_it_on(holdfast, script, value):
    source = "import os; print(os.environ.get('TORCHELASTIC_TIMER_FILE'))"
    assert holdfast("run", script(source), env={"TORCHELASTIC_ENABLE_FILE_TIMER": value}).stdout == "None\n"


# --- the agent's own health -----------------------------------------------------------------------------------------------


def health(port: int) -> tuple[int, dict[str, object]] | None:
    """Status and what was said; None: nobody answers."""
    url = f"http://127.0.0.1:{port}/"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return None


@pytest.mark.parametrize("watchdog", ["0", "1"])
def test_health_is_answered_before_the_first_rendezvous(holdfast, script, free_port, wait_until, watchdog):
    endpoint = f"localhost:{ports(1)[0]}"  # a second node never comes
    env = {"TORCHELASTIC_HEALTH_CHECK_PORT": str(free_port), "TORCHELASTIC_ENABLE_FILE_TIMER": watchdog}
    job = holdfast.start("run", "--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, script(""), env=env)
    status, said = wait_until(lambda: health(free_port))
    assert (status, said["status"]) == (200, "healthy")
    assert not holdfast.events("RoundFormed")
    job.kill(signal.SIGTERM)
    job.wait()
    assert health(free_port) is None


def test_health_is_answered_while_workers_run_and_fail(holdfast, script, free_port, tmp_path, wait_until):
    source = """
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(1)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""
    env = {"TORCHELASTIC_HEALTH_CHECK_PORT": str(free_port), "TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    job = holdfast.start("run", "--max-restarts", 1, script(source), tmp_path / "end", env=env)
    wait_until(lambda: len(holdfast.events("WorkerStarted")) == 2)
    answer = health(free_port)
    assert answer is not None and answer[0] == 200
    (tmp_path / "end").touch()
    assert job.wait().returncode == 0


def test_a_port_that_is_taken_is_told_and_costs_no_job(holdfast, script):
    with contextlib.closing(socket.create_server(("", 0))) as taken:
        port = taken.getsockname()[1]
        done = holdfast("run", script("print('trained')"), env={"TORCHELASTIC_HEALTH_CHECK_PORT": str(port)})
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert f"no health check on port {port}" in done.stderr
    assert any(f"port {port}" in event["what"] for event in holdfast.events("Degraded"))

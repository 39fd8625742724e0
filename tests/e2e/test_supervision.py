"""Does `holdfast run` keep one node's job alive, and leave nothing behind? Real processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from chaos.needs import cgroup2_root
from kit.hosts.hung_mount import HungMount, why_not
from kit.waiting import PATIENCE_S, wait_for

from holdfast.runtime.process.process import begun, children_of

FAILS_UNTIL = """
import os, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
os.write(1, f"rank {rank} attempt {attempt}\\n".encode())
if rank == 0:
    open(f"{__file__}.{attempt}", "w").close()
while not os.path.exists(f"{__file__}.{attempt}"):  # rank 0 has said so too: it is stopped when rank 1 fails
    time.sleep(0.01)
if rank == 1 and attempt < int(sys.argv[1]):
    raise RuntimeError("boom")
if attempt < int(sys.argv[1]):
    time.sleep(60)
"""

WAITS = """
import os, signal, sys, time
folder = sys.argv[1]
rank = os.environ["RANK"]

def note(signum, frame):
    open(f"{folder}/{rank}.{signal.Signals(signum).name}", "w").close()
    if signum not in (signal.SIGUSR1, signal.SIGUSR2):
        sys.exit(0)

for name in sys.argv[2:]:
    signal.signal(getattr(signal, name), note)
open(f"{folder}/{rank}.{os.environ['TORCHELASTIC_RESTART_COUNT']}.pid", "w").write(str(os.getpid()))
while True:
    time.sleep(0.01)  # short: a signal just before it is noted at its end
"""


def pid_of(folder: Path, rank: int, attempt: int, wait_until: Callable[..., Any]) -> int:
    path = folder / f"{rank}.{attempt}.pid"
    return int(wait_until(lambda: path.exists() and path.read_text()))


def test_a_failed_rank_restarts_all_ranks_within_the_budget(holdfast, script):
    done = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 2, script(FAILS_UNTIL), 1)
    assert done.returncode == 0
    assert sorted(done.stdout.split("\n")[:-1]) == [f"rank {rank} attempt {n}" for rank in (0, 1) for n in (0, 1)]
    assert "rank 1 (local 1)" in done.stderr and "RuntimeError: boom" in done.stderr
    decisions = [event["decision"] for event in holdfast.events("Decided")]
    assert decisions == ["restart", "finish"]


def test_every_failure_is_kept_as_an_incident_restarted_or_not(holdfast, script):
    holdfast("run", "--nproc-per-node", 2, "--max-restarts", 1, script(FAILS_UNTIL), 9)
    folder = holdfast.jobs()[-1] / "incidents"
    assert sorted(file.name for file in folder.iterdir()) == ["round-1", "round-2"], "one for each"
    (said,) = folder.glob("round-2/*/failure-rank-1.json")
    assert "raise RuntimeError" in json.loads(said.read_text())["traceback"]


def test_when_the_budget_is_spent_the_first_failure_is_reported(holdfast, script):
    done = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 1, "--failure-box", script(FAILS_UNTIL), 9)
    assert done.returncode == 1
    report = json.loads((holdfast.jobs()[-1] / "report.json").read_text())
    first = report["failures"][0]
    assert (first["rank"], first["exitcode"], first["message"]) == (1, 1, "RuntimeError: boom")
    assert "raise RuntimeError" in first["traceback"]
    assert done.stderr.rstrip().endswith("=" * 60), "torchrun's box ends stderr"


def test_restarts_are_counted_within_the_period_only(holdfast, script):
    source = FAILS_UNTIL.replace('raise RuntimeError("boom")', 'time.sleep(0.7); raise RuntimeError("boom")')
    args = ("--nproc-per-node", 2, "--max-restarts", 1, script(source), 3)
    assert holdfast("run", "--restart-period", "0.5", *args).returncode == 0
    assert holdfast("run", *args).returncode == 1


def test_a_killed_worker_is_named_with_its_signal(holdfast, script, tmp_path, wait_until):
    job = holdfast.start("run", "--nproc-per-node", 2, "--max-restarts", 1, script(WAITS), tmp_path)
    os.kill(pid_of(tmp_path, 1, 0, wait_until), signal.SIGKILL)
    second = pid_of(tmp_path, 1, 1, wait_until)
    job.wait_for_output("rank 1 (local 1)")
    job.wait_for_output("SIGKILL")
    os.kill(second, signal.SIGKILL)
    assert job.wait().returncode == 1


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"])
def test_a_signal_to_the_agent_reaches_every_worker(holdfast, script, tmp_path, wait_until, name):
    job = holdfast.start("run", "--nproc-per-node", 2, script(WAITS), tmp_path, name)
    for rank in (0, 1):
        pid_of(tmp_path, rank, 0, wait_until)
    job.kill(getattr(signal, name))
    assert job.wait().returncode == 1
    assert (tmp_path / f"0.{name}").exists() and (tmp_path / f"1.{name}").exists()


def test_usr1_and_usr2_are_passed_on_and_end_nothing(holdfast, script, tmp_path, wait_until):
    job = holdfast.start("run", "--nproc-per-node", 2, script(WAITS), tmp_path, "SIGUSR1", "SIGUSR2", "SIGTERM")
    for rank in (0, 1):
        pid_of(tmp_path, rank, 0, wait_until)
    for name in ("SIGUSR1", "SIGUSR2"):
        job.kill(getattr(signal, name))
        wait_until(lambda name=name: all((tmp_path / f"{rank}.{name}").exists() for rank in (0, 1)))
    assert not job.ended
    job.kill(signal.SIGTERM)
    assert job.wait().returncode == 1


def test_a_worker_that_ignores_the_signal_is_killed_after_the_grace(holdfast, script, tmp_path, wait_until):
    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS
    job = holdfast.start("run", "--shutdown-timeout", 1, script(ignores), tmp_path)
    pid_of(tmp_path, 0, 0, wait_until)
    job.kill(signal.SIGTERM)
    assert job.wait().returncode == 1
    assert "did not stop within" in job.stderr


def test_a_second_signal_ends_the_grace(holdfast, script, tmp_path, wait_until):
    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS
    job = holdfast.start("run", "--shutdown-timeout", 600, script(ignores), tmp_path)
    pid_of(tmp_path, 0, 0, wait_until)
    job.kill(signal.SIGTERM)
    job.wait_for_output("received SIGTERM")
    job.kill(signal.SIGINT)  # the same one again within a second would be taken for an echo
    assert job.wait().returncode == 1


def test_a_grandchild_that_called_setsid_does_not_outlive_the_job(holdfast, script):
    # The autouse watch for orphans (conftest) is the assertion.
    source = """
import os, signal, subprocess, sys, time
code = "import os, signal, time; os.setsid(); signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(300)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
if os.environ["RANK"] == "1":
    sys.exit(3)
time.sleep(300)
"""
    assert holdfast("run", "--nproc-per-node", 2, script(source)).returncode == 1


@pytest.mark.parametrize("victim", ["agent", "guardian", "both at once"])
def test_however_the_agent_ends_nothing_is_left_a_second_later(holdfast, script, wait_until, victim):
    source = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import os, signal, time; os.setsid(); signal.signal(15, 1); print('up', os.getpid(), flush=True); time.sleep(300)"
for env in (None, {}):
    subprocess.Popen([sys.executable, "-c", code], env=env).poll()
time.sleep(300)
"""
    job = holdfast.start("run", "--nproc-per-node", 2, script(source))
    wait_until(lambda: job.stdout.count("up") == 4)
    grandchildren = [int(line.split()[-1]) for line in job.stdout.splitlines() if line.startswith("up")]
    (agent,) = [event["pid"] for event in wait_until(lambda: holdfast.events("AgentStarted"))]  # its worker may be faster
    if victim == "both at once":
        wait_until(lambda: len(children_of(job.pid)) == 2, what="the last watch, beside the agent")
        os.kill(agent, signal.SIGSTOP)  # it sees nothing of the guardian's end
    if victim != "agent":
        job.kill(signal.SIGKILL)
    if victim != "guardian":
        os.kill(agent, signal.SIGKILL)
    job.wait()
    wait_until(lambda: not any(map(begun, grandchildren)), what="the end of those with an emptied environment, too")


@pytest.fixture
def delegated() -> Iterator[Path]:
    """A control group that has been delegated to us, as systemd does it."""
    top = cgroup2_root()
    if top is None or not os.access(top / "cgroup.procs", os.W_OK):
        pytest.skip("no control group of version 2 can be made here")
    group = top / f"test-{os.getpid()}"
    group.mkdir()
    os.setxattr(group, "user.delegate", b"1")
    yield group
    (group / "cgroup.kill").write_text("1")
    wait_for(lambda: "populated 0" in (group / "cgroup.events").read_text(), PATIENCE_S, "the end of what is left in it")
    for path in (*group.glob("*/"), group):
        path.rmdir()


ESCAPES = """
import os, resource, subprocess, sys, time
code = "import os, time; os.setsid(); print('up', os.getpid(), flush=True); time.sleep(300)"
subprocess.Popen([sys.executable, "-c", code], preexec_fn=lambda: resource.setrlimit(10, (7, 7)))  # as pam_limits does
time.sleep(300)
"""


@pytest.mark.root
@pytest.mark.parametrize("dies", ["both at once", "job"])
def test_in_a_delegated_control_group_nothing_escapes_the_last_watch(holdfast, script, wait_until, delegated, dies):
    holdfast.through = ("sh", "-c", f'echo $$ >{delegated}/cgroup.procs && exec "$@"', "sh")
    job = holdfast.start("run", script(ESCAPES))
    wait_until(lambda: "up" in job.stdout)
    escaped = int(job.stdout.split()[1])
    (agent,) = [event["pid"] for event in wait_until(lambda: holdfast.events("AgentStarted"))]
    gathered = lambda: [pid for path in delegated.glob("*/cgroup.procs") for pid in path.read_text().split()]
    wait_until(lambda: {str(agent), str(escaped)} <= set(gathered()), what="the last watch to gather them")
    if dies == "job":
        job.kill(signal.SIGTERM)
    else:
        os.kill(agent, signal.SIGSTOP)
        job.kill(signal.SIGKILL)
        os.kill(agent, signal.SIGKILL)
    job.wait()
    wait_until(lambda: not begun(escaped) and not list(delegated.glob("*/")), what="its end, and that of the group")


def test_a_killed_guardian_stands_in_the_record_and_in_the_report(holdfast, script, wait_until):
    job = holdfast.start("run", script("import time\nprint('up', flush=True)\ntime.sleep(300)"))
    wait_until(lambda: "up" in job.stdout)
    job.kill(signal.SIGKILL)
    job.wait()
    wait_until(lambda: "holdfast: job" in job.stderr, what="the report of the agent that is left")
    assert "lost its guardian: the process that was started was killed" in job.stderr
    (ended,) = wait_until(lambda: holdfast.events("JobEnded"), what="its record, which another thread writes")
    assert holdfast.events("GuardianLost") and not holdfast.events("SignalReceived")
    assert ended["outcome"] == "stopped" and "lost its guardian" in ended["reason"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('\'{"message": {"mess\'', "is not JSON"),
        ("'[1, 2]'", "holds no JSON object"),
        ('\'{"message": {"message": null}}\'', "holds no message"),
        ("'x' * (5 << 20)", "is too large to be one: 5242880 bytes"),
    ],
    ids=["torn", "of a wrong type", "without a message", "huge"],
)
def test_what_is_wrong_with_an_error_file_stands_in_the_report(holdfast, script, written, said):
    source = f"import os\nopen(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write({written})\nos._exit(3)\n"
    done = holdfast("run", script(source))
    first, _, _ = done.stderr.partition("Decision")
    assert done.returncode == 1 and said in " ".join(first.split()), done.stderr
    assert "error file " in holdfast("report").stdout


def test_an_instant_crash_loop_backs_off(holdfast):
    holdfast("run", "--max-restarts", 3, "--no-python", "false")
    delays = [event["delay_s"] for event in holdfast.events("Decided") if event["decision"] == "restart"]
    assert delays == [0.0, 0.5, 1.0]


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_death_is_acted_on_before_the_kernel_has_put_away_what_the_worker_had(holdfast, script, tmp_path, wait_until):
    """Here a file at a server that pauses; gigabytes of memory take their time too, but not for as long as a test may sleep."""
    with closing(HungMount(tmp_path / "hung")) as mount:
        (tmp_path / "hung/back/data").touch()
        source = f"held = open({str(mount.path / 'data')!r})\n" + WAITS
        job = holdfast.start("run", "--max-restarts", 1, script(source), tmp_path)
        pid = pid_of(tmp_path, 0, 0, wait_until)
        mount.hang()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: holdfast.events("Decided"))
        assert [event["exitcode"] for event in holdfast.events("WorkerDying")] == [-9]
        assert holdfast.events("WorkerExited") == []
        mount.go()
        wait_until(lambda: holdfast.events("WorkerExited"))
        job.kill(signal.SIGTERM)
        job.wait()


def test_an_uncaught_exception_is_known_before_the_interpreter_has_ended(holdfast, script, tmp_path, wait_until):
    source = """
import atexit, os, sys, time
def linger():
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    open(sys.argv[1] + ".flushed", "w").close()
if os.environ["RANK"] == "1":
    atexit.register(linger)
    raise RuntimeError("boom")
time.sleep(60)
"""
    go_on = tmp_path / "go-on"
    job = holdfast.start("run", "--nproc-per-node", 2, script(source), go_on)
    wait_until(lambda: holdfast.events("Decided"))
    assert 1 not in [event["rank"] for event in holdfast.events("WorkerExited")]
    go_on.touch()
    assert job.wait().returncode == 1
    assert (tmp_path / "go-on.flushed").exists(), "its exit handlers were not cut short"


def test_a_program_that_cannot_start_is_one_clear_failure(holdfast, tmp_path):
    (tmp_path / "program").write_bytes(b"\x7fELF of another kind of processor")
    (tmp_path / "program").chmod(0o755)
    done = holdfast("run", "--max-restarts", 5, "--no-python", tmp_path / "program")
    assert done.returncode == 1
    assert f"cannot start '{tmp_path / 'program'}'" in " ".join(done.stderr.split()) and "Traceback" not in done.stderr
    assert len(holdfast.events("RoundFormed")) == 1, "starting it again would fail the same way"


def test_a_worker_that_calls_exec_is_not_taken_for_dead(holdfast, script):
    source = """
import os, sys
os.execv(sys.executable, [sys.executable, "-c", "import os, time; time.sleep(0.5); os.write(1, b'42 ')"])
"""
    done = holdfast("run", "--nproc-per-node", 2, script(source))
    assert (done.returncode, done.stdout.split()) == (0, ["42", "42"])


def test_os_exit_zero_is_a_success(holdfast, script):
    assert holdfast("run", "--nproc-per-node", 2, script("import os; os._exit(0)")).returncode == 0


def test_without_pidfd_everything_still_works(holdfast, script, tmp_path):
    # A sitecustomize on the agent's path takes pidfd_open away, as an old kernel or a seccomp filter does.
    (tmp_path / "sitecustomize.py").write_text("import os\nprint('no pidfd')\ndel os.pidfd_open\n")
    env = {"PYTHONPATH": str(tmp_path)}
    done = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 1, script(FAILS_UNTIL), 1, env=env)
    assert done.returncode == 0 and "no pidfd" in done.stdout

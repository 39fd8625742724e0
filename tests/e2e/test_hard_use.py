"""What tired people, full disks and careless scripts do to a job: does it go on, or end well, and leave nothing behind?"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import random
import resource
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.telemetry.record.state_dir import open_job

WAITS = """
import os, sys, time
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
open(f"{sys.argv[1]}/{rank}.{attempt}.tmp", "w").write(str(os.getpid()))
os.rename(f"{sys.argv[1]}/{rank}.{attempt}.tmp", f"{sys.argv[1]}/{rank}.{attempt}")
while not os.path.exists(f"{sys.argv[1]}/end"):
    time.sleep(0.01)
"""

FAILS_ONCE = """
import os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3)
"""

OFFSPRING = """
# A worker with a daemon (double fork, own session), a data loader in a session of its own, and one that ignores SIGTERM.
import os, signal, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(300)
    os._exit(0)
sleep = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(300)"
subprocess.Popen([sys.executable, "-S", "-c", sleep], start_new_session=True)
subprocess.Popen([sys.executable, "-S", "-c", sleep])
time.sleep(300)
"""


def launch(holdfast: Any, *args: object) -> dict[str, Any]:
    """For subprocess: the command, where the `holdfast` fixture would hold its streams."""
    env = os.environ | {"HOLDFAST_STATE_DIR": str(holdfast.state_dir)}
    return {"args": [sys.executable, "-m", "holdfast", "run", *map(str, args)], "env": env}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where WAITS puts its pids, and looks for the file `end`."""
    path = tmp_path / "ranks"
    path.mkdir()
    return path


def removed(folder: Path) -> bool:
    """It is gone: an agent may have put something new into it while it was being emptied."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def pid_of(folder: Path, rank: int, attempt: int, wait_until) -> int:
    path = folder / f"{rank}.{attempt}"
    wait_until(path.exists, what=f"rank {rank} of attempt {attempt}")
    return int(path.read_text())


# --- at the keyboard ------------------------------------------------------------------------------------------------------


class Terminal:
    """A `holdfast run` at the keyboard: the leader of a terminal's session."""

    def __init__(self, **how: Any) -> None:
        self.keyboard, terminal = pty.openpty()
        self.process = subprocess.Popen(
            **how,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)
        os.set_blocking(self.keyboard, False)
        self.screen = ""

    def press(self, key: bytes) -> None:
        os.write(self.keyboard, key)

    def shows(self, text: str) -> bool:
        with contextlib.suppress(OSError):  # nothing new, or all have left the terminal
            self.screen += os.read(self.keyboard, 1 << 16).decode(errors="replace")
        return text in self.screen


@pytest.mark.parametrize("deaf", [False, True])
def test_ctrl_c_ends_a_job_and_more_of_them_a_job_that_will_not_listen(holdfast, script, wait_until, deaf):
    source = f"""
import os, signal, time
def heard(signum, frame):
    os.write(1, b"heard " + os.environ["RANK"].encode() + b"\\n")
    if not {deaf}:
        os._exit(0)
signal.signal(signal.SIGINT, heard)
os.write(1, b"up " + os.environ["RANK"].encode() + b"\\n")
while True:
    time.sleep(1)
"""
    terminal = Terminal(**launch(holdfast, "--nproc-per-node", 2, script(source)))
    for text in ("up 0", "up 1"):
        wait_until(lambda text=text: terminal.shows(text))
    terminal.press(b"\x03")
    for text in ("heard 0", "heard 1"):
        wait_until(lambda text=text: terminal.shows(text))

    def over() -> bool:
        if deaf and not terminal.shows("sent SIGKILL"):
            terminal.press(b"\x03")  # again and again: the first within a second count as one
        terminal.shows("")
        return terminal.process.poll() is not None

    wait_until(over)
    assert terminal.process.wait() == 1
    terminal.shows("")
    assert terminal.screen.count("heard 0") == 1, "once: by us, and not by the terminal as well"
    assert "Traceback" not in terminal.screen
    os.close(terminal.keyboard)


def test_a_reader_that_goes_away_does_not_end_the_training(holdfast, script, folder):
    # As in `holdfast run -t 3 train.py | head -1`.
    program = script("import sys\nfor n in range(50_000):\n    print('line', n)\nopen(sys.argv[1] + '/end', 'w').close()\n")
    with subprocess.Popen(**launch(holdfast, "-t", 3, program, folder), stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"[default0]:line 0\n"
        job.stdout.close()
        assert job.wait(60) == 0
    assert (folder / "end").exists()


@pytest.fixture(params=["a reader that has gone", "a reader that has stopped", "a full disk", "a terminal that was closed"])
def deaf_ears(request) -> Iterator[int]:
    """A descriptor that takes nothing, in one of the ways that people come by."""
    if request.param == "a full disk":
        ends = [os.open("/dev/full", os.O_WRONLY)]
    elif request.param == "a terminal that was closed":
        keyboard, *ends = pty.openpty()
        os.close(keyboard)
    else:
        reader, *ends = os.pipe()
        if request.param == "a reader that has gone":
            os.close(reader)
        else:
            os.write(ends[0], bytes(fcntl.fcntl(ends[0], fcntl.F_SETPIPE_SZ, 4096)))
            ends.append(reader)
    yield ends[0]
    for fd in ends:
        os.close(fd)


def test_a_job_is_restarted_though_nobody_can_be_told(holdfast, script, deaf_ears, tmp_path):
    program = script(FAILS_ONCE + "open(sys.argv[1], 'w').close()\n")
    args = ("--nproc-per-node", 2, "--max-restarts", 1, program, tmp_path / "trained")  # two: there is a warning at the start
    with subprocess.Popen(**launch(holdfast, *args), stderr=deaf_ears) as job:
        assert job.wait(60) == 0
    assert (tmp_path / "trained").exists()
    assert [event["decision"] for event in holdfast.events("Decided")] == ["restart", "finish"]


def test_a_failure_is_one_though_nobody_can_be_told(holdfast, script, deaf_ears):
    with subprocess.Popen(**launch(holdfast, script("raise SystemExit(3)")), stderr=deaf_ears) as job:
        assert job.wait(60) == 1


def test_a_wrong_line_is_one_though_its_reader_has_gone(holdfast):
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen(**launch(holdfast, "--nproc", "t.py"), stderr=writer) as job:
        assert job.wait(60) == 2
    os.close(writer)


def test_bytes_that_are_no_text_pass_through(holdfast, script):
    odd = bytes(number for number in range(256) if number not in b"\r\n")
    program = script(f"import os; os.write(1, {odd!r} + b'\\n' + {odd!r})")
    done = subprocess.run(**launch(holdfast, "-t", 1, program), capture_output=True, timeout=60)
    assert done.stdout == b"[default0]:" + odd + b"\n[default0]:" + odd + b"\n"


# --- disks and folders ------------------------------------------------------------------------------------------------------


def test_a_job_whose_folder_is_removed_goes_on(holdfast, script, folder, wait_until):
    job = holdfast.start("run", "--nproc-per-node", 2, "--max-restarts", 1, script(WAITS), folder)
    victim = pid_of(folder, 1, 0, wait_until)
    (gone,) = holdfast.jobs()
    wait_until(lambda: removed(gone))
    os.kill(victim, signal.SIGKILL)
    pid_of(folder, 1, 1, wait_until)
    (folder / "end").touch()
    assert job.wait().returncode == 0, job.stderr


def test_where_logs_can_no_longer_be_kept_the_job_goes_on_without(holdfast, script, folder, tmp_path, wait_until):
    logs = tmp_path / "logs"
    job = holdfast.start("run", "--max-restarts", 1, "--redirects", 1, "--log-dir", logs, script(WAITS), folder)
    victim = pid_of(folder, 0, 0, wait_until)
    wait_until(lambda: removed(logs))
    logs.touch()  # where a folder should be, a file is
    os.kill(victim, signal.SIGKILL)
    pid_of(folder, 0, 1, wait_until)
    (folder / "end").touch()
    assert job.wait().returncode == 0, job.stderr
    assert f"cannot keep logs in {logs}" in job.stderr and "the ranks' output goes to this agent's" in job.stderr


@pytest.mark.root
def test_a_full_disk_costs_the_record_and_not_the_job(holdfast, script, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("this root may not mount")
    try:
        with contextlib.suppress(OSError):
            (disk / "filler").write_bytes(bytes(1 << 20))
        env = {"HOLDFAST_STATE_DIR": str(disk)}
        done = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 1, script(FAILS_ONCE), env=env)
        left = sorted(path.name for path in disk.glob("jobs/*/report.json*"))
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot record events") == 1 and "report.json" in done.stderr
    assert left == [], "half a report is none"


def test_a_script_that_vanishes_before_a_restart_is_an_ordinary_failure(holdfast, script, folder, wait_until):
    program = script(WAITS)
    job = holdfast.start("run", "--nproc-per-node", 2, "--max-restarts", 1, program, folder)
    victim = pid_of(folder, 1, 0, wait_until)
    program.unlink()
    os.kill(victim, signal.SIGKILL)
    assert job.wait().returncode == 1
    assert "can't open file" in job.stderr and "exited with code 2" in job.stderr


def test_a_working_directory_that_is_gone_is_the_script_s_matter(holdfast, script, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    program = script("print('trained')")
    how = launch(holdfast, program)
    how["args"] = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *how["args"]]
    # Where Python itself cannot start: with an entry to be found from there.
    searched = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    how["env"]["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in searched if entry)
    done = subprocess.run(**how, cwd=gone, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


# --- limits -----------------------------------------------------------------------------------------------------------------


def run_limited(holdfast, files: int, *args: object) -> subprocess.CompletedProcess[str]:
    """With `ulimit -n files`, and a descriptor above it that the shell before us has left open."""

    def limit() -> None:
        os.dup2(0, 200)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    how = launch(holdfast, *args)
    return subprocess.run(**how, preexec_fn=limit, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


def test_few_descriptors_are_enough_for_few_workers(holdfast, script):
    done = run_limited(holdfast, 64, "--nproc-per-node", 4, script("import os; os.write(1, b'up\\n')"))
    assert (done.returncode, done.stdout) == (0, "up\n" * 4), done.stderr


def test_too_few_descriptors_are_named(holdfast, script):
    done = run_limited(holdfast, 64, "--nproc-per-node", 16, "-t", 3, script("import time; time.sleep(300)"))
    assert done.returncode == 1
    assert "out of file descriptors" in done.stderr and "ulimit -n" in done.stderr
    assert "trying again for 30 s" in done.stderr, "while it is, or nobody knows what is waited for"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("hard", "agents"), [(300, 300), (4000, 1199)])
def test_a_host_of_many_nodes_makes_room_for_their_links_and_says_when_it_cannot(holdfast, script, free_port, hard, agents):
    """999 links and what else it needs; its worker is started with the user's limit."""
    source = """
import os, resource, time
mine, until, agents = resource.getrlimit(resource.RLIMIT_NOFILE)[0], time.monotonic() + 20, 0
while agents in (0, mine) and time.monotonic() < until:  # it has the worker's while it starts one
    (line,) = (line for line in open(f"/proc/{os.getppid()}/limits") if line.startswith("Max open files"))
    agents = int(line.split()[3])
os.write(1, f"{agents} {mine}".encode())
"""
    flags = ["--nnodes", "1:1000", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}"]
    how = launch(holdfast, *flags, "--rdzv-conf", "last_call_timeout=1", script(source))
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    done = subprocess.run(**how, preexec_fn=limit, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"{agents} 200"), done.stderr
    assert ("some 100 of 999 other nodes can join: raise its hard limit to 1199" in done.stderr) == (hard == 300)


def test_more_ranks_than_processors(holdfast, script):
    done = holdfast("run", "--nproc-per-node", 16, script("import os; os.write(1, os.environ['RANK'].encode() + b'\\n')"))
    assert sorted(map(int, done.stdout.split())) == list(range(16))


@pytest.mark.parametrize("options", [(), ("--tee", "3")], ids=["plain", "tee"])
def test_a_hundred_restarts_cost_the_agent_nothing(holdfast, script, options):
    # Rank 0 looks at its agent (descriptors, threads, memory), and fails.
    source = """
import os, sys, time
last = os.environ["TORCHELASTIC_RESTART_COUNT"] == "100"
if os.environ["RANK"] == "1":
    time.sleep(0 if last else 300)
    sys.exit()
agent = f"/proc/{os.getppid()}"
status = dict(line.split(":", 1) for line in open(f"{agent}/status").read().splitlines())
numbers = len(os.listdir(f"{agent}/fd")), int(status["Threads"]), int(status["VmRSS"].split()[0])
with open(sys.argv[1], "a") as file:
    file.write(" ".join(map(str, numbers)) + chr(10))
os._exit(0 if last else 3)
"""
    notes = holdfast.folder / "notes"
    args = ("--nproc-per-node", 2, "--max-restarts", 100, "--backoff", 0, *options, script(source), notes)
    assert holdfast("run", *args).returncode == 0
    seen = [tuple(map(int, line.split())) for line in notes.read_text().splitlines()]
    assert len(seen) == 101
    early, late = seen[20:50], seen[71:101]
    # A rank may look while the pipes of the round before are still being read out, or before the other rank is there. What is
    # kept is there most of the time; one count may be far too low: a quarter from below. What one in ten of the fifty
    # restarts between had kept would be more.
    fds, threads, rss_kb = (sorted(row[i] for row in late)[7] - sorted(row[i] for row in early)[7] for i in range(3))
    assert fds < 5 and threads < 5, (early, late)
    assert rss_kb < 1024, "fifty restarts may not cost a megabyte"


def test_a_job_whose_ranks_fail_one_after_the_other_at_once_can_be_asked_and_stopped(holdfast, script, wait_until):
    """What an agent puts off for the sake of ranks that start is done in time, however soon the next ones start."""
    job = holdfast.start(
        *("run", "--max-restarts", 100_000, "--backoff", 0, "--rdzv-id", "loop", script("import os; os._exit(3)")),
    )
    wait_until(lambda: holdfast("stop", "loop").returncode == 0)
    assert job.wait().returncode == 1


# --- violence ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_whoever_of_them_is_killed_nothing_is_left(holdfast, script, alive, wait_until, seed):
    """Some processes of the job are killed, at some moment; of guardian and agent one only: each ends what the other left."""
    chance = random.Random(seed)
    program = script(OFFSPRING)
    for _ in range(8):
        job = holdfast.start("run", "--nproc-per-node", 2, "--max-restarts", 2, "--backoff", 0, program)
        time.sleep(chance.choice((0.0, 0.01, 0.03, 0.06, 0.1, 0.2)))  # any moment will do: no condition is awaited
        for _ in range(chance.randrange(4)):
            bystanders = [pid for pid in alive() if pid not in _keepers(job.pid)]
            if bystanders:
                _kill(chance.choice(bystanders), chance.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)))
        _kill(chance.choice(_keepers(job.pid)), signal.SIGKILL)
        job.wait()
        wait_until(lambda: not alive(), what="the end of all that it has left")


def _keepers(guardian: int) -> list[int]:
    """The guardian, and its agent once there is one (its child)."""
    with contextlib.suppress(OSError):
        return [guardian, *map(int, Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()[:1])]
    return [guardian]


def _kill(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_signals_its_agent_ends_the_job_and_no_more(holdfast, script, signum):
    # One of them only: for the second, whose parent has gone, the parent would be the guardian.
    shot = f"os.environ['RANK'] == '0' and os.kill(os.getppid(), {int(signum)})"
    program = script(f"import os, time; {shot}; time.sleep(300)")
    done = holdfast("run", "--nproc-per-node", 2, program)
    assert done.returncode == (1 if signum == signal.SIGTERM else -signum)


def test_a_worker_that_kills_its_process_group_kills_itself_only(holdfast, script):
    source = "import os, signal, sys\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    os.killpg(0, signal.SIGKILL)\n"
    assert holdfast("run", "--nproc-per-node", 2, "--max-restarts", 1, script(source)).returncode == 0


# --- launchers within launchers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", ["holdfast", pytest.param("torch.distributed.run", marks=pytest.mark.torch)])
def test_a_script_may_itself_launch(holdfast, script, inner):
    launch = {"holdfast": ["holdfast", "run"]}.get(inner, [inner])
    source = f"""
import os, subprocess, sys
if len(sys.argv) == 1:
    sys.exit(subprocess.call([sys.executable, "-m", *{launch}, "--nproc-per-node", "2", __file__, "inner"]))
said = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")]
os.write(1, (" ".join(said) + chr(10)).encode())
"""
    done = holdfast("run", script(source), env={"TORCHELASTIC_RESTART_COUNT": "5"})
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 2 0", "1 2 0"]


@pytest.mark.torch
def test_torchrun_may_launch_us(holdfast, script):
    source = """
import os, subprocess, sys
if len(sys.argv) == 1:
    sys.exit(subprocess.call([sys.executable, "-m", "holdfast", "run", "--nproc-per-node", "2", __file__, "inner"]))
os.write(1, f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}\\n".encode())
"""
    command = [sys.executable, "-m", "torch.distributed.run", str(script(source))]
    env = os.environ | {"HOLDFAST_STATE_DIR": str(holdfast.state_dir)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=100)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["0 of 2", "1 of 2"]), done.stderr


def test_a_state_directory_that_hangs_costs_the_record_and_not_the_job(holdfast, script, free_port):
    holder = open_job(str(holdfast.state_dir), "hung", "other")  # so that the agent comes to this run, and to this file
    events = Path(holder.path, "events-n1.jsonl")
    os.mkfifo(events)
    full = os.open(events, os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, b"\n" * 4096)
    source = "import os\nos.write(1, b'life\\n')\nraise SystemExit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n"
    try:
        several = ("--nnodes", "1:2", "--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-conf", "last_call_timeout=0.1")
        done = holdfast("run", *several, "--node-name", "n1", "--rdzv-id", "hung", "--max-restarts", 1, script(source))
    finally:
        os.close(full)
        holder.close()
    assert (done.returncode, done.stdout) == (0, "life\nlife\n"), done.output
    assert "events were not recorded in" in done.stderr and "Traceback" not in done.stderr, done.stderr

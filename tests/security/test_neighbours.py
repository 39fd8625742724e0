"""Another user of the host learns no secret of ours, changes nothing of ours, and loses nothing by us."""

from __future__ import annotations

import os
import re
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import pytest
from kit.neighbours import NOBODY, as_nobody, beside
from kit.ports import port_of

from holdfast.agent.logs.nonblocking_writer import open_log
from holdfast.core.errors import UsageError
from holdfast.core.wire.google_wire import METHODS, SERVICE
from holdfast.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler
from holdfast.integrations.etcd.client import access
from holdfast.runtime.peer_user import is_ours, user_of
from holdfast.runtime.process.process import children_of, state
from holdfast.runtime.secrets import VARIABLES
from holdfast.telemetry.record import state_dir

TAKES_THE_MARK = """
import resource, sys, time
line = next(line for line in open(f"/proc/{sys.argv[1]}/limits") if line.startswith("Max file locks"))
mark = int(line.split()[3])
resource.setrlimit(10, (mark, resource.getrlimit(10)[1]))
print("up", flush=True)
time.sleep(300)
"""

SAYS_IT = """
import os, sys, time
line = next(line for line in open(f"/proc/{sys.argv[1]}/limits") if line.startswith("Max file locks"))
os.environ["NOTE"] = line.split()[3]
os.execv(sys.executable, [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(300)"])
"""

LEAVES_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen(["setsid", "sleep", "300"], env={"PATH": "/usr/bin:/bin"})
print("child", child.pid, flush=True)
time.sleep(300)
"""


def has_ended(pid: int) -> bool:
    """Also where the parent that it has been left to does not ask for its end."""
    return state(pid) in (None, "Z", "X")


@pytest.mark.root
def test_the_last_watch_ends_what_the_job_has_started_and_nothing_that_only_shows_its_mark(holdfast, script, wait_until):
    job = holdfast.start("run", script(LEAVES_A_CHILD))
    child = int(wait_until(lambda: job.stdout.partition("child ")[2].split())[0])
    (agent,) = [event["pid"] for event in wait_until(lambda: holdfast.events("AgentStarted"))]
    (watch,) = wait_until(lambda: [pid for pid in children_of(job.pid) if pid != agent])
    mark = Path(f"/proc/{agent}/limits").read_text().partition("Max file locks")[2].split()[0]
    assert mark.isdigit()
    shown = [Path(f"/proc/{pid}/{file}").read_text() for pid in (job.pid, agent, watch) for file in ("cmdline", "environ")]
    assert not any(mark in text for text in shown), "everybody sees command lines"
    with beside(TAKES_THE_MARK, agent) as neighbour, beside(SAYS_IT, agent, is_ours=True) as ours:
        os.kill(agent, signal.SIGSTOP)  # it sees nothing of the guardian's end
        job.kill(signal.SIGKILL)
        os.kill(agent, signal.SIGKILL)
        job.wait()
        wait_until(lambda: has_ended(child) and has_ended(watch))
        assert neighbour.poll() is None and ours.poll() is None


FAILS_ONCE = """
import os
print("hello", flush=True)
os._exit(3 if os.environ["HOLDFAST_ROUND"] == "1" else 0)
"""


def open_to_others(*folders: Path) -> list[str]:
    """What in these folders somebody else may open or enter; they are walked with what is in them."""
    found = [path for folder in folders for path in (folder, *folder.rglob("*")) if not path.is_symlink()]
    assert len(found) > len(folders)
    return [f"{path.stat().st_mode & 0o777:o} {path}" for path in found if path.stat().st_mode & 0o077]


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_all_that_a_job_keeps_is_its_user_s_only_whatever_the_umask(holdfast, script, tmp_path, free_port, no_umask):
    logs, stash = tmp_path / "kept" / "logs", tmp_path / "kept" / "stash"
    where = "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", "job"
    more = "--max-restarts", 1, "--backoff", 0, "--tee", 3, "--stash-dir", stash
    assert holdfast.run("run", *where, *more, "--log-dir", logs, script(FAILS_ONCE)).returncode == 0
    runs = list(logs.iterdir())
    assert len(runs) == 1 and not logs.stat().st_mode & 0o002
    assert not open_to_others(holdfast.state_dir / "jobs", *runs)


def test_so_are_the_logs_of_each_cycle(holdfast, script, tmp_path, no_umask):
    base, info = tmp_path / "logs" / "base.log", tmp_path / "infos"
    more = "--max-restarts", 1, "--ft-base-logfile", base, "--ft-cycle-info-dir", info
    assert holdfast.run("ft_launcher", *more, script(FAILS_ONCE)).returncode == 0
    assert base.exists() and not open_to_others(base.parent, info, holdfast.state_dir / "jobs")


def test_so_is_a_supervisor_s_state_also_where_it_lay_open(holdfast, tmp_path, no_umask):
    state = tmp_path / "fleet"
    state.mkdir(0o755)
    (state / "fleet.sqlite").touch(0o644)
    running = holdfast.start("supervisor", "--listen", "127.0.0.1:0", "--http", "off", "--state", state)
    port_of(running)
    assert (state / "fleet.sqlite-wal").exists() and not open_to_others(state)


@pytest.mark.root
@pytest.mark.parametrize("trap", ["a folder of theirs", "a link of theirs", "a folder of ours that all may write to", "a file"])
def test_who_takes_the_name_of_our_folder_in_tmp_keeps_no_job_away(trap, tmp_path, monkeypatch):
    in_the_open, name = tmp_path / "tmp", f"holdfast-{os.geteuid()}"
    in_the_open.mkdir()
    in_the_open.chmod(0o1777)
    tmp_path.chmod(0o755)
    taken = in_the_open / name
    match trap:
        case "a folder of theirs":
            taken.mkdir()
            os.chown(taken, NOBODY, NOBODY)
        case "a link of theirs":
            taken.symlink_to(tmp_path)
            os.lchown(taken, NOBODY, NOBODY)
        case "a file":
            taken.touch()
        case _:
            taken.mkdir()
            taken.chmod(0o777)
            (taken / "jobs").symlink_to(tmp_path)
    monkeypatch.setenv("HOLDFAST_SPARE_FOLDERS", str(in_the_open))
    before = sorted(tmp_path.iterdir())
    first = state_dir.open_job(state_dir.state_home({}), "train", "n1")
    second = state_dir.open_job(state_dir.state_home({}), "train", "n2")
    first.close(), second.close()
    assert first.path == second.path and first.path.startswith(f"{taken}.") and not first.degraded
    assert state_dir.homes({})[0] == os.path.dirname(os.path.dirname(first.path))
    assert sorted(tmp_path.iterdir()) == before
    assert trap != "a folder of theirs" or not list(taken.iterdir())


def test_what_others_could_have_put_into_a_state_directory_is_not_used(tmp_path):
    jobs = tmp_path / "state" / "jobs"
    jobs.mkdir(parents=True)
    jobs.chmod(0o777)
    (jobs / "train").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="others may write to it"):
        state_dir.open_job(str(jobs.parent), "train", "n1")
    (jobs / "train").unlink()
    job = state_dir.open_job(str(jobs.parent), "train", "n1")
    job.close()
    assert not open_to_others(jobs)


@pytest.mark.root
@pytest.mark.parametrize("mode", [0o770, 0o777])
def test_nor_is_a_folder_for_jobs_that_another_member_of_our_group_has_put_there(tmp_path, mode):
    jobs = tmp_path / "state" / "jobs"
    jobs.mkdir(parents=True)
    jobs.chmod(0o777)
    os.chown(jobs, NOBODY, NOBODY)
    jobs.parent.chmod(mode)
    with pytest.raises(UsageError, match=f"belongs to uid {NOBODY}"):
        state_dir.open_job(str(jobs.parent), "train", "n1")


SHOWS_ITS_ENVIRONMENT = """
import os, time
print("|".join(name for name, value in os.environ.items() if "hush" in value), "end", flush=True)
if os.environ.get("HOLDFAST_ROUND") == "1":
    os._exit(3)
"""

SECRETS = {variable.decode(): "hush-" + "h" * 32 for variable in VARIABLES}


@pytest.mark.parametrize("warm", [("off",), (1, "--warm-mode", "spawn"), (1, "--warm-mode", "fork")], ids=str)
def test_no_worker_has_a_secret_of_ours_in_its_environment(holdfast, script, warm):
    more = "--max-restarts", 1, "--backoff", 0, "--warm-spares", *warm
    ran = holdfast.run("run", *more, script(SHOWS_ITS_ENVIRONMENT), env=SECRETS)
    assert ran.returncode == 0 and ran.stdout.count(" end") == 2 and "HOLDFAST" not in ran.stdout, ran.output


def test_nor_has_what_watches_over_the_job_or_checks_its_node(holdfast, script, tmp_path, wait_until):
    check = tmp_path / "check.sh"
    check.write_text("#!/bin/sh\nenv >" + str(tmp_path / "seen") + "\n")
    check.chmod(0o755)
    waits = script("import time; print('up'); time.sleep(300)")
    job = holdfast.start("run", "--check-before", f"command={check}", waits, env=SECRETS)
    wait_until(lambda: "up" in job.stdout)
    (agent,) = [event["pid"] for event in wait_until(lambda: holdfast.events("AgentStarted"))]
    (watch,) = wait_until(lambda: [pid for pid in children_of(job.pid) if pid != agent])
    environ = Path(f"/proc/{watch}/environ")
    wait_until(lambda: "hush" not in environ.read_text(), what="the last watch's own program, whose fork shows its parent's")
    assert "PATH" in (tmp_path / "seen").read_text() and "hush" not in (tmp_path / "seen").read_text()


def test_nor_has_a_worker_of_torch_elastic_s_names(monkeypatch, tmp_path):
    for variable, secret in SECRETS.items():
        monkeypatch.setenv(variable, secret)
    handler = SubprocessHandler("env", (), {"RANK": "0"}, str(tmp_path / "seen"), None, 0)
    assert handler.proc.wait() == 0
    assert "RANK=0" in (tmp_path / "seen").read_text() and "hush" not in (tmp_path / "seen").read_text()


def test_what_a_supervisor_is_told_in_files_is_on_no_command_line(holdfast, tmp_path, wait_until):
    hush, state = "hush" * 8, tmp_path / "fleet"
    (tmp_path / "urls").write_text(f"# of chat\nhttp://127.0.0.1:9/{hush}\n")
    (tmp_path / "headers").write_text(f"authorization=Bearer {hush}\n")
    where = "--listen", "127.0.0.1:0", "--http", "off", "--state", state
    told = "--webhook-file", tmp_path / "urls", "--otlp", "http://127.0.0.1:9", "--otlp-headers-file", tmp_path / "headers"
    running = holdfast.start("supervisor", *where, *told)
    port_of(running)
    (notify,) = wait_until(lambda: children_of(running.pid))
    lines = [wait_until(Path(f"/proc/{pid}/cmdline").read_text) for pid in (running.pid, notify)]
    wait_until(lambda: "notify" in Path(f"/proc/{notify}/cmdline").read_text())
    assert not any("hush" in line for line in lines) and "command line" not in running.stderr
    assert not open_to_others(state)


def test_a_url_that_is_a_secret_is_passed_on_in_a_file_and_warned_of(holdfast, tmp_path, wait_until):
    where = "--listen", "127.0.0.1:0", "--http", "off", "--state", tmp_path / "fleet"
    running = holdfast.start("supervisor", *where, "--webhook", f"http://127.0.0.1:9/{'hush' * 8}")
    port_of(running)
    (notify,) = wait_until(lambda: children_of(running.pid))
    wait_until(lambda: "notify" in Path(f"/proc/{notify}/cmdline").read_text())
    assert "hush" not in Path(f"/proc/{notify}/cmdline").read_text()
    assert "everybody on this host sees command lines" in running.stderr and "--webhook-file" in running.stderr


def test_etcd_s_password_is_read_from_a_file_and_one_on_the_command_line_is_warned_of(tmp_path):
    (tmp_path / "password").write_text("hush\n")
    given = access({"user": "me", "password_file": str(tmp_path / "password")}, "--rdzv-conf")
    assert given["password"] == "hush" and "password_file" not in given


ASKS = """
link = socket.socket()
link.connect(("127.0.0.1", int(sys.argv[1])))
link.sendall(f"GET {sys.argv[2]} HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nConnection: close\\r\\n\\r\\n".encode())
if sys.argv[3] == "says no more":
    link.shutdown(socket.SHUT_WR)
print(link.recv(100).split()[1].decode())
"""


@pytest.mark.root
@pytest.mark.parametrize("end", ["waits", "says no more"])
def test_the_supervisor_s_page_and_the_attribution_service_answer_no_other_user(holdfast, tmp_path, wait_until, end):
    """Who ends his half of the connection is still its owner, though the connection is not established any more."""
    running = holdfast.start("supervisor", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--state", tmp_path / "fleet")
    page = port_of(running, "dashboard at")
    service = holdfast.start("attribution", "serve", "--root", tmp_path, "--port", 0)
    logs = wait_until(lambda: re.search(r"service at \S+:(\d+)", service.stderr))[1]
    assert as_nobody(ASKS, page, "/api/fleet", end) == "403\n"
    assert as_nobody(ASKS, logs, "/jobs", end) == "403\n"


CLOSES_AT_ONCE = """
link = socket.socket()
link.connect(("127.0.0.1", int(sys.argv[1])))
link.close()
"""


SQUATS = """
import socket, sys, time
print("ready", flush=True)
for _ in range(300):
    try:
        with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as taken:
            print("taken", flush=True)
            time.sleep(300)
    except OSError:
        time.sleep(0.01)
print("not to be had", flush=True)
"""


@pytest.mark.root
def test_the_dashboard_s_port_is_the_supervisor_s_also_while_its_server_is_away(holdfast, tmp_path, free_port, wait_until):
    """Or browsers and scripts would show their tokens to who has taken it meanwhile. Who comes then waits."""
    pytest.importorskip("starlette", reason="the extra `supervisor` is not installed")
    where = ("--listen", "127.0.0.1:0", "--state", tmp_path / "fleet", "--http", f"127.0.0.1:{free_port}")
    running = holdfast.start("supervisor", *where)
    running.wait_for_output("dashboard at")
    (web,) = children_of(running.pid)
    with beside(SQUATS, free_port) as other:
        os.kill(web, signal.SIGKILL)
        with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/healthz", timeout=60) as answer:
            assert answer.status == 200
        assert other.stdout is not None and other.stdout.readline() == "not to be had\n"
    assert children_of(running.pid) not in ([], [web])


@pytest.mark.root
def test_who_has_left_is_not_taken_for_root():
    """The kernel gives a socket that nobody has any more the number 0."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        as_nobody(CLOSES_AT_ONCE, listener.getsockname()[1])
        link, _ = listener.accept()
        with link:
            assert user_of(link) is None and not is_ours(user_of(link))
        ours = socket.create_connection(listener.getsockname())
        link, _ = listener.accept()
        with ours, link:
            assert user_of(link) == os.geteuid() and is_ours(user_of(link))


SPEAKS = """
link = socket.socket()
link.connect(("127.0.0.1", int(sys.argv[1])))
link.settimeout(60)
try:
    while link.recv(4096):
        pass
except ConnectionError:
    pass
"""


ANSWERS = """
import json, socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
hello = json.dumps({"holdfast": 4, "nonce": "00" * 16}).encode()
while True:
    link, _ = server.accept()
    link.sendall(len(hello).to_bytes(4, "big") + hello)
"""


@pytest.mark.root
def test_an_agent_without_a_token_proves_nothing_to_another_user_who_has_the_endpoint(holdfast, script, free_port, wait_until):
    with beside(ANSWERS, free_port):
        where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-conf", "is_host=false")
        job = holdfast.start("run", "--nnodes", 2, *where, script("print('master', __import__('os').environ['MASTER_ADDR'])"))
        wait_until(lambda: f"it is of another user (uid {NOBODY}), and there is no token" in job.stderr)
        assert "master" not in job.stdout


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """One that everybody may write to."""
    with TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


@pytest.mark.root
@pytest.mark.parametrize("is_link", [False, True], ids=["a file", "a link"])
def test_a_log_that_another_user_has_put_there_is_not_written_to(tmp_path, is_link):
    secret, log = tmp_path / "secret", tmp_path / "cycle_0.log"
    secret.write_text("mine")
    if is_link:
        log.symlink_to(secret)
    else:
        log.touch()
    os.lchown(log, NOBODY, NOBODY)
    with pytest.raises(OSError):
        open_log(str(log))
    assert secret.read_text() == "mine"


READS = """
import os, sys, time
os.mkfifo(sys.argv[1], 0o622)
pipe = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK) if sys.argv[2] == "reads" else None
print("it is there", flush=True)
while True:
    time.sleep(0.02)
    try:
        pipe and os.write(1, os.read(pipe, 1 << 16))
    except BlockingIOError:
        pass
"""


@pytest.mark.root
@pytest.mark.parametrize("reads", [False, True], ids=["that nobody reads", "that is read"])
def test_nor_to_its_pipe_for_whose_reader_no_job_waits(holdfast, script, shared_folder, reads):
    pipe = shared_folder / "train_cycle0.log"
    with beside(READS, pipe, "reads" if reads else "waits") as other:
        more = "--ft-per-cycle-applog-prefix", shared_folder / "train.log"
        ended = holdfast.run("ft_launcher", *more, script("print('a secret of mine')"))
        other.kill()
        assert other.stdout is not None and not other.stdout.read()
    assert ended.returncode == 0 and "it belongs to another user" in ended.stderr, ended.stderr


def test_a_log_of_our_own_may_be_a_link(tmp_path):
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    os.close(open_log(str(tmp_path / "log")))
    assert (tmp_path / "elsewhere").exists()


@pytest.mark.root
def test_a_supervisor_without_a_token_hears_no_agent_of_another_user(holdfast, script, tmp_path, wait_until):
    state = tmp_path / "fleet"
    running = holdfast.start("supervisor", "--listen", "127.0.0.1:0", "--http", "off", "--state", state)
    port = port_of(running)
    as_nobody(SPEAKS, port)
    wait_until(lambda: f"it is of another user (uid {NOBODY}), and there is no token" in running.stderr)
    waits = script("import time; time.sleep(300)")
    holdfast.start("run", "--supervisor", f"127.0.0.1:{port}", "--node-name", "node1", waits)
    wait_until(lambda: '"node1"' in holdfast.run("nodes", "--json", "--state", state).stdout)


CORDONS = """
import grpc._channel
channel = grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}")
print(channel.unary_unary(sys.argv[2])(b"", timeout=30))
"""


@pytest.mark.root
def test_a_host_s_daemon_hears_no_other_user_unless_it_is_told_to(holdfast, tmp_path, wait_until):
    for number, allowed in enumerate(((), ("--allow-user", NOBODY), ("--allow-user", "any"))):
        running = holdfast.start("daemon", "--port", 0, "--state-dir", tmp_path / f"daemon{number}", *allowed)
        method = f"/{SERVICE}/{next(iter(METHODS))}"
        said = as_nobody(CORDONS, port_of(running), method)
        assert ("not heard from this user" in said) == (not allowed) and "heard" in said
        if not allowed:
            wait_until(lambda running=running: f"uid {NOBODY}" in running.stderr and "--allow-user" in running.stderr)
        assert "heard" in as_ourselves(port_of(running), method)


def as_ourselves(port, method):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        said = channel.unary_unary(method)(b"", timeout=30).decode()
    return "" if "not heard" in said else said

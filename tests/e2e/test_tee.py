"""The workers' output, as a user and a script see it: the same as torchrun's, but for what is better on purpose."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.logs.attempt_logs import LogPlan, prefixes
from holdfast.agent.workers.error_files import read
from holdfast.core.config.config import RunConfig
from holdfast.core.job.failure import Failure
from holdfast.telemetry.report.failure_box import failure_box

SCRIPT = """
import os
rank = os.environ["RANK"]
for number in range(3):  # whole lines, in one write each: ranks share a console
    os.write(1, f"out {rank} {number}\\n".encode())
    os.write(2, f"err {rank} {number}\\n".encode())
"""

FLAGS = [
    (),
    ("-t", "3"),
    ("-r", "3"),
    ("-r", "1", "-t", "2"),
    ("-t", "0:1,1:2", "-r", "1:1"),
    ("-t", "3", "--local-ranks-filter", "1"),
    ("-r", "2", "--local-ranks-filter", "0"),
    ("-t", "1", "--duplicate-stdout-filters", "out 1,2"),
]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "hello.py"
    path.write_text(SCRIPT)
    return path


def launch(
    command: list[str], logs: Path, flags: tuple[str, ...], script: Path, **env: str
) -> subprocess.CompletedProcess[str]:
    full = [*command, "--nproc-per-node", "2", "--log-dir", str(logs), *flags, str(script)]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | env
    return subprocess.run(full, capture_output=True, text=True, timeout=100, env=environ, cwd=script.parent)


def what_came(run: subprocess.CompletedProcess[str], logs: Path) -> dict[str, Any]:
    """The console, less what is not the workers', and the files: names below the attempt, and content."""
    assert run.returncode == 0, run.stderr
    (attempt,) = logs.glob("*/attempt_0")
    files = {
        str(path.relative_to(attempt)): sorted(path.read_text().splitlines()) for path in attempt.rglob("*") if path.is_file()
    }
    console = {name: sorted(line for line in text.splitlines() if "out " in line or "err " in line)
               for name, text in (("stdout", run.stdout), ("stderr", run.stderr))}  # fmt: skip
    return {"files": files, **console}


@pytest.mark.torch
@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
def test_streams_go_where_torchrun_sends_them(tmp_path: Path, script: Path, flags: tuple[str, ...]):
    seen = []
    for name, command in (("ours", ["holdfast", "run"]), ("theirs", ["torch.distributed.run"])):
        run = launch(
            [sys.executable, "-m", *command], tmp_path / name, flags, script, HOLDFAST_STATE_DIR=str(tmp_path / "state")
        )
        seen.append(what_came(run, tmp_path / name))
    assert seen[0] == seen[1]


def test_the_null_device_leaves_the_console_alone(tmp_path: Path, script: Path, holdfast: Any):
    run = holdfast.run("run", "--nproc-per-node", 2, "--log-dir", os.devnull, "-t", 3, script)
    assert sorted(run.stdout.split("\n"))[1:] == [f"out {rank} {number}" for rank in (0, 1) for number in range(3)]


def test_the_filters_work_on_redirected_streams_too(tmp_path: Path, script: Path, holdfast: Any):
    logs = tmp_path / "logs"
    run = holdfast.run("run", "--nproc-per-node", 2, "--log-dir", logs, "-r", 3, "--duplicate-stderr-filters", "err 1", script)
    (kept,) = logs.glob("*/attempt_0/filtered_stderr.log")
    assert kept.read_text().splitlines() == [f"[default1]:err 1 {number}" for number in range(3)]
    assert "err" not in run.stderr


def test_a_prefix_template_names_the_global_rank(script: Path, holdfast: Any):
    run = holdfast.run(
        "run", "--nproc-per-node", 2, "-t", 1, script, env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name}/${rank}> "}
    )
    assert sorted(run.stdout.splitlines())[0] == "<default/0> out 0 0"


def test_the_report_ends_with_the_last_lines_and_torchruns_box(tmp_path: Path, holdfast: Any):
    script = tmp_path / "bad.py"
    script.write_text("import sys; print('the last words', file=sys.stderr); sys.exit(7)")
    run = holdfast.run("run", "-r", 3, "--failure-box", script)
    assert run.returncode == 1
    assert "rank 0 (local 0) on " in run.stderr and "exited with code 7" in run.stderr
    assert "  │ the last words\n" in run.stderr
    lines = run.stderr.rstrip().splitlines()
    assert lines[-1] == "=" * 60 and "  exitcode  : 7 (pid: " in run.stderr and f"{script} FAILED" in lines


@pytest.mark.torch
@pytest.mark.parametrize("end", ["sys.exit(7)", "os.kill(os.getpid(), 9)", "raise RuntimeError('boom')"])
def test_our_box_is_what_torchrun_prints(tmp_path: Path, end: str):
    """From the numbers in torchrun's box, ours is made again; then the bytes are compared."""
    script = tmp_path / "bad.py"
    script.write_text(
        "import os, sys, time\nfrom torch.distributed.elastic.multiprocessing.errors import record\n"
        f"@record\ndef main():\n    if os.environ['RANK'] == '1':\n        {end}\n    time.sleep(100)\nmain()\n"
    )
    theirs = tmp_path / "error.json"
    run = launch(
        [sys.executable, "-m", "torch.distributed.run"], tmp_path / "logs", (), script, TORCHELASTIC_ERROR_FILE=str(theirs)
    )
    box = run.stderr[run.stderr.index("ChildFailedError: ") + len("ChildFailedError: ") :].rstrip("\n")
    failures = sorted((parsed(entry) for entry in box.split("]:\n")[1:]), key=lambda failure: failure.rank != 1)
    name = next(line.removesuffix(" FAILED") for line in box.splitlines() if line.endswith(" FAILED"))
    assert failure_box(name, failures) == box


def parsed(entry: str) -> Failure:
    """One entry of a box, read back."""
    at, host, rank, code, file = (line.split(": ", 1)[1] for line in entry.splitlines()[:5])
    exitcode, pid = code.split(" (pid: ")
    said = None if file == "<N/A>" else read(file)
    written = {"error_file": file, "error_record": said.content, "traceback": said.traceback} if said else {}
    return Failure(
        node=host,
        rank=int(rank.split()[0]),
        local_rank=int(rank.split(": ")[1].rstrip(")")),
        exitcode=int(exitcode),
        pid=int(pid.split(")")[0]),
        at_unix=time.mktime(time.strptime(at, "%Y-%m-%d_%H:%M:%S")) + 0.5,
        **written,
    )


WRITER = """
import sys
rank, lines = sys.argv[1:]
for number in range(int(lines)):
    sys.stdout.write(f"{rank} {number} " + "x" * 60 + "\\n")
    sys.stdout.flush()
"""


def test_eight_fast_ranks_are_shown_whole_and_in_order(tmp_path: Path):
    ranks, lines = 8, 5000
    config = RunConfig(
        training_script="x", nproc_per_node=ranks, state_dir=str(tmp_path), tee={rank: 3 for rank in range(ranks)}
    )
    attempt = LogPlan.of(config, str(tmp_path), "n").open_attempt(0, 1, ranks)
    with (tmp_path / "console").open("wb") as console:
        tee = attempt.tee(prefixes("default", range(ranks)), stdout_fd=console.fileno(), stderr_fd=console.fileno())
    assert tee is not None
    workers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(rank), str(lines)], stdout=attempt[rank].stdout_fd)
        for rank in range(ranks)
    ]
    attempt.release()
    while any(worker.poll() is None for worker in workers):
        select.select([tee] if tee.fileno() >= 0 else [], [], [], max(0.0, tee.look_at - time.monotonic()))
        tee.pump()
    assert tee.drain()
    tee.close()
    shown = (tmp_path / "console").read_text().splitlines()
    for rank in range(ranks):
        start = f"[default{rank}]:"
        assert [line[len(start) :] for line in shown if line.startswith(start)] == [
            f"{rank} {number} " + "x" * 60 for number in range(lines)
        ]
    assert len(shown) == ranks * lines


def test_whoever_is_in_a_hurry_at_the_end_is_not_shown_all(tmp_path: Path, wait_until: Any):
    """The reader takes a piece at a time, for a minute: long enough for another signal."""
    script = tmp_path / "loud.py"
    script.write_text(
        "import os\nos.write(1, (b'x' * 99 + b'\\n') * 200_000)\n"
        f"open({str(tmp_path / 'done')!r}, 'w').close()\n"
    )
    command = [sys.executable, "-m", "holdfast", "run", "--nproc-per-node", "1", "-t", "1", str(script)]
    environ = os.environ | {"HOLDFAST_STATE_DIR": str(tmp_path / "state")}
    with (tmp_path / "stderr").open("wb") as stderr:
        agent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, stdin=subprocess.DEVNULL, env=environ)
    assert agent.stdout is not None
    wait_until((tmp_path / "done").exists)
    agent.send_signal(signal.SIGTERM)  # the job's end, unless that has come
    agent.send_signal(signal.SIGINT)
    taken = 0
    while piece := os.read(agent.stdout.fileno(), 4096):
        taken += len(piece)
        time.sleep(0.01)
    agent.stdout.close()
    assert agent.wait(60) in (0, 1) and 0 < taken < 200_000 * 110, (tmp_path / "stderr").read_text()


def test_a_stopped_terminal_does_not_keep_the_agent_from_seeing_a_death(tmp_path: Path, wait_until: Any):
    """Somebody pressed Ctrl-S, or the pager is not reading: a failure must still be seen, and the other rank stopped."""
    script = tmp_path / "loud.py"
    script.write_text(
        "import os, sys, time\nprint(('x' * 99 + '\\n') * 5000, flush=True)\n"
        f"open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').write(str(os.getpid()))\n"
        "while os.environ['RANK'] == '0' or not os.path.exists("
        + repr(str(tmp_path / "go"))
        + "):\n    time.sleep(0.01)\nsys.exit(3)\n"
    )
    mine, theirs = pty.openpty()  # nobody reads from it
    command = [sys.executable, "-m", "holdfast", "run", "--nproc-per-node", "2", "-t", "1", str(script)]
    environ = os.environ | {"HOLDFAST_STATE_DIR": str(tmp_path / "state")}
    with (tmp_path / "stderr").open("wb") as stderr:
        agent = subprocess.Popen(command, stdout=theirs, stderr=stderr, stdin=subprocess.DEVNULL, env=environ)
    try:
        wait_until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists() and (tmp_path / "0").read_text())
        (tmp_path / "go").touch()
        pid = int((tmp_path / "0").read_text())
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="the other rank to be stopped")
    finally:
        agent.send_signal(signal.SIGTERM)
        os.close(theirs)
        os.close(mine)
        agent.wait(60)

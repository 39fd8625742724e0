"""The command line as a user meets it: help, versions, mistakes, --print-config, --dry-run. No job is started here."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import pytest

from holdfast import __version__


def test_the_version(holdfast):
    done = holdfast("--version")
    assert (done.returncode, done.stdout) == (0, f"holdfast {__version__}\n")


def test_help_lists_the_commands_and_ends_well(holdfast):
    done = holdfast("--help")
    assert done.returncode == 0 and done.stderr == ""
    for command in ("run", "launch", "jobs", "status", "why", "events", "report", "stop", "doctor", "token"):
        assert f"\n  {command} " in done.stdout


def test_no_command_shows_the_help_and_is_a_mistake(holdfast):
    done = holdfast()
    assert done.returncode == 2 and "usage: holdfast COMMAND" in done.stderr


@pytest.mark.parametrize("command", ["run", "launch"])
def test_help_of_a_launching_command_needs_no_script(holdfast, command):
    done = holdfast(command, "--help")
    assert done.returncode == 0 and done.stdout.startswith(f"usage: holdfast {command} [options] SCRIPT")
    assert ("--use-env" in holdfast(command, "--help-all").stdout) == (command == "launch")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["rnu", "t.py"], ["there is no command 'rnu'", "did you mean run?"]),
        (["patch"], ["there is no command 'patch'", "holdfast torchrun"]),
        (["train.py"], ["there is no command 'train.py'", "holdfast run train.py"]),
        (["--nproc-per-node", "2"], ["there is no command", "holdfast run --nproc-per-node"]),
        (["jobs", "--jsn"], ["holdfast jobs: there is no argument --jsn", "did you mean --json?"]),
        (["run"], ["holdfast run: no script to run"]),
        (["run", "--nproc-per-nod=2", "--nprox", "t.py"], ["there is no flag --nprox", "--nproc-per-node"]),
        (["run", "--max-restarts", "-2", "t.py"], ["--max-restarts: -2 is too small"]),
        (["run", "--token-file", "nowhere", "t.py"], ["--token-file", "does not exist"]),
        (["run", "--standalone", "--nnodes", "2", "t.py"], ["--standalone: one node"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_mistake_exits_2_with_a_hint_and_without_a_traceback(holdfast, argv, says):
    done = holdfast(*argv)
    assert done.returncode == 2 and done.stdout == ""
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 2
    assert all(text in done.stderr for text in says), done.stderr
    assert not holdfast.jobs()


def test_print_config_tells_each_value_and_where_it_came_from(holdfast):
    done = holdfast("run", "--print-config", "--tee", "3", "t.py", "--x", "a b", env={"PET_MAX_RESTARTS": "4"})
    assert done.returncode == 0
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert rows["tee"].split()[1:] == ["3", "--tee"]
    assert rows["max_restarts"].split()[1:] == ["4", "PET_MAX_RESTARTS"]
    assert rows["rdzv_backend"].split(maxsplit=2)[1:] == ["memory", "derived: one node needs no server"]
    assert "--x 'a b'" in rows["training_script_args"]
    assert rows["state_dir"].split()[1:] == [str(holdfast.state_dir), "HOLDFAST_STATE_DIR"]
    assert not holdfast.jobs()


def test_print_config_as_json(holdfast):
    done = holdfast("run", "--print-config=json", "-r", "1", "t.py")
    found = json.loads(done.stdout)
    assert found["redirects"] == {"value": {"0": 1}, "origin": "--redirects"}
    assert found["training_script"]["value"] == "t.py"


def test_dry_run_shows_commands_environment_and_logs_and_starts_nothing(holdfast, tmp_path):
    touched = tmp_path / "started"
    script = tmp_path / "t.py"
    script.write_text(f"open({str(touched)!r}, 'w')")
    done = holdfast("run", "--dry-run", "--nproc-per-node", "2", "--rdzv-id", "job7", "-r", "1:3", script, "$local_rank")
    assert done.returncode == 0 and "Nothing was started." in done.stdout
    for local_rank in (0, 1):
        assert f"local rank {local_rank}: {shlex.quote(sys.executable)} -u {script} {local_rank}\n" in done.stdout
    for line in ("  RANK=1", "  WORLD_SIZE=2", "  TORCHELASTIC_RUN_ID=job7", "  OMP_NUM_THREADS=1"):
        assert f"{line}\n" in done.stdout
    folder = holdfast.state_dir / "jobs" / "job7" / "logs"
    assert f"stderr.log in {folder}" in done.stdout
    assert not touched.exists() and not holdfast.state_dir.exists()


def test_dry_run_leaves_open_what_only_the_meeting_tells(holdfast):
    done = holdfast("run", "--dry-run", "--nnodes", "2:4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "node-a", "t.py")
    assert "nodes       2 to 4" in done.stdout and "embedded at node-a:29400" in done.stdout
    assert "  RANK=<known at the start>\n" in done.stdout


def test_dry_run_knows_static_ranks(holdfast):
    argv = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "node-a", "--nproc-per-node", "2"]
    done = holdfast("run", "--dry-run", *argv, "t.py")
    assert "  RANK=2\n" in done.stdout and "  MASTER_ADDR=node-a\n" in done.stdout and "  MASTER_PORT=29500\n" in done.stdout


def test_launch_shows_the_local_rank_argument(holdfast):
    done = holdfast("launch", "--dry-run", "t.py", "--x")
    assert "t.py --local-rank=0 --x\n" in done.stdout
    assert "t.py --x\n" in holdfast("launch", "--use_env", "--dry-run", "t.py", "--x").stdout


def test_output_survives_an_ascii_terminal(holdfast):
    assert holdfast("run", "--help", env={"PYTHONIOENCODING": "ascii"}).returncode == 0


def test_closed_standard_streams_are_no_reason_to_fail(script):
    command = f"{shlex.quote(sys.executable)} -m holdfast run --dry-run {script('')} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], timeout=60, env=os.environ).returncode == 0


@pytest.mark.parametrize("line", ["--help", "run --help", "run --print-config train.py", "run --dry-run train.py", "doctor"])
def test_a_reader_that_goes_away_is_no_error(holdfast, line):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "holdfast", *line.split()]
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, env=os.environ)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("line", ["--help", "jobs"])
def test_a_full_disk_is_said_in_a_line(holdfast, line):
    command = [sys.executable, "-m", "holdfast", line]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=os.environ)
    said = f"holdfast {line}: cannot write its output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


HEAVY = [
    *("dataclasses", "subprocess", "asyncio", "pathlib", "tempfile", "shutil", "traceback", "inspect"),
    *("msgspec", "rich", "datetime", "uuid", "difflib", "textwrap", "importlib.metadata"),
]


def test_reading_the_command_line_loads_nothing_heavy():
    source = (
        "import sys, os\n"
        "before = set(sys.modules)\n"
        "from holdfast.cli import main\nfrom holdfast.cli.run import parser\n"
        "from holdfast.cli.run.run import gather, resolve, this_host\n"
        "typed = parser.read(['--nproc-per-node', '2', '--tee=3', 't.py'])\n"
        "resolve(gather(typed.given, os.environ), typed.script, typed.script_args, os.environ, this_host(os.environ))\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules and name not in before])\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", source], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"

"""Disks that hang or are full cost a job neither a node nor a restart: real agents on such mounts."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.hosts import fuse
from kit.hosts.hung_mount import HungMount
from kit.jobs.ranks import WAITS, Ranks
from kit.waiting import PATIENCE_S, wait_for

needs_fuse = pytest.mark.skipif(bool(fuse.why_not()), reason=fuse.why_not())


class Pair(Ranks):
    """Two agents with two ranks each, whose state or logs may lie on a disk of their own."""

    def __init__(self, holdfast: Any, port: int, tmp_path: Path, script: Any, wait_until: Any) -> None:
        super().__init__(tmp_path / "ranks", wait_until)
        self.holdfast, self.port, self.tmp_path, self.program = holdfast, port, tmp_path, script(WAITS)
        self.agents: dict[str, Any] = {}

    def start(self, where: dict[str, Path], logs: dict[str, Path] | None = None) -> None:
        """`where`: each node's state directory. `logs`: its --log-dir."""
        for name, state in where.items():
            more = ("--log-dir", logs[name], "--tee", "3") if logs is not None else ()
            meet = ("--nnodes", 2, "--nproc-per-node", 2, "--rdzv-endpoint", f"localhost:{self.port}", "--rdzv-id", "hung")
            asked = (*meet, "--node-name", name, "--max-restarts", 2, *more, self.program, self.folder)
            self.agents[name] = self.holdfast.start("run", *asked, env={"HOLDFAST_STATE_DIR": str(state)})

    def all_run(self, attempt: int, round: int) -> list[int]:
        """The pids of all ranks, once they run."""
        return [self.rank(rank, attempt, round)[0] for rank in range(4)]

    def end(self) -> str:
        """The job succeeds; what the agents have said."""
        self.finish()
        ended = [agent.wait() for agent in self.agents.values()]
        assert [one.returncode for one in ended] == [0, 0], [one.output for one in ended]
        return "".join(one.output for one in ended)


@pytest.fixture
def pair(holdfast: Any, free_port: int, tmp_path: Path, script: Any, wait_until: Any) -> Pair:
    return Pair(holdfast, free_port, tmp_path, script, wait_until)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[HungMount]:
    made = HungMount(tmp_path / "hung")
    yield made
    made.close()


@needs_fuse
@pytest.mark.parametrize("hung", ["n0", "n1"])
@pytest.mark.parametrize("what", ["state", "logs"])
def test_a_restart_comes_while_the_mount_hangs_and_no_lease_is_lost(
    pair: Pair, mount: HungMount, tmp_path: Path, what: str, hung: str
) -> None:
    at = {name: mount.path if name == hung else tmp_path for name in ("n0", "n1")}
    where = {name: folder / name if what == "state" else tmp_path / name for name, folder in at.items()}
    pair.start(where, {name: folder / f"logs-{name}" for name, folder in at.items()} if what == "logs" else None)
    pids = pair.all_run(0, 1)
    mount.hang()
    try:
        os.kill(pids[2], signal.SIGKILL)
        pair.all_run(1, 2)  # they have begun
    finally:
        mount.go()
    said = pair.end()
    assert "was lost" not in said and "did not run any more" not in said and "1 of 2 restarts used" in said
    assert said.count("its disk does not answer; ") == 1 and str(mount.path) in said


@needs_fuse
@pytest.mark.parametrize("hung", ["n0", "n1"])
def test_ranks_that_wait_to_write_a_line_hold_up_no_restart(
    pair: Pair, mount: HungMount, tmp_path: Path, script: Any, hung: str
) -> None:
    """They are deaf to SIGTERM and to SIGKILL: the default grace would be waited for twice."""
    pair.program = script(WAITS.replace("    time.sleep(0.02)", "    print('.', flush=True); time.sleep(0.02)"))
    at = {name: mount.path if name == hung else tmp_path for name in ("n0", "n1")}
    pair.start({name: tmp_path / name for name in at}, {name: folder / f"logs-{name}" for name, folder in at.items()})
    pids = pair.all_run(0, 1)
    mount.hang()
    try:
        waits = pids[0 if hung == "n0" else 2]
        wait_for(lambda: "request_wait_answer" in Path(f"/proc/{waits}/wchan").read_text(), PATIENCE_S, "a rank that waits")
        os.kill(pids[0 if hung == "n1" else 2], signal.SIGKILL)
        pair.all_run(1, 2)
    finally:
        mount.go()
    said = pair.end()
    assert "waits in the kernel for a disk that does not answer" in said and "1 of 2 restarts used" in said


@needs_fuse
def test_a_job_ends_well_while_the_mount_hangs(pair: Pair, mount: HungMount, tmp_path: Path) -> None:
    pair.start({"n0": tmp_path / "n0", "n1": mount.path / "n1"})
    pair.all_run(0, 1)
    mount.hang()
    try:
        pair.finish()
        wait_for(lambda: pair.agents["n0"].ended, PATIENCE_S, "the end of n0")
    finally:
        mount.go()
    assert "did not run any more" not in pair.end()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """One with room for a megabyte."""
    folder = tmp_path / "full"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> None:
    """Until there is no room for a byte."""
    with open(folder / "fill", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass


@pytest.mark.root
@pytest.mark.parametrize("what", ["state", "logs"])
def test_where_the_disk_is_full_a_failure_costs_one_restart_and_its_cause_is_known(
    holdfast: Any, script: Any, full_disk: Path, wait_until: Any, what: str
) -> None:
    source = """
import os, sys, time
print("life", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "2":
    sys.exit(0)
while os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and not os.path.exists(sys.argv[1] + "/fill"):
    time.sleep(0.01)
raise ValueError("of life " + os.environ["TORCHELASTIC_RESTART_COUNT"])
"""
    logs = ("--log-dir", full_disk / "logs", "--tee", "3") if what == "logs" else ()
    env = {"HOLDFAST_STATE_DIR": str(full_disk / "state")} if what == "state" else None
    job = holdfast.start("run", "--max-restarts", "2", "--backoff", "0", *logs, script(source), full_disk, env=env)
    made = full_disk / ("state/jobs" if what == "state" else "logs")
    wait_until(lambda: any(made.rglob("attempt_0/0")))
    fill(full_disk)
    ended = job.wait()
    assert ended.returncode == 0 and "life 2" in ended.stdout, ended.output
    assert ended.stderr.count("No space left on device; the ranks' output goes to this agent's") == 1, ended.output
    assert "ValueError: of life 1" in ended.stderr and "2 of 2 restarts used" in ended.stderr


WRITES = {
    "a file": "with open(path, 'wb') as file:\n    file.write(bytes(2 << 20))",
    "another's error": (
        "try:\n    open(path, 'wb').write(bytes(2 << 20))\nexcept OSError as error:\n    raise ValueError('so') from error"
    ),
    "its output": "import time\nwhile time.sleep(0.001) is None:\n    print('x' * 10_000)",
    "an array": "import numpy\nnumpy.save(open(path, 'wb'), numpy.zeros(1 << 18))",
    "a checkpoint": "import torch\ntorch.save(torch.zeros(1 << 19), path)",
    "a distributed checkpoint": (
        "import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp\n"
        "dist.init_process_group('gloo')\ndcp.save({'weight': torch.zeros(1 << 19)}, checkpoint_id=path)"
    ),
}


@pytest.mark.root
@pytest.mark.parametrize("what", [pytest.param(what, marks=pytest.mark.torch if "check" in what else ()) for what in WRITES])
def test_where_a_rank_has_no_space_to_write_the_report_says_where(
    holdfast: Any, script: Any, full_disk: Path, what: str
) -> None:
    """Python's error tells no name, torch's no file, and a distributed checkpoint's is no `Exception`."""
    target, logs = full_disk / "7.pt", (full_disk if what == "its output" else full_disk.parent) / "logs"
    source = f"import sys\npath = sys.argv[1]\n{WRITES[what]}"
    job = holdfast("run", "--redirects", "3", "--log-dir", logs, script(source), target, env={"OMP_NUM_THREADS": "1"})
    said = " ".join(job.stderr.split())
    assert job.returncode == 1
    where = rf"{re.escape(str(full_disk))}/logs/\S+/stdout.log" if what == "its output" else re.escape(str(target))
    assert re.search(f": (no space is left for )?'{where}' Cause rank 0 on ", said) and "(storage, " in said, said


# --- the audit --------------------------------------------------------------------------------------------------------------

LOOPS = re.compile(r"^(\d+) +(.*)$")
HARMLESS = "F_GETFD", "F_SETFD", "TCGETS"
"""These look at our own table of descriptors, or ask a terminal."""


CONTENT = re.compile(r'^(p?(?:read|write)(?:64)?\([^"]*)"(?:[^"\\]|\\.)*"')
"""What is read or written, behind the descriptor: a rank's stack, in its page, names files, too."""


def touched(trace: str, agent: int, folders: list[Path]) -> list[str]:
    """System calls of the agent's main thread on files below `folders`, since it started its first worker."""
    found, has_begun = [], False
    for line in trace.splitlines():
        said = LOOPS.match(line)
        if said is None or int(said[1]) != agent:
            continue
        has_begun = has_begun or "CLONE_VFORK" in said[2] or said[2].startswith("vfork(")
        is_theirs = any(f"{folder}/" in CONTENT.sub(r"\1", said[2]) for folder in folders)
        if has_begun and is_theirs and not any(word in said[2] for word in HARMLESS):
            found.append(said[2])
    return found


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: apt-get install strace")
def test_the_agent_s_loop_touches_no_file_of_a_user_s(holdfast: Any, script: Any, tmp_path: Path) -> None:
    """State and logs, error files, those that its streams go to, and the script's: a thread or a child does all of it."""
    source = """
import os
print("a line", flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    raise ValueError("boom")
if os.environ["RANK"] == "0" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    raise KeyError("boom")
"""
    (tmp_path / "script").mkdir()
    program = Path(shutil.move(script(source), tmp_path / "script/train.py"))
    (tmp_path / "outer").mkdir()
    asked = ("--nproc-per-node", "2", "--max-restarts", "1", "--backoff", "0", "--log-dir", tmp_path / "logs", "--tee", "3")
    trace = ("strace", "-f", "-y", "-qq", "-s", "200", "-e", "trace=%file,%desc,%process", "-o", tmp_path / "trace")
    env = {"HOLDFAST_STATE_DIR": str(tmp_path / "state"), "TORCHELASTIC_ERROR_FILE": str(tmp_path / "outer/error.json")}
    with open(tmp_path / "outer/said", "wb") as said:
        command = [*map(str, trace), sys.executable, "-m", "holdfast", "run", *map(str, asked), str(program)]
        code = subprocess.run(command, env=os.environ | env, stdin=subprocess.DEVNULL, stdout=said, stderr=said).returncode
    assert code == 1, (tmp_path / "outer/said").read_text()
    (events,) = (tmp_path / "state").rglob("events-*.jsonl")
    (agent,) = re.findall(r'"AgentStarted".*?"pid": (\d+)', events.read_text())
    folders = [tmp_path / name for name in ("state", "logs", "outer", "script")]
    calls = (tmp_path / "trace").read_text()
    assert (tmp_path / "outer/error.json").exists() and f"{tmp_path}/logs/" in calls and f"{tmp_path}/state/" in calls
    assert touched(calls, int(agent), folders) == []

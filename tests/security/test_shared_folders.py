"""What can another user do in a folder that both may write to, and what does a umask? Nothing of ours is read or changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit.neighbours import NOBODY

from holdfast.agent.leader.tie_breaker import ASKS
from holdfast.agent.states.state_disk import StateDisk
from holdfast.agent.workers.error_files import hand_on
from holdfast.core.job.failure import Failure
from holdfast.runtime.private_files import own_folder, private

WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")
"""Root as any other user: a file of mode 0000 is closed to it."""


FAILS_ONCE = """
import os
print("umask", os.umask(0), flush=True)
os._exit(3 if os.environ["HOLDFAST_ROUND"] == "1" else 0)
"""


@pytest.mark.parametrize("mask", [0o777, 0o277, 0o700])
def test_a_umask_that_takes_the_owner_s_own_rights_closes_no_file_of_ours_to_us(holdfast, script, tmp_path, mask):
    through = ("sh", "-c", f'umask {mask:o}; exec "$@"', "sh", *(WITHOUT_RIGHTS if os.geteuid() == 0 else ()))
    under = type(holdfast)(holdfast.folder, through)
    options = ("--max-restarts", 1, "--backoff", 0, "--tee", 3, "--log-dir", tmp_path / "logs")
    ended = under.run("run", *options, script(FAILS_ONCE), cwd=tmp_path)
    assert ended.returncode == 0 and "cannot" not in ended.stderr, ended.stderr
    assert f"umask {mask & 0o077}" in ended.stdout and holdfast.events("RoundFormed")


def test_a_link_is_not_followed_for_a_file_of_ours(tmp_path):
    (tmp_path / "draft").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError), open(tmp_path / "draft", "w", opener=private):
        pass
    assert not (tmp_path / "mine").exists()


def test_a_folder_of_ours_is_closed_to_others(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name in ("open", "new"):
        own_folder(str(tmp_path / name))
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700 and not list((tmp_path / name).iterdir())


@pytest.mark.root
@pytest.mark.parametrize("is_link", [False, True], ids=["a folder", "a link"])
def test_no_state_comes_from_or_goes_to_a_folder_of_another_user(tmp_path, is_link):
    """Who may write to `--stash-dir` may have made the job's folder: states in it are his, and links lead where he likes."""
    folder, ours = tmp_path / "job", tmp_path / "ours"
    ours.mkdir()
    if is_link:
        folder.symlink_to(ours)
    else:
        folder.mkdir(0o777)
    os.lchown(folder, NOBODY, NOBODY)
    told: list[str] = []
    disk = StateDisk(str(folder), nproc=1, complain=told.append)
    assert disk.first() == []
    disk.due()
    assert told == [f"--stash-dir: {folder} cannot be listed: it belongs to another user"]
    with pytest.raises(PermissionError):
        own_folder(str(folder))
    assert list(folder.iterdir()) == []


@pytest.mark.root
def test_an_agent_s_words_go_to_no_file_of_another_user(holdfast, script, tmp_path):
    theirs = tmp_path / "own.log"
    theirs.touch()
    theirs.chmod(0o666)
    os.chown(theirs, NOBODY, NOBODY)
    ended = holdfast.run("ft_launcher", "--ft-nvrx-logfile", theirs, script("raise SystemExit(3)"))
    assert ended.returncode == 2 and "it belongs to another user" in ended.stderr and not theirs.read_text()


def test_the_name_of_a_record_s_draft_cannot_be_taken_by_a_link(tmp_path):
    record, mine = tmp_path / "error.json", tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / f"error.json.{os.getpid()}").symlink_to(mine)
    failed = Failure(node="a", rank=0, at_unix=0.0, exitcode=1, error_record={"message": "no"})
    assert hand_on(failed, str(record)) and record.exists() and mine.read_text() == "mine"


@pytest.mark.root
def test_a_witness_does_not_speak_for_whom_another_user_has_named(tmp_path):
    def said() -> str:
        argv = [sys.executable, "-I", "-S", "-c", ASKS, tmp_path, "holdfast-life-1", "a:1", "5"]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout

    named = tmp_path / "holdfast-life-1"
    named.write_text("evil:1")
    os.chown(named, NOBODY, NOBODY)
    assert said() == "trouble holdfast-life-1 in it belongs to another user\n"
    named.unlink()
    assert said() == said() == "speaks for a:1\n"


HOLDS = """
import os, sys
secret, found = sys.argv[2].encode(), 0
for line in open(f"/proc/{sys.argv[1]}/maps"):
    where, rights = line.split()[:2]
    low, high = (int(end, 16) for end in where.split("-"))
    if rights[0] != "r" or "[v" in line:
        continue
    with open(f"/proc/{sys.argv[1]}/mem", "rb", 0) as memory:
        memory.seek(low)
        while low < high and (piece := memory.read(min(high - low, 1 << 24))):
            found, low = found + piece.count(secret), low + len(piece)
print(found)
"""


@pytest.mark.root
@pytest.mark.parametrize("kept", ["in the environment", "in a file"])
def test_a_rank_s_core_file_would_hold_no_secret_of_ours(holdfast, script, tmp_path, free_port, wait_until, kept):
    """Nor a warm spare's: they are processes of their own, whose environment never had it. The agent's holds it."""
    secret = os.urandom(20).hex()
    (tmp_path / "token").write_text(secret)
    (tmp_path / "token").chmod(0o600)
    how: dict[str, Any] = {"env": {"HOLDFAST_TOKEN": secret}} if kept == "in the environment" else {}
    where = ("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port}")
    options = (*where, "--rdzv-conf", "last_call_timeout=0.1", *(() if how else ("--token-file", tmp_path / "token")))
    job = holdfast.start("run", *options, "--max-restarts", 1, script("import time; time.sleep(300)"), **how)
    wait_until(lambda: holdfast.events("WorkerStarted") and _named("holdfast-spare", job.pid))
    (agent,) = [event["pid"] for event in holdfast.events("AgentStarted")]
    (rank,) = [event["pid"] for event in holdfast.events("WorkerStarted")]

    def copies(pid: int) -> int:
        argv = [sys.executable, "-c", HOLDS, str(pid), secret[:30]]
        return int(subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout)

    assert [copies(pid) for pid in (rank, *_named("holdfast-spare", job.pid))] == [0, 0] and copies(agent) > 0


def _named(name: str, above: int) -> list[int]:
    """The processes of that name below that one."""
    below = [int(pid) for task in Path(f"/proc/{above}/task").iterdir() for pid in (task / "children").read_text().split()]
    own = [pid for pid in below if Path(f"/proc/{pid}/comm").read_text().strip() == name]
    return own + [pid for child in below for pid in _named(name, child)]

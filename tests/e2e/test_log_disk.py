"""Does a log disk that stops answering cost the lines, and not the job? Real ranks, over file systems that fall silent."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit.hosts import fuse

from holdfast.agent.group.messages import Ended
from holdfast.agent.logs.app_log import AppLog
from holdfast.agent.logs.attempt_logs import LogPlan
from holdfast.agent.workers.workers import Workers
from holdfast.core.config.config import RunConfig
from holdfast.core.machine import NEVER
from holdfast.core.wire.messages import Assigned
from holdfast.runtime.host import Host

PATIENCE_S = 30.0

pytestmark = pytest.mark.skipif(bool(fuse.why_not()), reason=fuse.why_not())


class Job:
    """Two ranks that do nothing; what the first writes lies on `mount`, as far as whoever follows it can tell."""

    def __init__(self, folder: Path) -> None:
        self.out = ""
        self.screen, console = os.pipe()
        os.set_blocking(self.screen, False)
        (folder / "mount").mkdir()
        self.mount = fuse.LogMount(folder / "mount")
        script = folder / "train.py"
        script.write_text("import time\ntime.sleep(600)\n")
        every = {0: 1, 1: 1}
        config = RunConfig(
            training_script=str(script),
            state_dir=str(folder),
            nproc_per_node=2,
            python=sys.executable,
            redirects=every,
            tee=every,
        )
        self.complaints: list[str] = []
        self.ended: list[Ended] = []
        self.host = Host(self.complaints.append)
        self.workers = Workers(config, self.host, LogPlan.of(config, str(folder), "n1"))
        sizes = {"group_world_size": 1, "world_size": 2, "role_base_rank": 0, "role_world_size": 2, "base_rank": 0}
        self.workers.hold_port()
        master = {"master_addr": "127.0.0.1", "master_port": 1}
        assigned = Assigned(round=1, restart_count=0, group_rank=0, nodes=(), reason="first", **master, **sizes)
        for _ in self.workers.open_logs(assigned) or self.host.wait(NEVER):
            list(self.workers.start(assigned))
        assert self.workers.attempt is not None
        self.logs = [Path(*self.workers.attempt.files(rank)) for rank in range(2)]
        self.logs[0].unlink()
        self.logs[0].symlink_to(self.mount.log)
        self.workers.attempt.tee = partial(self.workers.attempt.tee, stdout_fd=console)  # type: ignore[method-assign]
        self.workers.follow()
        self.until(self.workers.shower.caught_up)
        os.close(console)

    def until(self, what: Callable[[], object]) -> None:
        """The agent's loop, until `what` is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < deadline, f"{self.out!r}, {self.complaints}"
            for seen in self.host.wait(min(self.workers.due_at, time.monotonic() + 0.1)):
                self.ended += [one for one in self.workers.understood(seen) if isinstance(one, Ended)]
            list(self.workers.due())

    def fall_silent(self) -> None:
        """When it is asked for more."""
        self.mount.speaks.clear()
        self.until(lambda: not self.workers.shower.caught_up())

    def shown(self) -> list[str]:
        """All lines so far."""
        with contextlib.suppress(BlockingIOError):
            self.out += os.read(self.screen, 1 << 16).decode()
        return self.out.splitlines()

    def close(self) -> None:
        self.mount.close()
        self.workers.close()
        while self.host.children:  # until their pages have no watches
            self.host.wait(time.monotonic() + 0.1)
        self.host.close()
        os.close(self.screen)


@pytest.fixture
def job(tmp_path: Path, test_mark: str) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


def test_while_it_is_silent_deaths_are_seen_and_then_all_lines_are_shown_in_their_order(job: Job) -> None:
    job.mount.content = b"one\n"
    job.until(lambda: job.shown() == ["[default0]:one"])
    job.fall_silent()
    job.mount.content += b"two\nthree\n"
    job.logs[1].write_text("other\n")
    os.kill(next(pid for pid, rank in job.workers.local_ranks.items() if rank == 1), signal.SIGKILL)
    job.until(lambda: job.ended)
    assert job.ended[0].local_rank == 1 and not job.workers.shower.caught_up() and job.shown() == ["[default0]:one"]
    job.mount.speaks.set()
    job.until(lambda: len(job.shown()) == 4)
    assert [line for line in job.shown() if "0" in line] == [f"[default0]:{word}" for word in ("one", "two", "three")]
    assert "[default1]:other" in job.shown() and not job.complaints


@pytest.mark.parametrize("patient", [False, True])
def test_the_end_of_a_round_does_not_wait_for_it_and_what_is_left_is_shown_should_it_answer(job: Job, patient: bool) -> None:
    job.mount.content = b"one\n"
    job.until(lambda: job.shown() == ["[default0]:one"])
    job.fall_silent()
    job.mount.content += b"two\nthe end"
    job.workers.close_logs(patient=patient)
    assert job.complaints == ["not all of the ranks' output is shown; it is in their log files: their disk does not answer"]
    assert job.shown() == ["[default0]:one"]
    job.mount.speaks.set()
    assert job.workers.shower.caught_up(PATIENCE_S)
    assert job.shown() == [f"[default0]:{text}" for text in ("one", "two", "the end")]


def test_a_disk_that_is_gone_is_told_of_once_and_ends_nothing(job: Job) -> None:
    job.mount.content = b"one\n"
    job.until(lambda: job.shown() == ["[default0]:one"])
    job.mount.close()
    job.until(lambda: job.complaints)
    job.workers.close_logs(patient=True)
    (complaint,) = job.complaints
    assert complaint.startswith("not all of the ranks' output is shown; it is in their log files: ")


def open_files() -> Iterator[str]:
    """Paths of those that this process has open."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            yield os.readlink(descriptor)


def test_an_application_log_says_once_that_the_disk_it_follows_is_gone(tmp_path: Path, wait_until: Any) -> None:
    (tmp_path / "mount").mkdir()
    mount = fuse.LogMount(tmp_path / "mount")
    mount.content = b"one\n"
    log = AppLog(str(tmp_path / "job.log"), 0, [(mount.log, "0: ")])
    try:
        gathered = tmp_path / "job_cycle0.log"
        wait_until(lambda: gathered.exists() and gathered.read_text() == "0: one\n")
    finally:
        mount.close()
        log.finish()
    assert log.wait(PATIENCE_S)
    (complaint,) = log.complaints
    assert complaint.startswith(f"{gathered} is incomplete; the ranks' own files are complete: ")
    assert not {mount.log, str(gathered)} & set(open_files()), "what it had open is closed"
    log.close()


def test_a_rank_s_failure_is_told_though_what_it_has_left_cannot_be_read(holdfast: Any, script: Any, tmp_path: Path) -> None:
    (tmp_path / "silent").mkdir()
    mount = fuse.SilentMount(tmp_path / "silent", deaf=False)
    source = f"""
import os, sys, time
if os.environ["RANK"] == "0":
    time.sleep(600)
log = os.path.join(os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"]), "stderr.log")
os.unlink(log)
os.symlink({mount.path!r} + "/log", log)
sys.exit(3)
"""
    try:
        done = holdfast("run", "--nproc-per-node", "2", "-r", "3", script(source))
    finally:
        mount.close()
    assert done.returncode == 1 and "rank 1 (local 1)" in done.stderr and "exited with code 3" in done.stderr, done.stderr
    assert "is not known: that disk does not answer" in done.stderr

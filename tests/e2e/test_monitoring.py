"""The monitor over real ranks: what it sees of their pages, logs and processes, and how soon it tells."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit.hosts import fuse

from holdfast.agent.group.messages import Hung, PaceKnown
from holdfast.agent.logs.attempt_logs import LogPlan
from holdfast.agent.workers.monitor_driver import Monitoring
from holdfast.agent.workers.workers import Workers
from holdfast.core.config.config import RunConfig
from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.job.events import Event
from holdfast.core.machine import Action, Observation, Record, Say
from holdfast.core.wire.messages import Assigned
from holdfast.monitor.machine import Monitor
from holdfast.monitor.messages import PaceHeard, RankSeen
from holdfast.runtime.host import Host

PATIENCE_S = 30.0
BEATING = """
import time
from holdfast.client import progress
for step in range(10**6):
    progress(step)
    time.sleep(0.02)
"""
STILL = "import sys, time\nsys.stdout.write('up\\n')\nsys.stdout.flush()\ntime.sleep(600)\n"


class Ranks:
    """Real workers with a monitor over them, and nobody else: no group that would act on what it says."""

    def __init__(self, folder: Path, source: str, nproc: int, make: Callable[..., Monitor], **ft: Any) -> None:
        script = folder / "train.py"
        script.write_text(source)
        config = RunConfig(
            training_script=str(script),
            state_dir=str(folder),
            nproc_per_node=nproc,
            python=sys.executable,
            redirects=dict.fromkeys(range(nproc), 3),
            tee=dict.fromkeys(range(nproc), 0),
            ft=FaultTolerance(**ft),
        )
        self.complaints: list[str] = []
        self.events: list[Event] = []
        self.said: list[str] = []
        self.found: list[Any] = []
        self.host = Host(self.complaints.append)
        self.workers = Workers(config, self.host, LogPlan.of(config, str(folder), "n1"))
        self.monitoring = Monitoring(
            config, self.host, self.workers, node="n1", perform=self._perform, complain=self.complaints.append, make=make
        )
        sizes = {"group_world_size": 1, "world_size": nproc, "role_base_rank": 0, "role_world_size": nproc, "base_rank": 0}
        self.assigned = Assigned(
            round=1, restart_count=0, group_rank=0, master_addr="127.0.0.1", master_port=1, nodes=(), reason="first", **sizes
        )
        self.workers.hold_port()
        for _ in self.workers.open_logs(self.assigned) or self.host.wait(float("inf")):
            """They are open."""
        self.found += self.monitoring.begin_round(self.assigned, list(self.workers.start(self.assigned)))

    def _perform(self, actions: Any) -> None:
        for action in actions:
            if isinstance(action, Record):
                self.events.append(action.event)
            elif isinstance(action, Say):
                self.said.append(action.text)

    def until(self, what: Callable[[], object]) -> None:
        """The agent's loop, until `what` is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < deadline, f"{self.found}, {self.complaints}"
            for seen in self.host.wait(min(self.monitoring.due_at, time.monotonic() + 0.1)):
                self.monitoring.saw(seen)
            if time.monotonic() >= self.monitoring.due_at:
                self.found += self.monitoring.due()

    @property
    def hung(self) -> list[Hung]:
        return [seen for seen in self.found if isinstance(seen, Hung)]

    def pid(self, local_rank: int) -> int:
        return next(pid for pid, rank in self.workers.local_ranks.items() if rank == local_rank)

    def shown(self, local_rank: int = 0) -> dict[str, Any]:
        return self.monitoring.shown(local_rank)

    def close(self) -> None:
        self.monitoring.close()
        self.workers.close()
        while self.host.children:  # until their pages have no watches
            self.host.wait(time.monotonic() + 0.1)
        self.host.close()


@pytest.fixture
def ranks(tmp_path: Path, test_mark: str) -> Iterator[Callable[..., Ranks]]:
    made: list[Ranks] = []

    def make(source: str, nproc: int = 1, monitor: Callable[..., Monitor] = Monitor, **ft: Any) -> Ranks:
        made.append(Ranks(tmp_path, source, nproc, monitor, **ft))
        return made[-1]

    yield make
    for one in made:
        one.close()


def silence(job: Ranks, before: str, after: str) -> float:
    """For how long the rank that hangs was silent when it was found, as the reason says: a busy machine looks later."""
    said, _, rest = job.hung[0].reason.removeprefix(before).partition(after)
    assert rest or job.hung[0].reason.endswith(after), job.hung[0].reason
    return float(said)


def test_a_rank_that_is_stopped_is_told_of_when_its_limit_has_run_out(ranks: Callable[..., Ranks]) -> None:
    job = ranks(BEATING, 2, rank_heartbeat_timeout=1.0)
    job.until(lambda: job.shown(0).get("step") and job.shown(1).get("step"))
    stopped_at = time.monotonic()
    os.kill(job.pid(1), signal.SIGSTOP)
    job.until(lambda: job.hung)
    assert [seen.local_rank for seen in job.hung] == [1]
    assert silence(job, "no heartbeat for ", " s (limit 1 s)") >= 1.0
    assert time.monotonic() - stopped_at > 0.9


def test_the_limit_of_the_start_counts_without_any_word_of_the_script(ranks: Callable[..., Ranks]) -> None:
    job = ranks(STILL, start_limit=0.5)
    job.until(lambda: job.hung)
    assert "after its start" in job.hung[0].reason


def test_a_section_that_does_not_end_is_named(ranks: Callable[..., Ranks]) -> None:
    source = "import time\nfrom holdfast.client import section\nwith section('checkpoint'):\n    time.sleep(600)\n"
    job = ranks(source, rank_section_timeouts={"checkpoint": 0.7})
    job.until(lambda: job.hung)
    assert silence(job, "in section checkpoint for ", " s (limit 0.7 s)") >= 0.7


def test_a_line_of_the_log_is_progress_and_names_the_step(ranks: Callable[..., Ranks]) -> None:
    source = """
import sys, time
for step in range(7, 30):
    sys.stderr.write(f"[train] step {step} loss 0.5\\r" if step % 2 else f"[train] step {step} loss 0.5\\n")
    sys.stderr.flush()
    time.sleep(0.1)
time.sleep(600)
"""
    job = ranks(source, progress_regex=r"step (?P<step>\d+) loss", rank_heartbeat_timeout=1.5)
    job.until(lambda: job.hung)
    assert job.shown()["beats"] == 22 or job.shown()["beats"] == 23
    assert job.shown()["step"] in (28, 29) and silence(job, "no heartbeat for ", " s (limit 1.5 s)") >= 1.5


@pytest.mark.skipif(bool(fuse.why_not()), reason=fuse.why_not())
def test_a_log_whose_file_system_hangs_holds_up_nobody_and_the_pages_still_tell(
    ranks: Callable[..., Ranks], tmp_path: Path
) -> None:
    (tmp_path / "silent").mkdir()
    mount = fuse.SilentMount(tmp_path / "silent", deaf=False)
    try:
        job = ranks(BEATING, 2, progress_regex="step", rank_heartbeat_timeout=1.0)
        assert job.workers.attempt is not None
        for path in map(Path, job.workers.attempt.files(0)):
            path.unlink()
            path.symlink_to(f"{mount.path}/log")
        job.until(lambda: job.shown(0).get("step") and job.shown(1).get("step"))
        os.kill(job.pid(1), signal.SIGSTOP)
        job.until(lambda: job.hung)
        assert [seen.local_rank for seen in job.hung] == [1] and job.monitoring.reader.is_late
    finally:
        mount.close()


def test_ranks_that_show_nothing_hang_when_all_of_them_stand_still(ranks: Callable[..., Ranks]) -> None:
    job = ranks(STILL, 2, still_limit=3.0)
    job.until(lambda: job.hung)
    assert "nothing on this node has done anything for" in job.hung[0].reason
    assert [type(event).__name__ for event in job.events if type(event).__name__ == "Unwatched"] == ["Unwatched"]
    assert len([text for text in job.said if "no rank has given a sign of life" in text]) == 1


def test_ranks_whose_gpus_work_do_not_hang_until_they_stand_still_too(
    ranks: Callable[..., Ranks], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share, asked, smi = tmp_path / "share", tmp_path / "asked", tmp_path / "nvidia-smi"
    share.write_text("0\n37\n")
    asked.touch()
    smi.write_text(f"#!/bin/sh\necho >> {asked}\ncat {share}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    job = ranks(STILL, 2, still_limit=1.0)
    job.until(lambda: asked.stat().st_size >= 3)
    assert job.hung == [], "its processors have stood still for longer than that"
    share.write_text("0\n0\n")
    job.until(lambda: job.hung)
    assert "nothing on this node has done anything for" in job.hung[0].reason


def test_a_rank_that_only_computes_does_not_hang(ranks: Callable[..., Ranks]) -> None:
    """Of two that show nothing, one works: the other may be waiting for it."""
    source = "import os, time\nwhile True:\n    time.sleep(600) if os.environ['RANK'] == '1' else sum(range(10**5))\n"
    job = ranks(source, 2, still_limit=1.0)
    looked_until = time.monotonic() + 3.0
    job.until(lambda: time.monotonic() > looked_until)
    assert job.hung == []


def test_a_stopped_rank_hangs_by_a_learned_limit_though_others_spin(ranks: Callable[..., Ranks]) -> None:
    source = BEATING.replace("time.sleep(0.02)", "time.sleep(0.02)\n    while os.environ['RANK'] == '0' and step > 60: pass")
    job = ranks("import os\n" + source, 2, least_limit=1.5, most_limit=None)
    job.until(lambda: job.monitoring.monitor.state.learned.is_ready("beat"))
    os.kill(job.pid(1), signal.SIGSTOP)
    job.until(lambda: job.hung)
    assert job.hung[0].local_rank == 1 and job.hung[0].reason.endswith("it is stopped (SIGSTOP)")
    assert "learned limit 1.5 s" in job.hung[0].reason


class Faults:
    """Makes monitors, one or another of which fails: at the next looks, at the question for its deadline, or at news."""

    def __init__(self) -> None:
        self.left = dict.fromkeys(("a look", "its deadline", "news"), 0)
        """So many times, at each place."""

    def at(self, place: str) -> None:
        if self.left[place]:
            self.left[place] -= 1
            raise RuntimeError("injected")

    def __call__(self, *args: Any, **how: Any) -> Monitor:
        faults = self

        class Faulty(Monitor):
            def observe(self, seen: Observation, now: float) -> list[Action]:
                if isinstance(seen, RankSeen | PaceHeard):
                    faults.at("news" if isinstance(seen, PaceHeard) else "a look")
                return super().observe(seen, now)

            def deadline(self) -> float:
                faults.at("its deadline")
                return super().deadline()

        return Faulty(*args, **how)


@pytest.mark.parametrize("place", ["a look", "its deadline", "news"])
def test_a_monitor_that_fails_is_made_anew_and_the_ranks_notice_nothing(ranks: Callable[..., Ranks], place: str) -> None:
    faults = Faults()
    job = ranks(BEATING, 2, faults, rank_heartbeat_timeout=1.0)
    job.until(lambda: job.shown(0).get("step") and job.shown(1).get("step"))
    faults.left[place] = 1
    job.monitoring.heed({}, 0.0)
    job.until(lambda: job.complaints)
    assert "the monitor failed (RuntimeError: injected" in job.complaints[0]
    steps = {rank: job.host.children[job.pid(rank)].page.signs().step for rank in (0, 1)}  # type: ignore[union-attr]
    job.until(lambda: all((job.shown(rank).get("step") or 0) > steps[rank] + 10 for rank in (0, 1)))
    assert job.hung == []
    os.kill(job.pid(0), signal.SIGSTOP)
    job.until(lambda: job.hung)
    assert job.hung[0].local_rank == 0 and len(job.complaints) == 1


def test_a_monitor_that_always_fails_does_not_cost_the_agent_its_time(ranks: Callable[..., Ranks]) -> None:
    faults = Faults()
    job = ranks(BEATING, monitor=faults)
    faults.left["a look"] = 10**9
    job.until(lambda: len(job.complaints) == 2)
    assert "a new one starts in 10 s" in job.complaints[1]
    assert job.monitoring.due_at > time.monotonic() + 5.0
    assert list(job.host.children), "the rank runs"


def test_what_is_learned_is_told_and_holds_for_the_next_round(ranks: Callable[..., Ranks]) -> None:
    job = ranks(BEATING, monitor=partial(Monitor, inform_s=3.0))
    job.until(lambda: any(isinstance(seen, PaceKnown) and "beat" in seen.longest_s for seen in job.found))
    assert any(type(event).__name__ == "LimitsLearned" for event in job.events)
    job.found += job.monitoring.begin_round(job.assigned, [])
    assert job.monitoring.monitor.state.learned.is_ready("beat")


INJECTED = """
import runpy, sys
from holdfast.monitor import rank_looks

real, calls = rank_looks.looked, []

def fails_third(*seen):
    calls.append(seen)
    if len(calls) == 3:
        raise RuntimeError("injected")
    return real(*seen)

rank_looks.looked = fails_third
runpy.run_module("holdfast", run_name="__main__")
"""


def test_an_agent_whose_monitor_has_failed_still_finds_the_hang(holdfast: Any, script: Any) -> None:
    """The whole command, with a fault in the midst of it."""
    train = script(BEATING.replace("10**6", "80") + "time.sleep(600)\n")
    faulty = script(INJECTED, "faulty.py")
    env = os.environ | {"HOLDFAST_STATE_DIR": str(holdfast.state_dir)}
    command = [sys.executable, faulty, "run", "--nproc-per-node", "2", "--ft-rank-heartbeat-timeout", "2", train]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert ["injected" in seen["what"] for seen in holdfast.events("Degraded")] == [True]
    hung = holdfast.events("RankHung")
    assert hung and all("(limit 2 s)" in seen["reason"] for seen in hung), "the ranks ran until then"

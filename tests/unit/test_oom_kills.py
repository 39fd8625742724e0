"""What is known of a process that SIGKILL has ended: by made-up hosts, whose files say what the kernel's would."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.core.job.failure import NO_OOM_KILL, Failure
from holdfast.core.job.finding import Class
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.collect import of_failures, of_round
from holdfast.diagnosis.rule import load
from holdfast.runtime.hardware.oom_kills import FIRST_PID_NAMESPACE, OF_GROUP, OomKills

LINE = "Memory cgroup out of memory: Killed process 4711 (python) total-vm:9000kB"


class MadeUp:
    """A host: its kernel's counts, its log, and whether we are in a container."""

    def __init__(self, root: Path, *, contained: bool = False, version: int = 2) -> None:
        self.root = root
        own = "0::/job" if version == 2 else "5:cpu:/\n4:memory:/job\n0::/"
        self.group_file = "sys/fs/cgroup/job/memory.events" if version == 2 else "sys/fs/cgroup/memory/job/memory.oom_control"
        self.write("proc/self/cgroup", own)
        (root / "proc/self/ns").mkdir()
        os.symlink("pid:[4026532000]" if contained else FIRST_PID_NAMESPACE, root / "proc/self/ns/pid")
        self.counts(0, 0)
        self.watch = OomKills(str(root))

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def counts(self, host: int, group: int) -> None:
        self.write("proc/vmstat", f"pgfault 17\noom_kill {host}\nnuma_hit 1\n")
        self.write(self.group_file, f"oom 0\noom_kill {group}\n")

    def log(self, *lines: str) -> None:
        self.write("dev/kmsg", "".join(f"6,{at},{at}000000,-;{line}\n" for at, line in enumerate(lines, 1)))


def test_where_the_kernel_has_killed_nobody_it_was_somebody_else(tmp_path: Path):
    host = MadeUp(tmp_path)
    host.log(LINE)  # of a day before
    assert host.watch.of(4711, -9) == NO_OOM_KILL


def test_the_log_names_who_was_killed(tmp_path: Path):
    host = MadeUp(tmp_path)
    host.counts(1, 0)
    host.log("something else", LINE)
    assert host.watch.of(4711, -9) == LINE
    assert host.watch.of(471, -9) == NO_OOM_KILL, "another process of that host"


@pytest.mark.parametrize("version", [1, 2])
def test_in_a_container_its_own_group_s_count_tells(tmp_path: Path, version: int):
    host = MadeUp(tmp_path, contained=True, version=version)
    host.log(LINE)  # by a pid that is not ours to compare
    host.counts(1, 0)
    assert host.watch.of(4711, -9) == NO_OOM_KILL, "it was in another container"
    host.counts(2, 1)
    assert host.watch.of(4711, -9) == OF_GROUP


def test_of_another_end_it_is_known_that_none_was_killed(tmp_path: Path):
    host = MadeUp(tmp_path)
    assert host.watch.of(4711, 1) == NO_OOM_KILL
    host.counts(1, 0)
    assert host.watch.of(4711, 1) == NO_OOM_KILL, "it was in another group"
    host.counts(2, 1)
    assert host.watch.of(4711, 1) == "", "the kernel has killed one, of which the log may tell"


def test_nothing_is_known_of_other_ends_or_where_nothing_may_be_read(tmp_path: Path):
    host = MadeUp(tmp_path, contained=True)
    host.counts(1, 1)
    assert host.watch.of(4711, 1) == host.watch.of(4711, -11) == ""
    (tmp_path / host.group_file).unlink()
    assert host.watch.of(4711, -9) == ""


@pytest.mark.parametrize(("oom", "kind"), [("", Class.OOM_HOST), (NO_OOM_KILL, Class.PREEMPTED)])
@pytest.mark.parametrize(
    "said",
    [
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. ",
        "subprocess.CalledProcessError: Command 'zstd' died with <Signals.SIGKILL: 9>.",
    ],
)
def test_that_a_rank_s_process_was_killed_is_judged_by_what_the_kernel_says(said: str, oom: str, kind: Class):
    failed = killed(exitcode=1, cause="exception", oom=oom, message=said)
    found = attribute(of_failures([failed], load()))
    assert (found.kind, found.rank) == (kind, 0) and ("not by the kernel" in found.sentence) == bool(oom)


def killed(**given: object) -> Failure:
    known = {"node": "a", "rank": 0, "local_rank": 0, "pid": 4711, "exitcode": -9, "at_unix": 1.0, "cause": "signal"}
    return Failure(**(known | given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("oom", "kind", "words"),
    [
        (LINE, Class.OOM_HOST, "rank 0 on a: was killed by the kernel: Memory cgroup out of memory"),
        (NO_OOM_KILL, Class.PREEMPTED, "not by the kernel"),
        ("", Class.OOM_HOST, "most often by the kernel"),
    ],
)
def test_a_kill_is_judged_by_what_the_kernel_says(oom: str, kind: Class, words: str):
    found = attribute(of_failures([killed(oom=oom)], load()))
    assert found.kind == kind and words in found.sentence


@pytest.mark.parametrize(
    ("failure", "is_of"),
    [
        (killed(oom=LINE), True),
        (killed(oom=NO_OOM_KILL, pid=99), False),
        (killed(exitcode=1, cause="exception", message="KeyError: 'x'", pid=99), False),
        (killed(exitcode=1, cause="exception", message="RuntimeError: DataLoader worker (pid 4711) is killed", pid=99), True),
    ],
    ids=["killed by it", "killed by somebody", "raised something else", "lost its child by it"],
)
def test_a_kill_of_a_process_that_is_not_the_job_s_is_no_cause(tmp_path: Path, failure: Failure, is_of: bool):
    folder = tmp_path / "incidents" / "round-1" / "a"
    folder.mkdir(parents=True)
    (folder / "kernel.txt").write_text(f"[81234.5] {LINE}, anon-rss:1kB\n")
    found = attribute(of_round(str(tmp_path), 1, [failure], load()))
    assert found.rule.startswith("kernel-oom") == is_of, found

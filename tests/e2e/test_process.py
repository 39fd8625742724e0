"""Starting, watching and ending processes, and learning of a worker's death through its page."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from kit import SCRIPTS
from kit.waiting import PATIENCE_S, wait_for

from holdfast.agent.workers import launch
from holdfast.core.errors import StartError
from holdfast.core.machine import Tick
from holdfast.core.page import layout
from holdfast.core.processes import ProcessDying, ProcessGone, ProcessLives
from holdfast.runtime.host import Host
from holdfast.runtime.process import process
from holdfast.runtime.shm import pages as shm

SHELL = {"PATH": os.environ["PATH"]}


def finish(started: process.Process) -> int:
    wait_for(lambda: select.select([started.pidfd], [], [], 0.1)[0])
    started.close()
    code = process.reap(started.pid)
    assert code is not None
    return code


def output(*argv: str, env: dict[str, str] | None = None, **how: object) -> str:
    reader, writer = os.pipe()
    started = process.spawn(list(argv), SHELL if env is None else env, stdout=writer, **how)  # type: ignore[arg-type]
    os.close(writer)
    with open(reader) as file:
        text = file.read()
    finish(started)
    return text


# --- starting -----------------------------------------------------------------------------------------------------------


def test_a_program_is_found_on_the_path_that_it_will_have(tmp_path: Path) -> None:
    program = tmp_path / "hello"
    program.write_text("#!/bin/sh\necho hello $1\n")
    program.chmod(0o755)
    assert output("hello", "you", env={"PATH": f"/nowhere:{tmp_path}"}) == "hello you\n"


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (None, 0, "no such file"),
        ("#!/bin/sh\n", 0o644, "not executable"),
        ("no interpreter line\n", 0o755, "Exec format error"),
        ("#!/no/such/interpreter\n", 0o755, "interpreter it names does not exist"),
    ],
)
def test_a_program_that_cannot_start_is_named_with_the_reason(tmp_path: Path, content: str | None, mode: int, why: str) -> None:
    program = tmp_path / "program"
    if content is not None:
        program.write_text(content)
        program.chmod(mode)
    with pytest.raises(StartError, match=why) as raised:
        process.spawn([str(program)], SHELL)
    assert str(program) in str(raised.value)


def test_a_program_that_is_nowhere_on_the_path(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"'no-such-program': no such program on PATH"):
        process.spawn(["no-such-program"], SHELL)
    with pytest.raises(StartError, match="is a directory"):
        process.spawn([str(tmp_path)], SHELL)


def test_streams_and_fds_land_where_they_are_wanted_even_if_numbers_cross() -> None:
    a, b = os.memfd_create("a"), os.memfd_create("b")
    os.write(a, b"from a")
    os.write(b, b"from b")
    script = f"import os; print([os.pread(fd, 9, 0).decode() for fd in ({b}, {a})], sorted(os.listdir('/proc/self/fd')))"
    text = output(sys.executable, "-c", script, inherit={b: a, a: b})
    assert text.startswith("['from a', 'from b']")
    same = output(sys.executable, "-c", f"import os; print(os.pread({a}, 9, 0).decode())", inherit={a: a})
    assert same == "from a\n"
    assert not os.get_inheritable(a)
    os.close(a)
    os.close(b)


def test_nothing_else_leaks_into_the_worker() -> None:
    stray = os.memfd_create("stray")
    os.set_inheritable(stray, True)
    listing = output(sys.executable, "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))")
    os.close(stray)
    assert listing == "['0', '1', '2', '3']\n"  # 3: the listing itself


def test_the_worker_leads_a_session_with_clean_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        script = "import os; print(os.getsid(0) == os.getpid(), open('/proc/self/status').read())"
        text = output("python3", "-c", script)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    assert text.startswith("True")
    assert "SigBlk:\t0000000000000000" in text


def test_exit_codes_are_those_of_popen() -> None:
    assert finish(process.spawn(["sh", "-c", "exit 7"], SHELL)) == 7
    assert finish(process.spawn(["sh", "-c", "kill -9 $$"], SHELL)) == -9
    with pytest.raises(ChildProcessError):
        process.reap(2**22 - 1)


# --- the tree -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def subreaper() -> Iterator[None]:
    assert process.set_subreaper()
    process.kill_strays()  # other tests' multiprocessing servers, which are started again where they are missed
    yield
    process.kill_strays()
    import ctypes

    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


def test_descendants_that_left_their_session_and_their_parent_are_found(tmp_path: Path, subreaper: None) -> None:
    probe = str(SCRIPTS / "escapees.py")
    worker = process.spawn([sys.executable, probe, str(tmp_path)], os.environ)
    wait_for(lambda: len(os.listdir(tmp_path)) == 6)
    everyone = {int(name) for name in os.listdir(tmp_path)}
    assert set(process.descendants(os.getpid())) == everyone
    process.kill_tree([worker.pid])
    assert finish(worker) == -signal.SIGKILL
    strays = set(process.descendants(os.getpid()))  # the daemon was ours already
    assert len(strays) == 1
    wait_for(lambda: {pid for pid, *_ in process.walk([os.getpid()])} == strays)  # the others are dead, not only dying
    assert process.kill_strays(keep=strays) == set()
    assert process.kill_strays() == strays
    wait_for(lambda: not process.children_of(os.getpid()) or process.reap_strays(()))
    assert process.descendants(os.getpid()) == []


def test_a_tree_that_keeps_forking_is_ended(tmp_path: Path, subreaper: None) -> None:
    script = "import os\nwhile True:\n    if os.fork():\n        os._exit(0)\n    os.setsid()\n"
    for _ in range(25):  # where a look could miss who has just lost its parent, one in twelve got away
        worker = process.spawn([sys.executable, "-S", "-c", script], SHELL)
        wait_for(lambda pid=worker.pid: process.children_of(os.getpid()) and process.state(pid) == "Z")
        process.kill_tree([worker.pid])
        process.kill_strays()
        assert process.descendants(os.getpid()) == []


def test_what_is_kept_is_kept(subreaper: None) -> None:
    kept = process.spawn(["sh", "-c", "sleep 60 & wait"], SHELL)
    other = process.spawn(["sleep", "60"], SHELL)
    wait_for(lambda: process.children_of(kept.pid))
    below = process.children_of(kept.pid)
    assert process.kill_tree([os.getpid()], keep=[kept.pid]) == {other.pid}
    assert set(process.descendants(os.getpid())) >= {kept.pid, *below}
    process.kill_tree([kept.pid])
    finish(kept)
    finish(other)


def test_without_the_kernels_own_lists_the_tree_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = process.spawn(["sh", "-c", "sleep 60 & wait"], SHELL)
    wait_for(lambda: process.children_of(worker.pid))
    quick = process.descendants(worker.pid)
    monkeypatch.setattr(process, "_kernel_lists_children", lambda: False)
    assert quick and process.descendants(worker.pid) == quick
    process.kill_tree([worker.pid])
    finish(worker)


# --- deaths -------------------------------------------------------------------------------------------------------------


class Worker:
    """A Python worker with its page, and the agent's ear."""

    def __init__(self, script: str, bootstrapped: bool = True) -> None:
        self.page = shm.create_page()
        self.ear = os.eventfd(0)
        self.watch = shm.DeathWatch(self.page, lambda: os.eventfd_write(self.ear, 1))
        env = dict(os.environ)
        if bootstrapped:
            env = launch.bootstrap_env(env, page_fd=self.page.fd)
        self.process = process.spawn([sys.executable, "-c", script], env, inherit={self.page.fd: self.page.fd}, stderr=NOWHERE)
        self.page.close_fd()

    def wakes(self) -> None:
        assert select.select([self.ear], [], [], PATIENCE_S)[0]
        os.eventfd_read(self.ear)

    def bury(self) -> int:
        code = finish(self.process)
        self.watch.close()
        self.page.close()
        os.close(self.ear)
        return code


NOWHERE = os.open(os.devnull, os.O_WRONLY)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("pass", 0),
        ("import sys; sys.exit(3)", 3),
        ("import os; os._exit(4)", 4),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os, threading; threading.Thread(target=os.abort).start(); threading.Event().wait()", -6),
        ("import gc, ctypes; ctypes.string_at(0)", -11),
    ],
)
def test_every_end_marks_the_lock_and_the_kernel_knows_the_code(script: str, code: int) -> None:
    worker = Worker(script)
    while not worker.watch.died:  # an interpreter in good order says first that it ends
        worker.wakes()
    assert process.dying(worker.process.pid) == process.Dying(exitcode=code)
    assert worker.bury() == code


def test_a_fat_workers_death_is_known_before_its_memory_is_freed() -> None:
    def attempt() -> bool:
        worker = Worker("b = bytearray(300 << 20)\nimport holdfast.client as c, time; c.heartbeat(); time.sleep(60)")
        wait_for(lambda: worker.page.signs().beats)
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.wakes()
        assert process.dying(worker.process.pid) == process.Dying(exitcode=-9)
        still_there = not select.select([worker.process.pidfd], [], [], 0)[0]
        assert worker.bury() == -9
        return still_there

    # The kernel needs some 40 ms for this one. A busy machine may keep the test itself waiting for as long, but not each time.
    assert any(attempt() for _ in range(5))


def test_an_uncaught_exception_is_told_before_the_process_is_gone() -> None:
    worker = Worker("import threading\nthreading.Thread(target=threading.Event().wait).start()\nraise ValueError")
    worker.wakes()
    assert worker.page.error_at_unix is not None
    assert process.dying(worker.process.pid) is None  # a thread keeps it alive, as in plain Python
    process.kill_tree([worker.process.pid])
    worker.bury()


def test_exec_is_no_death() -> None:
    worker = Worker("import os; os.execvp('sleep', ['sleep', '60'])")
    worker.wakes()
    assert process.dying(worker.process.pid) is None
    process.kill_tree([worker.process.pid])
    assert worker.bury() == -9


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def test_a_worker_that_never_takes_its_lock_leaves_no_thread_behind() -> None:
    before = threads()
    worker = Worker("pass", bootstrapped=False)
    worker.bury()
    assert not worker.watch.died
    wait_for(lambda: threads() <= before)  # another test's may end meanwhile, too


def test_a_watch_on_a_living_worker_can_be_closed() -> None:
    before = threads()
    worker = Worker("import time; time.sleep(60)")
    wait_for(lambda: worker.page.pid)
    worker.watch.close()
    wait_for(lambda: threads() <= before)  # another test's may end meanwhile, too
    assert not worker.watch.died
    process.kill_tree([worker.process.pid])
    assert worker.bury() == -9


def test_a_page_leaves_nothing_in_dev_shm() -> None:
    page = shm.create_page()
    seen = os.fstat(page.fd)
    assert stat.S_ISREG(seen.st_mode) and seen.st_nlink == 0, "it has no name"
    page.close()


def test_a_worker_dies_with_its_agent() -> None:
    reader, writer = os.pipe()
    agent = os.fork()
    if agent == 0:
        worker = Worker("import time; time.sleep(60)")
        wait_for(lambda: worker.page.words[layout.STATE] == layout.RUNNING)
        os.write(writer, str(worker.process.pid).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    pid = int(os.read(reader, 99))
    os.waitpid(agent, 0)
    wait_for(lambda: not os.path.exists(f"/proc/{pid}/exe"))


def test_without_room_for_a_thread_a_death_is_still_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    host = Host(told.append)
    page = host.page()
    argv = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    pid = host.start(argv, dict(os.environ), {page.fd: page.fd} if page else {}, page, None)
    with monkeypatch.context() as none_left:
        none_left.setattr("_thread.start_new_thread", Mock(side_effect=RuntimeError("can't start new thread")))
        host.watch_pages()
    assert told == ["worker exits are detected by pidfd only: can't start new thread"]
    os.kill(pid, signal.SIGKILL)
    assert [type(seen) for seen in host.wait(host.now() + PATIENCE_S)] == [ProcessGone]
    host.close()


def test_a_spare_is_heard_as_soon_as_it_is_a_worker() -> None:
    """A script that begins in place tells it at once, and tries to wake the agent until it is heard."""
    host = Host(lambda what: pytest.fail(what))
    page = host.page()
    assert page is not None
    says = "from holdfast.client.worker import this_worker as w; w.tell_life(1); import time; time.sleep(60)"
    argv, env = [sys.executable, "-c", says], launch.bootstrap_env(dict(os.environ), page_fd=page.fd)
    pid = host.park(argv, env, {page.fd: page.fd}, lambda exitcode: [])
    host.adopt(pid, page)
    assert host.wait(host.now() + PATIENCE_S) == [ProcessLives(pid=pid, in_place=True, let_go=False)]
    host.kill([pid])
    assert [type(seen) for seen in host.wait(host.now() + PATIENCE_S)][-1] in (ProcessDying, ProcessGone)
    host.close()


# --- sleeping -----------------------------------------------------------------------------------------------------------


def test_a_deadline_beyond_what_the_kernel_can_count_is_no_error() -> None:
    told: list[str] = []
    host = Host(told.append)
    try:
        bell = os.eventfd(1)
        host.watch(bell, select.EPOLLIN, lambda events: [Tick()])
        assert host.wait(host.now() + 1e12) == [Tick()]
        os.close(bell)
    finally:
        host.close()

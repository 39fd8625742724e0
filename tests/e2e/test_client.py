"""What a script says by `holdfast.client` reaches its agent, in real processes: signs of life, requests, stacks on demand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.agent.workers import launch
from holdfast.core.machine import Observation
from holdfast.core.page import layout
from holdfast.core.page.stack_text import is_whole, main_thread
from holdfast.core.processes import ProcessAsked, ProcessCalculated, ProcessDying, ProcessGone
from holdfast.runtime.host import Host

PATIENCE_S = 30.0
PAGE_FD = 100


class Ran:
    """One worker of a real host."""

    def __init__(self, host: Host, script: str) -> None:
        page = host.page()
        assert page is not None
        self.host, self.page = host, page
        self.seen: list[Observation] = []
        env = launch.bootstrap_env(os.environ, page_fd=PAGE_FD)
        self.pid = host.start([sys.executable, "-c", script], env, {PAGE_FD: page.fd}, page, None)
        host.watch_pages()

    def until(self, what: Callable[[], object]) -> None:
        """Let the host see things until it is so."""
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < deadline
            self.host.wait(self.host.now() + 0.005)

    def sees(self) -> Observation:
        """What the host sees next."""
        deadline = self.host.now() + PATIENCE_S
        while not self.seen:
            assert self.host.now() < deadline
            self.seen += self.host.wait(deadline)
        return self.seen.pop(0)

    def stacks(self) -> str:
        """What it writes when it is asked, as soon as its main thread is in it."""
        assert self.host.ask_for_stacks(self.pid) == ""
        self.until(lambda: "in <module>" in self.host.stacks(self.pid))
        return self.host.stacks(self.pid)

    @property
    def said(self) -> bool:
        """Its script has called `heartbeat`."""
        return self.page.signs().beats > 0


@pytest.fixture
def run() -> Iterator[Callable[[str], Ran]]:
    host = Host(lambda what: pytest.fail(what))
    yield lambda script: Ran(host, script)
    host.kill(list(host.children))
    deadline = host.now() + PATIENCE_S
    while host.children and host.now() < deadline:
        host.wait(deadline)
    host.close()


# --- signs of life ------------------------------------------------------------------------------------------------------


def test_all_that_a_script_says_is_in_its_page(run: Callable[[str], Ran]) -> None:
    script = """
import time, holdfast.client as client
@client.section("load")
def load(): return 1
load()
with client.section("checkpoint", limit_s=60):
    client.progress(41)
    client.heartbeat()
    time.sleep(60)
"""
    worker = run(script)
    worker.until(lambda: worker.page.signs().beats == 2)
    seen = worker.page.signs()
    now = time.monotonic()
    assert seen.booted_at is not None and seen.first_beat_at is not None and seen.beat_at is not None
    assert seen.booted_at < seen.first_beat_at <= seen.beat_at < now
    assert (seen.step, seen.out_since) == (41, None)
    load, checkpoint = seen.sections
    assert (load.name, load.open_since, load.count, load.limit_s) == ("load", None, 1, None)
    assert (checkpoint.name, checkpoint.count, checkpoint.limit_s) == ("checkpoint", 0, 60.0)
    assert checkpoint.open_since is not None and seen.booted_at < checkpoint.open_since < now


def test_forked_children_say_nothing(run: Callable[[str], Ran]) -> None:
    script = """
import os, time, warnings, holdfast.client as client
with client.section("mine"):
    if os.fork() == 0:
        client.progress(99)
        with client.section("theirs"): pass
        warnings.simplefilter("ignore")
        client.control.stop_job("a data loader's whim")
        with client.section("mine"): pass
        os._exit(0)
    os.wait()
    client.progress(1)
    time.sleep(60)
"""
    worker = run(script)
    worker.until(lambda: worker.said)
    seen = worker.page.signs()
    assert (seen.step, seen.beats) == (1, 1)
    assert [(section.name, section.open_since is None, section.count) for section in seen.sections] == [("mine", False, 0)]
    assert worker.page.asked() is None


def test_importing_the_client_loads_next_to_nothing() -> None:
    probe = "import os, sys; before = set(sys.modules); import holdfast.client; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, env={"PYTHONPATH": _src()})
    loaded = [name for name in done.stdout.split() if not name.startswith("holdfast")]
    assert set(loaded) <= {"__future__", "errno", "time"}, done.stdout + done.stderr


def _src() -> str:
    return str(Path(__file__).parents[2] / "src")


# --- requests -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "kind"),
    [("exclude_this_node", "exclude"), ("stop_job", "stop"), ("restart_job", "restart")],
)
def test_the_agent_is_woken_for_a_request(run: Callable[[str], Ran], call: str, kind: str) -> None:
    worker = run(f"import time\nfrom holdfast.client import control\ncontrol.{call}('GPU 3 is too hot')\ntime.sleep(60)")
    assert worker.sees() == ProcessAsked(pid=worker.pid, kind=kind, reason="GPU 3 is too hot")


def test_a_request_is_heard_before_the_end_that_follows_it(run: Callable[[str], Ran]) -> None:
    worker = run("import os\nfrom holdfast.client import control\ncontrol.stop_job('the loss is not a number')\nos._exit(3)")
    seen: list[Observation] = []
    while not any(isinstance(one, ProcessGone) for one in seen):
        seen.append(worker.sees())
    kinds = [type(one) for one in seen if not isinstance(one, ProcessDying)]
    assert kinds == [ProcessAsked, ProcessGone]


def test_the_agent_is_woken_for_calculated_limits_and_hears_a_request_too(run: Callable[[str], Ran]) -> None:
    worker = run(
        "import os\nfrom holdfast.client import control\nfrom holdfast.client.worker import this_worker\n"
        "this_worker.tell_calculated(9.0, 3.0, None, {'save': 60.0})\ncontrol.stop_job('enough')\nos._exit(3)"
    )
    assert worker.sees() == ProcessCalculated(pid=worker.pid, limits_s={"first": 9.0, "beat": 3.0, "section save": 60.0})
    assert worker.sees() == ProcessAsked(pid=worker.pid, kind="stop", reason="enough")


def test_no_request_is_slept_through(run: Callable[[str], Ran]) -> None:
    worker = run(
        "import signal, holdfast.client as client\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "while True:\n"
        "    client.control.restart_job('again')\n"
        "    signal.sigwait([signal.SIGUSR1])\n"
    )
    for _ in range(50):  # each time the agent's watch may be on its way to sleep
        assert worker.sees() == ProcessAsked(pid=worker.pid, kind="restart", reason="again")
        os.kill(worker.pid, signal.SIGUSR1)


def test_without_an_agent_a_request_is_answered_by_a_warning() -> None:
    script = "from holdfast.client import control\ncontrol.stop_job('enough')\nprint('goes on')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "goes on\n")
    assert "<string>:2: RuntimeWarning: the request to stop is not made (enough): no Holdfast agent started this" in done.stderr


def test_a_request_needs_a_reason() -> None:
    from holdfast.client import control

    with pytest.raises(ValueError, match="give the reason as text"):
        control.stop_job(" ")


# --- stacks -------------------------------------------------------------------------------------------------------------

SAID = "import os, sys, time, threading, holdfast.client as client\n"
STUCK = {
    "a deadlock of two threads": """
first, second = threading.Lock(), threading.Lock()
ready = threading.Barrier(2)
def other():
    with second:
        ready.wait()
        first.acquire()
threading.Thread(target=other, daemon=True).start()
def wait_for_second():
    with first:
        ready.wait()
        client.heartbeat()
        second.acquire()
wait_for_second()
""",
    "C code that holds the GIL": """
import ctypes
def wait_for_c():
    mutex, lock = ctypes.create_string_buffer(64), ctypes.PyDLL(None).pthread_mutex_lock
    lock(mutex)
    client.heartbeat()
    lock(mutex)
wait_for_c()
""",
    "a loop": """
def loop():
    client.heartbeat()
    while True: pass
loop()
""",
    "a sleep in the kernel, deaf to signals": """
os.mkfifo(name := os.environ["FIFO"])
threading.Thread(target=threading.Event().wait, daemon=True).start()
def spawn():
    client.heartbeat()
    # The child waits for a writer before it calls exec, and its parent for that, in the state D.
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, name, os.O_RDONLY, 0)])
spawn()
""",
    "a read": """
def read():
    client.heartbeat()
    os.read(os.pipe()[0], 1)
read()
""",
}


@pytest.mark.parametrize("how", STUCK)
def test_a_rank_that_hangs_shows_where(
    run: Callable[[str], Ran], how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIFO", str(tmp_path / "fifo"))
    worker = run(SAID + STUCK[how])
    worker.until(lambda: worker.said)
    worker.until(lambda: "deaf" not in how or worker.host.states()[worker.pid] == "D")
    text = worker.stacks()
    function = STUCK[how].rstrip().rpartition("\n")[2].partition("(")[0]
    assert f" in {function}\n" in text, text
    if "two threads" in how:
        assert " in other\n" in text, text
    lives_on = "D" if "deaf" in how else "R" if "loop" in how else "S"
    worker.until(lambda: worker.host.states()[worker.pid] == lives_on)  # once it is back from where it has shown its stacks
    if "deaf" in how:  # let the child that it waits for go: nobody here would adopt, and find, that one
        os.close(os.open(tmp_path / "fifo", os.O_WRONLY))
        worker.until(lambda: worker.pid not in worker.host.children)


def test_it_can_be_asked_again_and_only_what_is_new_is_shown(run: Callable[[str], Ran]) -> None:
    script = (
        "def one():\n    client.heartbeat()\n    sys.stdin.read(1)\ndef two():\n    client.progress(2)\n    time.sleep(60)\n"
    )
    reader, writer = os.pipe()
    kept = os.dup(0)
    os.dup2(reader, 0)
    try:
        worker = run(SAID + script + "one()\ntwo()")
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    worker.until(lambda: worker.said)
    assert " in one\n" in worker.stacks()
    os.write(writer, b"x")
    worker.until(lambda: worker.page.signs().step == 2)
    again = worker.stacks()
    assert " in two\n" in again and " in one\n" not in again
    for fd in (reader, writer):
        os.close(fd)


def test_a_stopped_rank_shows_its_stacks_when_it_goes_on(run: Callable[[str], Ran]) -> None:
    worker = run(SAID + "client.heartbeat()\ntime.sleep(60)")
    worker.until(lambda: worker.said)
    os.kill(worker.pid, signal.SIGSTOP)
    worker.until(lambda: worker.host.states()[worker.pid] == "T")
    assert worker.host.ask_for_stacks(worker.pid) == ""
    assert worker.host.stacks(worker.pid) == ""
    os.kill(worker.pid, signal.SIGCONT)
    worker.until(lambda: "in <module>" in worker.host.stacks(worker.pid))


@pytest.mark.parametrize(
    "own",
    [
        "import faulthandler, signal; faulthandler.enable(); faulthandler.register(signal.SIGUSR1)",
        "import faulthandler; faulthandler.disable(); faulthandler.dump_traceback_later(600)",
        "os.closerange(3, 256)",
        "import signal; [signal.signal(s, lambda *a: None) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]",
        "os.close(2)",
        "os.chdir('/'); os.setsid() if os.getpid() != os.getsid(0) else None",
    ],
)
def test_what_scripts_do_for_themselves_leaves_the_stacks_alone(run: Callable[[str], Ran], own: str) -> None:
    worker = run(SAID + own + "\nclient.heartbeat()\ntime.sleep(60)")
    worker.until(lambda: worker.said)
    assert "in <module>" in worker.stacks()


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ("os.closerange(3, 4096)", "the script has closed the descriptor"),
        ("[os.dup2(1, int(fd)) for fd in os.listdir('/proc/self/fd') if int(fd) > 2]", "the descriptor for something else"),
        ("import faulthandler; [faulthandler.unregister(s) for s in range(34, 65)]", "the script has reset the signal"),
    ],
)
def test_a_script_that_has_taken_it_away_is_left_in_peace(run: Callable[[str], Ran], own: str, why: str) -> None:
    worker = run(SAID + own + "\nclient.heartbeat()\ntime.sleep(60)")
    worker.until(lambda: worker.said)
    assert why in worker.host.ask_for_stacks(worker.pid)
    assert worker.host.stacks(worker.pid) == ""
    assert worker.host.wait(worker.host.now() + 0.05) == [], "nothing has happened to it"


def test_another_program_in_its_place_is_not_killed_by_the_question(run: Callable[[str], Ran]) -> None:
    worker = run("import os; os.execvp('sleep', ['sleep', '60'])")
    worker.until(lambda: Path(f"/proc/{worker.pid}/comm").read_text() == "sleep\n")
    assert worker.host.ask_for_stacks(worker.pid) != ""
    assert worker.host.wait(worker.host.now() + 0.05) == []


def test_a_file_of_the_script_s_in_its_place_is_not_touched(run: Callable[[str], Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file system may hang."""
    worker = run("""
import os, time
for fd in range(3, 1024):
    try:
        os.fstat(fd)
        os.dup2(0, fd)
    except OSError:
        pass
open("/proc/self/comm", "w").write("ready")
while True:
    time.sleep(0.01)
""")
    worker.until(lambda: Path(f"/proc/{worker.pid}/comm").read_text() == "ready\n")
    looked: list[str] = []
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda path, *how, **more: (looked.append(str(path)), stat(path, *how, **more))[1])
    assert worker.host.ask_for_stacks(worker.pid) == "the script uses the descriptor for something else"
    assert not [path for path in looked if "/fd/" in path]


def test_who_is_gone_cannot_be_asked(run: Callable[[str], Ran]) -> None:
    worker = run("pass")
    worker.until(lambda: worker.pid not in worker.host.children)
    assert worker.host.ask_for_stacks(worker.pid) == "it is gone"
    assert worker.host.stacks(worker.pid) == ""


# --- where it was when it was asked to end ------------------------------------------------------------------------------


def ended(worker: Ran, signum: int = signal.SIGTERM) -> ProcessGone:
    """Ask it to end; how it does."""
    worker.host.signal_group(worker.pid, signum)
    while not isinstance(seen := worker.sees(), ProcessGone):
        pass
    return seen


WAITS = """
def for_the_others():
    client.heartbeat()
    while True: time.sleep(0.01)
def waits_beside():
    threading.Thread(target=for_the_others, daemon=True).start()
    threading.Event().wait()
"""


def functions(stack: str) -> list[str]:
    """Of the script's own frames: who has just said something may be in the client still."""
    return [frame.function for frame in main_thread(stack) if frame.file == "<string>"]


@pytest.mark.parametrize(
    "own",
    [
        "for_the_others()",
        "import signal; signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))",
        "waits_beside()",
    ],
    ids=["as it is", "set to what it was", "another thread"],
)
def test_who_is_asked_to_end_shows_where_it_was(run: Callable[[str], Ran], own: str) -> None:
    worker = run(SAID + WAITS + own + "\nfor_the_others()")
    worker.until(lambda: worker.said)
    seen = ended(worker)
    assert seen.exitcode == -signal.SIGTERM, "as any program would"
    if "signal.signal" in own:
        assert seen.stack == "", "it is the script's own now"
    else:
        assert seen.stack.startswith("Stack (most recent call first):\n") and is_whole(seen.stack)
        assert functions(seen.stack) == ["waits_beside" if "beside" in own else "for_the_others", "<module>"], seen.stack


def test_who_handles_the_signal_itself_is_asked_and_goes_on(run: Callable[[str], Ran]) -> None:
    script = """
import signal
def take_leave(*_):
    client.heartbeat()
    sys.stdin.read(1)
    raise SystemExit(7)
signal.signal(signal.SIGTERM, take_leave)
client.progress(1)
for_the_others()
"""
    reader, writer = os.pipe()
    kept = os.dup(0)
    os.dup2(reader, 0)
    try:
        worker = run(SAID + WAITS + script)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    worker.until(lambda: worker.page.signs().beats == 2)
    worker.host.signal_group(worker.pid, signal.SIGTERM)
    worker.until(lambda: worker.page.signs().beats == 3)
    worker.host.ask_where()
    worker.until(lambda: is_whole(worker.page.where()))
    worker.host.ask_where()  # it has shown it already
    os.write(writer, b"x")
    while not isinstance(gone := worker.sees(), ProcessGone):
        pass
    for fd in (reader, writer):
        os.close(fd)
    assert functions(gone.stack) == ["take_leave", "for_the_others", "<module>"] and gone.exitcode == 7
    assert gone.stack.count("<module>") == 1


def test_nobody_else_shows_anything(run: Callable[[str], Ran]) -> None:
    """What the worker has started or forked ends of the signal in silence, or by its own handler, as without us."""
    script = """
import signal, subprocess
program = [sys.executable, "-c", "import signal; print(open('/proc/self/status').read(), flush=True)"]
assert int(subprocess.check_output(program).split(b"SigCgt:")[1].split()[0], 16) >> 14 & 1 == 0
def forked(own):
    ready, go = os.pipe()
    if (pid := os.fork()) == 0:
        if own: signal.signal(signal.SIGTERM, own)
        os.write(go, b"x")
        for_the_others()
    os.read(ready, 1)
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert forked(None) == -15
assert forked(lambda *_: os._exit(3)) == 3
signal.signal(signal.SIGTERM, lambda *_: os._exit(4))
assert forked(None) == 4, "inherited"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for_the_others()
"""
    worker = run(SAID + WAITS + script)
    worker.until(lambda: worker.said)
    size = os.fstat(worker.page.fd).st_size
    worker.host.signal_group(worker.pid, signal.SIGTERM)
    assert worker.page.where() == "" and worker.stacks() and ended(worker, signal.SIGKILL).exitcode == -signal.SIGKILL
    assert size == layout.SIZE, "nothing had been written before"


def test_it_is_not_asked_where_it_was_before_it_is_asked_to_end(run: Callable[[str], Ran]) -> None:
    worker = run(SAID + WAITS + "for_the_others()")
    worker.until(lambda: worker.said)
    worker.host.ask_where()
    os.kill(worker.pid, signal.SIGKILL)
    while not isinstance(seen := worker.sees(), ProcessGone):
        pass
    assert seen.stack == ""

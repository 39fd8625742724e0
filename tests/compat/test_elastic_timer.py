"""Deadlines for blocks of code: clients, servers, and what happens to whoever is late. torch's and ours alike, and mixed."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import textwrap
import time

import pytest

FUTURE = 60.0


class Recorder:
    """A client that only notes what it is told."""

    def __init__(self):
        self.told = []

    def acquire(self, scope_id, expiration_time):
        self.told.append(("acquire", scope_id, expiration_time))

    def release(self, scope_id):
        self.told.append(("release", scope_id))


def scopes(client):
    return [told[1] for told in client.told if told[0] == "acquire"]


@pytest.fixture
def serve(tmp_path):
    """`serve(names)`: a file-timer server that looks often; `.log` has what it told."""
    started = []

    def serve(names, interval=0.01):
        log, pipe = [], str(tmp_path / "pipe")
        server = names("timer").FileTimerServer(pipe, "job7", interval, log_event=lambda *told: log.append(told))
        server.start()
        server.log = log
        started.append(server)
        return server

    yield serve
    for server in started:
        server.stop()


def late_worker(root, pipe, after=0.05, signum=9):
    """A process that is late under its timer."""
    source = f"""
        import time
        from {root} import timer
        timer.configure(timer.FileTimerClient({str(pipe)!r}, {int(signum)}))
        with timer.expires(after={after}, scope="too long"):
            time.sleep(600)
    """
    return subprocess.Popen([sys.executable, "-W", "ignore", "-c", textwrap.dedent(source)])


# expires.


def test_a_block_acquires_and_releases_its_timer(names):
    client = Recorder()
    before = time.time()
    with names("timer").expires(after=5, scope="loading", client=client):
        assert client.told[0][:2] == ("acquire", "loading") and before + 5 <= client.told[0][2] <= time.time() + 5
    assert client.told[1] == ("release", "loading")


def test_a_block_that_raises_releases_its_timer(names):
    client = Recorder()
    with pytest.raises(ValueError), names("timer").expires(after=5, scope="loading", client=client):
        raise ValueError
    assert client.told[-1] == ("release", "loading")


def test_without_a_client_a_block_cannot_be_entered(names):
    timer = names("timer")
    timer.configure(None)
    with pytest.raises(RuntimeError, match="Configure timer client"), timer.expires(after=1):
        pass


def test_the_configured_client_is_used(names):
    timer, client = names("timer"), Recorder()
    timer.configure(client)
    try:
        with timer.expires(after=1, scope="x"):
            assert scopes(client) == ["x"]
    finally:
        timer.configure(None)


def test_unnamed_blocks_are_named_after_the_line_that_opens_them(ours):
    expires, client = ours("timer").expires, Recorder()
    with expires(after=5, client=client):
        here = sys._getframe().f_lineno - 1
        with expires(after=1, client=client):
            pass
    assert scopes(client) == [f"{__file__}#{here}", f"{__file__}#{here + 2}"]


def test_a_recursion_through_one_line_shares_one_timer(names):
    client = Recorder()

    def down(depth):
        if depth:
            with names("timer").expires(after=5, client=client):
                down(depth - 1)

    down(3)
    assert len(scopes(client)) == 3 and len(set(scopes(client))) == 1


# Over a queue.


def test_requests_are_equal_by_content(names):
    request = names("timer").TimerRequest
    assert request(1, "a", 2.0) == request(1, "a", 2.0) != request(1, "a", 3.0) and request(1, "a", 2.0) != "a"


def test_a_queue_gives_what_is_there_up_to_a_number(names):
    held = queue.Queue()
    requests = names("timer.local_timer").MultiprocessingRequestQueue(held)
    assert requests.get(2, timeout=0.01) == []
    for number in range(3):
        held.put(number)
    assert requests.size() == 3 and requests.get(2, timeout=5) == [0, 1] and requests.get(2, timeout=0.01) == [2]


def test_expired_timers_are_reaped_and_the_workers_others_forgotten(names, monkeypatch):
    timer, held, killed = names("timer"), queue.Queue(), []
    monkeypatch.setattr(os, "kill", lambda pid, signum: killed.append((pid, signum)))
    server = timer.LocalTimerServer(held, max_interval=0.01)
    now = time.time()
    for pid, scope, at in [(-7, "late", now - 1), (-7, "fine", now + FUTURE), (-8, "fine", now + FUTURE), (-8, "gone", -1)]:
        held.put(timer.TimerRequest(pid, scope, at))
    server._run_watchdog()
    assert killed == [(-7, signal.SIGKILL)] and list(server._timers) == [(-8, "fine")]


def test_a_worker_that_cannot_be_reaped_is_tried_again_and_one_whose_reaping_raises_is_not(names):
    timer, forgotten = names("timer"), []

    class Requests(names("timer.api").RequestQueue):
        def size(self):
            return 0

        def get(self, size, timeout):
            return []

    class Server(timer.TimerServer):
        def register_timers(self, timer_requests): ...

        def clear_timers(self, worker_ids):
            forgotten.append(worker_ids)

        def get_expired_timers(self, deadline):
            return {worker: [timer.TimerRequest(worker, "x", 0)] for worker in ("stubborn", "raises", "done")}

        def _reap_worker(self, worker_id):
            if worker_id == "raises":
                raise OSError
            return worker_id == "done"

    Server(Requests(), max_interval=0.01)._run_watchdog()
    assert forgotten == [{"raises", "done"}]


def be_late(held, root):
    from importlib import import_module

    timer = import_module(f"{root}.timer")
    timer.configure(timer.LocalTimerClient(held))
    with timer.expires(after=0.05):
        time.sleep(600)


def test_a_child_that_is_late_is_killed(names):
    fork = multiprocessing.get_context("fork")
    held = fork.Queue()
    server = names("timer").LocalTimerServer(held, max_interval=0.01)
    child = fork.Process(target=be_late, args=(held, names.root))
    child.start()  # before there is a thread: a fork copies what locks it holds
    server.start()
    child.join()
    server.stop()
    assert child.exitcode == -signal.SIGKILL


# Over a named pipe.


def test_a_request_is_one_line_of_json(names, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    client = names("timer").FileTimerClient(str(pipe), signal.SIGTERM)
    client.acquire("loading", 12.5)
    client.release("loading")
    lines = [json.loads(line) for line in os.read(reader, 4096).splitlines()]
    os.close(reader)
    common = {"version": 1, "pid": os.getpid(), "scope_id": "loading"}
    assert lines == [common | {"expiration_time": 12.5, "signal": 15}, common | {"expiration_time": -1, "signal": 0}]


def test_a_client_without_a_server_says_so(names, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(BrokenPipeError, match="FileTimerServer is not available"):
        names("timer").FileTimerClient(str(tmp_path / "nothing")).acquire("x", 1)


def test_a_request_larger_than_the_kernel_keeps_whole_is_refused(names, serve, tmp_path):
    serve(names)
    with pytest.raises(RuntimeError, match="larger than 4096 bytes"):
        names("timer").FileTimerClient(str(tmp_path / "pipe")).acquire("x" * 5000, 1)


def test_the_server_knows_which_timers_run(names, serve, tmp_path):
    server, client = serve(names), names("timer").FileTimerClient(str(tmp_path / "pipe"))
    client.acquire("kept", time.time() + FUTURE)
    client.acquire("ended", time.time() + FUTURE)
    client.release("ended")
    client.release("never there")
    server.run_once()
    assert list(server._timers) == [(os.getpid(), "kept")] and not (tmp_path / "pipe").exists()
    later = server.get_expired_timers(time.time() + 2 * FUTURE)
    assert server.get_expired_timers(time.time()) == {} and len(later[os.getpid()]) == 1


def test_timers_of_processes_that_have_ended_are_forgotten(names, tmp_path):
    timer = names("timer")
    server = timer.FileTimerServer(str(tmp_path / "pipe"), "job7")
    ended = subprocess.Popen(["true"])
    ended.wait()
    server.register_timers([timer.FileTimerRequest(pid, "x", time.time() + FUTURE, 9) for pid in (ended.pid, os.getpid())])
    server.clear_timers(set())
    assert list(server._timers) == [(os.getpid(), "x")]
    server.stop()


@pytest.mark.parametrize("client", ["holdfast.elastic", pytest.param("torch.distributed.elastic", marks=pytest.mark.torch)])
def test_a_late_worker_is_ended_and_the_server_lives_on(ours, serve, tmp_path, client, wait_until):
    server = serve(ours)
    late = late_worker(client, tmp_path / "pipe")
    assert late.wait(60) == -signal.SIGKILL
    wait_until(lambda: not server._timers)
    assert [(name, request and request.scope_id) for name, request in server.log] == [
        ("watchdog started", None),
        ("timer expired", "too long"),
        ("kill worker process", "too long"),
    ]
    assert server._watchdog_thread.is_alive()


def test_the_reason_is_told_before_the_worker_is_ended(ours, tmp_path, monkeypatch):
    timer, order = ours("timer"), []
    server = timer.FileTimerServer(str(tmp_path / "pipe"), "job7", log_event=lambda name, request: order.append(name))
    monkeypatch.setattr(os, "kill", lambda pid, signum: order.append(signum))
    server._expire(-7, [timer.FileTimerRequest(-7, "x", 1, signal.SIGTERM)])
    server.stop()
    assert order[:3] == ["timer expired", "kill worker process", signal.SIGTERM]


def test_the_earliest_timer_that_names_a_signal_decides(ours, tmp_path, monkeypatch):
    timer, killed = ours("timer"), []
    server = timer.FileTimerServer(str(tmp_path / "pipe"), "job7")
    monkeypatch.setattr(os, "kill", lambda pid, signum: killed.append(signum))
    at = time.time() - 10
    requests = [timer.FileTimerRequest(os.getpid(), f"{n}", at + n, signum) for n, signum in enumerate((0, 15, 9))]
    server.register_timers(requests[::-1])
    server._expire(os.getpid(), server.get_expired_timers(time.time())[os.getpid()])
    server.stop()
    assert killed == [15]


def test_a_timer_without_a_signal_is_only_reported(ours, serve, tmp_path, wait_until):
    server = serve(ours)
    ours("timer").FileTimerClient(str(tmp_path / "pipe"), 0).acquire("slow", time.time() - 1)
    wait_until(lambda: ("timer expired", "slow") in [(name, request and request.scope_id) for name, request in server.log])
    wait_until(lambda: not server._timers)


REQUEST = '{"version": 1, "pid": 1, "scope_id": "x", "expiration_time": %s, "signal": %s}'
NO_REQUESTS = ["rubbish", '{"pid": 1}', "[]", REQUEST % ("NaN", 9), REQUEST % (1, 999), REQUEST % (1, "Infinity")]


@pytest.mark.parametrize("line", [*NO_REQUESTS, "[" * 4000, "x" * 200_000], ids=lambda line: line[:90])
def test_what_is_no_request_is_passed_over(ours, serve, tmp_path, wait_until, line):
    server = serve(ours)
    with (tmp_path / "pipe").open("w") as pipe:
        pipe.write(line + "\n")
    ours("timer").FileTimerClient(str(tmp_path / "pipe")).acquire("kept", time.time() + FUTURE)
    wait_until(lambda: list(server._timers) == [(os.getpid(), "kept")])


@pytest.mark.timeout(30)
def test_a_server_stops_at_once_though_nobody_ever_wrote(ours, serve, tmp_path):
    server = serve(ours, interval=3600)
    server.stop()
    assert not (tmp_path / "pipe").exists() and [name for name, _ in server.log] == ["watchdog started", "watchdog stopped"]


@pytest.mark.timeout(30)
def test_an_expiry_is_not_missed_by_a_server_that_looks_seldom(ours, tmp_path, wait_until):
    timer = ours("timer")
    server = timer.FileTimerServer(str(tmp_path / "pipe"), "job7", max_interval=3600)
    server.register_timers([timer.FileTimerRequest(os.getpid(), "x", time.time() + 0.05, 0)])
    server.start()
    wait_until(lambda: not server._timers)
    server.stop()


def test_only_its_owner_may_write_to_the_pipe(ours, serve, tmp_path):
    serve(ours)
    assert (tmp_path / "pipe").stat().st_mode & 0o777 == 0o600


def test_progress_is_seen_only_while_the_thread_moves(ours, serve, wait_until):
    server = serve(ours)
    server._last_progress_time = 0
    wait_until(lambda: server.get_last_progress_time() > 0)

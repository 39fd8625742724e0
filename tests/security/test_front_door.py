"""What do connections achieve that are many, slow or silent, with a proof or without? The job trains on, and restarts as fast.

The agents may open 1,024 files, as is usual. `tests/unit/test_admission.py` shows who has to go for whom.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.network.security_peer import Job

from holdfast.core.wire.messages import StoreAsk
from holdfast.rendezvous.kvstore.table import VALUE_BYTES
from holdfast.runtime.net.addresses import origin
from holdfast.runtime.net.frames import FRAME_BYTES, frame
from holdfast.runtime.peer_user import user_of

FILES = 1024


@pytest.fixture
def few_files() -> Iterator[None]:
    """What is started may open as many files as is usual; this process opens more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def begin(job: Job, *, runs: bool = True) -> Job:
    """Start it with few files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    try:
        job.agent = job.start_agent("--max-restarts", 9, "--backoff", 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if runs:
        job.running(0, 1)
    return job


def connected(port: int, wait_until: Callable[..., Any]) -> socket.socket:
    """A connection, as soon as somebody listens."""

    def tried() -> socket.socket | None:
        with contextlib.suppress(ConnectionError):
            return socket.create_connection(("localhost", port), timeout=30)
        return None

    return wait_until(tried)


def restart(job: Job, round: int) -> None:
    """Kill the rank, and see the next round."""
    started = job.wait_until(lambda: [one for one in job.holdfast.events("WorkerStarted") if one["round"] == round - 1])
    os.kill(started[0]["pid"], signal.SIGKILL)
    job.running(0, round)


def rss_mb(pid: int) -> int:
    """What a process has had at most, and what its children have."""
    below = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    own = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return max(int(own.split()[1]) >> 10, *(rss_mb(one) for one in below), 0)


def test_more_idle_connections_than_files_at_the_start_are_not_the_job_s_end(job: Job, wait_until: Any) -> None:
    begin(job, runs=False)
    idle = [connected(job.port, wait_until) for _ in range(FILES + 100)]
    job.running(0, 1)
    restart(job, 2)
    assert job.finish(rounds=2).count("too many connections without proof at once") <= 2
    for sock in idle:
        sock.close()


def test_members_that_say_nothing_take_no_descriptor_that_the_job_needs(job: Job, wait_until: Any) -> None:
    begin(job)
    for _ in range(FILES + 200):
        with contextlib.suppress(OSError, EOFError):
            peer = job.peer()
            peer.prove("secure")
    restart(job, 2)
    (agent,) = [one["pid"] for one in job.holdfast.events("AgentStarted")]
    assert len(os.listdir(f"/proc/{agent}/fd")) < FILES - 200
    stderr = job.finish(rounds=2)
    assert "too many connections of members at once" in stderr and "Too many open files" not in stderr


def test_a_member_that_says_nothing_is_let_go(job: Job) -> None:
    begin(job)
    peer = job.peer()
    peer.prove("secure")
    peer.until_closed()
    job.said("no word within 10 s")
    job.finish()


def test_long_messages_that_never_end_cost_some_hundred_megabytes(job: Job) -> None:
    begin(job)
    piece = bytes(FRAME_BYTES - 1000)
    for _ in range(60):
        peer = job.peer()
        peer.prove("secure")
        with contextlib.suppress(OSError):
            peer.send(FRAME_BYTES.to_bytes(4, "big") + piece)
    job.said("all such hold too much memory")
    restart(job, 2)
    assert rss_mb(job.agent.pid) < 400
    job.finish(rounds=2)


def test_long_answers_that_nobody_reads_cost_some_hundred_megabytes(job: Job) -> None:
    """A few kilobytes of questions to the store, each answered with 8 MB: asked at once, or woken by one word."""
    begin(job)
    members = [job.peer() for _ in range(20)]
    for number, peer in enumerate(members):
        peer.prove("secure")
        for ask in range(20):
            peer.say(StoreAsk(node=f"n{number}", ask=ask, round=1, op="get", keys=("k",), wait_s=60))
    writes = job.peer()
    writes.prove("secure")
    for ask in range(21):
        op, values = ("get", ()) if ask else ("set", (bytes(VALUE_BYTES),))
        writes.say(StoreAsk(node="writes", ask=ask, round=1, op=op, keys=("k",), values=values))
    job.said("it does not read what it is told")
    restart(job, 2)
    assert rss_mb(job.agent.pid) < 600
    job.finish(rounds=2)


def test_long_messages_that_end_at_once_take_no_lease(job: Job) -> None:
    """Five links hold back the last byte of 16 MB that took long to look through, and then all send it: 3 s, at one look."""
    begin(job)
    digits = (b"1" * 39 + b"a") * ((FRAME_BYTES - 1000) // 40)
    said = b'{"is":"StoreAsk","node":"x","ask":1,"round":1,"op":"set","keys":["k"],"values":["' + digits + b'"]}'
    members = [job.peer() for _ in range(5)]
    for peer in members:
        peer.prove("secure")
        peer.send(frame(peer.seals[0].put(said))[:-1])
    for peer in members:
        peer.send(said[-1:])
    restart(job, 2)
    job.finish(rounds=2)


def test_a_store_full_of_keys_that_is_looked_through_again_and_again_takes_no_lease(job: Job) -> None:
    """A hundred bytes have half a million keys looked through: 30 ms each time, and as often as one likes."""
    begin(job)
    members = [job.peer() for _ in range(4)]
    for peer in members:
        peer.prove("secure")
    for part in range(60):
        keys = tuple(f"{part}/{number}" for number in range(8000))
        members[0].say(StoreAsk(node="n", ask=part, round=1, op="set", keys=keys, values=(b"",) * len(keys)))
        members[0].told()
    for ask in range(100):
        for peer in members:
            peer.say(StoreAsk(node="n", ask=ask, round=1, op="count", keys=("no",)))
    restart(job, 2)
    job.finish(rounds=2)


ENDS = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
link = socket.socket(socket.AF_INET6 if ":" in sys.argv[3] else socket.AF_INET)
link.connect((sys.argv[3], int(sys.argv[1])))
print("connected", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_over_loopback_a_connection_counts_as_its_user_s(host: str) -> None:
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        argv = [sys.executable, "-S", "-c", ENDS, str(listener.getsockname()[1]), "65534", host]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None and other.stdout.readline() == b"connected\n"
            link, address = listener.accept()
            with link:
                assert user_of(link) == 65534 and origin(link, address[0]) == ("user 65534", host)
            other.communicate()

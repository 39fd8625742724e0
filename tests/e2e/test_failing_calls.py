"""Each of an agent's system calls fails once, as on a host that is short of something, and the job trains on.

strace has the kernel refuse one call of each thread of the agent, while somebody connects and a rank is killed: the next round
comes, for one restart.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.network.security_peer import WAITS

CALLS = {
    "EMFILE": "openat socket memfd_create pidfd_open fcntl accept4 pipe2 epoll_create1 eventfd2 socketpair",
    "ENFILE": "openat socket memfd_create accept4",
    "ENOMEM": "openat mmap clone3 epoll_ctl newfstatat ioctl lseek wait4 getdents64 readlink sendto",
    "EAGAIN": "clone3 accept4 sendto recvfrom",
    "ECONNABORTED": "accept4",
}
FIRST = (1, 3)  # Which of a thread's calls fails; the first ones are those of the rank's end.


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: it makes system calls fail")
@pytest.mark.parametrize("error", CALLS)
def test_a_system_call_that_fails_once_ends_no_agent(
    holdfast: Any, script: Callable[..., Any], free_port: int, wait_until: Any, tmp_path: Path, error: str
) -> None:
    folder, trace = tmp_path / "ranks", tmp_path / "trace"
    folder.mkdir()
    agent = holdfast.start(
        *("run", "--nnodes", "1:2", "--nproc-per-node", 1, "--rdzv-backend", "c10d", "--rdzv-id", "short", "--lease", 2),
        *("--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-conf", "last_call_timeout=0.1"),
        *("--max-restarts", 1000, "--backoff", 0, script(WAITS), folder),
    )
    wait_until((folder / "0.1").exists)
    (pid,) = [one["pid"] for one in holdfast.events("AgentStarted")]
    round, failed = 1, 0
    begun = lambda: [one for one in holdfast.events("WorkerStarted") if one["round"] == round]
    for call, which in [(call, which) for call in CALLS[error].split() for which in FIRST]:
        threads = [word for thread in os.listdir(f"/proc/{pid}/task") for word in ("-p", thread)]
        inject = f"inject={call}:error={error}:when={which}"
        with subprocess.Popen(
            ["strace", "-o", trace, "-e", f"trace={call}", "-e", inject, *threads], stderr=subprocess.PIPE, text=True
        ) as tracer:
            assert tracer.stderr is not None
            if "attached" not in (said := tracer.stderr.readline()):
                tracer.kill()
                pytest.skip(f"strace may not trace here: {said.strip()}")
            with socket.create_connection(("localhost", free_port)):
                pass
            (started,) = wait_until(begun)
            os.kill(started["pid"], signal.SIGKILL)
            round += 1
            wait_until((folder / f"0.{round}").exists, what=f"round {round}, with {call}: {error}, in:\n{agent.stderr}")
            tracer.terminate()
            tracer.communicate()
        failed += "INJECTED" in trace.read_text()
    assert failed > 0, "none of the calls was made"
    wait_until(begun)
    (folder / "finish").touch()
    ended = agent.wait()
    assert ended.returncode == 0 and "Traceback" not in ended.stderr, ended.stderr

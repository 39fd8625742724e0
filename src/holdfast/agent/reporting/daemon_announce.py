"""How does this host's daemon learn of an agent? The agent registers once; a daemon that starts later finds it by itself.

A thread registers it: the job does not wait for the daemon, and does not depend on it.
"""

from __future__ import annotations

import _thread
import os
from contextlib import suppress

from holdfast.core.errors import ProtocolError
from holdfast.telemetry.record.state_dir import JobDir, daemon_socket


def introduce(home: str, job: str, job_dir: JobDir) -> None:
    """Tell the daemon that keeps its table in `home`, if there is one. Returns at once."""
    path = daemon_socket(home)
    said = {"ask": "register", "job": job, "node": job_dir.node, "pid": os.getpid(), "job_dir": job_dir.path}

    def say() -> None:
        if not os.path.exists(path):
            return
        from holdfast.agent.control.control_client import ask_at  # socket, json and ctypes: 5 ms, and few hosts have a daemon

        with suppress(OSError, ProtocolError):  # it has gone: the next one finds this agent by its job's directory
            ask_at(path, "the daemon", said)

    try:
        _thread.start_new_thread(say, ())
    except RuntimeError:
        return  # no more threads here

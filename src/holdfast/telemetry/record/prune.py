"""Which jobs' records are kept? The newest, up to a number and a size; never one that may still be written to.

Walking and deleting can take long: for a thread, or for the end of a job.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from holdfast.telemetry.record.state_dir import events_files, is_running, job_dirs, remove_dead_sockets, touched_at

KEEP_JOBS = 50  # Runs kept. Enough to look back over some weeks of work, few enough that `holdfast jobs` stays readable.
KEEP_BYTES = 10 << 30  # Bytes kept in all, worker logs included. Home quotas on clusters are commonly 20 to 100 GB.

SETTLED_S = 86_400.0
"""A run without an ending is pruned only when untouched for a day: on a network file system without locks it may
still run on another host."""


def has_ended(path: str) -> bool:
    """Whether some node recorded the job's end."""
    for _, file in events_files(path):
        try:
            with open(file, "rb") as lines:
                lines.seek(max(0, os.fstat(lines.fileno()).st_size - 65_536))
                if b'"event": "JobEnded"' in lines.read():
                    return True
        except OSError:
            continue
    return False


def prune(home: str, *, keep: int = KEEP_JOBS, max_bytes: int = KEEP_BYTES, unix: Callable[[], float] = time.time) -> list[str]:
    """Remove the oldest runs beyond `keep` or beyond `max_bytes` in all, and dead agents' sockets; returns the runs' names.

    Never one that runs, nor one without an ending that was touched in the last day. Walks and deletes files, which can
    take long: for a thread, or for the end of the job.
    """
    now = unix()
    removed: list[str] = []
    used = kept = 0
    for path in job_dirs(home):
        size = sum(_sizes(path))
        is_settled = has_ended(path) or now - touched_at(path) > SETTLED_S
        if (kept < keep and used + size <= max_bytes) or not is_settled or is_running(path) or kept == 0:
            kept, used = kept + 1, used + size
            if is_settled:
                remove_dead_sockets(path)
        elif _remove(path):
            removed.append(os.path.basename(path))
    return removed


def _sizes(path: str) -> Iterator[int]:
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                yield os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue


def _remove(path: str) -> bool:
    try:
        for folder, folders, files in os.walk(path, topdown=False):
            for name in files:
                os.unlink(os.path.join(folder, name))
            for name in folders:
                inner = os.path.join(folder, name)
                os.unlink(inner) if os.path.islink(inner) else os.rmdir(inner)
        os.rmdir(path)
    except OSError:
        return False  # somebody else prunes too, or a file is not ours: the next job tries again
    return True

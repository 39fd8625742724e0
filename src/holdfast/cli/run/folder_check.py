"""Can the folders be had that the user wants things written to? Looked at before anything of the job is made.

A place that is wrong (a file, a stranger's) is the user's mistake. A disk that is full, broken or silent is none: the agent
goes on without what it cannot write, and says so.
"""

from __future__ import annotations

import os
import stat

from holdfast.core.config.config import RunConfig
from holdfast.core.config.own_options import SCHEDULERS
from holdfast.core.errors import UsageError
from holdfast.telemetry.record.io_thread import IoThread

CYCLES = "--ft-cycle-info-dir"  # Only the coordinator's node writes there: another one may not have it.
PATIENCE_S = 2.0  # For a file server that does not answer: then it is left to the agent.


def check_folders(config: RunConfig) -> None:
    """UsageError: one of them is no folder, or this user may not write there."""
    gathered = None if config.ft.enable_log_server else config.ft.per_cycle_applog_prefix  # else another node's
    wanted = {
        "--log-dir": config.log_dir if config.log_dir != os.devnull else None,
        "--stash-dir": config.stash_dir,
        CYCLES: config.ft.cycle_info_dir,
        "--ft-per-cycle-applog-prefix": gathered and os.path.dirname(os.path.abspath(gathered)),
    }
    witness = config.witness if config.rdzv_backend == "embedded" and config.witness not in SCHEDULERS else None
    if not witness and not any(wanted.values()):
        return
    thread = IoThread(PATIENCE_S, close_s=0.0)
    found = thread.value(lambda: next(filter(None, (_trouble(flag, path) for flag, path in wanted.items() if path)), ""))
    has_witness = not witness or thread.value(lambda: _may_be_folder(_mode(witness))) is not False
    thread.close()
    if found:
        raise UsageError(found, hint="name a folder that this user may write to, or leave the flag out")
    if not has_witness:
        raise UsageError(f"--witness: {witness} is not a directory", hint="create it, on a file system that all nodes share")


def _trouble(flag: str, path: str) -> str:
    """What is wrong with it; empty: nothing that the user could have known."""
    there = os.path.abspath(path)
    while (found := _mode(there)) is None:
        there = os.path.dirname(there)
    what = path if there == os.path.abspath(path) else f"{path}: {there}"
    if not _may_be_folder(found):
        return f"{flag}: {what} is a file, not a folder"
    if not found or flag == CYCLES or os.access(there, os.W_OK | os.X_OK) or os.statvfs(there).f_flag & os.ST_RDONLY:
        return ""
    return f"{flag}: {what} may not be written to by this user"


def _may_be_folder(mode: int | None) -> bool:
    """Whether what `_mode` says is one, or is not known."""
    return mode == 0 or (mode is not None and stat.S_ISDIR(mode))


def _mode(path: str) -> int | None:
    """What is there. None: nothing that this user could see; 0: its file system does not say, since it is broken."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return stat.S_IFLNK if os.path.islink(path) else None  # a link that leads nowhere is there
    except OSError:
        return 0

"""How is torch's flight recorder asked for what it has, while the job hangs?

torch records the last collectives of each rank. It reads a pipe in the first process group of NCCL (rank 3's is `<stem>3.pipe`)
every TORCH_NCCL_COORD_CHECK_MILSEC (1000); whatever is written there makes it write its record to `<other stem>3`, which
`torchfrtrace` reads. Names and times are those of torch 2.13 (`ProcessGroupNCCL.hpp`, `FlightRecorder.hpp`).
"""

from __future__ import annotations

import _thread
import os
from collections.abc import Iterable, Mapping

PIPES = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DEBUG_INFO_PIPE_FILE", "TORCH_XCCL_DEBUG_INFO_PIPE_FILE")
BUFFERS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")

POLL_S = 0.02  # Between two looks at their files.

WRITE_S = 0.5  # How long a record of some thousand collectives may take to be written, once torch has seen the request.


def pipe_of(environ: Mapping[str, str], rank: int) -> str | None:
    """The pipe by which this rank is asked. None: no recorder, or none that can be asked."""
    stem, size = _first(environ, PIPES), _first(environ, BUFFERS) or "2000"
    # Without a dump on timeouts torch looks at the pipe once in eight minutes.
    if not stem or size == "0" or environ.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "1").lower() in ("0", "n", "no", "false", "off"):
        return None
    return f"{stem}{rank}.pipe"


def record_of(environ: Mapping[str, str], rank: int) -> str:
    """The file that it writes its record to."""
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME", "/tmp"), ".cache")
    return f"{_first(environ, FILES) or os.path.join(cache, 'torch', 'comm_lib_trace_rank_')}{rank}"


def patience_s(environ: Mapping[str, str]) -> float:
    """How long to wait for the records of ranks that were asked. 0: nobody can be asked."""
    if pipe_of(environ, 0) is None:
        return 0.0
    text = environ.get("TORCH_NCCL_COORD_CHECK_MILSEC", "")
    return (int(text) if text.isdigit() else 1000) / 1000 + WRITE_S


class Records:
    """The ranks' records, asked for and looked for in threads: pipes and files are where the user says, and a file server that
    does not answer may be what the ranks hang for."""

    def __init__(self, environ: Mapping[str, str], ranks: Iterable[int], now: float) -> None:
        """`now`: monotonic seconds. Those of `ranks` that can be asked will be, at the first `look`."""
        self._pipes = {rank: pipe for rank in ranks if (pipe := pipe_of(environ, rank)) is not None}
        self._files = {rank: record_of(environ, rank) for rank in self._pipes}
        self._before: dict[int, tuple[int, int] | None] | None = None
        """What the files were when the ranks were asked. None: they have not been."""
        self._is_looking, self._look_at, self._until = False, now, now + patience_s(environ)
        self.paths: dict[int, str] = {}  # By rank: where the record of one that was asked goes.
        self.written: set[int] = set()  # Ranks whose record is there.

    def look(self, now: float) -> bool:
        """Whether all are there, or their time is over. Never waits; to be called again until then."""
        if not self._pipes or now >= self._until or (self._before is not None and self.written == self.paths.keys()):
            return True
        if now >= self._look_at and not self._is_looking:
            self._is_looking, self._look_at = True, now + POLL_S
            try:
                _thread.start_new_thread(self._see, ())
            except RuntimeError:  # as many as are allowed are there
                self._is_looking = False
        return False

    def _see(self) -> None:
        if self._before is None:
            before = {rank: _mark(path) for rank, path in self._files.items()}
            self.paths = {rank: self._files[rank] for rank, pipe in self._pipes.items() if ask(pipe)}
            self._before = before
        else:
            before = self._before
            self.written = {rank for rank, path in self.paths.items() if _mark(path) not in (None, before[rank])}
        self._is_looking = False


def _mark(path: str) -> tuple[int, int] | None:
    """Changes whenever the file is written. None: there is none, or nothing in it."""
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return (seen.st_mtime_ns, seen.st_size) if seen.st_size else None


def ask(pipe: str) -> bool:
    """Ask for a record. False: nobody reads there. Never waits."""
    try:
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.write(fd, b"dump\n") > 0
    except OSError:
        return False
    finally:
        os.close(fd)


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")

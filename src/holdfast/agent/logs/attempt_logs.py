"""Opens the log files for one attempt's workers, and reads their last lines.

`agent.logs.paths` decides where they lie; `agent.logs.tee` shows them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.agent.logs.tail import tail_of
from holdfast.agent.logs.tee import Source, Tee
from holdfast.core.errors import UsageError
from holdfast.core.value import Value

NO_LOGS_HINT = "name a writable directory with --log-dir, or keep nothing with --log-dir /dev/null"


class Stream(Value):
    """Where one stream of a local rank goes."""

    path: str | None = None  # None: inherited.
    is_shown: bool = False  # Followed and shown, prefixed, on our own stream.
    is_filtered: bool = False  # Followed for --duplicate-stdout-filters, or the other.


class Filter(Value):
    """The file that lines with one of the given words are copied to, all ranks together. Empty path: none."""

    path: str = ""
    words: tuple[str, ...] = ()


class RankPaths(Value):
    """Where one local rank's output goes."""

    dir: str | None = None
    stdout: Stream = Stream()
    stderr: Stream = Stream()
    error_file: str = ""  # Absolute; empty: none.


class RankLogs:
    """One local rank's open files, to be given to its process. None: inherit ours."""

    def __init__(self, paths: RankPaths) -> None:
        self.paths, self.dir, self.error_file = paths, paths.dir, paths.error_file
        self.stdout_fd, self.stderr_fd = (_open_for_worker(stream.path) for stream in (paths.stdout, paths.stderr))

    @property
    def log_path(self) -> str | None:
        """The file that says most about its end: stderr where that was kept and has anything in it, else stdout."""
        kept = [path for path in (self.paths.stderr.path, self.paths.stdout.path) if path not in (None, os.devnull)]
        return next((path for path in kept if _size(path)), kept[0] if kept else None)

    def release(self) -> None:
        """Close our copies of the descriptors."""
        for fd in (self.stdout_fd, self.stderr_fd):
            if fd is not None:
                os.close(fd)
        self.stdout_fd = self.stderr_fd = None


class AttemptLogs:
    """The files of one attempt on this node. `attempt[local_rank]` has what its process is started with."""

    def __init__(
        self, ranks: Sequence[RankPaths], filters: tuple[Filter, Filter] = (Filter(), Filter()), dir: str | None = None
    ) -> None:
        """`filters`: of stdout and of stderr."""
        self.dir, self.filters = dir, filters
        self.ranks: list[RankLogs] = []
        try:
            for paths in ranks:
                self.ranks.append(RankLogs(paths))
        except OSError as error:
            self.release()
            raise UsageError(f"cannot write logs to {error.filename}: {error.strerror}", hint=NO_LOGS_HINT) from error

    def __getitem__(self, local_rank: int) -> RankLogs:
        return self.ranks[local_rank]

    def __len__(self) -> int:
        return len(self.ranks)

    def files(self, local_rank: int) -> tuple[str, ...]:
        """Paths of the files that have a rank's output; one, where both streams go to the same."""
        paths = self.ranks[local_rank].paths.stdout.path, self.ranks[local_rank].paths.stderr.path
        return tuple(dict.fromkeys(path for path in paths if path and path != os.devnull))

    def tail_lines(self, local_rank: int, n: int = 20) -> tuple[str, ...]:
        """The last `n` lines of a rank's log (`log_path`), without their line ends; empty where there is none."""
        path = self.ranks[local_rank].log_path
        return tail_of(path, n) if path else ()

    @property
    def are_followed(self) -> bool:
        """Whether there is anything for `tee`."""
        streams = [stream for logs in self.ranks for stream in (logs.paths.stdout, logs.paths.stderr)]
        return any(stream.is_shown or stream.is_filtered for stream in streams)

    def tee(self, prefixes: Sequence[str], *, stdout_fd: int = 1, stderr_fd: int = 2) -> Tee | None:
        """What follows the files and shows them, `prefixes[local rank]` before each line. None: nothing to follow. OSError: one
        of them cannot be opened."""
        if not self.are_followed:
            return None
        streams = [logs.paths.stdout for logs in self.ranks], [logs.paths.stderr for logs in self.ranks]
        tee = Tee()
        try:
            for one, to, copies in zip(streams, (stdout_fd, stderr_fd), self.filters):
                sources = [
                    Source(stream.path, prefix, stream.is_shown)
                    for prefix, stream in zip(prefixes, one)
                    if stream.path and (stream.is_shown or stream.is_filtered)
                ]
                tee.follow(sources, to, copies.path, copies.words)
        except OSError:
            tee.close()
            raise
        return tee

    def release(self) -> None:
        """Close our copies of the workers' descriptors, once the workers have theirs."""
        for rank in self.ranks:
            rank.release()


def _open_for_worker(path: str | None) -> int | None:
    if path is None:
        return None
    if path == os.devnull:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    # Append: a log that somebody truncates (logrotate's copytruncate) goes on from its new end, not behind a hole.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _size(path: str | None) -> int:
    try:
        return os.stat(path).st_size if path else 0
    except OSError:
        return 0

"""Which open files does each worker of one attempt start with, and what are the last lines in them?

`agent.logs.paths` decides where they lie; `agent.logs.tee` shows them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from holdfast.agent.logs.tail import tail_of
from holdfast.agent.logs.tee import Source, Tee
from holdfast.core.errors import UsageError
from holdfast.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.logs.tee import Tee

NO_LOGS_HINT = "name a writable directory with --log-dir, or keep nothing with --log-dir /dev/null"


class RankPaths(Value):
    """Where one local rank's output goes. A stream's path None: inherited."""

    dir: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    shown_stdout: bool = False
    """Followed and shown, prefixed, on our stdout."""
    shown_stderr: bool = False
    kept_stdout: bool = False
    """Its lines are looked at by --duplicate-stdout-filters."""
    kept_stderr: bool = False
    error_file: str = ""
    """Absolute; empty: none."""


class FilterFiles(Value):
    """The files that lines with one of the given words are copied to, all ranks together. Empty path: none."""

    stdout: str = ""
    stdout_words: tuple[str, ...] = ()
    stderr: str = ""
    stderr_words: tuple[str, ...] = ()


class RankLogs:
    """One local rank's open files, to be given to its process. None: inherit ours."""

    def __init__(self, paths: RankPaths) -> None:
        self.paths = paths
        self.dir = paths.dir
        self.error_file = paths.error_file
        self.stdout_fd = None if paths.stdout is None else _open_for_worker(paths.stdout)
        self.stderr_fd = None if paths.stderr is None else _open_for_worker(paths.stderr)

    @property
    def log_path(self) -> str | None:
        """The file that says most about its end: stderr where that was kept and has anything in it, else stdout."""
        kept = [path for path in (self.paths.stderr, self.paths.stdout) if path not in (None, os.devnull)]
        return next((path for path in kept if _size(path)), kept[0] if kept else None)

    def release(self) -> None:
        """Close our copies of the descriptors."""
        for fd in (self.stdout_fd, self.stderr_fd):
            if fd is not None:
                os.close(fd)
        self.stdout_fd = self.stderr_fd = None


class AttemptLogs:
    """The files of one attempt on this node. `attempt[local_rank]` has what its process is started with."""

    def __init__(self, ranks: Sequence[RankPaths], filters: FilterFiles | None = None, dir: str | None = None) -> None:
        self.dir = dir
        self.filters = filters or FilterFiles()
        self.ranks: list[RankLogs] = []
        try:
            for paths in ranks:
                self.ranks.append(RankLogs(paths))
        except OSError as error:
            self.close()
            raise UsageError(f"cannot write logs to {error.filename}: {error.strerror}", hint=NO_LOGS_HINT) from error

    def __getitem__(self, local_rank: int) -> RankLogs:
        return self.ranks[local_rank]

    def __len__(self) -> int:
        return len(self.ranks)

    def files(self, local_rank: int) -> tuple[str, ...]:
        """Paths of the files that have a rank's output; one, where both streams go to the same."""
        paths = self.ranks[local_rank].paths
        return tuple(dict.fromkeys(path for path in (paths.stdout, paths.stderr) if path and path != os.devnull))

    def tail_lines(self, local_rank: int, n: int = 20) -> tuple[str, ...]:
        """The last `n` lines of a rank's log (`log_path`), without their line ends; empty where there is none."""
        path = self.ranks[local_rank].log_path
        return tail_of(path, n) if path else ()

    @property
    def are_followed(self) -> bool:
        """Whether there is anything for `tee`."""
        each = [logs.paths for logs in self.ranks]
        return any(one.shown_stdout or one.shown_stderr or one.kept_stdout or one.kept_stderr for one in each)

    def tee(self, prefixes: Sequence[str], *, stdout_fd: int = 1, stderr_fd: int = 2) -> Tee | None:
        """What follows the files and shows them, `prefixes[local rank]` before each line. None: nothing to follow. OSError: one
        of them cannot be opened."""

        def wanted(streams: Iterable[tuple[str | None, bool, bool]]) -> list[Source]:
            return [
                Source(path=path, prefix=prefix, shown=shown)
                for prefix, (path, shown, kept) in zip(prefixes, streams)
                if path and (shown or kept)
            ]

        paths = [logs.paths for logs in self.ranks]
        out = wanted((of.stdout, of.shown_stdout, of.kept_stdout) for of in paths)
        err = wanted((of.stderr, of.shown_stderr, of.kept_stderr) for of in paths)
        if not out and not err:
            return None
        tee = Tee()
        try:
            tee.follow(out, stdout_fd, self.filters.stdout, self.filters.stdout_words)
            tee.follow(err, stderr_fd, self.filters.stderr, self.filters.stderr_words)
        except OSError:
            tee.close()
            raise
        return tee

    def release(self) -> None:
        """Close our copies of the workers' descriptors, once the workers have theirs."""
        for rank in self.ranks:
            rank.release()

    close = release


def _open_for_worker(path: str) -> int:
    if path == os.devnull:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    # Append: a log that somebody truncates (logrotate's copytruncate) goes on from its new end, not behind a hole.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _size(path: str | None) -> int:
    try:
        return os.stat(path).st_size if path else 0
    except OSError:
        return 0

"""Chooses and opens the log files of an attempt's workers, and reads their last lines.

    <log-dir>/<run id>_<8 characters>/attempt_<restart count>/<local rank>/{stdout.log, stderr.log, error.json}
    <state>/jobs/<job>/logs/<node>/   attempt_<restart count>/<local rank>/…          without --log-dir

The names are torchrun's. Nothing is ever erased: a round that comes with the same restart count (the members changed) is named
after the round too, `attempt_1.r3`. `--log-dir /dev/null` keeps nothing at all: no files, an empty TORCHELASTIC_ERROR_FILE,
every worker writing straight to our stdout and stderr. So do workers whose files cannot be had (`agent.logs.log_files`).

Of each stream, and by the two bits (1 stdout, 2 stderr) of `-r` and `-t` for its rank:

                                     file    console
    neither                          no      inherited, no prefix; the null device where --local-ranks-filter hides the rank
    redirect                         yes     no
    tee (wins over redirect)         yes     yes, prefixed, by following the file; not where --local-ranks-filter hides the rank

Where --ft-per-cycle-applog-prefix gathers all lines, both streams go to files too: to one, output.log, and so in their order,
where nothing asks for them apart.

A stream that is inherited has no copy, so no last lines for the report: the worker may need its terminal to be one.
`agent.logs.tee` follows and shows them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from string import Template

from holdfast.agent.logs.tail import tail_of
from holdfast.agent.logs.tee import Source, Tee
from holdfast.core.config.config import RunConfig
from holdfast.core.errors import HoldfastError, UsageError
from holdfast.core.value import Value, replace
from holdfast.runtime.private_files import make_folder
from holdfast.runtime.shm.pages import nameless_file

NO_LOGS_HINT = "name a writable directory with --log-dir, or keep nothing with --log-dir /dev/null"

ROOM_BYTES = 64 * 1024
"""So much room there must be for a worker's files to be used: a line that finds no room ends the script that prints it."""

WRONG_PLACE = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP)
"""What a directory that somebody has named wrongly answers. Anything else is its disk's trouble."""

STREAMS = (1, "stdout"), (2, "stderr")  # With their bits in `-r` and `-t`.

PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


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
    error_fd: int = -1  # Our descriptor of it, where it is in memory. -1: it is a file.


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

    def forget(self) -> None:
        """Its error file in memory has been read for the last time."""
        if self.paths.error_fd >= 0:
            os.close(self.paths.error_fd)
            self.paths = replace(self.paths, error_fd=-1)


class AttemptLogs:
    """The files of one attempt on this node. `attempt[local_rank]` has what its process is started with."""

    def __init__(
        self, ranks: Sequence[RankPaths], filters: tuple[Filter, Filter] = (Filter(), Filter()), dir: str | None = None
    ) -> None:
        """`filters`: of stdout and of stderr. OSError: a file cannot be opened."""
        self.dir, self.filters = dir, filters
        self.ranks: list[RankLogs] = []
        try:
            for paths in ranks:
                self.ranks.append(RankLogs(paths))
        except OSError:
            self.release()
            raise

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
        """Close our copies of the workers' descriptors, once the workers have theirs. It may wait for their disk."""
        for rank in self.ranks:
            rank.release()

    def forget(self) -> None:
        """Nobody asks any more what its workers have left."""
        for rank in self.ranks:
            rank.forget()


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


class LogPlan:
    """Where the logs of this agent's workers go. Makes nothing until the first attempt opens."""

    def __init__(self, config: RunConfig, base: str | None, run_id: str | None) -> None:
        self.config = config
        self.base = base
        """Absolute path under which attempts lie, or (with `run_id`) their run's directory. None: nothing is kept."""
        self.run_id = run_id
        self.warnings: tuple[str, ...] = _warnings(config)  # What the user asked for that will do nothing.
        self.root: str | None = None
        """Directory that holds the attempts; None before the first one opens, and where nothing is kept."""

    @staticmethod
    def of(config: RunConfig, job_dir: str, node: str, *, run_id: str | None = None) -> LogPlan:
        """The plan for a run whose state lies in `job_dir`, for the node named `node`. UsageError if it cannot be kept."""
        if config.log_dir == os.devnull:
            if config.ft.per_cycle_applog_prefix:
                raise UsageError(
                    f"--ft-per-cycle-applog-prefix gathers the ranks' files, and --log-dir is {os.devnull}",
                    hint="give a directory as --log-dir, or leave it out",
                )
            if any(_words(config)):
                raise UsageError(
                    f"--duplicate-stdout-filters and --duplicate-stderr-filters need files, and --log-dir is {os.devnull}",
                    hint="give a directory as --log-dir, or leave it out",
                )
            return LogPlan(config, None, None)
        if config.log_dir:
            return LogPlan(config, os.path.abspath(config.log_dir), run_id or config.rdzv_id)
        return LogPlan(config, os.path.abspath(os.path.join(job_dir, "logs", _as_name(node))), None)

    @property
    def pattern(self) -> str:
        """Where one rank's files will lie, for people: `/logs/job7_????????/attempt_<restarts>/<local rank>/`."""
        if self.base is None:
            return "nowhere"
        home = self.base if self.run_id is None else os.path.join(self.base, f"{_as_name(self.run_id)}_????????")
        return os.path.join(self.root or home, "attempt_<restarts>", "<local rank>", "")

    def open_attempt(self, restart_count: int, round: int, local_world_size: int) -> AttemptLogs:
        """Make the directories and files of a new attempt. UsageError where the place is not a usable directory; OSError where
        its disk is full, or broken. It may wait for that disk."""
        if self.base is None:
            # Every worker writes straight to our stdout and stderr, and has no error file.
            return AttemptLogs([RankPaths() for _ in range(local_world_size)])
        try:
            if self.root is None or not os.path.isdir(self.root):  # somebody may have cleaned up since the last attempt
                self.root = _make_run_dir(self.base, self.run_id)
            attempt = _make_attempt_dir(self.root, restart_count, round)
            ranks = [self._paths(attempt, rank) for rank in range(local_world_size)]
            _see_room(attempt)
            return AttemptLogs(ranks, self._filters(attempt), attempt)
        except OSError as error:
            if error.errno not in WRONG_PLACE:
                raise
            raise UsageError(f"cannot keep logs in {error.filename}: {error.strerror}", hint=NO_LOGS_HINT) from error

    def without_files(self, local_world_size: int) -> AttemptLogs:
        """For workers whose log files cannot be had now: they write to our stdout and stderr, and leave their error records in
        memory."""
        return AttemptLogs([_without_files(self.config, rank) for rank in range(local_world_size)])

    def _paths(self, attempt: str, rank: int) -> RankPaths:
        home = os.path.join(attempt, str(rank))
        os.mkdir(home, 0o700)
        config, asked = self.config, _asked_for(self.config, rank)
        are_gathered = config.ft.per_cycle_applog_prefix is not None
        # Both streams go to one file, and so in their order, where nothing asks for them apart.
        is_together = are_gathered and not asked and not any(_words(config))
        is_visible = config.local_ranks_filter is None or rank in config.local_ranks_filter

        def stream(bit: int, name: str, words: Sequence[str]) -> Stream:
            is_filed = are_gathered or bool(asked & bit)
            file = os.path.join(home, "output.log" if is_together else f"{name}.log")
            return Stream(
                path=file if is_filed else None if is_visible else os.devnull,
                is_shown=is_visible and bool(config.tee.get(rank, 0) & bit),
                is_filtered=is_visible and is_filed and bool(words),
            )

        out, err = (stream(bit, name, words) for (bit, name), words in zip(STREAMS, _words(config)))
        return RankPaths(dir=home, stdout=out, stderr=err, error_file=os.path.join(home, "error.json"))

    def _filters(self, attempt: str) -> tuple[Filter, Filter]:
        out, err = (
            Filter(path=os.path.join(attempt, f"filtered_{name}.log") if words else "", words=tuple(words))
            for (_, name), words in zip(STREAMS, _words(self.config))
        )
        return out, err


def _without_files(config: RunConfig, rank: int) -> RankPaths:
    is_visible = config.local_ranks_filter is None or rank in config.local_ranks_filter
    stream = Stream(path=None if is_visible else os.devnull)
    try:
        fd = nameless_file("holdfast-error")
    except (OSError, HoldfastError):
        fd = -1
    error_file = f"/proc/{os.getpid()}/fd/{fd}" if fd >= 0 else ""
    return RankPaths(stdout=stream, stderr=stream, error_file=error_file, error_fd=fd)


def _see_room(folder: str) -> None:
    """OSError: there is no room for what workers write."""
    path = os.path.join(folder, ".room")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.write(fd, bytes(ROOM_BYTES)) < ROOM_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        try:
            os.close(fd)  # NFS tells a quota here
        finally:
            os.unlink(path)


def prefixes(role: str, ranks: Sequence[int], template: str | None = None) -> list[str]:
    """What stands before each tee'd line, by local rank; `ranks` are the global ones. `[default0]:`, as torchrun.

    `template` (by default the variable TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE) is a `string.Template` with `role_name`, `rank`
    and `local_rank`; other names stay as they are.
    """
    if template is None:
        template = os.environ.get(PREFIX_VARIABLE)
    if not template:
        return [f"[{role}{local}]:" for local in range(len(ranks))]
    made = Template(template)
    return [made.safe_substitute(role_name=role, rank=rank, local_rank=local) for local, rank in enumerate(ranks)]


def _words(config: RunConfig) -> tuple[Sequence[str], Sequence[str]]:
    """What the filters look for in stdout and in stderr."""
    return config.duplicate_stdout_filters, config.duplicate_stderr_filters


def _asked_for(config: RunConfig, rank: int) -> int:
    """Which of a rank's streams `-r` and `-t` send to files."""
    return config.redirects.get(rank, 0) | config.tee.get(rank, 0)


def _as_name(text: str) -> str:
    """`text` as one component of a path."""
    name = os.fsdecode(os.fsencode(text.replace("/", "_").replace("\0", "_"))[:200])
    return name if name.strip(".") else "_" + name


def _make_run_dir(base: str, run_id: str | None) -> str:
    if run_id is None:
        make_folder(base)
        return base
    os.makedirs(base, 0o775, exist_ok=True)  # as torchrun, but not for everybody to remove what is in it
    while True:
        # Private, as mkdtemp makes torchrun's: logs hold what the user's program prints.
        path = os.path.join(base, f"{_as_name(run_id)}_{os.urandom(4).hex()}")
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(base):
                raise
            continue
        return path


def _make_attempt_dir(root: str, restart_count: int, round: int) -> str:
    plain = os.path.join(root, f"attempt_{restart_count}")
    path, tries = plain, 1
    while True:
        try:
            os.mkdir(path, 0o700)
            return path
        except FileExistsError:
            path = f"{plain}.r{round}" if tries == 1 else f"{plain}.r{round}.{tries}"
            tries += 1


def _warnings(config: RunConfig) -> tuple[str, ...]:
    return tuple(
        f"--duplicate-{name}-filters has nothing to look at: no rank's {name} goes to a file (add -t {bit} or -r {bit})"
        for (bit, name), words in zip(STREAMS, _words(config))
        if words and not any(_asked_for(config, rank) & bit for rank in range(config.nproc_per_node))
    )

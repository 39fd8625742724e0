"""Chooses the log paths of each worker, and the prefix of each shown line (`[default0]:`).

    <log-dir>/<run id>_<8 characters>/attempt_<restart count>/<local rank>/{stdout.log, stderr.log, error.json}
    <state>/jobs/<job>/logs/<node>/   attempt_<restart count>/<local rank>/…          without --log-dir

The names are torchrun's. Nothing is ever erased: a round that comes with the same restart count (the members changed) is
named after the round too, `attempt_1.r3`. `--log-dir /dev/null` keeps nothing at all: no files, an empty
TORCHELASTIC_ERROR_FILE, every worker writing straight to our stdout and stderr.

Of each stream, and by the two bits (1 stdout, 2 stderr) of `-r` and `-t` for its rank:

                                     file    console
    neither                          no      inherited, no prefix; the null device where --local-ranks-filter hides the rank
    redirect                         yes     no
    tee (wins over redirect)         yes     yes, prefixed, by following the file; not where --local-ranks-filter hides the rank

Where --ft-per-cycle-applog-prefix gathers all lines, both streams go to files too: to one, output.log, and so in their order,
where nothing asks for them apart.

A stream that is inherited has no copy, so no last lines for the report: the worker may need its terminal to be one.
The open files of an attempt are `agent.logs.attempt_logs`'s; following them is `agent.logs.tee`'s.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from string import Template

from holdfast.agent.logs.attempt_logs import NO_LOGS_HINT, AttemptLogs, Filter, RankPaths, Stream
from holdfast.core.config.config import RunConfig
from holdfast.core.errors import UsageError

STREAMS = (1, "stdout"), (2, "stderr")  # With their bits in `-r` and `-t`.

PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


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
        """Make the directories and files of a new attempt. UsageError where the place is not a usable directory."""
        if self.base is None:
            return nothing_kept(local_world_size)
        try:
            if self.root is None or not os.path.isdir(self.root):  # somebody may have cleaned up since the last attempt
                self.root = _make_run_dir(self.base, self.run_id)
            attempt = _make_attempt_dir(self.root, restart_count, round)
            ranks = [self._paths(attempt, rank) for rank in range(local_world_size)]
        except OSError as error:
            raise UsageError(f"cannot keep logs in {error.filename}: {error.strerror}", hint=NO_LOGS_HINT) from error
        return AttemptLogs(ranks, self._filters(attempt), attempt)

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


def nothing_kept(local_world_size: int) -> AttemptLogs:
    """Every worker writes straight to our stdout and stderr, and has no error file."""
    return AttemptLogs([RankPaths() for _ in range(local_world_size)])


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
    os.makedirs(base, 0o700 if run_id is None else 0o777, exist_ok=True)
    if run_id is None:
        return base
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

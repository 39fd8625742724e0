"""Where do the workers' stdout, stderr and error files go? A `LogsSpecs` says so at each start; the default one, as torchrun.

    <log dir>/<run id>_<8 characters>/attempt_<restart count>/<local rank>/{stdout.log, stderr.log, error.json}
                                                              filtered_stdout.log, filtered_stderr.log

Nothing is erased: a second start with the same restart count gets a directory of its own, `attempt_1.2`.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag

from holdfast.elastic.utils.logging import get_logger

logger = get_logger(__name__)

_MAPPING_REGEX = r"^(\d+:[0123],)*(\d+:[0123])$"
_VALUE_REGEX = r"^[0123]$"


class Std(IntFlag):
    """Which of a worker's streams."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3

    @classmethod
    def from_str(cls, vm: str) -> Std | dict[int, Std]:
        """`"3"` → `Std.ALL`; `"0:1,12:3"` → by local rank, of as many digits as it takes; else `ValueError`."""
        if re.fullmatch(_VALUE_REGEX, vm):
            return Std(int(vm))
        if not re.fullmatch(_MAPPING_REGEX, vm):
            raise ValueError(f"{vm} does not match: <{_VALUE_REGEX}> or <{_MAPPING_REGEX}>")
        pairs = (pair.split(":") for pair in vm.split(","))
        return {int(local_rank): Std(int(value)) for local_rank, value in pairs}


def to_map(val_or_map: Std | Mapping[int, Std], local_world_size: int) -> dict[int, Std]:
    """One value for each local rank; those that a map leaves out have `Std.NONE`."""
    if isinstance(val_or_map, int):
        return dict.fromkeys(range(local_world_size), Std(val_or_map))
    return {local_rank: Std(val_or_map.get(local_rank, 0)) for local_rank in range(local_world_size)}


@dataclass
class LogsDest:
    """Paths, by local rank. In `stdouts` and `stderrs` an empty path is the console; the tee'd ones are followed and shown."""

    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = ""
    filtered_stderr: str = ""


class LogsSpecs(ABC):
    """What the user wants done with the workers' streams. `redirects` go to a file, `tee` to a file and, prefixed, to the
    console; both are a value for all, or by local rank. `local_ranks_filter`: only these are shown on the console."""

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abstractmethod
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """The paths for one start of the group, made ready; sets `TORCHELASTIC_ERROR_FILE` in each worker's `envs`."""

    @property
    @abstractmethod
    def root_log_dir(self) -> str:
        """The directory under which all starts log."""


class DefaultLogsSpecs(LogsSpecs):
    """The layout above. Without `log_dir`: under a new temporary directory, removed at exit if nothing was written to it.
    With the null device: no files at all."""

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        if not log_dir:
            log_dir = tempfile.mkdtemp(prefix="torchelastic_")
            atexit.register(_remove_if_unused, log_dir, os.getpid())
        elif log_dir != os.devnull:
            if os.path.isfile(log_dir):
                raise NotADirectoryError(f"log_dir: {log_dir} is a file")
            os.makedirs(log_dir, exist_ok=True)
        super().__init__(log_dir, redirects, tee, local_ranks_filter)
        self._run_log_dir: str | None = None

    @property
    def root_log_dir(self) -> str:
        return str(self._root_log_dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        if not envs:
            logger.warning("Empty envs map provided when defining logging destinations.")
        if self._root_log_dir == os.devnull:
            return _nowhere(envs)
        attempt = self._make_attempt_dir(envs.get(0, {}))
        dest = LogsDest(
            filtered_stdout=os.path.join(attempt, "filtered_stdout.log"),
            filtered_stderr=os.path.join(attempt, "filtered_stderr.log"),
        )
        redirects, tees = to_map(self._redirects, len(envs)), to_map(self._tee, len(envs))
        for rank in range(len(envs)):
            home = os.path.join(attempt, str(rank))
            os.mkdir(home)
            shown = not self._local_ranks_filter or rank in self._local_ranks_filter
            for bit, name, files, tee_files in (
                (Std.OUT, "stdout.log", dest.stdouts, dest.tee_stdouts),
                (Std.ERR, "stderr.log", dest.stderrs, dest.tee_stderrs),
            ):
                filed = bool((redirects[rank] | tees[rank]) & bit)
                files[rank] = os.path.join(home, name) if filed else "" if shown else os.devnull
                if tees[rank] & bit and shown:
                    tee_files[rank] = files[rank]
            dest.error_files[rank] = envs[rank]["TORCHELASTIC_ERROR_FILE"] = os.path.join(home, "error.json")
        return dest

    def _make_attempt_dir(self, env: Mapping[str, str]) -> str:
        if not self._run_log_dir:
            base = os.path.abspath(self.root_log_dir)  # the worker may change directory
            os.makedirs(base, exist_ok=True)
            self._run_log_dir = tempfile.mkdtemp(prefix=f"{env.get('TORCHELASTIC_RUN_ID', 'test_run_id')}_", dir=base)
            logger.info("log directory set to: %s", self._run_log_dir)
        plain = path = os.path.join(self._run_log_dir, f"attempt_{env.get('TORCHELASTIC_RESTART_COUNT', '0')}")
        start = 1
        while True:
            try:
                os.makedirs(path)
                return path
            except FileExistsError:
                start += 1
                path = f"{plain}.{start}"

    def __repr__(self) -> str:
        return (
            f"DefaultLogsSpecs(root_log_dir={self._root_log_dir}, redirects={self._redirects}, "
            f"tee={self._tee}, local_ranks_filter={self._local_ranks_filter})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DefaultLogsSpecs):
            return False
        return self._settings() == other._settings()

    __hash__ = None  # type: ignore[assignment]

    def _settings(self) -> tuple[object, ...]:
        return self._root_log_dir, self._redirects, self._tee, self._local_ranks_filter


def _nowhere(envs: dict[int, dict[str, str]]) -> LogsDest:
    """Everything on the console, nothing in files."""
    for env in envs.values():
        env["TORCHELASTIC_ERROR_FILE"] = ""
    console, nothing = dict.fromkeys(envs, ""), dict.fromkeys(envs, os.devnull)
    return LogsDest(console, dict(console), nothing, dict(nothing), dict(nothing), os.devnull, os.devnull)


def _remove_if_unused(log_dir: str, pid: int) -> None:
    if pid == os.getpid() and not any(files for _, _, files in os.walk(log_dir)):
        shutil.rmtree(log_dir, ignore_errors=True)

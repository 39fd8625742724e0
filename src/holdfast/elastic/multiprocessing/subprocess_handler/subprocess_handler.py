"""How is a program started as a worker, and signalled with its whole process group?"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from subprocess import Popen
from typing import IO, Any

from holdfast.runtime.hardware.affinity import bound
from holdfast.runtime.process.process import kill_group
from holdfast.runtime.secrets import without_secrets

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1  # linux/prctl.h
_prctl = ctypes.CDLL(None).prctl  # looked up here: in a forked child the loader's lock may never be released


class SubprocessHandler:
    """Starts `entrypoint args…` at once, in a session of its own, with `env` over our environment.

    `stdout` and `stderr` are files, or empty for ours. `proc` is the `Popen`.
    """

    def __init__(
        self,
        entrypoint: str,
        args: Sequence[Any],
        env: dict[str, str],
        stdout: str | None,
        stderr: str | None,
        local_rank_id: int,
        numa_options: Any = None,
    ) -> None:
        self.local_rank_id = local_rank_id
        command = _bound((entrypoint, *map(str, args)), local_rank_id, numa_options)
        with _opened(stdout) as self._stdout, _opened(stderr) as self._stderr:
            start = partial(self._popen, command, without_secrets(os.environ) | env)
            ours = numa_options.get(local_rank_id) if isinstance(numa_options, dict) else None
            self.proc: Popen[bytes] = bound(ours, start, logger.warning) if ours else start()

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Popen[bytes]:
        # The kernel kills the worker when the thread that started it ends: only the main one lives as long as we do.
        may_die_with_us = threading.current_thread() is threading.main_thread()
        return Popen(
            args,
            env=env,
            stdout=self._stdout,
            stderr=self._stderr,
            start_new_session=True,
            preexec_fn=_die_with_parent(os.getpid()) if may_die_with_us else None,
        )

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Signal the worker's process group, whether or not the worker itself has ended."""
        kill_group(self.proc.pid, death_sig or signal.SIGTERM)


def _opened(path: str | None) -> AbstractContextManager[IO[str] | None]:
    return open(path, "w") if path else nullcontext()


def _bound(command: tuple[str, ...], local_rank: int, numa_options: Any) -> tuple[str, ...]:
    """`command` on the CPUs near its GPU. If the options are torch's, so is the reading of the machine."""
    if numa_options is None:
        return command
    if isinstance(numa_options, dict):  # `RunConfig.bindings`
        return (*numa_options[local_rank].prefix, *command) if local_rank in numa_options else command
    wrap = import_module("torch.numa.binding")._maybe_wrap_command_args_with_numa_binding
    bound: tuple[str, ...] = wrap(command, gpu_index=local_rank, numa_options=numa_options)
    return bound


def _die_with_parent(parent: int) -> Callable[[], None]:
    def arrange() -> None:
        # Between fork and exec: only what needs no lock that another thread of ours may have held.
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended while we were being started
            os._exit(1)

    return arrange

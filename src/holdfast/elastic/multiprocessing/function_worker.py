"""How does a function run as a worker: its process, its streams, its error record, and its return value on the way back?

The first half runs in the child, `ProcessContext` in the parent.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from multiprocessing.process import BaseProcess
from typing import Any

from holdfast.elastic.multiprocessing.errors import record
from holdfast.elastic.multiprocessing.redirects import redirect_stderr, redirect_stdout
from holdfast.elastic.multiprocessing.signal_exception import _terminate_process_handler, signals_held
from holdfast.runtime.hardware.affinity import take
from holdfast.runtime.process.process import die_with_parent
from holdfast.runtime.secrets import VARIABLES, take_secret

logger = logging.getLogger(__name__)


class WorkerFailed(Exception):
    """A worker exited with something other than 0. The attributes are those of torch.multiprocessing's exceptions."""

    def __init__(self, error_index: int, error_pid: int, exitcode: int) -> None:
        super().__init__(f"worker {error_index} (pid {error_pid}) ended with exit code {exitcode}")
        self.error_index = error_index
        self.error_pid = error_pid


def get_std_cm(std_rd: str, redirect_fn: Callable[[str], AbstractContextManager[None]]) -> AbstractContextManager[None]:
    """The redirection to that file; none when it is empty."""
    return redirect_fn(std_rd) if std_rd else contextlib.nullcontext()


def _wrap(
    local_rank: int,
    fn: Callable[..., Any],
    args: Mapping[int, tuple[Any, ...]],
    envs: Mapping[int, Mapping[str, str]],
    stdout_redirects: Mapping[int, str],
    stderr_redirects: Mapping[int, str],
    ret_vals: Mapping[int, Any],
    queue_finished_reading_event: Any,
    numa_options: Any = None,
) -> None:
    """Run one rank's function and hand its value back; return when all ranks' values have been taken."""
    for variable in VARIABLES:
        take_secret(variable)
    os.environ.update(envs[local_rank])
    with get_std_cm(stdout_redirects[local_rank], redirect_stdout), get_std_cm(stderr_redirects[local_rank], redirect_stderr):
        try:
            value = record(_bound(fn, local_rank, numa_options))(*args[local_rank])
            record(ret_vals[local_rank].put)(value)
        except Exception:
            traceback.print_exc()
            raise
    # What crosses to the parent may live in our memory (torch tensors do) until the parent has it.
    queue_finished_reading_event.wait()


def _bound(fn: Callable[..., Any], local_rank: int, numa_options: Any) -> Callable[..., Any]:
    """`fn` on the CPUs near its GPU. If the options are torch's, so is the reading of the machine."""
    if numa_options is None:
        return fn
    if isinstance(numa_options, dict):  # `RunConfig.bindings`; numactl, which binds programs, is not for functions
        if local_rank in numa_options:
            take(numa_options[local_rank], logger.warning)
        return fn
    wrap = import_module("torch.numa.binding")._maybe_wrap_with_numa_binding
    bound: Callable[..., Any] = wrap(fn, gpu_index=local_rank, numa_options=numa_options)
    return bound


def _enter(signal_mask: set[int] | None, by_main_thread: bool, *args: Any) -> None:
    """The child's first function. `signal_mask`: what to block from now on; None: as it is."""
    _forget_signal_handlers()
    if signal_mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)
    _die_with_parent(by_main_thread)
    try:
        _wrap(*args)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)  # its exit status then says what it was
    except Exception:
        sys.exit(1)


def _forget_signal_handlers() -> None:
    """A forked child has our parent's handlers: for it, a SIGTERM is the end and not an exception to be recorded."""
    for signum in signal.valid_signals():
        if signal.getsignal(signum) is _terminate_process_handler:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)


def _die_with_parent(by_main_thread: bool) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    # The kernel's signal comes when the thread that started us ends, which only for a main thread is the end of its process.
    if not (by_main_thread and die_with_parent(signal.SIGKILL)):
        threading.Thread(target=_end_after, args=(parent,), name="parent-watch", daemon=True).start()
    elif multiprocessing.connection.wait([parent.sentinel], timeout=0):
        os._exit(1)


def _end_after(parent: BaseProcess) -> None:
    multiprocessing.connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def _blocked_until_entered(start_method: str) -> Iterator[set[int] | None]:
    """Signals wait until a forked child has forgotten our handlers: one that came before would raise `SignalException` in it,
    wherever our own main thread is. Yields the mask that the child restores."""
    if start_method != "fork":
        yield None
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield set(before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(
    context: Any, fn: Callable[..., Any], by_rank: Sequence[Mapping[int, Any]], finished: Any, numa_options: Any
) -> ProcessContext:
    """Start one process per local rank in `context` (of `multiprocessing`). Those started are ended if one cannot be.

    `by_rank` are `_wrap`'s mappings; each process gets its own rank's of them."""
    method = context.get_start_method()
    # A fork server's worker is not ours to the kernel but the server's, which lives as long as any worker of it.
    by_main_thread = method != "forkserver" and threading.current_thread() is threading.main_thread()
    processes: list[BaseProcess] = []
    try:
        with _blocked_until_entered(method) as mask:
            for rank in range(len(by_rank[0])):
                own = [{rank: mapping[rank]} for mapping in by_rank]
                process = context.Process(target=_enter, args=(mask, by_main_thread, rank, fn, *own, finished, numa_options))
                process.start()
                processes.append(process)
    except BaseException:
        for process in processes:
            process.kill()
        raise
    return ProcessContext(processes)


class ProcessContext:
    """The processes of one start, by local rank."""

    def __init__(self, processes: list[BaseProcess]) -> None:
        self.processes = processes
        self.sentinels = {process.sentinel: rank for rank, process in enumerate(processes)}
        """Of those that have not been seen to end."""

    def pids(self) -> list[int]:
        return [int(process.pid or 0) for process in self.processes]

    def join(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds (negative: not at all) for some process to end. True: all have. `WorkerFailed` for one
        that failed."""
        if not self.sentinels:
            return True
        ready = multiprocessing.connection.wait(list(self.sentinels), timeout=timeout)
        for sentinel in [sentinel for sentinel in self.sentinels if sentinel in ready]:
            rank = self.sentinels[sentinel]
            process = self.processes[rank]
            with signals_held():
                process.join()
            del self.sentinels[sentinel]
            if process.exitcode:
                raise WorkerFailed(rank, int(process.pid or 0), process.exitcode)
        return not self.sentinels

"""Which faults can a script inject into itself, to see itself begin again? NVRx's names.

inject_fault((Fault.SIGKILL,), num_faults=1, keep_alive=1, delay=(1.0, 2.0), seed=iteration)
"""

from __future__ import annotations

import ctypes
import enum
import os
import random
import re
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.inprocess.monitor_thread import async_raise


class Fault(enum.Enum):
    """What happens."""

    GPU_ERROR = enum.auto()
    GPU_SLEEP = enum.auto()
    WORKLOAD_EXC = enum.auto()
    ASYNC_EXC = enum.auto()
    SIGNAL_EXC = enum.auto()
    OS_ABORT = enum.auto()
    LOCK_GIL = enum.auto()
    SEGFAULT = enum.auto()
    SIGINT = enum.auto()
    SIGKILL = enum.auto()
    SIGTERM = enum.auto()
    SIGSTOP = enum.auto()


class InjectedException(Exception):
    """What a fault raises."""


Callback = Callable[[], Any] | None
_handlers: dict[Any, Callable[[float, Callback], None]] = {}
_is_wanted = threading.Event()
"""A `WORKLOAD_EXC` is due."""


def register_fault(fault_name_or_enum: Any, handler: Callable[[float, Callback], None]) -> Any:
    """`handler(delay, callback)` injects it. A name that is no `Fault` yet is one from now on: it is returned."""
    fault = fault_name_or_enum
    if not isinstance(fault, Fault):
        fault = object.__new__(Fault)
        vars(fault).update(_name_=fault_name_or_enum, _value_=len(Fault) + 1)
        Fault._member_map_[fault_name_or_enum] = Fault._value2member_map_[fault._value_] = fault
        Fault._member_names_.append(fault_name_or_enum)
    _handlers[fault] = handler
    return fault


def dispatch_fault_injection(fault: Any, delay: float, callback: Callback) -> None:
    """Inject it, after `delay` seconds. RuntimeError: nobody has said how."""
    if fault not in _handlers:
        raise RuntimeError(f"nobody has said how {fault!r} is injected: register_fault")
    _handlers[fault](delay, callback)


def maybe_raise_workload_exception() -> None:
    """InjectedException: a `WORKLOAD_EXC` is due."""
    if _is_wanted.is_set():
        _is_wanted.clear()
        raise InjectedException


def clear_workload_exception() -> None:
    """None is due any more."""
    _is_wanted.clear()


def _later(act: Callable[[], object]) -> Callable[[float, Callback], None]:
    """In a thread, after the delay."""

    def handler(delay: float, callback: Callback) -> None:
        def run() -> None:
            threading.Event().wait(delay)
            if callback is not None:
                callback()
            act()

        threading.Thread(target=run, daemon=True).start()

    return handler


def _gpu_error() -> None:
    torch = sys.modules["torch"]
    torch.ones(1, device="cuda")[torch.ones(1, dtype=torch.int64, device="cuda")] = 0


def _raise_at_signal(delay: float, callback: Callback) -> None:
    def handler(signum: int, frame: object) -> None:
        raise InjectedException

    signal.signal(signal.SIGUSR1, handler)
    _later(lambda: os.kill(os.getpid(), signal.SIGUSR1))(delay, callback)


def _signal(signum: int) -> Callable[[float, Callback], None]:
    return _later(lambda: os.kill(os.getpid(), signum))


register_fault(Fault.GPU_ERROR, _later(_gpu_error))
register_fault(Fault.GPU_SLEEP, _later(lambda: sys.modules["torch"].cuda._sleep(1 << 62)))
register_fault(Fault.WORKLOAD_EXC, _later(_is_wanted.set))
register_fault(Fault.ASYNC_EXC, _later(lambda: async_raise(threading.main_thread().ident or 0, InjectedException)))
register_fault(Fault.SIGNAL_EXC, _raise_at_signal)
register_fault(Fault.OS_ABORT, _later(os.abort))
register_fault(Fault.LOCK_GIL, _later(lambda: re.match(r"(a?){40}a{40}", "a" * 40)))
register_fault(Fault.SEGFAULT, _later(lambda: ctypes.string_at(1)))
for _name in ("SIGINT", "SIGKILL", "SIGTERM", "SIGSTOP"):
    register_fault(Fault[_name], _signal(signal.Signals[_name]))


def inject_fault(
    faults: Sequence[Any],
    num_faults: int | tuple[int, int],
    keep_alive: int,
    delay: float | tuple[float, float],
    seed: int,
    callback: Callback = None,
) -> None:
    """Choose by `seed`, alike in all ranks, which of `faults` comes to which ranks after which delay, in seconds; inject it if
    this is one of them. The first `keep_alive` ranks are spared. `callback` is called just before."""
    chance = random.Random(seed)
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    fewest, most = (num_faults, num_faults) if isinstance(num_faults, int) else num_faults
    delay_s = chance.uniform(*delay) if isinstance(delay, tuple) else float(delay)
    count = min(chance.randint(fewest, most), world_size - keep_alive)
    ranks = chance.sample(range(keep_alive, world_size), count)
    (fault,) = chance.sample(list(faults), 1)
    if rank in ranks:
        dispatch_fault_injection(fault, delay_s, callback)

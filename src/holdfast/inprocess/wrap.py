"""How does a function begin again, in the same processes, when a rank has failed? NVRx's names.

    @inprocess.Wrapper(initialize=inprocess.initialize.RetryController(max_iterations=5))
    def train(call_wrapper: inprocess.CallWrapper | None = None): ...

Beside an agent of Holdfast's (`beside_agent`), who has failed is replaced, and the others begin again; under another launcher
(`among_peers`), the ranks that live go on without those that do not.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import pathlib
import typing
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from holdfast.inprocess import beside_agent
from holdfast.inprocess.abort import Abort, AbortTorchDistributed
from holdfast.inprocess.among_peers import AmongPeers
from holdfast.inprocess.beside_agent import BesideAgent
from holdfast.inprocess.call import CallWrapper
from holdfast.inprocess.completion import Completion
from holdfast.inprocess.compose import Compose
from holdfast.inprocess.finalize import Finalize
from holdfast.inprocess.health_check import ChainedGPUHealthCheck, ChainedNicHealthCheck, ChainedNVLHealthCheck, HealthCheck
from holdfast.inprocess.initialize import Initialize
from holdfast.inprocess.rank_assignment import ActivateAllRanks, RankAssignment, ShiftRanks
from holdfast.inprocess.store import StoreMixin, TCPStore
from holdfast.inprocess.terminate import Terminate

SECOND = timedelta(seconds=1)


class Wrapper:
    """Makes a function begin again. All ranks call it, with the same arguments."""

    def __init__(
        self,
        *,
        store_factory: type = TCPStore,
        store_kwargs: dict[str, Any] | None = None,
        initialize: Initialize | None = None,
        abort: Abort | None = AbortTorchDistributed(),  # noqa: B008 - it holds nothing
        finalize: Finalize | None = None,
        health_check: HealthCheck | None = None,
        rank_assignment: Any = Compose(ActivateAllRanks(), ShiftRanks()),  # noqa: B008 - likewise
        monitor_thread_interval: timedelta = SECOND,
        monitor_process_interval: timedelta = SECOND,
        heartbeat_interval: timedelta = SECOND,
        progress_watchdog_interval: timedelta = SECOND,
        soft_timeout: timedelta = 60 * SECOND,
        hard_timeout: timedelta = 90 * SECOND,
        heartbeat_timeout: timedelta = 30 * SECOND,
        barrier_timeout: timedelta = 120 * SECOND,
        completion_timeout: timedelta = 120 * SECOND,
        last_call_wait: timedelta = SECOND,
        termination_grace_time: timedelta = 5 * SECOND,
        monitor_process_logfile: str | None = None,
        monitor_process_pidfile: str | None = None,
        enabled: bool = True,
        completion: Completion | None = None,
        terminate: Terminate | None = None,
    ) -> None:
        """`soft_timeout`: a rank that makes no progress for so long begins another life; `hard_timeout`: it is ended, with
        SIGTERM, and SIGKILL after `termination_grace_time`. `last_call_wait`: how long others may report a failure of theirs.
        `monitor_process_logfile` and `_pidfile`: absolute paths, with `{rank}` in them if need be.

        TypeError: an argument is of another kind. ValueError: limits that do not fit one another; it says which.
        """
        given = {name: value for name, value in locals().items() if name != "self"}
        for name, kind in _KINDS.items():
            if given[name] is not None and not isinstance(given[name], kind):
                raise TypeError(f"{name} is {given[name]!r}, and has to be of {kind.__name__}")
        for name, value in given.items():
            if isinstance(value, timedelta) is not name.endswith(("_interval", "_timeout", "_wait", "_time")):
                raise TypeError(f"{name} is {value!r}: limits are datetime.timedelta, and nothing else is")
        _require(
            isinstance(store_factory, type) and issubclass(store_factory, StoreMixin), "a store_factory that is a StoreMixin"
        )
        _require(soft_timeout < hard_timeout < barrier_timeout, "soft_timeout < hard_timeout < barrier_timeout")
        _require(
            heartbeat_interval < heartbeat_timeout < barrier_timeout, "heartbeat_interval < heartbeat_timeout < barrier_timeout"
        )
        for name in ("monitor_process_interval", "monitor_thread_interval", "progress_watchdog_interval"):
            _require(given[name] < soft_timeout, f"{name} < soft_timeout")
        for name in ("monitor_process_logfile", "monitor_process_pidfile"):
            _require(given[name] is None or pathlib.Path(given[name]).is_absolute(), f"{name}: an absolute path")
        _require(dist.is_available(), "torch.distributed.is_available()")
        self.store_kwargs = store_kwargs or {}
        self.restart_health_check = _after_a_life(health_check)
        vars(self).update({name: value for name, value in given.items() if name != "store_kwargs"})

    if typing.TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn`, begun again as long as there is reason to; an argument that is annotated with `CallWrapper` is given one. It
        returns what the last life's has returned; None where this rank waited in reserve."""
        if not self.enabled:
            return fn

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            outside = "not torch.distributed.is_initialized(): the function makes the process group itself"
            _require(not dist.is_initialized(), outside)
            if not logging.getLogger().handlers:
                warnings.warn("logging is not configured: why ranks begin again is not said", stacklevel=2)
            call = BesideAgent(self) if beside_agent.is_here() else AmongPeers(self)
            return call.run(_with_call(fn, call, args, kwargs))

        return wrapped


_KINDS: dict[str, type] = {
    "store_kwargs": dict,
    "initialize": Initialize,
    "abort": Abort,
    "finalize": Finalize,
    "health_check": HealthCheck,
    "rank_assignment": RankAssignment,
    "monitor_process_logfile": str,
    "monitor_process_pidfile": str,
    "enabled": bool,
    "completion": Completion,
    "terminate": Terminate,
}


def _after_a_life(health_check: Any) -> Any:
    """What is asked after a life that was cut short: `health_check`, and in a rank that a launcher has given a GPU, whether
    that, its NVLinks and its NICs are well. None: nothing."""
    checks = list(getattr(health_check, "instances", [health_check] if health_check is not None else []))
    if (local_rank := os.environ.get("LOCAL_RANK", "")).isdecimal():
        ours = ChainedGPUHealthCheck, ChainedNVLHealthCheck, ChainedNicHealthCheck
        checks += [kind(device_index=int(local_rank)) for kind in ours]
    return Compose(*checks) if checks else None


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"inprocess.Wrapper needs {what}")


def _with_call(
    fn: Callable[..., Any], call: CallWrapper, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], Any]:
    """`fn` with its arguments, of which those that are annotated with `CallWrapper` are `call`, whatever was given. TypeError:
    they are not those of `fn`."""
    signature = inspect.signature(fn)
    try:
        kinds = typing.get_type_hints(fn)
    except Exception:  # an annotation that cannot be resolved is nobody's business here
        kinds = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    asked = [name for name in signature.parameters if CallWrapper in (kinds.get(name), *typing.get_args(kinds.get(name)))]
    given = signature.bind_partial(*args, **kwargs)
    given.arguments.update(dict.fromkeys(asked, call))
    return functools.partial(fn, *given.args, **given.kwargs)

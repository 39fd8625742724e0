"""How does a rank write a checkpoint while it trains? `AsyncRequest` says what to do, `AsyncCallsQueue` does it in a thread.

NVRx's names, as far as local checkpoints need them. A thread, and no process: the tensors have been copied to the CPU before,
and writing them releases the GIL.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
import torch.distributed as dist


class AsyncRequest(NamedTuple):
    """Call `async_fn`, beside the training; and when all ranks have, `finalize_fns` in it, one after the other."""

    async_fn: Callable[..., Any] | None
    async_fn_args: tuple[Any, ...]
    finalize_fns: list[Callable[[], Any]]
    async_fn_kwargs: dict[str, Any] | None = None
    preload_fn: Callable[[], Any] | None = None  # Called in the training, before: gives the second argument.
    is_frozen: bool = False
    call_idx: int = 0

    def add_finalize_fn(self, fn: Callable[[], Any]) -> None:
        """Call `fn` as well, after the others. RuntimeError: it has been scheduled."""
        if self.is_frozen:
            raise RuntimeError("add_finalize_fn: this request has been scheduled")
        self.finalize_fns.append(fn)

    def execute_sync(self) -> None:
        """Do it all, here and now."""
        self.preloaded().call()
        if _is_up():
            dist.barrier()
        self.execute_finalize_fns(validate_matching_call_idx=False)

    def preloaded(self) -> AsyncRequest:
        """With what `preload_fn` gives."""
        if self.preload_fn is None:
            return self
        first, _, *others = self.async_fn_args
        return self._replace(async_fn_args=(first, self.preload_fn(), *others), preload_fn=None)

    def call(self) -> None:
        if self.async_fn is not None:
            self.async_fn(*self.async_fn_args, **(self.async_fn_kwargs or {}))

    def freeze(self) -> AsyncRequest:
        return self._replace(is_frozen=True)

    def execute_finalize_fns(self, validate_matching_call_idx: bool = True) -> int:
        """Call `finalize_fns`. With `validate_matching_call_idx` all ranks must be at the same request."""
        for fn in self.finalize_fns:
            fn()
        if validate_matching_call_idx and _most(self.call_idx) != self.call_idx:
            raise RuntimeError("the ranks finalize different requests: call maybe_finalize_async_calls on all of them together")
        return self.call_idx


class _Call:
    """A request that is under way."""

    def __init__(self, request: AsyncRequest) -> None:
        self.request = request
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.request.call()
        except BaseException as error:  # the finalize functions find that it is not there; it is told when they are called
            self.error = error


class AsyncCallsQueue:
    """Requests of this rank, in their order. All ranks schedule and finalize them together."""

    def __init__(self, persistent: bool = True, **_: Any) -> None:
        """NVRx's options choose what its process is like; there is none."""
        self.persistent = persistent
        self.async_calls: deque[_Call] = deque()
        self.call_idx = -1
        _queues.add(self)

    @staticmethod
    def get_instances() -> list[AsyncCallsQueue]:
        """All that are in use."""
        return list(_queues)

    def schedule_async_request(self, async_request: AsyncRequest) -> int:
        """Begin it. Its number, from 0 on."""
        self.call_idx += 1
        request = AsyncRequest(**async_request._asdict()) if type(async_request) is not AsyncRequest else async_request
        self.async_calls.append(_Call(request.preloaded().freeze()._replace(call_idx=self.call_idx)))
        return self.call_idx

    def maybe_finalize_async_calls(self, blocking: bool = False, no_dist: bool = False) -> list[int]:
        """Finalize those that all ranks have done; with `blocking`, wait for all. Their numbers."""
        done = []
        while self.async_calls:
            call = self.async_calls[0]
            if blocking:
                call.thread.join()
            running = int(call.thread.is_alive())
            if running if no_dist else _most(running):
                break
            self.async_calls.popleft()
            done.append(call.request.execute_finalize_fns(validate_matching_call_idx=not no_dist))
            if call.error is not None:
                raise call.error
        return done

    def get_num_unfinalized_calls(self) -> int:
        return len(self.async_calls)

    def close(self, abort: bool = False) -> None:
        """Wait for all, and finalize them; with `abort`, forget them."""
        if abort:
            self.async_calls.clear()
        self.maybe_finalize_async_calls(blocking=True)


_queues: WeakSet[AsyncCallsQueue] = WeakSet()


def abort_nvrx_checkpoint() -> None:
    """Forget what is under way in all queues: its ranks are others now."""
    for queue in AsyncCallsQueue.get_instances():
        queue.close(abort=True)


def _is_up() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


def _most(number: int) -> int:
    """The greatest that a rank says."""
    if not _is_up():
        return number
    told: Any = torch.tensor([number], device="cuda" if dist.get_backend() == dist.Backend.NCCL else "cpu")
    dist.all_reduce(told, op=dist.ReduceOp.MAX)
    return int(told.item())

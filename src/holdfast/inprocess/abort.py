"""How is a main thread freed that waits for ranks which are gone? From another thread. NVRx's names."""

from __future__ import annotations

import abc
import contextlib
import gc
import importlib
import os
import sys
import traceback
from typing import Any

from holdfast.client.in_place import groups


class Abort(abc.ABC):
    """Called with the `FrozenState`, which it returns, in a thread of its own, when a life is to be cut short."""

    @abc.abstractmethod
    def __call__(self, state: Any) -> Any:
        """What it raises is logged, and changes nothing."""


class AbortTorchDistributed(Abort):
    """Ends all collectives of torch's process groups: NCCL's by its abort, gloo's with their connections."""

    def __init__(self, torch_fr_trace_path: str | None = None) -> None:
        """`torch_fr_trace_path` (else NVRX_FR_TRACE_PATH): a folder, into which torch's record of the collectives under way is
        written before, as iter_N/_dump_RANK.json, where torch keeps one (TORCH_FR_BUFFER_SIZE)."""
        self.torch_fr_trace_path = torch_fr_trace_path or os.environ.get("NVRX_FR_TRACE_PATH")

    def __call__(self, state: Any) -> Any:
        """Within a life, all TCP connections are shut that this process has opened since it began. OSError: they are, but the
        record cannot be written."""
        try:
            self._write_trace(state)
        finally:
            groups.interrupt(groups.sockets() if _began_with is None else _began_with)
        return state

    def _write_trace(self, state: Any) -> None:
        kept = any(int(os.environ.get(name) or 0) for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"))
        torch = sys.modules.get("torch.distributed")
        if not self.torch_fr_trace_path or not kept or torch is None or not torch.is_initialized():
            return
        c10d = sys.modules["torch._C._distributed_c10d"]
        dump = getattr(c10d, "_dump_nccl_trace_json", None) or getattr(c10d, "_dump_fr_trace_json", None)
        if dump is None:  # an older torch
            return
        folder = os.path.join(self.torch_fr_trace_path, f"iter_{state.iteration}")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"_dump_{state.active_rank}.json"), "wb") as file:
            file.write(dump(True, True))


_began_with: frozenset[str] | None = None
"""The sockets that were open when the life began. None: no life is under way."""


def life_begins() -> None:
    """What is opened from now on goes with the life."""
    global _began_with
    _began_with = groups.sockets()


def life_ends() -> None:
    """For the main thread, once it is out of the function: what torch still knows of the process groups is forgotten."""
    global _began_with
    before, _began_with = _began_with, None
    if before is not None:
        groups.tear_down(before)


GONE_S = 5.0
"""How long the next life waits for the process groups of this one: one of their threads may be lost until its time-out."""


def forget(error: BaseException | None) -> None:
    """What the life has left goes, with what the frames of its exception hold: process groups, and the store that the first
    rank serves, at the port where the next life's is to be."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    gc.collect()
    groups.let_go(GONE_S)


class AbortTransformerEngine(Abort):
    """Ends TransformerEngine's user buffers, and what its FP8 state holds of process groups, where it is installed."""

    def __call__(self, state: Any) -> Any:
        """Never raises."""
        with contextlib.suppress(Exception):
            importlib.import_module("transformer_engine.pytorch").module.base.destroy_ub()
        with contextlib.suppress(Exception):
            importlib.import_module("transformer_engine.pytorch.fp8").FP8GlobalStateManager.reset()
        return state


class AbortPersistentCheckpointProcesses(Abort):
    """Forgets the asynchronous checkpoints that are under way: not all ranks are left that would finalize them."""

    def __call__(self, state: Any) -> Any:
        """Where `checkpointing.async_ckpt` is in use."""
        if (core := sys.modules.get("holdfast.checkpointing.async_ckpt.core")) is not None:
            core.abort_nvrx_checkpoint()
        return state

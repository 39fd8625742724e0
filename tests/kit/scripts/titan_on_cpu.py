"""torchtitan's trainer on CPUs, with its own debug model, cut to one layer.

    holdfast run -m titan_on_cpu --module titan_on_cpu --config tiny …    # for -m torchtitan.train --module llama3 …

torchtitan takes a GPU for granted, and its 0.3.0 a newer torch than 2.13. What follows stands for what is missing: a device,
its kernels in Triton, the backward of FlexAttention, one reduction of NCCL's, a function of torch's. All else is its own.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from torch.distributed.fsdp import FSDPModule

KERNELS = "torchtitan.distributed.minimal_async_ep"


def tiny() -> Any:
    """Its own debug model's configuration, with one layer and small batches."""
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    config = llama3_debugmodel()
    del config.model_spec.model.layers[1:]
    config.training.local_batch_size, config.training.seq_len = 2, 64
    config.training.disable_cuda_graphs = True
    config.parallelism.spmd_backend = "partial_dtensor"
    return config


def _attention(q: Any, k: Any, v: Any, *, scale: float | None, enable_gqa: bool, **_: Any) -> tuple[Any, None]:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa), None


def _divided_sum(module: FSDPModule, factor: float) -> None:
    _divide(module, factor)
    module.set_force_sum_reduction_for_comms(True)


def _train_step(trainer: Any, batches: Any) -> None:
    """One step; the last rank of the job's first life is killed after its step KILL_AT, before that is saved."""
    _step(trainer, batches)
    place = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    if place == ("1", "0") and trainer.step == int(os.environ.get("KILL_AT", 0)):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(__file__))
    sys.modules[KERNELS] = sys.modules[f"{KERNELS}.api"] = MagicMock()
    _divide, FSDPModule.set_gradient_divide_factor = FSDPModule.set_gradient_divide_factor, _divided_sum
    if not hasattr(torch.distributed, "set_timeout"):
        torch.distributed.set_timeout = torch.distributed.distributed_c10d._set_pg_timeout

    from torchtitan.tools import utils

    cpu = {
        "current_device": lambda: 0,
        "empty_cache": lambda: None,
        "get_device_name": lambda device: "CPU",
        "get_device_properties": lambda device: SimpleNamespace(total_memory=2**30),
        "memory_stats": lambda device: {},
        "reset_peak_memory_stats": lambda: None,
    }
    utils.device_type, utils.device_module = "cpu", SimpleNamespace(**vars(torch.cpu) | cpu)

    from torchtitan.models.common.attention import FlexAttention
    from torchtitan.trainer import Trainer

    FlexAttention.compiled_flex_attn = staticmethod(_attention)
    _step, Trainer.train_step = Trainer.train_step, _train_step
    runpy.run_module("torchtitan.train", run_name="__main__", alter_sys=True)

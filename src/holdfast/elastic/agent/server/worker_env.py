"""Which environment variables tell a worker who it is and where the others are? torchrun's, name for name."""

from __future__ import annotations

import os

from .worker_group import Worker, WorkerGroup, WorkerSpec


def worker_env(group: WorkerGroup, worker: Worker, restart_count: int, use_agent_store: object) -> dict[str, str]:
    """The variables of one worker in this round, but for its `local_rank_env`."""
    spec = group.spec
    env = {
        "RANK": str(worker.global_rank),
        "GROUP_RANK": str(group.group_rank),
        "ROLE_RANK": str(worker.role_rank),
        "ROLE_NAME": spec.role,
        "LOCAL_WORLD_SIZE": str(spec.local_world_size),
        "WORLD_SIZE": str(worker.world_size),
        "GROUP_WORLD_SIZE": str(group.group_world_size),
        "ROLE_WORLD_SIZE": str(worker.role_world_size),
        "MASTER_ADDR": str(group.master_addr),
        "MASTER_PORT": str(group.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
        "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
        "TORCHELASTIC_USE_AGENT_STORE": str(use_agent_store),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if "OMP_NUM_THREADS" in os.environ:
        env["OMP_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
    return env


def local_rank_env(local_rank: int, spec: WorkerSpec) -> dict[str, str]:
    """Its local rank and the GPUs it sees: all that we see, or with `virtual_local_rank` one of them, as the only one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not spec.virtual_local_rank:
        return {"LOCAL_RANK": str(local_rank)} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    if visible is None:
        return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": str(local_rank)}
    gpus = visible.split(",")
    if local_rank >= len(gpus):
        raise ValueError(f"local_rank {local_rank} exceeds available GPUs in CUDA_VISIBLE_DEVICES={visible}")
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": gpus[local_rank].strip()}

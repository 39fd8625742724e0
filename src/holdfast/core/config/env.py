"""Which environment does a worker get? One table, for torch, JAX and plain scripts alike; pure."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.config.config import RunConfig
from holdfast.core.config.grammar import shown_endpoint
from holdfast.core.config.own_options import Membership
from holdfast.core.job.cycles import cycle_of
from holdfast.core.signals import name_of
from holdfast.core.wire.messages import Assigned


def worker_env(
    inherited: Mapping[str, str], config: RunConfig, assigned: Assigned, local_rank: int, *, error_file: str, job: str
) -> dict[str, str]:
    """The whole environment of one worker: `inherited`, then its place in the job in torchrun's, JAX's and our names.

    `TORCHELASTIC_USE_AGENT_STORE` is the text `False`: rank 0 hosts the store itself, on a new port in every round, so no
    attempt reads a dead one's keys. `jax.distributed.initialize` reads the address; the script passes it the rest."""
    rank = assigned.base_rank + local_rank
    env = dict(inherited)
    env |= {
        "LOCAL_RANK": str(local_rank),
        "RANK": str(rank),
        "GROUP_RANK": str(assigned.group_rank),
        "ROLE_RANK": str(assigned.role_base_rank + local_rank),
        "ROLE_NAME": config.role,
        "LOCAL_WORLD_SIZE": str(config.nproc_per_node),
        "WORLD_SIZE": str(assigned.world_size),
        "GROUP_WORLD_SIZE": str(assigned.group_world_size),
        "ROLE_WORLD_SIZE": str(assigned.role_world_size),
        "MASTER_ADDR": assigned.master_addr,
        "MASTER_PORT": str(assigned.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(
            cycle_of(assigned.round) if config.membership == Membership.FIXED else assigned.restart_count
        ),
        "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts),
        "TORCHELASTIC_RUN_ID": job,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(name_of(signum) for signum in config.signals_to_handle),
        "TORCHELASTIC_ERROR_FILE": error_file,
        "JAX_COORDINATOR_ADDRESS": shown_endpoint(assigned.master_addr, assigned.master_port),
        "JAX_PROCESS_ID": str(rank),
        "JAX_NUM_PROCESSES": str(assigned.world_size),
        "HOLDFAST_JOB": job,
        "HOLDFAST_ROUND": str(assigned.round),
    }
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if config.virtual_local_rank:
        devices = inherited.get("CUDA_VISIBLE_DEVICES")
        env["LOCAL_RANK"] = "0"
        env["CUDA_VISIBLE_DEVICES"] = devices.split(",")[local_rank].strip() if devices else str(local_rank)
    return env

"""What exactly is started for one worker? Command line and environment, from the configuration and the round's answer."""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.core.config import entry
from holdfast.core.config.config import RunConfig
from holdfast.core.config.env import worker_env
from holdfast.core.job.cycles import CURRENT_INFO, InfoNames
from holdfast.core.value import as_json, to_plain
from holdfast.core.wire.messages import Assigned

STASH, AGREED = "HOLDFAST_STASH", "HOLDFAST_STASH_AGREED"
"""As in `core.page.stash`, which is not loaded before somebody stashes something."""

PAGE_AT = 100
"""The worker's descriptor of its page, until the bootstrap has mapped it: above any that a shell's redirections use."""

RUN_PATH_NAME = "run_script_path"  # What torchrun calls the job under `--run-path`: by the function that runs the script.


def page_at() -> int:
    """`PAGE_AT`, or a number that a small `ulimit -n` allows, with room above it for the copies that a start needs."""
    return min(PAGE_AT, os.sysconf("SC_OPEN_MAX") // 2)


def command(config: RunConfig, local_rank: int) -> list[str]:
    """The worker's command line."""
    # The old torch.distributed.launch told the local rank by an argument.
    told = () if config.use_env else (f"--local-rank={local_rank}",)
    binding = config.bindings.get(local_rank)
    argv = entry.worker_argv(
        interpreter=config.python,
        script=config.training_script,
        args=(*told, *config.training_script_args),
        module=config.module,
        no_python=config.no_python,
        run_path=config.run_path,
        local_rank=local_rank,
    )
    return [*binding.prefix, *argv] if binding is not None else argv


def program_name(config: RunConfig) -> str:
    """What torch elastic's events call the workers' program: for a script the interpreter."""
    return RUN_PATH_NAME if config.run_path else os.path.basename(command(config, 0)[0])


def environment(
    config: RunConfig,
    environ: Mapping[str, str],
    assigned: Assigned,
    local_rank: int,
    *,
    error_file: str,
    paged: bool,
    stash: int = -1,
) -> dict[str, str]:
    """The worker's whole environment. `paged`: it finds its page at `page_at()`. `stash`: our descriptor of the node's."""
    env = worker_env(environ, config, assigned, local_rank, error_file=error_file, job=config.rdzv_id)
    if config.ft.cycle_info_dir:
        env[CURRENT_INFO] = InfoNames(config.ft.cycle_info_dir, config.rdzv_id, environ).current
    if config.ft.node_health_check_endpoint:
        env["HOLDFAST_NODE_HEALTH_CHECK_ENDPOINT"] = config.ft.node_health_check_endpoint
    if config.omp_num_threads:
        env["OMP_NUM_THREADS"] = config.omp_num_threads
    if stash >= 0:
        env[STASH] = f"/proc/{os.getpid()}/fd/{stash}:{local_rank}:{config.stash_limit}"
        env[STASH] += ":replicated" * bool(assigned.stash_partner)
        if assigned.stash is not None:
            env[AGREED] = f"{assigned.stash[0]}:{assigned.stash[1]}"
    if not paged:
        return env
    if said := _fault_tolerance(config):
        env["HOLDFAST_FT_CONFIG"] = said
    if assigned.calculated_s:
        env["HOLDFAST_CALCULATED_LIMITS"] = as_json(assigned.calculated_s)
    return entry.bootstrap_env(env, page_fd=page_at())


def _fault_tolerance(config: RunConfig) -> str:
    """What `holdfast.fault_tolerance` in the worker has to know: the fields that are not as they always are, as JSON. Empty:
    all are."""
    usual = config.ft.__fields__
    fields = {field: to_plain(said) for field in usual if (said := getattr(config.ft, field)) != usual[field]}
    if not fields:
        return ""
    return as_json(fields)

"""What exactly is started for one worker? Command line and environment, from the configuration and the round's answer.

A Python worker's command line is torchrun's, untouched: `PY -u SCRIPT args`. Holdfast gets in through the environment:
`PYTHONPATH` starts with a directory that holds nothing but a `sitecustomize` (see `client.bootstrap`). So Python itself runs
the script, and nothing about `__main__`, tracebacks or exit codes is imitated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from holdfast.core.config.config import RunConfig
from holdfast.core.config.grammar import shown_endpoint
from holdfast.core.config.own_options import Membership
from holdfast.core.job.cycles import CURRENT_INFO, InfoNames, cycle_of
from holdfast.core.signals import name_of
from holdfast.core.value import as_json, to_plain
from holdfast.core.wire.messages import Assigned

STASH, AGREED = "HOLDFAST_STASH", "HOLDFAST_STASH_AGREED"
"""As in `core.page.stash`, which is not loaded before somebody stashes something."""
STATE_STEP = "HOLDFAST_STATE_STEP"
"""For `client.in_place.lives`: the step that all ranks go on from. Not set: they see when they have met."""

PAGE_AT = 100
"""The worker's descriptor of its page, until the bootstrap has mapped it: above any that a shell's redirections use."""

RUN_PATH_NAME = "run_script_path"  # What torchrun calls the job under `--run-path`: by the function that runs the script.

_CLIENT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "client")

BOOT_DIR = os.path.join(_CLIENT, "boot")  # Directory of the `sitecustomize` that starts the bootstrap.

RUN_PATH = os.path.join(_CLIENT, "run_path.py")

PAGE_FD = "HOLDFAST_PAGE_FD"  # The descriptor of the page. The bootstrap closes it and removes this.

SPARE = "HOLDFAST_SPARE"
"""In a process that waits to become a worker (`client.spare`): descriptor of its socket, pid of the agent, and HOOK_* bits."""

USER_PYTHONPATH = "HOLDFAST_USER_PYTHONPATH"  # The user's own, which is put back. Not set: none.

_MACRO = re.compile(r"\$(?:(\$)|([_a-zA-Z][_a-zA-Z0-9]*)|\{([_a-zA-Z][_a-zA-Z0-9]*)\})")


def command(config: RunConfig, local_rank: int) -> list[str]:
    """The worker's command line, with what binds it to processors."""
    binding = config.bindings.get(local_rank)
    argv = own_command(config, local_rank)
    return [*binding.prefix, *argv] if binding is not None else argv


def own_command(config: RunConfig, local_rank: int) -> list[str]:
    """The same without that: what the user asked for."""
    # The old torch.distributed.launch told the local rank by an argument.
    told = () if config.use_env else (f"--local-rank={local_rank}",)
    return worker_argv(
        interpreter=config.python,
        script=config.training_script,
        args=(*told, *config.training_script_args),
        module=config.module,
        no_python=config.no_python,
        run_path=config.run_path,
        local_rank=local_rank,
    )


def worker_argv(
    *,
    interpreter: str,
    script: str,
    args: Sequence[str],
    module: bool = False,
    no_python: bool = False,
    run_path: bool = False,
    local_rank: int,
) -> list[str]:
    """Command line of a worker: torchrun's `PY -u SCRIPT`, `PY -u -m MODULE` or `PROGRAM`. `run_path` beats both, buffered."""
    words = [substitute(word, local_rank) for word in args]
    if run_path:
        return [interpreter, RUN_PATH, substitute(script, local_rank), *words]
    if no_python:
        return [script, *words]  # torchrun leaves `$` in a program's name alone
    return [interpreter, "-u", *(["-m"] if module else []), substitute(script, local_rank), *words]


def substitute(word: str, local_rank: int) -> str:
    """Replace `$local_rank`, `${local_rank}` and `$$`, as `string.Template.safe_substitute` does for torchrun's arguments."""
    if "$" not in word:
        return word

    def value(found: re.Match[str]) -> str:
        if found[1]:
            return "$"
        return str(local_rank) if (found[2] or found[3]) == "local_rank" else found[0]

    return _MACRO.sub(value, word)


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
    if assigned.state_step is not None:
        env[STATE_STEP] = str(assigned.state_step)
    else:
        env.pop(STATE_STEP, None)  # the agent may be the child of a worker of another job
    if stash >= 0:
        env[STASH] = f"/proc/{os.getpid()}/fd/{stash}:{local_rank}:{config.stash_limit}"
        every = config.stash_dir_every * bool(config.stash_dir)
        if assigned.stash_partners or every:
            env[STASH] += f":{len(assigned.stash_partners)}:{every}"
        if assigned.stash is not None:
            env[AGREED] = f"{assigned.stash[0]}:{assigned.stash[1]}"
    if not paged:
        return env
    if said := _fault_tolerance(config):
        env["HOLDFAST_FT_CONFIG"] = said
    if assigned.calculated_s:
        env["HOLDFAST_CALCULATED_LIMITS"] = as_json(assigned.calculated_s)
    return bootstrap_env(env, page_fd=page_at())


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
    if assigned.group_world_size > 1:
        env["HOLDFAST_NODE_LOST_AFTER_S"] = f"{config.lease_s:g}"
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if config.virtual_local_rank:
        devices = inherited.get("CUDA_VISIBLE_DEVICES")
        env["LOCAL_RANK"] = "0"
        env["CUDA_VISIBLE_DEVICES"] = devices.split(",")[local_rank].strip() if devices else str(local_rank)
    return env


def bootstrap_env(env: Mapping[str, str], *, page_fd: int) -> dict[str, str]:
    """`env`, and what a Python worker's bootstrap needs: its page is at `page_fd`. A plain copy where that cannot be
    reached."""
    if os.pathsep in BOOT_DIR:  # PYTHONPATH cannot express it
        return dict(env)
    ours = {PAGE_FD: str(page_fd), "PYTHONPATH": BOOT_DIR}
    theirs = env.get("PYTHONPATH")
    if theirs is not None:
        ours[USER_PYTHONPATH] = theirs
        if theirs:  # an empty entry would stand for the current directory
            ours["PYTHONPATH"] += os.pathsep + theirs
    return {**env, **ours}


def next_life(before: Mapping[str, str], env: Mapping[str, str], stdout: str | None, stderr: str | None) -> bytes:
    """What a process that was started with the environment `before` is given, to go on as if it had been with `env`. JSON.
    `stdout`, `stderr`: paths of its log files; None: as before."""
    changed = {name: value for name, value in env.items() if before.get(name) != value}
    return as_json({"set": changed, "unset": sorted(before.keys() - env.keys()), "1": stdout, "2": stderr}).encode()


def spare_env(env: Mapping[str, str], *, fd: int, agent: int, hook: int) -> dict[str, str]:
    """`env`, a worker's from `bootstrap_env`, made that of a spare, which has no page yet but a socket at `fd`."""
    return {name: value for name, value in env.items() if name != PAGE_FD} | {SPARE: f"{fd},{agent},{hook}"}


def page_at() -> int:
    """`PAGE_AT`, or a number that a small `ulimit -n` allows, with room above it for the copies that a start needs."""
    return min(PAGE_AT, os.sysconf("SC_OPEN_MAX") // 2)


def _fault_tolerance(config: RunConfig) -> str:
    """What `holdfast.fault_tolerance` in the worker has to know: the fields that are not as they always are, as JSON. Empty:
    all are."""
    usual = config.ft.__fields__
    fields = {field: to_plain(said) for field in usual if (said := getattr(config.ft, field)) != usual[field]}
    if not fields:
        return ""
    return as_json(fields)

"""What does `--dry-run` print? The plan: nodes, ranks, commands, environment and log files, as far as they are known before
the nodes have met. Made by the functions that the agent itself uses, so that it cannot say anything else than what happens.
"""

from __future__ import annotations

import shlex
import socket
from collections.abc import Mapping

from holdfast.agent.logs.attempt_logs import LogPlan
from holdfast.agent.workers import launch
from holdfast.core.config.config import RunConfig
from holdfast.core.wire.messages import Assigned
from holdfast.telemetry.record.state_dir import job_name

SHOWN_RANKS = 4  # Workers shown in full; the others differ in nothing but their rank.
LATER = "<known at the start>"


def plan(config: RunConfig, environ: Mapping[str, str]) -> str:
    """The plan of this node's part, for people."""
    lines = [
        f"job         {config.rdzv_id}",
        f"nodes       {_nodes(config)}",
        f"rendezvous  {_rendezvous(config)}",
        f"ports       {_ports(config)}",
        f"ranks       {_ranks(config)}",
        f"master      {config.master_addr or '<node of group rank 0>'}:{config.master_port or '<a fresh port each round>'}",
        f"restarts    {_restarts(config)}",
        f"logs        {_logs(config)}",
    ]
    for local_rank in range(min(config.nproc_per_node, SHOWN_RANKS)):
        lines += ["", *_worker(config, environ, local_rank)]
    if config.nproc_per_node > SHOWN_RANKS:
        lines += ["", f"… and {config.nproc_per_node - SHOWN_RANKS} more workers, up to local rank {config.nproc_per_node - 1}"]
    return "\n".join([*lines, "", "Nothing was started."])


def _nodes(config: RunConfig) -> str:
    if config.max_nodes == 1:
        return "1, this one"
    if config.most_nodes < config.max_nodes:
        return f"{config.min_nodes}; further ones are spares"
    few = str(config.max_nodes) if config.min_nodes == config.max_nodes else f"{config.min_nodes} to {config.max_nodes}"
    return f"{few}; this one is rank {config.node_rank}" if config.rdzv_backend == "static" else few


def _rendezvous(config: RunConfig) -> str:
    if config.rdzv_backend == "memory":
        return "memory: one node, no server"
    return f"{config.rdzv_backend} at {config.rdzv_endpoint}, waiting up to {config.join_timeout_s:g} s"


def _ports(config: RunConfig) -> str:
    """What a firewall must let through between the nodes."""
    if config.max_nodes == 1 or config.rdzv_backend == "memory":
        return "none beyond this host"
    ranks = f"{config.master_port or 'any'} and whatever the ranks use among themselves"
    if config.ft.enable_log_server and config.ft.per_cycle_applog_prefix:
        ranks = f"{config.ft.log_server_port or 'any'} at each agent (--ft-log-server-port); {ranks}"
    if config.rdzv_backend == "static":
        return f"{config.rdzv_port} at rank 0's agent; {ranks}"
    low, high = config.agent_ports
    own = "any" if not low else f"{low}" if low == high else f"{low} to {high}"
    meet = f"{config.rdzv_port} at the endpoint; " if config.rdzv_backend == "embedded" else ""
    return f"{meet}{own} at each agent (--agent-port); {ranks}"


def _ranks(config: RunConfig) -> str:
    here, low, high = config.nproc_per_node, config.min_nodes, config.most_nodes
    if high == 1:
        return f"{here} on this node"
    world = f"{low * here}" if low == high else f"{low * here} to {high * here}"
    return f"{here} on this node, {world} in all if every node has as many"


def _restarts(config: RunConfig) -> str:
    window = f" within {config.restart_period_s:g} s" if config.restart_period_s else ""
    return f"up to {config.max_restarts}{window}; {config.shutdown_timeout_s:g} s from asking to SIGKILL"


def _logs(config: RunConfig) -> str:
    """Where one rank's files lie, or `nowhere`."""
    job = f"{config.state_dir}/jobs/{job_name(config.rdzv_id, config.rdzv_endpoint)}"
    return LogPlan.of(config, job, config.node_name or socket.gethostname()).pattern


def _worker(config: RunConfig, environ: Mapping[str, str], local_rank: int) -> list[str]:
    argv = launch.command(config, local_rank)
    like = environ if local_rank == 0 else _env(config, environ, local_rank - 1)
    changes = {name: value for name, value in _env(config, environ, local_rank).items() if like.get(name) != value}
    lines = [f"local rank {local_rank}: {shlex.join(argv)}"]
    if (binding := config.bindings.get(local_rank)) and not binding.prefix:
        lines.append(f"  bound to {binding}")
    if local_rank:
        lines.append(f"  environment as for local rank {local_rank - 1}, but")
    return [*lines, *(f"  {name}={value}" for name, value in changes.items()), *_files(config, local_rank)]


def _files(config: RunConfig, local_rank: int) -> list[str]:
    filed = config.redirects.get(local_rank, 0) | config.tee.get(local_rank, 0)
    folder = _rank_folder(config, local_rank)
    return [f"  {name} in {folder}" for bit, name in ((1, "stdout.log"), (2, "stderr.log")) if folder and filed & bit]


def _rank_folder(config: RunConfig, local_rank: int) -> str:
    folder = _logs(config)
    return "" if folder == "nowhere" else folder.replace("<restarts>", "0").replace("<local rank>", str(local_rank))


def _env(config: RunConfig, environ: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """The worker's environment, with what only the meeting tells replaced by words."""
    folder = _rank_folder(config, local_rank)
    error_file = f"{folder}error.json" if folder else ""
    env = launch.environment(
        config, environ, _first_round(config), local_rank, error_file=error_file, paged=not config.no_python
    )
    later: list[str] = []
    if config.max_nodes > 1 and config.rdzv_backend != "static":
        later += ["RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"]
        later += ["JAX_PROCESS_ID", "JAX_NUM_PROCESSES"]
    if not config.master_addr:
        later.append("MASTER_ADDR")
    if not config.master_port:
        later += ["MASTER_PORT", "JAX_COORDINATOR_ADDRESS"]
    return env | dict.fromkeys(later, LATER)


def _first_round(config: RunConfig) -> Assigned:
    """The first round, if every node has as many workers as this one."""
    nproc = config.nproc_per_node
    node_rank = config.node_rank if config.rdzv_backend == "static" else 0
    return Assigned(
        round=1,
        restart_count=0,
        group_rank=node_rank,
        group_world_size=config.most_nodes,
        base_rank=node_rank * nproc,
        world_size=config.most_nodes * nproc,
        role_base_rank=node_rank * nproc,
        role_world_size=config.most_nodes * nproc,
        master_addr=config.master_addr,
        master_port=config.master_port or 0,
        nodes=(),
        reason="",
    )

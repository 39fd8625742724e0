"""How does a configuration become one node's machines? The group, and the coordinator of a job of one node.

A node that shares its job with others is built by `agent.networked`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from holdfast import __version__
from holdfast.agent.group.gpu_memory_wait import MemoryWait
from holdfast.agent.group.machine import Group
from holdfast.agent.group.signal_forwarding import of_script
from holdfast.agent.group.state import State
from holdfast.agent.node import Node
from holdfast.core.config.config import RunConfig
from holdfast.core.config.fault_tolerance import RestartPolicy
from holdfast.core.config.option import shared
from holdfast.core.config.own_options import Growth, Membership, Placement
from holdfast.core.job.report import JobReport
from holdfast.core.machine import NEVER
from holdfast.core.wire.messages import Join
from holdfast.recovery.findings import Findings, overrides
from holdfast.recovery.policy import Progress, RestartOnFailure
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.link_router import LinkRouter
from holdfast.rendezvous.rules import Rules
from holdfast.runtime.host import Host

NO_PROGRESS_CYCLES = 3  # ft_launcher's default, where a checkpoint iteration file is named.


def lone_node(config: RunConfig, host: Host, name: str) -> Node:
    """The machines of a job's only node."""
    addr = config.local_addr or config.master_addr or "127.0.0.1"
    server, _ = coordinator(config, host, host.now(), life=new_life())
    return Node(group_of(config, join_of(config, name, addr), hosting=True), server=server)


def coordinator(
    config: RunConfig, host: Host, now: float, *, life: str = "", ended: Mapping[str, JobReport] | None = None
) -> tuple[LinkRouter, RestartOnFailure]:
    """A coordinator that knows nothing yet, and its policy. `ended`: the job's runs before. UsageError: wrong --on-finding."""
    policy = policy_of(config, host)
    return LinkRouter(Rendezvous(rules_of(config), policy, life=life, now=now, now_unix=host.unix()), ended=ended), policy


def new_life() -> str:
    """The identity of one run of a job's coordinator."""
    return os.urandom(8).hex()


def join_of(config: RunConfig, name: str, addr: str) -> Join:
    """What the node tells the coordinator of itself, as far as it concerns a job of one node too."""
    return Join(
        node=f"{name}-{os.getpid()}-{os.urandom(8).hex()}",  # only the coordinator learns it: others cannot speak for us
        name=name,
        addr=addr,
        master_port=0,
        nproc=config.nproc_per_node,
        role=config.role,
        domain=config.domain,
        stash_replicas=config.stash_replicas,
        terms=_terms(config),
    )


def _terms(config: RunConfig) -> dict[str, str]:
    """How this node was started, where all should have been alike."""
    nodes = f"{config.min_nodes}:{config.max_nodes}" if config.max_nodes != config.min_nodes else str(config.min_nodes)
    return {
        "--nnodes": nodes,
        "--max-restarts": str(config.max_restarts),
        "the script": os.path.basename(config.training_script),
        "Holdfast's version": __version__,
        "Python's version": ".".join(map(str, sys.version_info[:3])),
    }


def group_of(config: RunConfig, join: Join, *, hosting: bool) -> Group:
    """The machine of this node's workers. `hosting`: the coordinator runs in this agent."""
    state = State(
        join=join,
        hosting=hosting,
        endpoint=config.rdzv_endpoint,
        backend=config.rdzv_backend,
        regroup_s=config.regroup_timeout_s,
        grace_s=config.shutdown_timeout_s,
        term_grace_s=config.term_timeout_s,
        clean_stop_is_success=config.membership == Membership.FIXED,
        hang_signal=config.ft.rank_termination_signal,
        checks=bool(config.check_before or config.check_after),
        script=of_script(config.signals_to_handle, echoing="SLURM_STEP_ID" in os.environ),
        memory=MemoryWait(
            timeout_s=config.ft.gpu_memory_reclaim_timeout,
            tolerance_mb=config.ft.gpu_memory_tolerance_mb,
            poll_s=config.ft.gpu_memory_poll_interval,
        ),
    )
    return Group(state)


def rules_of(config: RunConfig) -> Rules:
    """The coordinator's rules for rounds."""
    return Rules(
        job=config.rdzv_id,
        min_nodes=config.min_nodes,
        max_nodes=config.most_nodes,
        join_timeout_s=config.join_timeout_s,
        last_call_s=config.last_call_s,
        lease_s=NEVER if config.rdzv_backend == "memory" else config.lease_s,
        ranks_given=config.rdzv_backend == "static",
        master_addr=config.master_addr,
        master_port=config.master_port,
        max_restarts=config.max_restarts,
        readmit_after_s=NEVER if config.readmit_after_s is None else config.readmit_after_s,
        on_straggler=config.ft.on_straggler,
        **shared(config, Growth, Placement),
    )


def policy_of(config: RunConfig, host: Host) -> RestartOnFailure:
    """What the coordinator does after a failure. UsageError: --on-finding is wrong."""
    return RestartOnFailure(
        max_restarts=config.max_restarts,
        period_s=config.restart_period_s,
        longest_delay_s=config.backoff_s,
        exclude_after=config.exclude_after,
        carries_on=config.ft.restart_policy == RestartPolicy.MIN_HEALTHY,
        progress=Progress(
            cycles=no_progress_cycles(config),
            iterations=config.ft.min_progress_iterations,
            source=config.ft.checkpoint_iteration_file or "",
        ),
        no_restart_exit_code=config.ft.no_restart_exit_code,
        findings=_findings(config, host),
    )


def no_progress_cycles(config: RunConfig) -> int:
    """How many restarts without progress end the job. 0: progress is not judged."""
    said = config.ft.max_no_progress_cycles
    return said if said is not None else NO_PROGRESS_CYCLES if config.ft.checkpoint_iteration_file else 0


def _findings(config: RunConfig, host: Host) -> Callable[[], Findings] | None:
    """Makes what judges a failure by its words, at the first failure. UsageError: --on-finding is wrong."""
    said = overrides(config.on_finding) if config.on_finding else {}
    if config.on_finding == "none":
        return None

    def make() -> Findings:
        from holdfast.diagnosis.collect import diagnose, trouble  # loads every rule, which only a failure needs

        if why := trouble():
            host.complain(f"your own rules are not used: {why}")
        return Findings(diagnose, said)

    return make

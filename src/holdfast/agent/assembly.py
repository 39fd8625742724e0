"""From a configuration to a node's machines: which backend, who hosts the coordinator, under which address?"""

from __future__ import annotations

import os

from holdfast.agent.group import Group
from holdfast.agent.node import Node
from holdfast.core.errors import RendezvousError, UsageError
from holdfast.core.machine import NEVER
from holdfast.core.messages import Join
from holdfast.recovery.policy import RestartOnFailure
from holdfast.rendezvous.member import Member
from holdfast.rendezvous.round import Rendezvous, Rules
from holdfast.rendezvous.server import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.config import RunConfig
    from holdfast.runtime.host import Host
    from holdfast.runtime.net import Network


def assemble(config: RunConfig, host: Host, name: str) -> tuple[Node, Network | None]:
    """This node's machines, and its links where the job has several nodes."""
    if config.rdzv_backend == "memory":
        return _node(config, host, name, hosting=True, addr=config.local_addr or config.master_addr or "127.0.0.1"), None
    from holdfast.runtime.frames import Identity
    from holdfast.runtime.net import Network, own_address

    network = Network(host, Identity(config.rdzv_id, _token(config)), (config.rdzv_host, config.rdzv_port))
    hosting = _hosts(config, network)
    return _node(config, host, name, hosting=hosting, addr=config.local_addr or own_address(config.rdzv_host)), network


def _hosts(config: RunConfig, network: Network) -> bool:
    """Whether the coordinator runs in this agent; if so, `network` listens from now on."""
    from holdfast.runtime.net import is_here

    if not (is_here(config.rdzv_host) if config.is_host is None else config.is_host):
        return False
    if network.listen():
        return True
    if config.is_host:
        raise RendezvousError(
            f"cannot serve the rendezvous at {config.rdzv_endpoint}: the port is in use, or not an address of this host",
            hint="does another agent have the same rank, or another job the same port?",
        )
    return False  # another agent on this host was first


def _node(config: RunConfig, host: Host, name: str, *, hosting: bool, addr: str) -> Node:
    join = Join(
        node=f"{name}-{os.getpid()}-{os.urandom(4).hex()}",
        name=name,
        addr=addr,
        master_port=0,
        nproc=config.nproc_per_node,
        role=config.role,
        wanted_rank=config.node_rank if config.rdzv_backend == "static" else None,
    )
    group = Group(
        join,
        grace_s=config.shutdown_timeout_s,
        hosting=hosting,
        endpoint=config.rdzv_endpoint,
        backend=config.rdzv_backend,
        stop_signals=config.signals_to_handle,
    )
    now = host.now()
    if hosting:
        return Node(group, server=Server(Rendezvous(_rules(config), _policy(config), now=now, now_unix=host.unix())))
    member = Member(join.node, endpoint=config.rdzv_endpoint, join_timeout_s=config.join_timeout_s, now=now)
    return Node(group, member=member)


def _rules(config: RunConfig) -> Rules:
    return Rules(
        job=config.rdzv_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        join_timeout_s=config.join_timeout_s,
        last_call_s=config.last_call_s,
        lease_s=NEVER if config.rdzv_backend == "memory" else config.lease_s,
        ranks_given=config.rdzv_backend == "static",
        master_addr=config.master_addr,
        master_port=config.master_port,
        max_restarts=config.max_restarts,
    )


def _policy(config: RunConfig) -> RestartOnFailure:
    return RestartOnFailure(
        max_restarts=config.max_restarts, period_s=config.restart_period_s, longest_delay_s=config.backoff_s
    )


def _token(config: RunConfig) -> bytes:
    if config.token_file is None:
        return os.environ.get("HOLDFAST_TOKEN", "").encode()
    try:
        with open(config.token_file, "rb") as file:
            return file.read().strip()
    except OSError as error:
        raise UsageError(f"--token-file: {config.token_file} cannot be read: {error.strerror}") from error

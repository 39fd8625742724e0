"""Builds a node that may become the coordinator's host: its machines, its address, and who elects or decides."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol

from holdfast.agent.build import coordinator, new_life
from holdfast.agent.group.machine import Group
from holdfast.agent.leader.elector_file import Elector, ElectorHands, earlier_electors
from holdfast.agent.leader.peer_elected_node import PeerElectedNode
from holdfast.agent.leader.store_elected_node import StoreElectedNode
from holdfast.agent.reporting.final_report import ended_runs
from holdfast.core.config.config import RunConfig
from holdfast.core.config.grammar import shown_endpoint
from holdfast.core.config.own_options import CONTINUE, KUBERNETES, SCHEDULERS, SLURM
from holdfast.core.errors import RendezvousError, UsageError
from holdfast.core.machine import NEVER, Action, Observation
from holdfast.rendezvous.election.store_election import STORE_FAILOVER_S, Election
from holdfast.rendezvous.election.succession import Succession
from holdfast.rendezvous.election.succession_state import Setup
from holdfast.rendezvous.election.voting import PROPOSE_S
from holdfast.rendezvous.member import Member
from holdfast.runtime.host import Host
from holdfast.runtime.net.addresses import host_and_port
from holdfast.runtime.net.network import Network
from holdfast.runtime.net.ports import hold_port
from holdfast.telemetry.record.state_dir import JobDir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.leader.tie_breaker import Witness


class Store(Protocol):
    """Does what an election asks of its store, and shows it what the store says."""

    def open(self, job_dir: JobDir) -> None:
        """The directory of this run is there."""

    def perform(self, action: Action) -> list[Observation]:
        """Begin one of the actions of `rendezvous.election.store_election`; never waits. What can be told at once is
        returned.
        """

    def close(self, last: Iterable[Action]) -> None:
        """Do these last things, in bounded time, and end."""


def candidate(config: RunConfig, host: Host, network: Network, group: Group) -> tuple[StoreElectedNode, Network, Store]:
    """A node that listens at its own address, and campaigns."""
    store = f"etcd at {config.rdzv_endpoint}"
    store_hands = open_etcd(config, host)
    endpoint = _listen(network, group.join.addr, config.agent_ports)
    now = host.now()
    election = Election(
        endpoint,
        store=store,
        fresh_life=new_life(),
        ttl_s=float(math.ceil(config.lease_s + STORE_FAILOVER_S)),  # etcd counts in whole seconds
        now=now,
    )
    member = Member(
        group.join.node,
        endpoint=f"the place that {store} names",
        join_timeout_s=config.join_timeout_s,
        is_told_where=True,
        # A store may be away for longer than a coordinator that restarts: while it is, nobody else can run this job either.
        give_up_s=config.join_timeout_s,
        hint="does etcd answer there, and are the other nodes' ports open to this node?",
        now=now,
    )
    ended = ended_runs(config)
    return StoreElectedNode(group, member, election, partial(coordinator, config, host, ended=ended)), network, store_hands


def heir(
    config: RunConfig, host: Host, network: Network, group: Group, *, known_round: int
) -> tuple[PeerElectedNode, Network, Store]:
    """A node that may succeed the coordinator: it listens at its own address, unless it serves the job's endpoint already.
    `known_round`: the last round of an agent of this job that was on this host before us, and has not seen its end; 0: none."""
    ended, name = ended_runs(config), group.join.name
    witness = None if config.witness is None else open_witness(config.witness, host)
    earlier = earlier_electors(config, name)
    if group.state.hosting:
        endpoint = config.rdzv_endpoint
    else:
        endpoint = _listen_again(config, network, group.join.addr, earlier)
        endpoint = endpoint or _listen_if_possible(config, network, group.join.addr, host)
    if witness is not None and endpoint:
        witness.rehearse(endpoint)
    before = next((one for one in earlier if one.endpoint == endpoint), None)
    now = host.now()
    setup = Setup(
        endpoint=endpoint,
        origin=config.rdzv_endpoint,
        job=config.rdzv_id,
        lease_s=config.lease_s,
        began_at=now,
        witness=witness is not None,
        goes_on=config.on_split == CONTINUE,
        known_round=known_round,
        ended=ended,
        is_remembered=bool(endpoint),
        before=None if before is None else before.memory,
        # An earlier life may have had the endpoint of the job, or a port that is given, though nothing is known of it.
        elders=_elders(earlier, config.rdzv_endpoint) if before is None else (),
        loyal_at=now + PROPOSE_S if before or group.state.hosting or config.agent_ports[0] else -NEVER,
    )
    succession = Succession(setup, founder=group.state.hosting, fresh_life=new_life())
    origin, wait_s, may_serve = config.rdzv_endpoint, config.join_timeout_s, config.is_host is not False
    had_ranks = before is not None
    member = Member(group.join.node, endpoint=origin, join_timeout_s=wait_s, may_serve=may_serve, had_ranks=had_ranks, now=now)
    found = partial(coordinator, config, host, ended=ended)
    hands = ElectorHands(host, name, witness, before)
    return PeerElectedNode(group, member, succession, found, patience_s=wait_s), network, hands


def _elders(earlier: Iterable[Elector], origin: str) -> tuple[str, ...]:
    """Where the other nodes were, as the newest file that names any knows it."""
    for one in earlier:
        if one.memory.roster is not None:
            return tuple(peer for peer in one.memory.roster.line if peer not in (one.endpoint, origin))
    return ()


def _listen_again(config: RunConfig, network: Network, addr: str, earlier: Iterable[Elector]) -> str:
    """Serve where an earlier life of this agent did, and be that elector. Empty: there was none, or somebody is there."""
    low, high = config.agent_ports
    for one in earlier:
        at, port = host_and_port(one.endpoint)
        if at == addr and (not low or low <= port <= high):
            with suppress(RendezvousError):
                if network.listen_at(addr, port):
                    return one.endpoint
    return ""


def _listen_if_possible(config: RunConfig, network: Network, addr: str, host: Host) -> str:
    """Where others can reach us; empty where that cannot be: then this node has no say in who leads."""
    try:
        return _listen(network, addr, config.agent_ports)
    except (RendezvousError, OSError) as error:
        host.complain(f"this node cannot take over if the coordinator is lost: {error}")
        return ""


def _listen(network: Network, addr: str, ports: tuple[int, int]) -> str:
    """Serve at `addr` from now on, at the first free one of `ports`, for nodes that are sent here while we lead."""
    low, high = ports
    if not low:
        held = hold_port()
        try:
            return _listen_at(network, addr, held.getsockname()[1])
        finally:
            held.close()
    for port in range(low, high):
        try:
            return _listen_at(network, addr, port)
        except RendezvousError:
            continue
    return _listen_at(network, addr, high)


def _listen_at(network: Network, addr: str, port: int) -> str:
    if not network.listen_at(addr, port):
        here = shown_endpoint(addr, port)
        raise RendezvousError(
            f"cannot listen at {here}: the port is in use, or {addr} is no address of this host",
            hint="give --local-addr an address that this host has, and --agent-port a port, or a range, that is free",
        )
    return shown_endpoint(*network.endpoint)


def open_witness(folder: str, host: Host) -> Witness:
    """The directory, or the scheduler, that decides between two halves. Raises UsageError if there is none."""
    from holdfast.agent.leader.tie_breaker import Witness  # it loads `subprocess`, and few jobs have a witness

    if folder == SLURM and shutil.which("scontrol") is None:
        raise UsageError("--witness slurm: there is no scontrol on this node", hint="give a directory that all nodes share")
    if folder == KUBERNETES and "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise UsageError("--witness kubernetes: this agent is not in a pod", hint="give a directory that all nodes share")
    if folder not in SCHEDULERS and not os.path.isdir(folder):
        raise UsageError(f"--witness: {folder} is not a directory", hint="create it, on a file system that all nodes share")
    return Witness(folder, host)


def open_etcd(config: RunConfig, host: Host) -> Store:
    """The store at `config.rdzv_endpoint`. Raises UsageError where its client is missing, or what it is told is wrong."""
    if importlib.util.find_spec("etcd3gw") is None:
        raise UsageError("--rdzv-backend etcd: its client is not installed", hint="pip install 'holdfast[etcd]'")
    store: Store = importlib.import_module("holdfast.integrations.etcd.election").open_store(config, host)
    return store

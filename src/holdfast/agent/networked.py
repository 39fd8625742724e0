"""Builds the node and its links for a job with several nodes, and decides whether it hosts the coordinator.

Loaded only for a job with a rendezvous endpoint: it loads the network, which a job of one node does without.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Collection, Sequence
from functools import partial

from holdfast.agent.build import coordinator, group_of, join_of, new_life
from holdfast.agent.leader.build import Store, candidate, heir
from holdfast.agent.logs.receiver import FILES_PER_NODE, LogReceiver, open_receiver
from holdfast.agent.logs.sender import Upstream
from holdfast.agent.node import Node
from holdfast.agent.reporting.final_report import ended_runs
from holdfast.agent.secrets import identity_of
from holdfast.agent.states.state_replication import Replicas
from holdfast.core.config.config import RunConfig
from holdfast.core.errors import HoldfastError, RendezvousError, Stopped, UsageError
from holdfast.core.machine import Observation, Signalled
from holdfast.core.resolve.infrastructure import Infrastructure, infrastructure, nvlink_domain
from holdfast.core.value import replace
from holdfast.core.wire.messages import Join
from holdfast.rendezvous.member import Member
from holdfast.runtime.hardware.nvidia import query
from holdfast.runtime.host import Host
from holdfast.runtime.net.addresses import is_here, is_loopback, own_address
from holdfast.runtime.net.codec import LONGEST
from holdfast.runtime.net.frames import JOB_CHARS
from holdfast.runtime.net.names import Addresses, Names
from holdfast.runtime.net.network import REMEDY, Network, is_authenticated, open_doors
from holdfast.runtime.process.open_files import make_room
from holdfast.runtime.secrets import shelter_of
from holdfast.telemetry.record.state_dir import last_to_go, unfinished_round

GOODBYE_S = 10.0
"""How long to wait, at most, for the agent that still tells how the last run ended: twice as long as it stays for that."""


FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0  # Between two questions for the name of the endpoint; doubles.

NOTICE_S = 3.0  # Seconds without an answer that are not worth a line.


def wait_for_name(
    host: Host, names: Names, name: str, wait_s: float, warn: Callable[[str], None], *, stops: Collection[int]
) -> None:
    """Return once `name` resolves: a pod's or a node's may come some time after its agent. `warn` tells a person if that takes
    long. RendezvousError: it did not within `wait_s`. Stopped: one of the signals `stops` came."""
    answers: list[Addresses] = []

    def answered(found: Addresses) -> list[Observation]:
        answers.append(found)
        return []

    began, pause_s, trouble = host.now(), FIRST_PAUSE_S, "no answer yet"
    ask_at, notice_at, until = began, began + NOTICE_S, began + wait_s
    is_asked = False
    while (now := host.now()) < until:
        if not is_asked and now >= ask_at:
            is_asked = True
            names.ask(name, 0, answered)
        if answers:
            found, is_asked = answers.pop(), False
            if not isinstance(found, OSError):
                return
            trouble, ask_at, pause_s = str(found.strerror), now + pause_s, min(LONGEST_PAUSE_S, 2 * pause_s)
        if now >= notice_at:
            notice_at = until
            warn(f"cannot resolve {name}, the name of the job's endpoint: {trouble}; trying for up to {wait_s:g} s")
        for seen in host.wait(min(until if is_asked else ask_at, notice_at)):
            if isinstance(seen, Signalled) and seen.signum in stops:
                raise Stopped(seen.signum)
    raise RendezvousError(
        f"cannot resolve {name}, the name of the job's endpoint: {trouble} within {wait_s:g} s",
        hint="does `getent hosts` know it on this host? Give an address in --rdzv-endpoint if not",
    )


def assemble(config: RunConfig, host: Host, name: str, warn: Callable[[str], None]) -> tuple[Node, Network, Store | None]:
    """This node's machines, its links, and the store where that elects the coordinator. `warn` tells a person at once."""
    _check_names(config, name)
    identity = identity_of(config)
    shelter = shelter_of(config.tls_cert, config.tls_key, config.tls_ca)
    network = Network(host, identity, (config.rdzv_host, config.rdzv_port), shelter=shelter)
    if not config.local_addr:  # which address is ours depends on where the endpoint is
        wait_for_name(host, network.names, config.rdzv_host, config.join_timeout_s, warn, stops=config.signals_to_handle)
    addr = config.local_addr or own_address(config.rdzv_host)
    if config.rdzv_backend == "etcd":
        group = group_of(config, _join(config, name, addr), hosting=False)
        return candidate(config, host, network, group)
    hosting = _hosts(config, network)
    group = group_of(config, _join(config, name, addr), hosting=hosting)
    if config.rdzv_backend == "embedded" and config.max_nodes > 1:
        known = unfinished_round(config.state_dir, config.rdzv_id, endpoint=config.rdzv_endpoint)
        return heir(config, host, network, group, known_round=known)
    found = partial(coordinator, config, host, life=new_life(), ended=ended_runs(config))
    if hosting:
        return Node(group, server=found(host.now())[0]), network, None
    endpoint, wait_s, may_serve = config.rdzv_endpoint, config.join_timeout_s, config.is_host is not False
    member = Member(group.join.node, endpoint=endpoint, join_timeout_s=wait_s, may_serve=may_serve, now=host.now())
    return Node(group, member=member, found=found), network, None


def warnings(config: RunConfig, network: Network, *, hosting: bool) -> list[str]:
    """What the user should know of who may connect here, and of how many can. Empty texts: nothing."""
    doors = hosting or config.rdzv_backend != "embedded"
    return [
        open_doors(network, config.max_nodes, token_by="--token-file FILE") if doors else "",
        make_room(network.host, config.max_nodes - 1) if network.listeners else "",
    ]


def open_replicas(
    config: RunConfig, network: Network, join: Join, host: Host, degraded: Callable[[str], None]
) -> Replicas | None:
    """Keeps stashed states in other nodes' memory too. None: not wished, or impossible, as `degraded` is told."""
    if not config.stash_replicas:
        return None
    if config.stash_limit == "0":
        degraded("states are not replicated: no state is stashed (--stash-limit 0)")
        return None
    if not is_authenticated(network.identity, network.shelter) and not is_loopback(join.addr):
        degraded(f"states are not replicated: the job has no token, so anybody could read them ({REMEDY})")
        return None
    nproc, limit = config.nproc_per_node, config.stash_limit
    try:
        return Replicas(
            *(network.identity, network.shelter, join.addr),
            node=join.node,
            nproc=nproc,
            limit=limit,
            copies=config.stash_replicas,
            tell=host.complain,
            clock=host.now,
        )
    except (OSError, HoldfastError) as error:
        degraded(f"states are not replicated: {error}")
        return None


def open_logs(
    config: RunConfig, network: Network, join: Join, degraded: Callable[[str], None], newest_round: Callable[[], int]
) -> tuple[LogReceiver, Upstream] | None:
    """Has the coordinator's node gather all nodes' lines. None: not wished, or impossible, as `degraded` is told."""
    ft = config.ft
    if not ft.enable_log_server or not ft.per_cycle_applog_prefix:
        return None
    receiver = open_receiver(ft, network.identity, network.shelter, join.addr, degraded, newest_round, config.max_nodes)
    if receiver is None:
        return None
    if make_room(network.host, FILES_PER_NODE * (config.max_nodes - 1)):
        degraded("this node may open too few files to take the logs of all others: raise its hard limit (ulimit -Hn)")
    patience_s, at, clock = ft.log_server_graceful_shutdown_timeout, receiver.address, network.host.now
    return receiver, Upstream(network.identity, network.shelter, at, patience_s, node=join.node, clock=clock)


# --- who hosts the coordinator --------------------------------------------------------------------------------------------


def _hosts(config: RunConfig, network: Network) -> bool:
    """Whether the coordinator runs in this agent; if so, `network` listens from now on."""
    if not (is_here(config.rdzv_host) if config.is_host is None else config.is_host):
        return False
    # False: another agent on this host was first; or another program, or the name is not ours yet, and `Serving` comes later.
    return network.listen() or (_last_run_is_over(config) and network.listen())


def _last_run_is_over(config: RunConfig) -> bool:
    """Wait for the agents here that still tell others how the job's last run ended. False: there are none."""
    pids = last_to_go(config.state_dir, config.rdzv_id, endpoint=config.rdzv_endpoint)
    for pid in pids:
        try:
            gone = os.pidfd_open(pid)
        except OSError:
            continue
        select.select([gone], [], [], GOODBYE_S)
        os.close(gone)
    return bool(pids)


# --- what the node tells of itself ----------------------------------------------------------------------------------------


def _join(config: RunConfig, name: str, addr: str) -> Join:
    join = join_of(config, name, addr)
    if config.max_nodes == 1:
        return join
    given = _infrastructure(config)
    return replace(
        join,
        wanted_rank=given.rank,
        domain=config.domain or given.domain or _nvlink_domain(config),
        switches=given.switches,
        group=given.group,
        group_size=given.group_size,
        warm=config.python if config.warm_spares != 0 else "",
    )


def _infrastructure(config: RunConfig) -> Infrastructure:
    """This node's place as the infrastructure gives it; only a rank where the user gives that."""
    if config.rdzv_backend == "static":
        return Infrastructure(rank=config.node_rank)
    given = infrastructure(os.environ)
    return given if config.ft.use_infra_group_rank else replace(given, rank=None)


def _nvlink_domain(config: RunConfig) -> str | None:
    """The GPUs' NVLink domain, where placement needs one and nobody gave it. UsageError: the GPUs do not name one."""
    if config.segment is None or config.rdzv_backend not in ("embedded", "etcd"):
        return None
    report, trouble = query()
    domain = nvlink_domain(report)
    if domain is None:
        why = trouble or "nvidia-smi shows none or several for its GPUs"
        raise UsageError(f"--ft-segment: this node's NVLink domain is not known: {why}", hint="name it with --domain")
    return domain


def _check_names(config: RunConfig, name: str) -> None:
    """Refuse a name here that the coordinator would refuse: here the user can change it."""
    named: Sequence[tuple[str, str, int]] = (
        ("--rdzv-id", config.rdzv_id, JOB_CHARS),
        ("--node-name", name, LONGEST["name"]),
        ("--role", config.role, LONGEST["role"]),
    )
    for flag, text, most in named:
        if len(text) > most:
            raise UsageError(f"{flag}: {text[:40]!r}… has {len(text)} characters", hint=f"at most {most} are allowed")

"""From a configuration to a node's machines: which backend, who hosts the coordinator, under which address?"""

from __future__ import annotations

import os

from holdfast.agent.group.gpu_memory_wait import MemoryWait
from holdfast.agent.group.machine import Group
from holdfast.agent.group.signal_forwarding import of_script
from holdfast.agent.group.state import State
from holdfast.agent.node import Node
from holdfast.core.config.option import shared
from holdfast.core.config.own_options import Growth, Placement
from holdfast.core.errors import RendezvousError, UsageError
from holdfast.core.machine import NEVER
from holdfast.core.value import replace
from holdfast.core.wire.messages import Join
from holdfast.recovery.policy import RestartOnFailure
from holdfast.recovery.progress import Progress
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.member import Member
from holdfast.rendezvous.rules import Rules
from holdfast.rendezvous.server import Server

NO_PROGRESS_CYCLES = 3
"""Where a checkpoint iteration file is named: ft_launcher's default."""

GOODBYE_S = 10.0
"""How long to wait, at most, for the agent that still tells how the last run ended: twice as long as it stays for that."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.agent.leader.build import Store
    from holdfast.core.config.config import RunConfig
    from holdfast.core.job.finding import Action, Class
    from holdfast.core.job.report import JobReport
    from holdfast.core.resolve.infrastructure import Infrastructure
    from holdfast.recovery.findings import Findings
    from holdfast.runtime.host import Host
    from holdfast.runtime.net.net import Network
    from holdfast.runtime.net.tls import Shelter


def assemble(config: RunConfig, host: Host, name: str) -> tuple[Node, Network | None, Store | None]:
    """This node's machines, its links where the job has several nodes, and the store where that elects the coordinator."""
    if config.rdzv_backend == "memory":
        node = _node(config, host, name, hosting=True, addr=config.local_addr or config.master_addr or "127.0.0.1")
        return node, None, None
    from holdfast.runtime.net.addresses import own_address
    from holdfast.runtime.net.frames import Identity
    from holdfast.runtime.net.net import Network

    _check_names(config, name)
    identity = Identity(config.rdzv_id, job_token(config))
    network = Network(host, identity, (config.rdzv_host, config.rdzv_port), shelter=shelter_of(config))
    addr = config.local_addr or own_address(config.rdzv_host)
    if config.rdzv_backend == "etcd":
        from holdfast.agent.leader.build import candidate

        group = _group(config, _join(config, name, addr), hosting=False)
        return candidate(config, host, network, group, _rules(config), lambda: _policy(config, host))
    hosting = _hosts(config, network)
    if config.rdzv_backend == "embedded" and config.max_nodes > 1:
        from holdfast.agent.leader.build import heir
        from holdfast.telemetry.record.state_dir import unfinished_round

        group = _group(config, _join(config, name, addr), hosting=hosting)
        known = unfinished_round(config.state_dir, config.rdzv_id, endpoint=config.rdzv_endpoint) if hosting else 0
        return heir(config, host, network, group, _rules(config), lambda: _policy(config, host), known_round=known)
    return _node(config, host, name, hosting=hosting, addr=addr, taken=network.taken), network, None


def _hosts(config: RunConfig, network: Network) -> bool:
    """Whether the coordinator runs in this agent; if so, `network` listens from now on."""
    from holdfast.runtime.net.addresses import is_here

    if not (is_here(config.rdzv_host) if config.is_host is None else config.is_host):
        return False
    if network.listen():
        return True
    if _awaits_the_end(config) and network.listen():
        network.taken = False
        return True
    if config.is_host:
        raise RendezvousError(
            f"cannot serve the rendezvous at {config.rdzv_endpoint}: the port is in use, or not an address of this host",
            hint="does another agent have the same rank, or another job the same port?",
        )
    return False  # another agent on this host was first


def _awaits_the_end(config: RunConfig) -> bool:
    """Wait while an agent here still tells others how the job's last run has ended: this one is the next. False: none did."""
    import select

    from holdfast.telemetry.record.state_dir import last_to_go

    pids = last_to_go(config.state_dir, config.rdzv_id, endpoint=config.rdzv_endpoint)
    for pid in pids:
        try:
            gone = os.pidfd_open(pid)
        except OSError:
            continue
        select.select([gone], [], [], GOODBYE_S)
        os.close(gone)
    return bool(pids)


def _infrastructure(config: RunConfig) -> Infrastructure:
    """This node's place as the infrastructure gives it; nothing but a rank where the user gives that."""
    from holdfast.core.resolve.infrastructure import Infrastructure, infrastructure

    if config.rdzv_backend == "static":
        return Infrastructure(rank=config.node_rank)
    given = infrastructure(os.environ)
    return given if config.ft.use_infra_group_rank else replace(given, rank=None)


def _nvlink_domain(config: RunConfig) -> str | None:
    """What the GPUs say of it, where it matters and nobody else has said it. UsageError: they say nothing of use."""
    if config.segment is None or config.rdzv_backend not in ("embedded", "etcd"):
        return None
    from holdfast.core.resolve.infrastructure import nvlink_domain
    from holdfast.runtime.hardware.nvidia import query

    report, trouble = query()
    domain = nvlink_domain(report)
    if domain is None:
        why = trouble or "nvidia-smi names none for its GPUs, or several"
        raise UsageError(f"--ft-segment: this node's NVLink domain is not known: {why}", hint="name it with --domain")
    return domain


def _join(config: RunConfig, name: str, addr: str) -> Join:
    join = Join(
        node=f"{name}-{os.getpid()}-{os.urandom(8).hex()}",  # told to the coordinator only: others cannot speak for us
        name=name,
        addr=addr,
        master_port=0,
        nproc=config.nproc_per_node,
        role=config.role,
        domain=config.domain,
    )
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


def _group(config: RunConfig, join: Join, *, hosting: bool) -> Group:
    state = State(
        join=join,
        hosting=hosting,
        endpoint=config.rdzv_endpoint,
        backend=config.rdzv_backend,
        grace_s=config.shutdown_timeout_s,
        term_grace_s=config.term_timeout_s,
        clean_stop_is_success=config.membership == "fixed",
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


def _node(config: RunConfig, host: Host, name: str, *, hosting: bool, addr: str, taken: bool = False) -> Node:
    group = _group(config, _join(config, name, addr), hosting=hosting)
    now = host.now()
    if hosting:
        rendezvous = Rendezvous(_rules(config), _policy(config, host), life=os.urandom(8).hex(), now=now, now_unix=host.unix())
        return Node(group, server=Server(rendezvous, ended=_ended(config)))
    endpoint, wait_s = config.rdzv_endpoint, config.join_timeout_s
    member = Member(group.join.node, endpoint=endpoint, join_timeout_s=wait_s, taken=taken, now=now)
    return Node(group, member=member)


def _ended(config: RunConfig) -> Mapping[str, JobReport]:
    if config.rdzv_backend == "memory":
        return {}  # nobody else can come
    from holdfast.agent.reporting.final_report import ended_runs

    return ended_runs(config)


def _rules(config: RunConfig) -> Rules:
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


def _policy(config: RunConfig, host: Host) -> RestartOnFailure:
    return RestartOnFailure(
        max_restarts=config.max_restarts,
        period_s=config.restart_period_s,
        longest_delay_s=config.backoff_s,
        exclude_after=config.exclude_after,
        carries_on=config.ft.restart_policy == "min-healthy",
        progress=Progress(
            cycles=no_progress_cycles(config),
            iterations=config.ft.min_progress_iterations,
            source=config.ft.checkpoint_iteration_file or "",
        ),
        no_restart_exit_code=config.ft.no_restart_exit_code,
        findings=_findings(config, host),
    )


def _findings(config: RunConfig, host: Host) -> Callable[[], Findings] | None:
    """What makes the judge of failures' words, at the first failure. UsageError where --on-finding is wrong."""
    said: dict[Class, Action] = {}
    if config.on_finding:
        from holdfast.recovery.findings import overrides

        said = overrides(config.on_finding)
    if config.on_finding == "none":
        return None

    def make() -> Findings:
        from holdfast.diagnosis.collect import diagnose, trouble
        from holdfast.recovery.findings import Findings

        if why := trouble():
            host.complain(f"failures are judged without your own rules: {why}")
        return Findings(diagnose, said)

    return make


def no_progress_cycles(config: RunConfig) -> int:
    """So many restarts without progress end the job. 0: nobody asks."""
    said = config.ft.max_no_progress_cycles
    return said if said is not None else NO_PROGRESS_CYCLES if config.ft.checkpoint_iteration_file else 0


def _check_names(config: RunConfig, name: str) -> None:
    """What the other side would refuse, refused here, where somebody can mend it."""
    from holdfast.runtime.net.codec import LONGEST
    from holdfast.runtime.net.frames import JOB_CHARS

    named = (("--rdzv-id", config.rdzv_id, JOB_CHARS), ("--node-name", name, LONGEST["name"]))
    for flag, text, most in (*named, ("--role", config.role, LONGEST["role"])):
        if len(text) > most:
            raise UsageError(f"{flag}: {text[:40]!r}… has {len(text)} characters", hint=f"at most {most} are allowed")


def shelter_of(config: RunConfig) -> Shelter | None:
    """What encrypts this agent's links. None: nothing does."""
    if config.tls_cert is None or config.tls_ca is None:
        return None
    from holdfast.runtime.net.tls import shelter

    return shelter(config.tls_cert, config.tls_key, config.tls_ca)


def job_token(config: RunConfig) -> bytes:
    """The job's secret; empty where it has none. It is not left to the workers."""
    in_environ = os.environb.pop(b"HOLDFAST_TOKEN", None)
    if config.token_file is None:
        token = b"" if in_environ is None else in_environ.strip()
        if in_environ is not None and not token:
            raise UsageError("HOLDFAST_TOKEN is set but empty", hint="`holdfast token` makes one; unset it to go without")
        return token
    try:
        with open(config.token_file, "rb") as file:
            token = file.read().strip()
    except OSError as error:
        raise UsageError(f"--token-file: {config.token_file} cannot be read: {error.strerror}") from error
    if not token:
        raise UsageError(f"--token-file: {config.token_file} is empty", hint="`holdfast token --write FILE` makes one")
    return token


def room_for_links(config: RunConfig, network: Network) -> str:
    """What a person should know: what stands against a link from every other node, on the node that may host the coordinator;
    empty: nothing."""
    from holdfast.runtime.process.open_files import make_room

    return make_room(network.host, config.max_nodes - 1) if network.listeners else ""

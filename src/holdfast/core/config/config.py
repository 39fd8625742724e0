"""What was `holdfast run` told? `RunConfig`: every option parsed, checked and fitted to this host, once and for all.

Made in three steps, each a function: `core.config.flags` and the command line's parser give texts, `gather` adds the
environment and the defaults and remembers where each came from, `core.resolve.resolve` makes values of them. Nothing after that
reads a flag or a `PET_*` variable again.
"""

from __future__ import annotations

from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.config.flags import FLAGS
from holdfast.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from holdfast.core.config.binding import Binding, Topology
    from holdfast.core.config.flags import Flag


class RunConfig(Value):
    """Everything `holdfast run` was told. Names are torchrun's where it has one."""

    # who takes part
    min_nodes: int = 1
    max_nodes: int = 1
    nproc_per_node: int = 1
    """Workers on this node; already a number."""
    node_rank: int = 0
    """Meaningful with the static backend only."""
    segment: int | None = None
    """Nodes per segment, all within one domain. None: domains do not matter."""
    membership: str = "elastic"
    """elastic: a round has from `min_nodes` to `max_nodes` nodes. fixed: always `min_nodes`, and the others are spares; but see
    `most_nodes`."""
    grow: str = "at-once"
    """When nodes that come later are taken in: at-once · at-checkpoint (after one, and `grow_after_s`) · next-failure (at the
    next restart) · never (they only replace)."""
    grow_after_s: float = 60.0
    node_unit: int = 1
    """The number of nodes is a multiple of it."""
    replacement_group_size: int = 0
    """Nodes in a complete replacement group; 0: as the infrastructure says."""
    domain: str | None = None
    """Domain of this node. None: as the infrastructure says, if it does."""

    # the rendezvous
    rdzv_backend: str = "memory"
    """memory (one node, no socket) · embedded (a server in one agent) · static (ranks given) · etcd (it elects the agent
    that hosts the server) · a registered name"""
    rdzv_endpoint: str = ""
    """`host:port` of the server, IPv6 in brackets; for static that of the control connection. Empty for memory."""
    rdzv_host: str = ""
    rdzv_port: int = 0
    rdzv_id: str = "none"
    rdzv_conf: dict[str, str] = {}  # noqa: RUF012
    standalone: bool = False
    is_host: bool | None = None
    """Does this node run the embedded server? None: it does if the endpoint is its own address."""
    join_timeout_s: float = 600.0
    last_call_s: float = 30.0
    """How long a round with the least number of nodes waits for more."""
    lease_s: float = 3.0
    """Silence after which a node counts as lost."""
    agent_ports: tuple[int, int] = (0, 0)
    """First and last port that this agent may listen at for the others, if it is not the endpoint's. (0, 0): any."""
    supervisors: tuple[str, ...] = ()
    """HOST:PORT of each that may be the supervisor of this node; one leads."""
    supervisor_token_file: str | None = None
    """File with the supervisor's secret. None: `HOLDFAST_SUPERVISOR_TOKEN`, if anything."""
    witness: str | None = None
    """Directory that the nodes share, absolute; or `slurm`, or `kubernetes`. None: nobody decides between two halves."""
    on_split: str = "stop"
    """stop · continue: what a side without a majority does once the coordinator is lost."""
    in_place_restart: bool = False
    """Whether the pod's JobSet is told that it takes part in restarts in place."""
    token_file: str | None = None
    """File with the job's secret. None: `HOLDFAST_TOKEN`, if anything."""
    tls_cert: str | None = None
    """PEM file. None: what the agents say is not encrypted."""
    tls_key: str | None = None
    """PEM file. None: the key stands in `tls_cert`."""
    tls_ca: str | None = None
    """PEM file of the CA that signs for this job. There if `tls_cert` is."""
    local_addr: str | None = None
    master_addr: str = ""
    """MASTER_ADDR for the workers. Empty: the node of group rank 0 says its own."""
    master_port: int | None = None
    """MASTER_PORT for the workers. None: a fresh one each round."""

    # the workers
    training_script: str
    training_script_args: tuple[str, ...] = ()
    module: bool = False
    no_python: bool = False
    run_path: bool = False
    use_env: bool = True
    """False (`holdfast launch` only): each worker gets `--local-rank=N` before the script's own arguments."""
    start_method: str = "spawn"
    role: str = "default"
    python: str = "python3"
    """Interpreter of Python workers: `PYTHON_EXEC`, else our own."""
    virtual_local_rank: bool = False
    omp_num_threads: str | None = None
    """OMP_NUM_THREADS to give the workers. None: leave it as it is."""
    bindings: dict[int, Binding] = {}  # noqa: RUF012
    """Local rank → the CPUs and the memory that it runs on. Who is not in it runs wherever the kernel puts it."""
    signals_to_handle: tuple[int, ...] = (15, 2, 1, 3)
    shutdown_timeout_s: float = 30.0
    term_timeout_s: float | None = None
    """The same where a signal to the agent ends the job. None: no other than `shutdown_timeout_s`."""
    monitor_interval: float = 0.1
    """Accepted for torchrun's sake; nothing is polled."""
    event_log_handler: str = "null"
    watchdog: bool = False
    """`TORCHELASTIC_ENABLE_FILE_TIMER=1`."""
    timer_file: str | None = None
    health_check_port: int | None = None
    uninterruptible_timeout_s: float | None = None

    # warm spares
    warm_spares: int | None = 0
    """Spare workers that wait with their imports done. None: one for each worker, if there is memory for it."""
    warm_mode: str = "spawn"
    """spawn: each is a process of its own. fork: all are forked from one."""

    # restarts
    max_restarts: int = 0
    restart_period_s: float | None = None
    """Window in which `max_restarts` counts. None: the job's whole life."""
    backoff_s: float = 60.0
    """Longest pause in a crash loop; 0: none."""

    exclude_after: int = 0
    """So often may a node's workers be the first to fail, before a spare takes its place. 0: as often as it comes."""
    on_finding: str = ""
    """What findings of a class do, where it is not what is advised (`recovery.findings.overrides`)."""
    readmit_after_s: float | None = None
    """Seconds after which an excluded node may take part again. None: when an operator says so."""

    stash_limit: str = "40%"
    stash_replicate: bool = False
    """Memory of this node that its ranks' states may take: a share, or a number of bytes; 0: none."""
    allow_inject: bool = False
    """Faults may be played here (`holdfast inject`)."""
    check_before: tuple[str, ...] = ()
    """Checks of this node before it joins a round: `NAME` or `NAME=ARGUMENT` each, as `health.check` knows them."""
    check_after: tuple[str, ...] = ()
    """More of them, before the round after a failure of a worker here."""
    check_during: tuple[str, ...] = ()
    """Those while its workers run."""
    check_every_s: float = 60.0
    """Between two looks at the same."""

    ft: FaultTolerance = FaultTolerance()
    """How it is watched, judged and placed: ft_launcher's settings, and ours of that kind."""

    # what is kept and shown
    state_dir: str
    node_name: str | None = None
    """This node's name in logs and reports. None: its host name."""
    log_dir: str | None = None
    """Absolute, or `/dev/null`. None: in the job's folder under `state_dir`."""
    redirects: dict[int, int] = {}  # noqa: RUF012
    """Local rank → 0 none, 1 stdout, 2 stderr, 3 both; every local rank is there."""
    tee: dict[int, int] = {}  # noqa: RUF012
    local_ranks_filter: frozenset[int] | None = None
    """Local ranks shown on the console. None: all."""
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    logs_specs: str | None = None
    log_line_prefix_template: str | None = None
    log_level: str = "WARNING"
    error_file: str | None = None
    """`TORCHELASTIC_ERROR_FILE` of the agent itself: the root cause's error file is copied there."""

    @property
    def most_nodes(self) -> int:
        """How many nodes a round has at most. With min-healthy those above `min_nodes` are what may be lost."""
        others_wait = self.membership == "fixed" and self.ft.restart_policy != "min-healthy"
        return self.min_nodes if others_wait else self.max_nodes


class HostFacts(Value):
    """What resolving needs to know of this host. What costs something is a function, called only when asked for."""

    python: str
    """This interpreter."""
    cwd: str
    state_home: str
    """Where jobs keep their state unless told otherwise."""
    cpus: Callable[[], int]
    """CPUs this process may use."""
    accelerators: Callable[[str], int]
    """How many `gpu`, or `xpu`."""
    fresh_id: Callable[[], str]
    """A short name that no other job has."""
    entry_points: Callable[[str], tuple[str, ...]]
    """Names registered in an entry-point group."""
    full_name: Callable[[], str]
    """This host's name with its domain, where it has one."""
    read_yaml: Callable[[str], object]
    """What stands in a YAML file, given its absolute path. OSError: it cannot be read. UsageError: it is no YAML."""
    slurm_address: Callable[[str], str]
    """Where a node of Slurm is reached: its name, or where that does not resolve, what Slurm says."""
    topology: Callable[[str], Topology]
    """What is near what, as far as a mode of --numa-binding needs it."""
    has_program: Callable[[str], bool]
    """Is there a program of that name on PATH?"""


class Setting(Value):
    """A value as it was given, and where."""

    value: str | bool | None
    origin: str
    """`--tee`, `PET_TEE`, `SLURM_NNODES`, or `default`."""


class Notice(Value):
    """Something the user should hear before the job starts."""

    level: str
    """INFO · NOTE (no warning, but told as soon as warnings are) · WARNING"""
    text: str


class Resolved(Value):
    """A configuration, where each value came from, and what to tell the user."""

    config: RunConfig
    origins: dict[str, str]
    """Field → `--flag`, `VARIABLE`, `default`, or `derived: why`."""
    notices: tuple[Notice, ...]


class Draft:
    """A configuration in the making."""

    def __init__(self, settings: Mapping[str, Setting], environ: Mapping[str, str], host: HostFacts) -> None:
        self.settings = dict(settings)
        self.environ = environ
        self.host = host
        self.fields: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.notices: list[Notice] = []

    def text(self, dest: str) -> str:
        """A setting as text; empty where it has no value."""
        value = self.settings[dest].value
        return "" if value is None or isinstance(value, bool) else value

    def on(self, dest: str) -> bool:
        """Is a switch on?"""
        return self.settings[dest].value is True

    def given(self, dest: str) -> bool:
        """Did the user say it, by flag or variable?"""
        return dest in self.settings and self.settings[dest].origin != "default"

    def name(self, dest: str) -> str:
        """What to call it in a message: the variable if it came from there, else the flag."""
        origin = self.settings[dest].origin
        return f"--{dest.replace('_', '-')}" if origin == "default" else origin

    def put(self, field: str, value: Any, origin: str) -> None:
        """Settle a field; a later, better founded value replaces an earlier one."""
        self.fields[field] = value
        self.origins[field] = origin

    def keep(self, dest: str, value: Any, field: str | None = None) -> None:
        """Settle a field from the setting of that name."""
        self.put(field or dest, value, self.settings[dest].origin)

    def tell(self, level: str, text: str) -> None:
        """Something to say before the job starts."""
        self.notices.append(Notice(level=level, text=text))


class Typed(Value):
    """A command line, taken apart."""

    given: dict[str, str | bool]
    """By `dest`: only what was typed."""
    script: str = ""
    script_args: tuple[str, ...] = ()
    print_config: str = ""
    """"" · text · json"""
    dry_run: bool = False
    help: bool = False


def typed_of(given: Mapping[str, Any], script: str, script_args: Sequence[str]) -> Typed:
    """A command line with these options, some of which only ask to be told something."""
    options = dict(given)
    print_config, dry_run = options.pop("print_config", ""), options.pop("dry_run", False)
    return Typed(given=options, script=script, script_args=tuple(script_args), print_config=print_config, dry_run=dry_run)


def gather(given: Mapping[str, str | bool], environ: Mapping[str, str], flags: Iterable[Flag] = FLAGS) -> dict[str, Setting]:
    """The command line's values, else the environment's, else the defaults, by `dest`.

    A switch set by its variable cannot be switched off on the command line, and a variable that is set but empty counts: both
    as in torchrun.
    """
    from holdfast.core.config.grammar import switch

    found: dict[str, Setting] = {}
    for flag in flags:
        dest = flag.dest
        in_environ = environ.get(flag.env) if flag.env else None
        if dest in given:
            found[dest] = Setting(value=given[dest], origin=flag.name)
        elif in_environ is None:
            found[dest] = Setting(value=False if flag.kind == "switch" else flag.default, origin="default")
        elif flag.kind == "switch":
            found[dest] = Setting(value=switch(in_environ, flag.env), origin=flag.env)
        else:
            found[dest] = Setting(value=in_environ, origin=flag.env)
    return found

"""Which options has torchrun? All of them, in its order, with its spellings, attribute names, defaults and `PET_*` variables,
and where ours differs on purpose.
"""

from __future__ import annotations

from holdfast.core.config import grammar
from holdfast.core.config.binding import CORE_COMPLEX, EXCLUSIVE, MODES, NODE, SOCKET
from holdfast.core.config.option import (
    LOGS,
    NODES,
    PATH,
    RENDEZVOUS,
    SECONDS,
    SOME_SECONDS,
    STATIC,
    SWITCH,
    TEXT,
    TEXT_OR_NONE,
    TEXTS,
    WORKERS,
    Kind,
    Section,
    choice,
    torchrun,
    whole,
)

START_METHODS = ("spawn", "fork", "forkserver")
EVENT_HANDLERS = ("null", "console", "dynamic_rendezvous")
NUMA_MODES = NODE, SOCKET, EXCLUSIVE, CORE_COMPLEX  # torchrun's.
GRACE_S = 30.0
"""Seconds from the stop signal to SIGKILL. torchrun's default, and Kubernetes' terminationGracePeriodSeconds."""

NODE_RANGE: Kind[tuple[int, int]] = Kind("text", grammar.node_range)
SETTINGS: Kind[dict[str, str]] = Kind("text", grammar.settings)
LOCAL_RANKS: Kind[frozenset[int] | None] = Kind("text", grammar.local_ranks)
HOST: Kind[str | None] = Kind("text", grammar.host)
PORT: Kind[int] = Kind("whole", lambda text, name: grammar.whole(text, name, at_least=0, at_most=grammar.MAX_PORT))
SIGNALS: Kind[tuple[int, ...]] = Kind("text", grammar.signals)


# fmt: off
# A table: an option, then what it does.


class TorchrunOptions(Section, mixin=True):
    """torchrun's options, and the fields that they set."""

    _nnodes = torchrun(NODES, "--nnodes N|MIN:MAX", NODE_RANGE, "1:1",
        "number of nodes, or a range: the job needs MIN nodes and takes up to MAX")
    min_nodes: int = 1
    max_nodes: int = 1
    _nproc_per_node = torchrun(NODES, "--nproc-per-node N|auto|cpu|gpu|xpu", TEXT, "1",
        "workers on this node: a number, or one per CPU (cpu) or GPU (gpu, xpu); auto: one per GPU, or per CPU if there is no "
        "GPU",
        note="Holdfast counts the GPUs that the driver and the *_VISIBLE_DEVICES variables show; it imports no framework. It "
        "does not know the names of other frameworks' devices.")
    nproc_per_node: int = 1  # Workers on this node; already a number.
    _rdzv_backend = torchrun(RENDEZVOUS, "--rdzv-backend NAME", TEXT, "static",
        "how the nodes find each other: static, c10d (the same as embedded), memory, etcd, or a registered name",
        note="Our own `embedded` server serves c10d. One node without an endpoint needs no server (`memory`). etcd and etcd-v2 "
        "both use etcd's version 3 API and need an extra (`pip install 'holdfast[etcd]'`). An unknown name is an error that "
        "lists the known names.")
    rdzv_backend: str = "memory"
    """memory (one node, no socket) · embedded (a server in one agent) · static (ranks given) · etcd (it elects the agent
    that hosts the server) · a registered name"""
    _rdzv_endpoint = torchrun(RENDEZVOUS, "--rdzv-endpoint HOST[:PORT]", TEXT, "",
        "where the nodes meet. Default port: 29400 for c10d (29500 with ft_launcher), 2379 for etcd. etcd takes several "
        "endpoints, separated by commas", note="An IPv6 address without a port needs no brackets.")
    rdzv_endpoint: str = ""  # `host:port`; for static, of the control connection. Empty for memory.
    rdzv_host: str = ""
    rdzv_port: int = 0
    _rdzv_id = torchrun(RENDEZVOUS, "--rdzv-id ID", TEXT, "none",
        "run id of the job, the same on every node",
        note="Also kept on a single node, where torchrun replaces it with a random id.")
    rdzv_id: str = "none"
    _rdzv_conf = torchrun(RENDEZVOUS, "--rdzv-conf K=V,…", SETTINGS, "",
        "more settings of the rendezvous, such as join_timeout=600,last_call_timeout=30",
        note="A warning names an unknown key. read_timeout, heartbeat_timeout and close_timeout have no effect here.")
    rdzv_conf: dict[str, str] = {}  # noqa: RUF012
    standalone: bool = torchrun(RENDEZVOUS, "--standalone", SWITCH, None,
        "run on this node alone; --rdzv-backend and --rdzv-endpoint are ignored",
        note="With --nnodes 2 or more it fails at once; torchrun waits ten minutes for a node that cannot come.")
    max_restarts: int = torchrun(WORKERS, "--max-restarts", whole(0), "0",
        "how often the workers may restart after a failure",
        note="One budget for the whole job, not one per agent.")
    monitor_interval: float = torchrun(WORKERS, "--monitor-interval", SOME_SECONDS, "0.1",
        "accepted for compatibility: Holdfast does not poll, a worker's death is an event",
        note="It must be above 0. Programs that read it get it; Holdfast does not use it.")
    start_method: str = torchrun(WORKERS, "--start-method", choice(*START_METHODS, metavar="METHOD"), "spawn",
        "how the Python API starts functions",
        note="Also checked in PET_START_METHOD. `holdfast run` does not use it otherwise.")
    event_log_handler: str = torchrun(WORKERS, "--event-log-handler", choice(*EVENT_HANDLERS, metavar="NAME"), "null",
        "where torch elastic's events go: null or console",
        note="A wrong name fails at once; torchrun fails at the first event. Holdfast fills in the events' timestamps.")
    role: str = torchrun(WORKERS, "--role NAME", TEXT, "default",
        "role of the workers; with --tee also the prefix of their lines")
    module: bool = torchrun(WORKERS, "-m --module", SWITCH, None, "SCRIPT is a module's name, as in `python -m`")
    no_python: bool = torchrun(WORKERS, "--no-python", SWITCH, None, "SCRIPT is a program; run it without Python")
    run_path: bool = torchrun(WORKERS, "--run-path", SWITCH, None,
        "run the script with runpy.run_path; takes precedence over -m and --no-python",
        note="Each worker is a separate Python process, whatever --start-method says; torchrun's is a multiprocessing child.")
    log_dir: str | None = torchrun(LOGS, "--log-dir DIR", PATH, None,
        "folder for the workers' logs and error files; /dev/null: write none",
        note="Default: the job's own folder; torchrun leaves a temporary folder behind each time.")
    """Absolute, or `/dev/null`. None: in the job's folder under `state_dir`."""
    _redirects = torchrun(LOGS, "-r --redirects SPEC", TEXT, "0",
        "streams to write to files: 0 none, 1 stdout, 2 stderr, 3 both; or RANK:VALUE,… for single local ranks",
        note="Local ranks above 9 work too.")
    redirects: dict[int, int] = {}  # Every local rank → 0 none, 1 stdout, 2 stderr, 3 both.  # noqa: RUF012
    _tee = torchrun(LOGS, "-t --tee SPEC", TEXT, "0",
        "streams to write to files and to the console; same syntax as --redirects", note="Local ranks above 9 work too.")
    tee: dict[int, int] = {}  # noqa: RUF012
    local_ranks_filter: frozenset[int] | None = torchrun(LOGS, "--local-ranks-filter R,…", LOCAL_RANKS, "",
        "local ranks whose output the console shows (default: all)")
    """None: all."""
    duplicate_stdout_filters: tuple[str, ...] = torchrun(LOGS, "--duplicate-stdout-filters", TEXTS, None,
        "copy stdout lines that contain one of these texts to filtered_stdout.log (,, means a comma)")
    duplicate_stderr_filters: tuple[str, ...] = torchrun(LOGS, "--duplicate-stderr-filters", TEXTS, None,
        "copy stderr lines that contain one of these texts to filtered_stderr.log (,, means a comma)")
    node_rank: int = torchrun(STATIC, "--node-rank", whole(0), "0",
        "this node's rank; static backend only", note="A rank that is not below --nnodes fails at once.")
    _master_addr = torchrun(STATIC, "--master-addr ADDR", TEXT, "127.0.0.1",
        "address of the node with rank 0; static backend only; IPv6 as [::1]")
    master_addr: str = ""  # MASTER_ADDR for the workers. Empty: the node of group rank 0 says its own.
    _master_port = torchrun(STATIC, "--master-port PORT", PORT, None,
        "port on that node for the workers (29500 if not given); static backend only")
    master_port: int | None = None  # MASTER_PORT for the workers. None: a fresh one each round.
    local_addr: str | None = torchrun(RENDEZVOUS, "--local-addr ADDR", HOST, None,
        "address at which other nodes reach this node (default: the address of its interface towards the endpoint)")
    logs_specs: str | None = torchrun(LOGS, "--logs-specs NAME", TEXT_OR_NONE, None,
        "entry point in the group torchrun.logs_specs that decides the layout of the logs", pet=False)
    _numa_binding = torchrun(WORKERS, "--numa-binding", choice(*MODES, metavar="MODE"), None,
        "bind each worker to CPUs near its GPU. node: the GPU's NUMA node; auto: that node and its memory; socket: the GPU's "
        "socket; exclusive: a share of the NUMA node's cores; core-complex: cores that share one cache",
        note="`auto` is Holdfast's own. It needs neither numactl nor a framework. torchrun has no variable for this flag.")
    signals_to_handle: tuple[int, ...] = torchrun(WORKERS, "--signals-to-handle SIG,…", SIGNALS,
        "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "signals that the agent passes on to the workers and that end the job",
        note="A wrong name is an error; torchrun only warns. The agent always passes on SIGUSR1 and SIGUSR2; they end the job "
        "only if you list them here.")
    _shutdown_timeout = torchrun(WORKERS, "--shutdown-timeout S", SECONDS, None,
        "seconds from the stop signal to SIGKILL (default: $TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30)",
        note="Applies to every stop, also before a restart; there torchrun always waits 30 s.")
    shutdown_timeout_s: float = GRACE_S
    virtual_local_rank: bool = torchrun(WORKERS, "--virtual-local-rank", SWITCH, None,
        "set LOCAL_RANK to 0 for every worker, and CUDA_VISIBLE_DEVICES to its own GPU only")

"""Which options has torchrun? All of them, in its order, with its spellings, attribute names, defaults and `PET_*` variables,
and where ours differs on purpose.
"""

from __future__ import annotations

from holdfast.core.config import grammar
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
NUMA_MODES = ("node", "socket", "exclusive", "core-complex")
"""torchrun's."""
GRACE_S = 30.0
"""Seconds between asking a worker to stop and SIGKILL. torchrun's default, and Kubernetes' terminationGracePeriodSeconds."""

NODE_RANGE: Kind[tuple[int, int]] = Kind("text", grammar.node_range)
SETTINGS: Kind[dict[str, str]] = Kind("text", grammar.settings)
LOCAL_RANKS: Kind[frozenset[int] | None] = Kind("text", grammar.local_ranks)
HOST: Kind[str | None] = Kind("text", lambda text, name: text.strip("[]") or None)
PORT: Kind[int] = Kind("whole", lambda text, name: grammar.whole(text, name, at_least=0, at_most=grammar.MAX_PORT))
SIGNALS: Kind[tuple[int, ...]] = Kind("text", grammar.signals)


class TorchrunOptions(Section, mixin=True):
    """torchrun's options, and the fields that they set."""

    _nnodes = torchrun(
        NODE_RANGE,
        "--nnodes",
        "number of nodes, or a range: the job runs with MIN and takes up to MAX",
        default="1:1",
        metavar="N|MIN:MAX",
        group=NODES,
    )
    min_nodes: int = 1
    max_nodes: int = 1
    _nproc_per_node = torchrun(
        TEXT,
        "--nproc-per-node",
        "workers on this node: a number, or as many as there are CPUs (cpu), GPUs (gpu, xpu), or whichever it has (auto)",
        default="1",
        metavar="N|auto|cpu|gpu|xpu",
        group=NODES,
        note="GPUs are counted without importing a framework, from what the driver shows and the *_VISIBLE_DEVICES "
        "variables. Names of other frameworks' devices are not known to us.",
    )
    nproc_per_node: int = 1
    """Workers on this node; already a number."""
    _rdzv_backend = torchrun(
        TEXT,
        "--rdzv-backend",
        "how the nodes find each other: static, c10d (= embedded), memory, etcd, or a registered name",
        default="static",
        metavar="NAME",
        group=RENDEZVOUS,
        note="c10d is served by our own `embedded` server; one node without an endpoint needs no server at all (`memory`). "
        "etcd speaks etcd's version 3 API, for etcd-v2 too; it needs the extra (`pip install 'holdfast[etcd]'`). "
        "Unknown names are an error that lists the known ones.",
    )
    rdzv_backend: str = "memory"
    """memory (one node, no socket) · embedded (a server in one agent) · static (ranks given) · etcd (it elects the agent
    that hosts the server) · a registered name"""
    _rdzv_endpoint = torchrun(
        TEXT,
        "--rdzv-endpoint",
        "where they meet; if no port is given, 29400 for c10d (29500 with ft_launcher), 2379 for etcd (several with commas)",
        default="",
        metavar="HOST[:PORT]",
        group=RENDEZVOUS,
        note="An IPv6 address may be written without brackets when it has no port.",
    )
    rdzv_endpoint: str = ""
    """`host:port` of the server, IPv6 in brackets; for static that of the control connection. Empty for memory."""
    rdzv_host: str = ""
    rdzv_port: int = 0
    _rdzv_id = torchrun(
        TEXT,
        "--rdzv-id",
        "the job's name, the same on every node",
        default="none",
        metavar="ID",
        group=RENDEZVOUS,
        note="Kept on one node too, where torchrun replaces it by a random one.",
    )
    rdzv_id: str = "none"
    _rdzv_conf = torchrun(
        SETTINGS,
        "--rdzv-conf",
        "further settings of the rendezvous, such as join_timeout=600,last_call_timeout=30",
        default="",
        metavar="K=V,…",
        group=RENDEZVOUS,
        note="An unknown key is named in a warning. read_timeout, heartbeat_timeout and close_timeout mean nothing here.",
    )
    rdzv_conf: dict[str, str] = {}  # noqa: RUF012
    standalone: bool = torchrun(
        SWITCH,
        "--standalone",
        "one node that needs nobody else; --rdzv-backend and --rdzv-endpoint are ignored",
        group=RENDEZVOUS,
        note="With --nnodes 2 or more it is an error at once; torchrun waits ten minutes for a node that cannot come.",
    )
    max_restarts: int = torchrun(
        whole(0),
        "--max-restarts",
        "how often the workers are started again after a failure",
        default="0",
        group=WORKERS,
        note="The budget is the job's, over all nodes, not each agent's own.",
    )
    monitor_interval: float = torchrun(
        SOME_SECONDS,
        "--monitor-interval",
        "accepted for torchrun's sake: a worker's death is an event here, nothing is polled",
        default="0.1",
        group=WORKERS,
        note="Checked (> 0), passed on to programs that read it, otherwise unused.",
    )
    start_method: str = torchrun(
        choice(*START_METHODS, metavar="METHOD"),
        "--start-method",
        "how Python functions are started (through the Python interface)",
        default="spawn",
        group=WORKERS,
        note="Checked in PET_START_METHOD too; otherwise unused by `holdfast run`.",
    )
    event_log_handler: str = torchrun(
        choice(*EVENT_HANDLERS, metavar="NAME"),
        "--event-log-handler",
        "where torch elastic's events go: null or console",
        default="null",
        group=WORKERS,
        note="A wrong name is an error at once, where torchrun fails at the first event. Their timestamps are filled in.",
    )
    role: str = torchrun(
        TEXT,
        "--role",
        "name of the workers' role; also the prefix of their lines under --tee",
        default="default",
        metavar="NAME",
        group=WORKERS,
    )
    module: bool = torchrun(SWITCH, "--module", "the script is a module's name, as in `python -m`", short="-m", group=WORKERS)
    no_python: bool = torchrun(SWITCH, "--no-python", "the script is a program to be run as it is", group=WORKERS)
    run_path: bool = torchrun(
        SWITCH,
        "--run-path",
        "run the script by runpy.run_path; goes before -m and --no-python",
        group=WORKERS,
        note="Each worker is a Python process of its own, whatever --start-method says; torchrun's is a multiprocessing child.",
    )
    log_dir: str | None = torchrun(
        PATH,
        "--log-dir",
        "folder for the workers' logs and error files; /dev/null: none are written",
        metavar="DIR",
        group=LOGS,
        note="Without it they lie in the job's own folder; torchrun leaves a temporary one behind each time.",
    )
    """Absolute, or `/dev/null`. None: in the job's folder under `state_dir`."""
    _redirects = torchrun(
        TEXT,
        "--redirects",
        "streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both; or RANK:VALUE,… for single local ranks",
        short="-r",
        default="0",
        metavar="SPEC",
        group=LOGS,
        note="Local ranks above 9 can be named.",
    )
    redirects: dict[int, int] = {}  # noqa: RUF012
    """Local rank → 0 none, 1 stdout, 2 stderr, 3 both; every local rank is there."""
    _tee = torchrun(
        TEXT,
        "--tee",
        "streams that go to files and to the console, written like --redirects",
        short="-t",
        default="0",
        metavar="SPEC",
        group=LOGS,
        note="Local ranks above 9 can be named.",
    )
    tee: dict[int, int] = {}  # noqa: RUF012
    local_ranks_filter: frozenset[int] | None = torchrun(
        LOCAL_RANKS,
        "--local-ranks-filter",
        "local ranks whose output is shown on the console",
        default="",
        metavar="R,…",
        group=LOGS,
    )
    """None: all."""
    duplicate_stdout_filters: tuple[str, ...] = torchrun(
        TEXTS,
        "--duplicate-stdout-filters",
        "copy stdout lines that contain one of these texts to filtered_stdout.log (,, is a comma)",
        group=LOGS,
    )
    duplicate_stderr_filters: tuple[str, ...] = torchrun(
        TEXTS,
        "--duplicate-stderr-filters",
        "copy stderr lines that contain one of these texts to filtered_stderr.log (,, is a comma)",
        group=LOGS,
    )
    node_rank: int = torchrun(
        whole(0),
        "--node-rank",
        "this node's rank; static backend only",
        default="0",
        group=STATIC,
        note="A rank that is not below --nnodes is an error at once.",
    )
    _master_addr = torchrun(
        TEXT,
        "--master-addr",
        "address of the node with rank 0; static backend only; IPv6 as [::1]",
        default="127.0.0.1",
        metavar="ADDR",
        group=STATIC,
    )
    master_addr: str = ""
    """MASTER_ADDR for the workers. Empty: the node of group rank 0 says its own."""
    _master_port = torchrun(
        PORT,
        "--master-port",
        "port on it for the workers (29500 if not given); static backend only",
        metavar="PORT",
        group=STATIC,
    )
    master_port: int | None = None
    """MASTER_PORT for the workers. None: a fresh one each round."""
    local_addr: str | None = torchrun(
        HOST,
        "--local-addr",
        "address by which other nodes reach this one (otherwise that of its interface towards the endpoint)",
        metavar="ADDR",
        group=RENDEZVOUS,
    )
    logs_specs: str | None = torchrun(
        TEXT_OR_NONE,
        "--logs-specs",
        "entry point in group torchrun.logs_specs that lays out the logs",
        metavar="NAME",
        group=LOGS,
        pet=False,
    )
    _numa_binding = torchrun(
        choice(*NUMA_MODES, "auto", metavar="MODE"),
        "--numa-binding",
        "bind each worker to the CPUs near its GPU: those of its NUMA node (node; auto: and to its memory), of its socket, a "
        "share of the node's cores (exclusive), or cores with one cache (core-complex)",
        group=WORKERS,
        note="`auto` is ours. Neither numactl nor a framework is needed. torchrun has no variable for this flag.",
    )
    signals_to_handle: tuple[int, ...] = torchrun(
        SIGNALS,
        "--signals-to-handle",
        "signals that are passed on to the workers and end the job",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        metavar="SIG,…",
        group=WORKERS,
        note="A wrong name is an error; torchrun warns and goes on without it. SIGUSR1 and SIGUSR2 are passed on in any "
        "case, without ending the job unless listed here.",
    )
    _shutdown_timeout = torchrun(
        SECONDS,
        "--shutdown-timeout",
        "seconds between asking the workers to stop and SIGKILL (otherwise $TORCH_ELASTIC_SHUTDOWN_TIMEOUT, then 30)",
        metavar="S",
        group=WORKERS,
        note="Holds for every stop, a restart's too, where torchrun always waits 30 s.",
    )
    shutdown_timeout_s: float = GRACE_S
    virtual_local_rank: bool = torchrun(
        SWITCH,
        "--virtual-local-rank",
        "LOCAL_RANK is 0 for every worker, and CUDA_VISIBLE_DEVICES shows each its own GPU only",
        group=WORKERS,
    )

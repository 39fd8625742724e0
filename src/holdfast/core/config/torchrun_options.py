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
"""Seconds between asking a worker to stop and SIGKILL. torchrun's default, and Kubernetes' terminationGracePeriodSeconds."""

NODE_RANGE: Kind[tuple[int, int]] = Kind("text", grammar.node_range)
SETTINGS: Kind[dict[str, str]] = Kind("text", grammar.settings)
LOCAL_RANKS: Kind[frozenset[int] | None] = Kind("text", grammar.local_ranks)
HOST: Kind[str | None] = Kind("text", lambda text, name: text.strip("[]") or None)
PORT: Kind[int] = Kind("whole", lambda text, name: grammar.whole(text, name, at_least=0, at_most=grammar.MAX_PORT))
SIGNALS: Kind[tuple[int, ...]] = Kind("text", grammar.signals)


# fmt: off
# A table: an option, then what it does.


class TorchrunOptions(Section, mixin=True):
    """torchrun's options, and the fields that they set."""

    _nnodes = torchrun(NODES, "--nnodes N|MIN:MAX", NODE_RANGE, "1:1",
        "number of nodes, or a range: the job runs with MIN and takes up to MAX")
    min_nodes: int = 1
    max_nodes: int = 1
    _nproc_per_node = torchrun(NODES, "--nproc-per-node N|auto|cpu|gpu|xpu", TEXT, "1",
        "workers on this node: a number, or as many as there are CPUs (cpu), GPUs (gpu, xpu), or whichever it has (auto)",
        note="GPUs are counted without importing a framework, from what the driver shows and the *_VISIBLE_DEVICES "
        "variables. Names of other frameworks' devices are not known to us.")
    nproc_per_node: int = 1  # Workers on this node; already a number.
    _rdzv_backend = torchrun(RENDEZVOUS, "--rdzv-backend NAME", TEXT, "static",
        "how the nodes find each other: static, c10d (= embedded), memory, etcd, or a registered name",
        note="c10d is served by our own `embedded` server; one node without an endpoint needs no server at all (`memory`). "
        "etcd speaks etcd's version 3 API, for etcd-v2 too; it needs the extra (`pip install 'holdfast[etcd]'`). Unknown "
        "names are an error that lists the known ones.")
    rdzv_backend: str = "memory"
    """memory (one node, no socket) · embedded (a server in one agent) · static (ranks given) · etcd (it elects the agent
    that hosts the server) · a registered name"""
    _rdzv_endpoint = torchrun(RENDEZVOUS, "--rdzv-endpoint HOST[:PORT]", TEXT, "",
        "where they meet; if no port is given, 29400 for c10d (29500 with ft_launcher), 2379 for etcd (several with "
        "commas)", note="An IPv6 address may be written without brackets when it has no port.")
    rdzv_endpoint: str = ""  # `host:port`; for static, of the control connection. Empty for memory.
    rdzv_host: str = ""
    rdzv_port: int = 0
    _rdzv_id = torchrun(RENDEZVOUS, "--rdzv-id ID", TEXT, "none",
        "the job's name, the same on every node", note="Kept on one node too, where torchrun replaces it by a random one.")
    rdzv_id: str = "none"
    _rdzv_conf = torchrun(RENDEZVOUS, "--rdzv-conf K=V,…", SETTINGS, "",
        "further settings of the rendezvous, such as join_timeout=600,last_call_timeout=30",
        note="An unknown key is named in a warning. read_timeout, heartbeat_timeout and close_timeout mean nothing here.")
    rdzv_conf: dict[str, str] = {}  # noqa: RUF012
    standalone: bool = torchrun(RENDEZVOUS, "--standalone", SWITCH, None,
        "one node that needs nobody else; --rdzv-backend and --rdzv-endpoint are ignored",
        note="With --nnodes 2 or more it is an error at once; torchrun waits ten minutes for a node that cannot come.")
    max_restarts: int = torchrun(WORKERS, "--max-restarts", whole(0), "0",
        "how often the workers are started again after a failure",
        note="The budget is the job's, over all nodes, not each agent's own.")
    monitor_interval: float = torchrun(WORKERS, "--monitor-interval", SOME_SECONDS, "0.1",
        "accepted for torchrun's sake: a worker's death is an event here, nothing is polled",
        note="Checked (> 0), passed on to programs that read it, otherwise unused.")
    start_method: str = torchrun(WORKERS, "--start-method", choice(*START_METHODS, metavar="METHOD"), "spawn",
        "how Python functions are started (through the Python interface)",
        note="Checked in PET_START_METHOD too; otherwise unused by `holdfast run`.")
    event_log_handler: str = torchrun(WORKERS, "--event-log-handler", choice(*EVENT_HANDLERS, metavar="NAME"), "null",
        "where torch elastic's events go: null or console",
        note="A wrong name is an error at once, where torchrun fails at the first event. Their timestamps are filled in.")
    role: str = torchrun(WORKERS, "--role NAME", TEXT, "default",
        "name of the workers' role; also the prefix of their lines under --tee")
    module: bool = torchrun(WORKERS, "-m --module", SWITCH, None, "the script is a module's name, as in `python -m`")
    no_python: bool = torchrun(WORKERS, "--no-python", SWITCH, None, "the script is a program to be run as it is")
    run_path: bool = torchrun(WORKERS, "--run-path", SWITCH, None,
        "run the script by runpy.run_path; goes before -m and --no-python",
        note="Each worker is a Python process of its own, whatever --start-method says; torchrun's is a multiprocessing "
        "child.")
    log_dir: str | None = torchrun(LOGS, "--log-dir DIR", PATH, None,
        "folder for the workers' logs and error files; /dev/null: none are written",
        note="Without it they lie in the job's own folder; torchrun leaves a temporary one behind each time.")
    """Absolute, or `/dev/null`. None: in the job's folder under `state_dir`."""
    _redirects = torchrun(LOGS, "-r --redirects SPEC", TEXT, "0",
        "streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both; or RANK:VALUE,… for single local ranks",
        note="Local ranks above 9 can be named.")
    redirects: dict[int, int] = {}  # Every local rank → 0 none, 1 stdout, 2 stderr, 3 both.  # noqa: RUF012
    _tee = torchrun(LOGS, "-t --tee SPEC", TEXT, "0",
        "streams that go to files and to the console, written like --redirects", note="Local ranks above 9 can be named.")
    tee: dict[int, int] = {}  # noqa: RUF012
    local_ranks_filter: frozenset[int] | None = torchrun(LOGS, "--local-ranks-filter R,…", LOCAL_RANKS, "",
        "local ranks whose output is shown on the console")
    """None: all."""
    duplicate_stdout_filters: tuple[str, ...] = torchrun(LOGS, "--duplicate-stdout-filters", TEXTS, None,
        "copy stdout lines that contain one of these texts to filtered_stdout.log (,, is a comma)")
    duplicate_stderr_filters: tuple[str, ...] = torchrun(LOGS, "--duplicate-stderr-filters", TEXTS, None,
        "copy stderr lines that contain one of these texts to filtered_stderr.log (,, is a comma)")
    node_rank: int = torchrun(STATIC, "--node-rank", whole(0), "0",
        "this node's rank; static backend only", note="A rank that is not below --nnodes is an error at once.")
    _master_addr = torchrun(STATIC, "--master-addr ADDR", TEXT, "127.0.0.1",
        "address of the node with rank 0; static backend only; IPv6 as [::1]")
    master_addr: str = ""  # MASTER_ADDR for the workers. Empty: the node of group rank 0 says its own.
    _master_port = torchrun(STATIC, "--master-port PORT", PORT, None,
        "port on it for the workers (29500 if not given); static backend only")
    master_port: int | None = None  # MASTER_PORT for the workers. None: a fresh one each round.
    local_addr: str | None = torchrun(RENDEZVOUS, "--local-addr ADDR", HOST, None,
        "address by which other nodes reach this one (otherwise that of its interface towards the endpoint)")
    logs_specs: str | None = torchrun(LOGS, "--logs-specs NAME", TEXT_OR_NONE, None,
        "entry point in group torchrun.logs_specs that lays out the logs", pet=False)
    _numa_binding = torchrun(WORKERS, "--numa-binding", choice(*MODES, metavar="MODE"), None,
        "bind each worker to the CPUs near its GPU: those of its NUMA node (node; auto: and to its memory), of its socket, "
        "a share of the node's cores (exclusive), or cores with one cache (core-complex)",
        note="`auto` is ours. Neither numactl nor a framework is needed. torchrun has no variable for this flag.")
    signals_to_handle: tuple[int, ...] = torchrun(WORKERS, "--signals-to-handle SIG,…", SIGNALS,
        "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "signals that are passed on to the workers and end the job",
        note="A wrong name is an error; torchrun warns and goes on without it. SIGUSR1 and SIGUSR2 are passed on in any "
        "case, without ending the job unless listed here.")
    _shutdown_timeout = torchrun(WORKERS, "--shutdown-timeout S", SECONDS, None,
        "seconds between asking the workers to stop and SIGKILL (otherwise $TORCH_ELASTIC_SHUTDOWN_TIMEOUT, then 30)",
        note="Holds for every stop, a restart's too, where torchrun always waits 30 s.")
    shutdown_timeout_s: float = GRACE_S
    virtual_local_rank: bool = torchrun(WORKERS, "--virtual-local-rank", SWITCH, None,
        "LOCAL_RANK is 0 for every worker, and CUDA_VISIBLE_DEVICES shows each its own GPU only")

"""Which options does `holdfast run` have? One table: names, environment variable, kind, default, meaning, and where we
differ from torchrun on purpose. The command line, `--help`, `--print-config` and docs/reference/torchrun.md are all
made from it; so is `holdfast.elastic.run`'s parser. Pure data: what the values mean together is `core.config.config`'s matter.

Rows marked `torchrun` have its spellings, attribute name (`dest`), default and `PET_*` variable, in its order. Ours come
last, have `HOLDFAST_*` variables, and are never matched by a prefix: a prefix that torchrun takes must not become
ambiguous because of them.
"""

from __future__ import annotations

from holdfast.core.config.fault_tolerance import MONITORS, ON_STRAGGLER
from holdfast.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

NODES, RENDEZVOUS, WORKERS, LOGS, STATIC, OURS = (
    "nodes and workers",
    "rendezvous",
    "workers",
    "logs",
    "static ranks",
    "holdfast's own",
)

YES_OR_NO = ("true", "false", "1", "0", "yes", "no", "t", "f", "y", "n", "on", "off")
"""What a flag of kind `yes` takes for its value."""


class Flag(Value):
    """One option."""

    names: tuple[str, ...]
    """Every spelling, in torchrun's order. The first long one is the name in messages."""
    kind: str = "text"
    """text · whole (int) · number (float) · switch · list (comma separated, `,,` is a comma) · yes (true or false; alone: true)
    · and those that only `core.config.fault_tolerance_flags` has"""
    default: str | None = None
    """As it would be typed; None: no value."""
    choices: tuple[str, ...] = ()
    metavar: str = ""
    env: str = ""
    """Variable that gives the value where the command line does not."""
    group: str = OURS
    torchrun: bool = True
    help: str
    note: str = ""
    """How ours differs from torchrun's, for the reference page."""

    @property
    def name(self) -> str:
        """`--max-restarts`."""
        return next(name for name in self.names if name.startswith("--"))

    @property
    def dest(self) -> str:
        """`max_restarts`: the attribute's name."""
        return self.name[2:].replace("-", "_")


def _torchrun(name: str, help: str, *, short: str = "", pet: bool = True, **rest: Any) -> Flag:
    """A flag of torchrun: a dashed and, for several words, an underscored spelling; `PET_` and its dest in the environment."""
    plain = name[2:].replace("-", "_")
    names = tuple(spelling for spelling in (short, name, f"--{plain}" if "_" in plain else "") if spelling)
    return Flag(names=names, help=help, env=f"PET_{plain.upper()}", note=rest.pop("note", "") or _NO_PET * (not pet), **rest)


def _ours(name: str, help: str, **rest: Any) -> Flag:
    plain = name[2:].replace("-", "_")
    names = (name, f"--{plain}") if "_" in plain else (name,)
    return Flag(names=names, help=help, torchrun=False, **rest)


SUPERVISOR_PORT = 29800
"""Where a supervisor listens when no port is given: beside torchrun's 29500, 29400 and whatever counts up from there."""

_NO_PET = "torchrun has no variable for this flag."
START_METHODS = ("spawn", "fork", "forkserver")
EVENT_HANDLERS = ("null", "console", "dynamic_rendezvous")
SPLITS = ("stop", "continue")
SLURM, KUBERNETES = "slurm", "kubernetes"
SCHEDULERS = (SLURM, KUBERNETES)
"""Witnesses that are no directories."""

NUMA_MODES = ("node", "socket", "exclusive", "core-complex")
"""torchrun's."""

WARM_MODES = ("spawn", "fork")

MEMBERSHIPS = ("elastic", "fixed")

GROW = ("at-once", "at-checkpoint", "next-failure", "never")

FLAGS: tuple[Flag, ...] = (
    _torchrun(
        "--nnodes",
        "number of nodes, or a range: the job runs with MIN and takes up to MAX",
        default="1:1",
        metavar="N|MIN:MAX",
        group=NODES,
    ),
    _torchrun(
        "--nproc-per-node",
        "workers on this node: a number, or as many as there are CPUs (cpu), GPUs (gpu, xpu), or whichever it has (auto)",
        default="1",
        metavar="N|auto|cpu|gpu|xpu",
        group=NODES,
        note="GPUs are counted without importing a framework, from what the driver shows and the *_VISIBLE_DEVICES variables. "
        "Names of other frameworks' devices are not known to us.",
    ),
    _torchrun(
        "--rdzv-backend",
        "how the nodes find each other: static, c10d (= embedded), memory, etcd, or a registered name",
        default="static",
        metavar="NAME",
        group=RENDEZVOUS,
        note="c10d is served by our own `embedded` server; one node without an endpoint needs no server at all (`memory`). "
        "etcd speaks etcd's version 3 API, for etcd-v2 too; it needs the extra (`pip install 'holdfast[etcd]'`). "
        "Unknown names are an error that lists the known ones.",
    ),
    _torchrun(
        "--rdzv-endpoint",
        "where they meet; if no port is given, 29400 for c10d (29500 with ft_launcher), 2379 for etcd (several with commas)",
        default="",
        metavar="HOST[:PORT]",
        group=RENDEZVOUS,
        note="An IPv6 address may be written without brackets when it has no port.",
    ),
    _torchrun(
        "--rdzv-id",
        "the job's name, the same on every node",
        default="none",
        metavar="ID",
        group=RENDEZVOUS,
        note="Kept on one node too, where torchrun replaces it by a random one.",
    ),
    _torchrun(
        "--rdzv-conf",
        "further settings of the rendezvous, such as join_timeout=600,last_call_timeout=30",
        default="",
        metavar="K=V,…",
        group=RENDEZVOUS,
        note="An unknown key is named in a warning. read_timeout, heartbeat_timeout and close_timeout mean nothing here.",
    ),
    _torchrun(
        "--standalone",
        "one node that needs nobody else; --rdzv-backend and --rdzv-endpoint are ignored",
        kind="switch",
        group=RENDEZVOUS,
        note="With --nnodes 2 or more it is an error at once; torchrun waits ten minutes for a node that cannot come.",
    ),
    _torchrun(
        "--max-restarts",
        "how often the workers are started again after a failure",
        kind="whole",
        default="0",
        metavar="N",
        group=WORKERS,
        note="The budget is the job's, over all nodes, not each agent's own.",
    ),
    _torchrun(
        "--monitor-interval",
        "accepted for torchrun's sake: a worker's death is an event here, nothing is polled",
        kind="number",
        default="0.1",
        metavar="S",
        group=WORKERS,
        note="Checked (> 0), passed on to programs that read it, otherwise unused.",
    ),
    _torchrun(
        "--start-method",
        "how Python functions are started (through the Python interface)",
        default="spawn",
        choices=START_METHODS,
        metavar="METHOD",
        group=WORKERS,
        note="Checked in PET_START_METHOD too; otherwise unused by `holdfast run`.",
    ),
    _torchrun(
        "--event-log-handler",
        "where torch elastic's events go: null or console",
        default="null",
        choices=EVENT_HANDLERS,
        note="A wrong name is an error at once, where torchrun fails at the first event. Their timestamps are filled in.",
        metavar="NAME",
        group=WORKERS,
    ),
    _torchrun(
        "--role",
        "name of the workers' role; also the prefix of their lines under --tee",
        default="default",
        metavar="NAME",
        group=WORKERS,
    ),
    _torchrun("--module", "the script is a module's name, as in `python -m`", short="-m", kind="switch", group=WORKERS),
    _torchrun("--no-python", "the script is a program to be run as it is", kind="switch", group=WORKERS),
    _torchrun(
        "--run-path",
        "run the script by runpy.run_path; goes before -m and --no-python",
        note="Each worker is a Python process of its own, whatever --start-method says; torchrun's is a multiprocessing child.",
        kind="switch",
        group=WORKERS,
    ),
    _torchrun(
        "--log-dir",
        "folder for the workers' logs and error files; /dev/null: none are written",
        metavar="DIR",
        group=LOGS,
        note="Without it they lie in the job's own folder; torchrun leaves a temporary one behind each time.",
    ),
    _torchrun(
        "--redirects",
        "streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both; or RANK:VALUE,… for single local ranks",
        short="-r",
        default="0",
        metavar="SPEC",
        group=LOGS,
        note="Local ranks above 9 can be named.",
    ),
    _torchrun(
        "--tee",
        "streams that go to files and to the console, written like --redirects",
        short="-t",
        default="0",
        metavar="SPEC",
        group=LOGS,
        note="Local ranks above 9 can be named.",
    ),
    _torchrun(
        "--local-ranks-filter", "local ranks whose output is shown on the console", default="", metavar="R,…", group=LOGS
    ),
    _torchrun(
        "--duplicate-stdout-filters",
        "copy stdout lines that contain one of these texts to filtered_stdout.log (,, is a comma)",
        kind="list",
        metavar="TEXT,…",
        group=LOGS,
    ),
    _torchrun(
        "--duplicate-stderr-filters",
        "copy stderr lines that contain one of these texts to filtered_stderr.log (,, is a comma)",
        kind="list",
        metavar="TEXT,…",
        group=LOGS,
    ),
    _torchrun(
        "--node-rank",
        "this node's rank; static backend only",
        kind="whole",
        default="0",
        metavar="N",
        group=STATIC,
        note="A rank that is not below --nnodes is an error at once.",
    ),
    _torchrun(
        "--master-addr",
        "address of the node with rank 0; static backend only; IPv6 as [::1]",
        default="127.0.0.1",
        metavar="ADDR",
        group=STATIC,
    ),
    _torchrun(
        "--master-port",
        "port on it for the workers (29500 if not given); static backend only",
        kind="whole",
        metavar="PORT",
        group=STATIC,
    ),
    _torchrun(
        "--local-addr",
        "address by which other nodes reach this one (otherwise that of its interface towards the endpoint)",
        metavar="ADDR",
        group=RENDEZVOUS,
    ),
    _torchrun(
        "--logs-specs", "entry point in group torchrun.logs_specs that lays out the logs", metavar="NAME", group=LOGS, pet=False
    ),
    _torchrun(
        "--numa-binding",
        "bind each worker to the CPUs near its GPU: those of its NUMA node (node; auto: and to its memory), of its socket, a "
        "share of the node's cores (exclusive), or cores with one cache (core-complex)",
        choices=(*NUMA_MODES, "auto"),
        metavar="MODE",
        group=WORKERS,
        pet=False,
        note="`auto` is ours. Neither numactl nor a framework is needed. torchrun has no variable for this flag.",
    ),
    _torchrun(
        "--signals-to-handle",
        "signals that are passed on to the workers and end the job",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        metavar="SIG,…",
        group=WORKERS,
        note="A wrong name is an error; torchrun warns and goes on without it. SIGUSR1 and SIGUSR2 are passed on in any case, "
        "without ending the job unless listed here.",
    ),
    _torchrun(
        "--shutdown-timeout",
        "seconds between asking the workers to stop and SIGKILL (otherwise $TORCH_ELASTIC_SHUTDOWN_TIMEOUT, then 30)",
        kind="number",
        metavar="S",
        group=WORKERS,
        note="Holds for every stop, a restart's too, where torchrun always waits 30 s.",
    ),
    _torchrun(
        "--virtual-local-rank",
        "LOCAL_RANK is 0 for every worker, and CUDA_VISIBLE_DEVICES shows each its own GPU only",
        kind="switch",
        group=WORKERS,
    ),
    _ours(
        "--numa-fallback",
        "where --numa-binding cannot be had, say so and run unbound (otherwise it is an error)",
        kind="switch",
        env="HOLDFAST_NUMA_FALLBACK",
    ),
    _ours(
        "--restart-period",
        "--max-restarts counts within this many seconds (otherwise over the job's whole life)",
        kind="number",
        metavar="S",
        env="HOLDFAST_RESTART_PERIOD",
    ),
    _ours(
        "--backoff",
        "longest pause before a restart when the workers die as soon as they start; 0: never pause",
        kind="number",
        default="60",
        metavar="S",
        env="HOLDFAST_BACKOFF",
    ),
    _ours(
        "--warm-spares",
        "spare workers of this node that wait with the script's modules imported, so that a restart skips that: a number, off, "
        "or auto (one for each worker, where the job may restart and memory allows it)",
        default="auto",
        metavar="N|auto|off",
        env="HOLDFAST_WARM_SPARES",
    ),
    _ours(
        "--warm-mode",
        "spawn: each spare is a process of its own; fork: workers are forked from one that has imported everything, and share "
        "its memory",
        default="spawn",
        choices=WARM_MODES,
        metavar="MODE",
        env="HOLDFAST_WARM_MODE",
    ),
    _ours(
        "--membership",
        "elastic: the job runs with as many nodes as there are, from MIN to MAX; fixed: always with MIN "
        "(min-healthy: MIN to MAX), the others are spares; TORCHELASTIC_RESTART_COUNT counts rounds (as ft_launcher has it)",
        default="elastic",
        choices=MEMBERSHIPS,
        metavar="WORD",
        env="HOLDFAST_MEMBERSHIP",
    ),
    _ours(
        "--grow",
        "when later nodes are taken in: at-once (all ranks restart with them), at-checkpoint (when one has been written; see "
        "--grow-after), next-failure (when they restart anyway), never (they only replace others)",
        default="at-once",
        choices=GROW,
        metavar="WHEN",
        env="HOLDFAST_GROW",
    ),
    _ours(
        "--grow-after",
        "with --grow at-checkpoint: seconds that a later node has to have waited, and the ranks to have run, before",
        kind="number",
        default="60",
        metavar="S",
        env="HOLDFAST_GROW_AFTER",
    ),
    _ours(
        "--exclude-after",
        "a node whose workers were the first to fail N times (within --restart-period) is left out if a spare can take its "
        "place; 0: never",
        kind="whole",
        default="3",
        metavar="N",
        env="HOLDFAST_EXCLUDE_AFTER",
    ),
    _ours(
        "--on-finding",
        "what a finding about a failure does, for some classes of it: CLASS=ACTION,… with stop, exclude, restart or ignore; "
        "none: findings change nothing",
        metavar="CLASS=ACTION",
        env="HOLDFAST_ON_FINDING",
    ),
    _ours(
        "--readmit-after",
        "seconds after which an excluded node may take part again (otherwise when `holdfast readmit` says so)",
        kind="number",
        metavar="S",
        env="HOLDFAST_READMIT_AFTER",
    ),
    _ours(
        "--lease",
        "seconds without a word after which another node counts as lost",
        kind="number",
        default="3.0",
        metavar="S",
        env="HOLDFAST_LEASE",
    ),
    _ours(
        "--agent-port",
        "port at which this agent listens, so that others find it if it takes over the coordinator; of a range, as in "
        "29410-29419, the first that is free (0: any)",
        default="0",
        metavar="PORT",
        env="HOLDFAST_AGENT_PORT",
    ),
    _ours(
        "--witness",
        "directory that the nodes share, or slurm, or kubernetes: decides which half goes on where they are cut in two, or of "
        "two one is lost",
        metavar="DIR",
        env="HOLDFAST_WITNESS",
    ),
    _ours(
        "--on-split",
        "what nodes do that are cut off with fewer than half: stop, or continue and risk that the others do too",
        default="stop",
        choices=SPLITS,
        metavar="WORD",
        env="HOLDFAST_ON_SPLIT",
    ),
    _ours(
        "--in-place-restart",
        "tell this pod's JobSet, whose restartStrategy is InPlaceRestart, that the pod takes part in each restart, so that no "
        "container is started again for that",
        kind="switch",
        env="HOLDFAST_IN_PLACE_RESTART",
    ),
    _ours(
        "--monitor",
        "auto: a rank that makes no more progress is found and the job restarted; off: only deaths are seen",
        default="auto",
        choices=MONITORS,
        metavar="WORD",
        env="HOLDFAST_MONITOR",
    ),
    _ours(
        "--progress-regex",
        "a line of a rank's output that matches is a sign of progress; its group `step`, if it has one, is the step's number",
        metavar="REGEX",
        env="HOLDFAST_PROGRESS_REGEX",
    ),
    _ours(
        "--least-limit",
        "no limit that is learned from what the job does is shorter than this many seconds",
        kind="number",
        default="600",
        metavar="S",
        env="HOLDFAST_LEAST_LIMIT",
    ),
    _ours(
        "--most-limit",
        "a rank whose heartbeats or sections have stopped hangs after so many seconds, though it is busy, if its learned limit "
        "allows no more; none: never for that",
        default="3600",
        metavar="S|none",
        env="HOLDFAST_MOST_LIMIT",
    ),
    _ours(
        "--still-limit",
        "a rank that gives no sign of life by itself hangs once processors and GPUs of its node have stood still for so many "
        "seconds; none: never for that",
        default="3600",
        metavar="S|none",
        env="HOLDFAST_STILL_LIMIT",
    ),
    _ours(
        "--on-straggler",
        "what is done about a rank that is much slower than the others: report, exclude its node if a spare can take its "
        "place, or ignore",
        default="report",
        choices=ON_STRAGGLER,
        metavar="WORD",
        env="HOLDFAST_ON_STRAGGLER",
    ),
    _ours(
        "--check-before",
        "checks of the node before it joins a round, such as gpu,nic,paths=/data:/scratch; an unfit node stays out. auto: "
        "those for which this node has the hardware",
        metavar="CHECK,…",
        env="HOLDFAST_CHECK_BEFORE",
    ),
    _ours(
        "--check-after",
        "further checks before it joins the next round after a failure here",
        metavar="CHECK,…",
        env="HOLDFAST_CHECK_AFTER",
    ),
    _ours(
        "--check-during",
        "checks while its ranks run; an unfit node is left out, if the job can go on without it",
        metavar="CHECK,…",
        env="HOLDFAST_CHECK_DURING",
    ),
    _ours(
        "--check-every",
        "seconds between two looks of --check-during, and of whatever has found this node unfit",
        kind="number",
        default="60",
        metavar="S",
        env="HOLDFAST_CHECK_EVERY",
    ),
    Flag(
        names=("--ft-segment", "--ft_segment", "--segment"),
        help="that many nodes with consecutive ranks are within one domain; nodes that complete no segment are spares",
        kind="whole",
        metavar="N",
        env="HOLDFAST_SEGMENT",
        torchrun=False,
    ),
    _ours(
        "--node-unit",
        "the job runs with a multiple of N nodes; further ones are spares",
        kind="whole",
        default="1",
        metavar="N",
        env="HOLDFAST_NODE_UNIT",
    ),
    _ours(
        "--domain",
        "name of the NVLink or network domain that this node is in, for --ft-segment (otherwise its block, if Slurm tells one; "
        "otherwise the ClusterUUID and CliqueId that nvidia-smi tells)",
        metavar="NAME",
        env="HOLDFAST_DOMAIN",
    ),
    _ours(
        "--stash-limit",
        "memory of this node that the states of its ranks may take (holdfast.client.stash): a share, or as in 64GB; 0: none",
        default="40%",
        metavar="SIZE",
        env="HOLDFAST_STASH_LIMIT",
    ),
    _ours(
        "--stash-replicate",
        "keep what the ranks of a node save (holdfast.client.stash) in another node's memory as well; on every node of the job",
        kind="switch",
        env="HOLDFAST_STASH_REPLICATE",
    ),
    _ours(
        "--state-dir",
        "where jobs keep their events, reports and logs (otherwise $XDG_STATE_HOME/holdfast)",
        metavar="DIR",
        env="HOLDFAST_STATE_DIR",
    ),
    _ours(
        "--node-name",
        "this node's name in logs and reports (otherwise its host name)",
        metavar="NAME",
        env="HOLDFAST_NODE_NAME",
    ),
    _ours(
        "--token-file",
        "file with the secret that the job's nodes share ($HOLDFAST_TOKEN may hold the secret itself)",
        metavar="FILE",
        env="HOLDFAST_TOKEN_FILE",
    ),
    _ours(
        "--supervisor",
        "the supervisor that is told how this node gets on, and whose orders it takes; the job goes on without it all the "
        "same. Several, with commas, where one of them leads",
        metavar="HOST:PORT[,…]",
        env="HOLDFAST_SUPERVISOR",
    ),
    _ours(
        "--supervisor-token-file",
        "file with the secret that the supervisor knows ($HOLDFAST_SUPERVISOR_TOKEN may hold the secret itself)",
        metavar="FILE",
        env="HOLDFAST_SUPERVISOR_TOKEN_FILE",
    ),
    _ours(
        "--allow-inject",
        "let operators play faults on this node, for practice (holdfast inject)",
        kind="switch",
        env="HOLDFAST_ALLOW_INJECT",
    ),
    _ours(
        "--tls-cert",
        "this node's certificate, in PEM: what the agents say to each other is encrypted",
        metavar="FILE",
        env="HOLDFAST_TLS_CERT",
    ),
    _ours("--tls-key", "its private key (otherwise in the same file)", metavar="FILE", env="HOLDFAST_TLS_KEY"),
    _ours(
        "--tls-ca",
        "certificate of the job's own CA: agents whose certificates it did not sign are turned away",
        metavar="FILE",
        env="HOLDFAST_TLS_CA",
    ),
    _ours("--verbose", "log each step, not only what needs attention", kind="switch", env="HOLDFAST_VERBOSE"),
    _ours("--quiet", "log errors only", kind="switch", env="HOLDFAST_QUIET"),
    _ours("--print-config", "print every value and where it came from (--print-config=json: as JSON), and stop", kind="switch"),
    _ours("--dry-run", "print nodes, ranks, environment, commands and log files, and stop", kind="switch"),
)

USE_ENV = Flag(
    names=("--use-env", "--use_env"),
    kind="switch",
    group=WORKERS,
    help="do not add --local-rank=N to the script's arguments: it reads LOCAL_RANK (`holdfast launch` only)",
)
"""The one flag that `python -m torch.distributed.launch` has beyond torchrun's."""


def by_dest(flags: Iterable[Flag] = FLAGS) -> dict[str, Flag]:
    """The table by attribute name."""
    return {flag.dest: flag for flag in flags}

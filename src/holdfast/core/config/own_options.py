"""Which options are Holdfast's own, by what they are about? Each section has fields of `RunConfig`, and a machine's rules take
over the sections that it keeps to. No prefix stands for these options: one that torchrun takes must not become ambiguous
because of them.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.core.config import grammar
from holdfast.core.config.option import (
    PATH,
    SECONDS,
    SOME_SECONDS,
    SWITCH,
    TEXT,
    TEXT_OR_NONE,
    TEXTS,
    Kind,
    Section,
    choice,
    one_of,
    optional,
    ours,
    text_or_none,
    whole,
)

SUPERVISOR_PORT = 29800
"""Where a supervisor listens when no port is given: beside torchrun's 29500, 29400 and whatever counts up from there."""
FORK, CONTINUE = "fork", "continue"  # Of --warm-mode, and of --on-split.
SLURM, KUBERNETES = "slurm", "kubernetes"
SCHEDULERS = (SLURM, KUBERNETES)  # Witnesses that are no directories.

MEMORY: Kind[str] = Kind("text", grammar.memory, "SIZE")
PORTS: Kind[tuple[int, int]] = Kind("text", grammar.port_range, "PORT")
SUPERVISORS: Kind[tuple[str, ...]] = Kind(
    "text", lambda text, name: grammar.endpoints(text, name, default_port=SUPERVISOR_PORT), "HOST:PORT[,…]", ()
)


class Grow(StrEnum):
    """When a running job takes in nodes that come later."""

    AT_ONCE = "at-once"
    AT_CHECKPOINT = "at-checkpoint"
    NEXT_FAILURE = "next-failure"
    NEVER = "never"


class Membership(StrEnum):
    """How many nodes a round has."""

    ELASTIC = "elastic"  # From MIN to MAX, as many as there are.
    FIXED = "fixed"


# fmt: off
# A table: an option, then what it does.


class Growth(Section, mixin=True):
    """When does a running job take more nodes in?"""

    grow: Grow = ours("--grow", one_of(Grow, "WHEN"), "at-once",
        "when the running job takes in new nodes. at-once: all ranks restart with them; at-checkpoint: after a checkpoint (see "
        "--grow-after); next-failure: at the next restart; never: they only replace other nodes")
    grow_after_s: float = ours("--grow-after", SECONDS, "60",
        "with --grow at-checkpoint: seconds that a new node must have waited, and the ranks must have run, before the job "
        "grows")

    def is_due(self, since: float, now: float) -> bool:
        """With AT_CHECKPOINT: a node that has waited, and ranks that have run, since then have done so for long enough."""
        return now - since >= self.grow_after_s

    def why_later(self) -> str:
        """Why a node that comes while the ranks run is not taken in at once. Empty: it may be."""
        if self.grow == Grow.AT_CHECKPOINT:
            return f"the job takes it in after a checkpoint, {self.grow_after_s:g} s from now at the earliest"
        if self.grow != Grow.AT_ONCE:
            return f"the job takes in more nodes only when it restarts anyway (--grow {self.grow})"
        return ""


class Placement(Section, mixin=True):
    """Which nodes go together?"""

    segment: int | None = ours("--ft-segment --segment", optional(whole(1)), None,
        "nodes per segment: a segment has consecutive ranks and lies within one domain. Nodes that do not complete a segment "
        "are spares",
        env="HOLDFAST_SEGMENT", yaml=True)
    """Nodes per segment, all within one domain. None: domains do not matter."""
    node_unit: int = ours("--node-unit", whole(1), "1", "the job runs with a multiple of N nodes; the other nodes are spares")
    replacement_group_size: int = 0  # Nodes in a complete replacement group; 0: as the infrastructure says.


class Restarts(Section, mixin=True):
    """What follows a failure?"""

    restart_period_s: float | None = ours("--restart-period", optional(SOME_SECONDS), None,
        "count --max-restarts within this many seconds (default: over the job's whole life)")
    """None: the job's whole life."""
    backoff_s: float = ours("--backoff", SECONDS, "60",
        "longest pause before a restart if the workers die right after they start; 0: no pause")
    exclude_after: int = ours("--exclude-after", whole(0), "3",
        "exclude a node whose workers failed first N times (within --restart-period), if a spare can replace it; 0: never")
    on_finding: str = ours("--on-finding CLASS=ACTION", TEXT, None,
        "what Holdfast does about a finding of this class: CLASS=ACTION,… with stop, exclude, restart, ask or ignore; none: "
        "findings change no decision")
    """Empty: as advised (`recovery.findings.overrides`)."""
    readmit_after_s: float | None = ours("--readmit-after", optional(SOME_SECONDS), None,
        "seconds until an excluded node may take part again (default: only after `holdfast readmit`)")
    _warm_spares = ours("--warm-spares N|auto|off", TEXT, "auto",
        "spare processes on this node that have already imported the script's modules, so that a restart is faster: a number, "
        "off, or auto (one per worker, if the job may restart and memory allows it)")
    warm_spares: int | None = 0  # None: one for each worker, if there is memory for it.
    warm_mode: str = ours("--warm-mode", choice("spawn", FORK, metavar="MODE"), "spawn",
        "spawn: each spare is a separate process; fork: workers are forked from one process that has imported everything, and "
        "share its memory")


class Meeting(Section, mixin=True):
    """How do the nodes of a job hold together, and who else hears of it?"""

    membership: Membership = ours("--membership", one_of(Membership), "elastic",
        "elastic: the job runs with all available nodes, from MIN to MAX. fixed (as in ft_launcher): it runs with MIN nodes "
        "(with min-healthy: MIN to MAX), the others are spares, and TORCHELASTIC_RESTART_COUNT counts rounds")
    domain: str | None = ours("--domain NAME", TEXT_OR_NONE, None,
        "NVLink or network domain of this node, for --ft-segment (default: its block in Slurm's topology, else the ClusterUUID "
        "and CliqueId from nvidia-smi)")
    lease_s: float = ours("--lease", SOME_SECONDS, "3.0", "seconds of silence after which a node counts as lost")
    agent_ports: tuple[int, int] = ours("--agent-port PORT", PORTS, "0",
        "port at which this agent listens; other agents use it if this one takes over the coordinator. In a range such as "
        "29410-29419, the first free port; 0: any free port")
    """First and last. (0, 0): any."""
    _witness = ours("--witness DIR", TEXT, None,
        "shared directory, or slurm, or kubernetes: decides which half continues when the network splits the nodes in two "
        "halves, or when one of two nodes is lost")
    witness: str | None = None  # A directory, `slurm` or `kubernetes`. None: nobody decides.
    on_split: str = ours("--on-split", choice("stop", CONTINUE), "stop",
        "what nodes do when they are cut off and fewer than half: stop, or continue and risk that the other side continues too")
    in_place_restart: bool = ours("--in-place-restart", SWITCH, None,
        "report each restart to this pod's JobSet (restartStrategy InPlaceRestart), so that it does not start the container "
        "again")
    token_file: str | None = ours("--token-file", PATH, None,
        "file with the secret that the job's nodes share (or put the secret itself in $HOLDFAST_TOKEN)")
    require_token: bool = ours("--require-token", SWITCH, None,
        "refuse to start a job of several nodes without a secret (--token-file, $HOLDFAST_TOKEN)")
    tls_cert: str | None = ours("--tls-cert", PATH, None,
        "this node's certificate, in PEM; it turns on encryption between the agents")
    """None: what the agents say is not encrypted."""
    tls_key: str | None = ours("--tls-key", PATH, None, "the certificate's private key (default: in the same file)")
    tls_ca: str | None = ours("--tls-ca", PATH, None,
        "certificate of the job's own CA; an agent is refused if this CA did not sign its certificate")
    """There if `tls_cert` is."""
    supervisors: tuple[str, ...] = ours("--supervisor HOST:PORT[,…]", SUPERVISORS, None,
        "the supervisor that this node reports to and takes orders from; the job also runs without it. Separate several "
        "addresses with commas: one of them leads")
    supervisor_token_file: str | None = ours("--supervisor-token-file", PATH, None,
        "file with the supervisor's secret (or put the secret itself in $HOLDFAST_SUPERVISOR_TOKEN)")


class Health(Section, mixin=True):
    """Which checks of this node run, and may operators play faults on it?"""

    _check_before = ours("--check-before CHECK,…", TEXTS, None,
        "checks to run before the node joins a round, such as gpu,nic,paths=/data:/scratch; an unfit node stays out. auto: the "
        "checks for the hardware of this node")
    check_before: tuple[str, ...] = ()  # `NAME` or `NAME=ARGUMENT` each, as `health.check` knows them.
    _check_after = ours("--check-after CHECK,…", TEXTS, None,
        "more checks to run after a failure on this node, before it joins the next round")
    check_after: tuple[str, ...] = ()
    _check_during = ours("--check-during CHECK,…", TEXTS, None,
        "checks to run while the ranks run; an unfit node is excluded if the job can continue without it")
    check_during: tuple[str, ...] = ()
    check_every_s: float = ours("--check-every", SOME_SECONDS, "60",
        "seconds between two runs of the --check-during checks, and of a check that found this node unfit")
    allow_inject: bool = ours("--allow-inject", SWITCH, None,
        "let operators inject faults on this node, for practice (holdfast inject)")


class Kept(Section, mixin=True):
    """What of a job is kept, and what does the launcher say?"""

    regroup_timeout_s: float = ours("--regroup-timeout", SOME_SECONDS, "10",
        "seconds that a rank which can begin again in place (holdfast.client.run_in_place) may take to let go of its round, "
        "and then to begin the next, before it is killed, and started again like any other")
    stash_limit: str = ours("--stash-limit SIZE", MEMORY, "40%",
        "most memory of this node for the stashed states of its ranks (holdfast.client.stash): a share, or a size such as "
        "64GB; 0: none")
    """A share, or a number of bytes; 0: none."""
    stash_replicas: int = ours("--stash-replicas", whole(0), "0",
        "also keep a node's stashed states (holdfast.client.stash) in the memory of N other nodes; set it on all nodes")
    stash_dir: str | None = ours("--stash-dir DIR", Kind("text", text_or_none, "DIR", path=True), None,
        "also write stashed states to this folder of a local disk, where the next job of this id (--rdzv-id) finds them")
    stash_dir_every: int = ours("--stash-dir-every", whole(1), "100", "steps between two states that --stash-dir gets")
    _stash_replicate = ours("--stash-replicate", SWITCH, None, "the same as --stash-replicas 1")
    _numa_fallback = ours("--numa-fallback", SWITCH, None,
        "if --numa-binding is not possible, warn and run unbound (default: an error)")
    _state_dir = ours("--state-dir DIR", TEXT, None,
        "folder for the jobs' events, reports and logs (default: $XDG_STATE_HOME/holdfast)")
    state_dir: str
    node_name: str | None = ours("--node-name NAME", TEXT_OR_NONE, None,
        "this node's name in logs and reports (default: its host name)")
    brief: bool = ours("--brief", SWITCH, None, "say of a failed job only who failed, the cause and the decision")
    failure_box: bool = ours("--failure-box", SWITCH, None,
        "print torchrun's failure box below the report of a failed job, for programs that read it")
    _verbose = ours("--verbose", SWITCH, None, "log each step, not only what needs attention")
    _quiet = ours("--quiet", SWITCH, None, "log errors only")
    _print_config = ours("--print-config", SWITCH, None,
        "print every value and its source (--print-config=json: as JSON), and exit", env="")
    _dry_run = ours("--dry-run", SWITCH, None, "print nodes, ranks, environment, commands and log files, and exit", env="")

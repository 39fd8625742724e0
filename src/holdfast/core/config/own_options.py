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
        "when later nodes are taken in: at-once (all ranks restart with them), at-checkpoint (when one has been written; "
        "see --grow-after), next-failure (when they restart anyway), never (they only replace others)")
    grow_after_s: float = ours("--grow-after", SECONDS, "60",
        "with --grow at-checkpoint: seconds that a later node has to have waited, and the ranks to have run, before")

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
        "that many nodes with consecutive ranks are within one domain; nodes that complete no segment are spares",
        env="HOLDFAST_SEGMENT", yaml=True)
    """Nodes per segment, all within one domain. None: domains do not matter."""
    node_unit: int = ours("--node-unit", whole(1), "1", "the job runs with a multiple of N nodes; further ones are spares")
    replacement_group_size: int = 0  # Nodes in a complete replacement group; 0: as the infrastructure says.


class Restarts(Section, mixin=True):
    """What follows a failure?"""

    restart_period_s: float | None = ours("--restart-period", optional(SOME_SECONDS), None,
        "--max-restarts counts within this many seconds (otherwise over the job's whole life)")
    """None: the job's whole life."""
    backoff_s: float = ours("--backoff", SECONDS, "60",
        "longest pause before a restart when the workers die as soon as they start; 0: never pause")
    exclude_after: int = ours("--exclude-after", whole(0), "3",
        "a node whose workers were the first to fail N times (within --restart-period) is left out if a spare can take its "
        "place; 0: never")
    on_finding: str = ours("--on-finding CLASS=ACTION", TEXT, None,
        "what a finding about a failure does, for some classes of it: CLASS=ACTION,… with stop, exclude, restart or "
        "ignore; none: findings change nothing")
    """Empty: as advised (`recovery.findings.overrides`)."""
    readmit_after_s: float | None = ours("--readmit-after", optional(SOME_SECONDS), None,
        "seconds after which an excluded node may take part again (otherwise when `holdfast readmit` says so)")
    _warm_spares = ours("--warm-spares N|auto|off", TEXT, "auto",
        "spare workers of this node that wait with the script's modules imported, so that a restart skips that: a number, "
        "off, or auto (one for each worker, where the job may restart and memory allows it)")
    warm_spares: int | None = 0  # None: one for each worker, if there is memory for it.
    warm_mode: str = ours("--warm-mode", choice("spawn", FORK, metavar="MODE"), "spawn",
        "spawn: each spare is a process of its own; fork: workers are forked from one that has imported everything, and "
        "share its memory")


class Meeting(Section, mixin=True):
    """How do the nodes of a job hold together, and who else hears of it?"""

    membership: Membership = ours("--membership", one_of(Membership), "elastic",
        "elastic: the job runs with as many nodes as there are, from MIN to MAX; fixed: always with MIN (min-healthy: MIN "
        "to MAX), the others are spares; TORCHELASTIC_RESTART_COUNT counts rounds (as ft_launcher has it)")
    domain: str | None = ours("--domain NAME", TEXT_OR_NONE, None,
        "name of the NVLink or network domain that this node is in, for --ft-segment (otherwise its block, if Slurm tells "
        "one; otherwise the ClusterUUID and CliqueId that nvidia-smi tells)")
    lease_s: float = ours("--lease", SOME_SECONDS, "3.0", "seconds without a word after which another node counts as lost")
    agent_ports: tuple[int, int] = ours("--agent-port PORT", PORTS, "0",
        "port at which this agent listens, so that others find it if it takes over the coordinator; of a range, as in "
        "29410-29419, the first that is free (0: any)")
    """First and last. (0, 0): any."""
    _witness = ours("--witness DIR", TEXT, None,
        "directory that the nodes share, or slurm, or kubernetes: decides which half goes on where they are cut in two, or "
        "of two one is lost")
    witness: str | None = None  # A directory, `slurm` or `kubernetes`. None: nobody decides.
    on_split: str = ours("--on-split", choice("stop", CONTINUE), "stop",
        "what nodes do that are cut off with fewer than half: stop, or continue and risk that the others do too")
    in_place_restart: bool = ours("--in-place-restart", SWITCH, None,
        "tell this pod's JobSet, whose restartStrategy is InPlaceRestart, that the pod takes part in each restart, so that "
        "no container is started again for that")
    token_file: str | None = ours("--token-file", PATH, None,
        "file with the secret that the job's nodes share ($HOLDFAST_TOKEN may hold the secret itself)")
    tls_cert: str | None = ours("--tls-cert", PATH, None,
        "this node's certificate, in PEM: what the agents say to each other is encrypted")
    """None: what the agents say is not encrypted."""
    tls_key: str | None = ours("--tls-key", PATH, None, "its private key (otherwise in the same file)")
    tls_ca: str | None = ours("--tls-ca", PATH, None,
        "certificate of the job's own CA: agents whose certificates it did not sign are turned away")
    """There if `tls_cert` is."""
    supervisors: tuple[str, ...] = ours("--supervisor HOST:PORT[,…]", SUPERVISORS, None,
        "the supervisor that is told how this node gets on, and whose orders it takes; the job goes on without it all the "
        "same. Several, with commas, where one of them leads")
    supervisor_token_file: str | None = ours("--supervisor-token-file", PATH, None,
        "file with the secret that the supervisor knows ($HOLDFAST_SUPERVISOR_TOKEN may hold the secret itself)")


class Health(Section, mixin=True):
    """Which checks of this node run, and may operators play faults on it?"""

    _check_before = ours("--check-before CHECK,…", TEXTS, None,
        "checks of the node before it joins a round, such as gpu,nic,paths=/data:/scratch; an unfit node stays out. auto: "
        "those for which this node has the hardware")
    check_before: tuple[str, ...] = ()  # `NAME` or `NAME=ARGUMENT` each, as `health.check` knows them.
    _check_after = ours("--check-after CHECK,…", TEXTS, None,
        "further checks before it joins the next round after a failure here")
    check_after: tuple[str, ...] = ()
    _check_during = ours("--check-during CHECK,…", TEXTS, None,
        "checks while its ranks run; an unfit node is left out, if the job can go on without it")
    check_during: tuple[str, ...] = ()
    check_every_s: float = ours("--check-every", SOME_SECONDS, "60",
        "seconds between two looks of --check-during, and of whatever has found this node unfit")
    allow_inject: bool = ours("--allow-inject", SWITCH, None,
        "let operators play faults on this node, for practice (holdfast inject)")


class Kept(Section, mixin=True):
    """What of a job is kept, and what does the launcher say?"""

    stash_limit: str = ours("--stash-limit SIZE", MEMORY, "40%",
        "memory of this node that the states of its ranks may take (holdfast.client.stash): a share, or as in 64GB; 0: "
        "none")
    """A share, or a number of bytes; 0: none."""
    stash_replicate: bool = ours("--stash-replicate", SWITCH, None,
        "keep what the ranks of a node save (holdfast.client.stash) in another node's memory as well; on every node of the "
        "job")
    _numa_fallback = ours("--numa-fallback", SWITCH, None,
        "where --numa-binding cannot be had, say so and run unbound (otherwise it is an error)")
    _state_dir = ours("--state-dir DIR", TEXT, None,
        "where jobs keep their events, reports and logs (otherwise $XDG_STATE_HOME/holdfast)")
    state_dir: str
    node_name: str | None = ours("--node-name NAME", TEXT_OR_NONE, None,
        "this node's name in logs and reports (otherwise its host name)")
    _verbose = ours("--verbose", SWITCH, None, "log each step, not only what needs attention")
    _quiet = ours("--quiet", SWITCH, None, "log errors only")
    _print_config = ours("--print-config", SWITCH, None,
        "print every value and where it came from (--print-config=json: as JSON), and stop", env="")
    _dry_run = ours("--dry-run", SWITCH, None, "print nodes, ranks, environment, commands and log files, and stop", env="")

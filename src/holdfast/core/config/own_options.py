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
    one_of,
    optional,
    ours,
    whole,
)

SUPERVISOR_PORT = 29800
"""Where a supervisor listens when no port is given: beside torchrun's 29500, 29400 and whatever counts up from there."""
SLURM, KUBERNETES = "slurm", "kubernetes"
SCHEDULERS = (SLURM, KUBERNETES)
"""Witnesses that are no directories."""

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

    ELASTIC = "elastic"
    """From MIN to MAX, as many as there are."""
    FIXED = "fixed"


class WarmMode(StrEnum):
    """How a warm spare comes to be."""

    SPAWN = "spawn"
    FORK = "fork"


class OnSplit(StrEnum):
    """What nodes do that are cut off with fewer than half."""

    STOP = "stop"
    CONTINUE = "continue"


class Growth(Section, mixin=True):
    """When does a running job take more nodes in?"""

    grow: Grow = ours(
        one_of(Grow, "WHEN"),
        "--grow",
        "when later nodes are taken in: at-once (all ranks restart with them), at-checkpoint (when one has been written; see "
        "--grow-after), next-failure (when they restart anyway), never (they only replace others)",
        default="at-once",
    )
    grow_after_s: float = ours(
        SECONDS,
        "--grow-after",
        "with --grow at-checkpoint: seconds that a later node has to have waited, and the ranks to have run, before",
        default="60",
    )

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

    segment: int | None = ours(
        optional(whole(1)),
        "--ft-segment",
        "that many nodes with consecutive ranks are within one domain; nodes that complete no segment are spares",
        env="HOLDFAST_SEGMENT",
        names=("--ft-segment", "--ft_segment", "--segment"),
        keys=("segment",),
    )
    """Nodes per segment, all within one domain. None: domains do not matter."""
    node_unit: int = ours(
        whole(1), "--node-unit", "the job runs with a multiple of N nodes; further ones are spares", default="1"
    )
    replacement_group_size: int = 0
    """Nodes in a complete replacement group; 0: as the infrastructure says."""


class Restarts(Section, mixin=True):
    """What follows a failure?"""

    restart_period_s: float | None = ours(
        optional(SOME_SECONDS),
        "--restart-period",
        "--max-restarts counts within this many seconds (otherwise over the job's whole life)",
    )
    """None: the job's whole life."""
    backoff_s: float = ours(
        SECONDS,
        "--backoff",
        "longest pause before a restart when the workers die as soon as they start; 0: never pause",
        default="60",
    )
    exclude_after: int = ours(
        whole(0),
        "--exclude-after",
        "a node whose workers were the first to fail N times (within --restart-period) is left out if a spare can take its "
        "place; 0: never",
        default="3",
    )
    on_finding: str = ours(
        TEXT,
        "--on-finding",
        "what a finding about a failure does, for some classes of it: CLASS=ACTION,… with stop, exclude, restart or ignore; "
        "none: findings change nothing",
        metavar="CLASS=ACTION",
    )
    """Empty: as advised (`recovery.findings.overrides`)."""
    readmit_after_s: float | None = ours(
        optional(SOME_SECONDS),
        "--readmit-after",
        "seconds after which an excluded node may take part again (otherwise when `holdfast readmit` says so)",
    )
    _warm_spares = ours(
        TEXT,
        "--warm-spares",
        "spare workers of this node that wait with the script's modules imported, so that a restart skips that: a number, "
        "off, or auto (one for each worker, where the job may restart and memory allows it)",
        default="auto",
        metavar="N|auto|off",
    )
    warm_spares: int | None = 0
    """None: one for each worker, if there is memory for it."""
    warm_mode: WarmMode = ours(
        one_of(WarmMode, "MODE"),
        "--warm-mode",
        "spawn: each spare is a process of its own; fork: workers are forked from one that has imported everything, and "
        "share its memory",
        default="spawn",
    )


class Meeting(Section, mixin=True):
    """How do the nodes of a job hold together, and who else hears of it?"""

    membership: Membership = ours(
        one_of(Membership),
        "--membership",
        "elastic: the job runs with as many nodes as there are, from MIN to MAX; fixed: always with MIN (min-healthy: MIN to "
        "MAX), the others are spares; TORCHELASTIC_RESTART_COUNT counts rounds (as ft_launcher has it)",
        default="elastic",
    )
    domain: str | None = ours(
        TEXT_OR_NONE,
        "--domain",
        "name of the NVLink or network domain that this node is in, for --ft-segment (otherwise its block, if Slurm tells "
        "one; otherwise the ClusterUUID and CliqueId that nvidia-smi tells)",
        metavar="NAME",
    )
    lease_s: float = ours(
        SOME_SECONDS, "--lease", "seconds without a word after which another node counts as lost", default="3.0"
    )
    agent_ports: tuple[int, int] = ours(
        PORTS,
        "--agent-port",
        "port at which this agent listens, so that others find it if it takes over the coordinator; of a range, as in "
        "29410-29419, the first that is free (0: any)",
        default="0",
        metavar="PORT",
    )
    """First and last. (0, 0): any."""
    _witness = ours(
        TEXT,
        "--witness",
        "directory that the nodes share, or slurm, or kubernetes: decides which half goes on where they are cut in two, or "
        "of two one is lost",
        metavar="DIR",
    )
    witness: str | None = None
    """An absolute directory; or `slurm`, or `kubernetes`. None: nobody decides between two halves."""
    on_split: OnSplit = ours(
        one_of(OnSplit),
        "--on-split",
        "what nodes do that are cut off with fewer than half: stop, or continue and risk that the others do too",
        default="stop",
    )
    in_place_restart: bool = ours(
        SWITCH,
        "--in-place-restart",
        "tell this pod's JobSet, whose restartStrategy is InPlaceRestart, that the pod takes part in each restart, so that "
        "no container is started again for that",
    )
    token_file: str | None = ours(
        PATH, "--token-file", "file with the secret that the job's nodes share ($HOLDFAST_TOKEN may hold the secret itself)"
    )
    tls_cert: str | None = ours(
        PATH, "--tls-cert", "this node's certificate, in PEM: what the agents say to each other is encrypted"
    )
    """None: what the agents say is not encrypted."""
    tls_key: str | None = ours(PATH, "--tls-key", "its private key (otherwise in the same file)")
    tls_ca: str | None = ours(
        PATH, "--tls-ca", "certificate of the job's own CA: agents whose certificates it did not sign are turned away"
    )
    """There if `tls_cert` is."""
    supervisors: tuple[str, ...] = ours(
        SUPERVISORS,
        "--supervisor",
        "the supervisor that is told how this node gets on, and whose orders it takes; the job goes on without it all the "
        "same. Several, with commas, where one of them leads",
        metavar="HOST:PORT[,…]",
    )
    supervisor_token_file: str | None = ours(
        PATH,
        "--supervisor-token-file",
        "file with the secret that the supervisor knows ($HOLDFAST_SUPERVISOR_TOKEN may hold the secret itself)",
    )


class Health(Section, mixin=True):
    """Which checks of this node run, and may operators play faults on it?"""

    _check_before = ours(
        TEXTS,
        "--check-before",
        "checks of the node before it joins a round, such as gpu,nic,paths=/data:/scratch; an unfit node stays out. auto: "
        "those for which this node has the hardware",
        metavar="CHECK,…",
    )
    check_before: tuple[str, ...] = ()
    """`NAME` or `NAME=ARGUMENT` each, as `health.check` knows them."""
    _check_after = ours(
        TEXTS, "--check-after", "further checks before it joins the next round after a failure here", metavar="CHECK,…"
    )
    check_after: tuple[str, ...] = ()
    _check_during = ours(
        TEXTS,
        "--check-during",
        "checks while its ranks run; an unfit node is left out, if the job can go on without it",
        metavar="CHECK,…",
    )
    check_during: tuple[str, ...] = ()
    check_every_s: float = ours(
        SOME_SECONDS,
        "--check-every",
        "seconds between two looks of --check-during, and of whatever has found this node unfit",
        default="60",
    )
    allow_inject: bool = ours(
        SWITCH, "--allow-inject", "let operators play faults on this node, for practice (holdfast inject)"
    )


class Kept(Section, mixin=True):
    """What of a job is kept, and what does the launcher say?"""

    stash_limit: str = ours(
        MEMORY,
        "--stash-limit",
        "memory of this node that the states of its ranks may take (holdfast.client.stash): a share, or as in 64GB; 0: none",
        default="40%",
        metavar="SIZE",
    )
    """A share, or a number of bytes; 0: none."""
    stash_replicate: bool = ours(
        SWITCH,
        "--stash-replicate",
        "keep what the ranks of a node save (holdfast.client.stash) in another node's memory as well; on every node of the job",
    )
    _numa_fallback = ours(
        SWITCH, "--numa-fallback", "where --numa-binding cannot be had, say so and run unbound (otherwise it is an error)"
    )
    _state_dir = ours(
        TEXT,
        "--state-dir",
        "where jobs keep their events, reports and logs (otherwise $XDG_STATE_HOME/holdfast)",
        metavar="DIR",
    )
    state_dir: str
    node_name: str | None = ours(
        TEXT_OR_NONE, "--node-name", "this node's name in logs and reports (otherwise its host name)", metavar="NAME"
    )
    _verbose = ours(SWITCH, "--verbose", "log each step, not only what needs attention")
    _quiet = ours(SWITCH, "--quiet", "log errors only")
    _print_config = ours(
        SWITCH, "--print-config", "print every value and where it came from (--print-config=json: as JSON), and stop", env=False
    )
    _dry_run = ours(SWITCH, "--dry-run", "print nodes, ranks, environment, commands and log files, and stop", env=False)

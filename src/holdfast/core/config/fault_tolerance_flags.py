"""How is each field of `core.config.fault_tolerance` spelled, what does it mean, and what do we do with it? One row each.

The command line, the YAML file, --print-config, --help and docs/reference/ft_launcher.md are made from these rows. A row's
default is the field's. Spellings are ft_launcher's of all its versions: `--ft-a-b`, `--ft-a_b`, `--ft_a_b`, and the oldest's,
`--ft-param-a-b`. Only a line that has one of them, or a variable of theirs, loads this module (`fault_tolerance.named`).
"""

from __future__ import annotations

from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.config.flags import FLAGS, Flag
from holdfast.core.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WATCHING, POLICY, PLACEMENT, LOGS, HEALTH, ATTRIBUTION = (
    "watching the ranks",
    "after a failure",
    "placement and GPU memory",
    "logs",
    "health checks",
    "attribution",
)
WORKS, ACCEPTED = "works", "accepted"
"""Acted on · taken without effect, since nothing is left to do."""


FT_LAUNCHER = {
    "rdzv_backend": "c10d",
    "monitor_interval": "0.3",
    "membership": "fixed",
    "workers_stop_timeout": "15",
    "term_timeout": "1800",
}
"""Defaults that ft_launcher has and `holdfast run` has not."""


class FtFlag(Flag):
    """One field, as a flag and as a YAML key."""

    field: str = ""
    """Of `FaultTolerance`; empty: it has a place of its own in the configuration."""
    keys: tuple[str, ...] = ()
    """Under `fault_tolerance:` in YAML, the field's name first; empty: it cannot stand there."""
    state: str = WORKS
    said: str = ""
    """accepted: why nothing is left to do."""


def _row(
    field: str, kind: str, help: str, *, flag: str = "", also: tuple[str, ...] = (), pet: bool = False, **rest: Any
) -> FtFlag:
    """`flag`: the flag's name without `--ft-`, where it is not the field's. `also`: older names of the field."""
    words = (flag or field, *also)
    names = [spelling for word in words for spelling in _spellings(word)]
    names += [
        name for word in words for name in (f"--ft-param-{word.replace('_', '-')}", f"--ft-param-{word}", f"--ft_param_{word}")
    ]
    made = tuple(dict.fromkeys((*names, *rest.pop("old", ()))))
    env = f"PET_FT_{words[0].upper()}" if pet else ""
    keys = rest.pop("keys", (field, *also))
    metavar = rest.pop("metavar", METAVARS[kind])
    return FtFlag(names=made, kind=kind, help=help, env=env, torchrun=False, field=field, keys=keys, metavar=metavar, **rest)


def _spellings(word: str) -> tuple[str, ...]:
    return f"--ft-{word.replace('_', '-')}", f"--ft-{word}", f"--ft_{word}"


METAVARS = {
    "limit": "S|none|auto",
    "limits": "NAME:S,…",
    "seconds": "S",
    "number": "X",
    "whole": "N",
    "yes": "true|false",
    "signal": "SIGNAL",
    "level": "LEVEL",
    "word": "WORD",
    "text": "TEXT",
    "path": "FILE",
    "paths": "PATH,…",
}
NO_MODEL = "the service that is started here works by rules, and asks no language model"

ROWS: tuple[FtFlag, ...] = (
    # --- watching ---------------------------------------------------------------------------------------------------------
    _row(
        "initial_rank_heartbeat_timeout",
        "limit",
        "longest time from the start of a rank's process to its first heartbeat; none: no limit; auto: a sensible one",
        group=WATCHING,
    ),
    _row(
        "rank_heartbeat_timeout",
        "limit",
        "longest time between two heartbeats of a rank; auto: learned from those that were seen",
        group=WATCHING,
    ),
    _row(
        "rank_section_timeouts",
        "limits",
        "longest times in sections, by name, such as step:60,checkpoint:600; none as a time: no limit until one is calculated",
        group=WATCHING,
    ),
    _row("rank_out_of_section_timeout", "limit", "longest time in no section", group=WATCHING),
    _row("safety_factor", "number", "a calculated limit is this many times the longest interval seen", group=WATCHING),
    _row(
        "num_warmup_iterations",
        "whole",
        "steps after each start that are judged by the section `warmup`, where that has a limit",
        group=WATCHING,
    ),
    _row("rank_termination_signal", "signal", "sent, after SIGCONT, to a rank that hangs: a name or number", group=WATCHING),
    _row(
        "workload_check_interval",
        "seconds",
        "how often ft_launcher's monitors look",
        group=WATCHING,
        state=ACCEPTED,
        said="a limit is acted on when it has run out; nothing is polled",
    ),
    _row(
        "skip_section_response",
        "yes",
        "whether ft_launcher's monitors leave messages without a reply",
        group=WATCHING,
        state=ACCEPTED,
        said="a heartbeat is a store to shared memory: there is no message, and misuse is an error in the rank itself",
    ),
    _row(
        "install_exception_hook",
        "yes",
        "end a rank at once when an exception reaches its top",
        group=WATCHING,
        state=ACCEPTED,
        said="the agent hears of an exception as it reaches a rank's top, and ends a rank that lingers",
    ),
    # --- after a failure --------------------------------------------------------------------------------------------------
    _row(
        "restart_policy",
        "word",
        "any-failed: one failed rank restarts all; min-healthy: only too few healthy nodes do",
        choices=("any-failed", "min-healthy"),
        old=("--restart-policy", "--restart_policy"),
        group=POLICY,
    ),
    _row(
        "max_no_progress_cycles",
        "whole",
        "the job ends after so many restarts in a row without progress; 0: never. Not given: 3 where a checkpoint iteration "
        "file is named, else never",
        also=("max_no_progress_restarts",),
        group=POLICY,
    ),
    _row("min_progress_iterations", "whole", "so many iterations between two restarts are progress", group=POLICY),
    _row(
        "checkpoint_iteration_file",
        "path",
        "file with one number, the last checkpoint's iteration, from which progress is read",
        group=POLICY,
    ),
    _row(
        "progress_update_interval",
        "seconds",
        "how often ft_launcher's ranks report their iteration",
        group=POLICY,
        state=ACCEPTED,
        said="a rank's step is in its page as soon as it is said",
    ),
    _row(
        "no_restart_exit_code", "whole", "exit code of every agent when we decide that a restart would not help", group=POLICY
    ),
    _row(
        "restart_check_interval",
        "seconds",
        "how often ft_launcher logs the state of layered restarts",
        group=POLICY,
        state=ACCEPTED,
        said="what happens is an event when it happens: `holdfast events`",
    ),
    _row(
        "check_remaining_processes",
        "yes",
        "log processes that workers left behind",
        group=POLICY,
        state=ACCEPTED,
        said="whatever a worker leaves behind is ended, always",
    ),
    FtFlag(
        names=("--workers-stop-timeout", "--workers_stop_timeout"),
        kind="seconds",
        help="seconds from SIGTERM to SIGKILL when workers are stopped for a restart; the same as --shutdown-timeout",
        default=None,
        env="PET_WORKERS_STOP_TIMEOUT",
        metavar="S",
        torchrun=False,
        group=POLICY,
    ),
    FtFlag(
        names=("--term-timeout", "--term_timeout"),
        kind="seconds",
        help="the same when the agent itself was told to end by a signal; otherwise as --shutdown-timeout",
        env="PET_TERM_TIMEOUT",
        metavar="S",
        torchrun=False,
        group=POLICY,
    ),
    # --- placement --------------------------------------------------------------------------------------------------------
    _row("numa_bind_strict", "yes", "memory of a bound rank only from its NUMA node, rather than preferably", group=PLACEMENT),
    _row(
        "gpu_memory_reclaim_timeout",
        "seconds",
        "longest time that a restart waits for the GPUs' memory to be free again; 0: it does not wait",
        group=PLACEMENT,
    ),
    _row(
        "gpu_memory_tolerance_mb",
        "number",
        "MB in use up to which a GPU's memory counts as free",
        also=("gpu_memory_reclaim_tolerance_mb",),
        group=PLACEMENT,
    ),
    _row(
        "gpu_memory_poll_interval",
        "seconds",
        "longest pause between two looks at it; the first pauses are shorter",
        also=("gpu_memory_reclaim_poll_interval",),
        group=PLACEMENT,
    ),
    _row(
        "use_infra_group_rank",
        "yes",
        "ranks follow what the infrastructure says (SLURM_PROCID and the like); false: nodes keep the ranks they had",
        group=PLACEMENT,
    ),
    _row(
        "rdzv_impl",
        "word",
        "which of ft_launcher's two rendezvous",
        choices=("barrier", "legacy"),
        group=PLACEMENT,
        state=ACCEPTED,
        said="there is one, and it does what both promise",
    ),
    # --- logs -------------------------------------------------------------------------------------------------------------
    _row(
        "log_level",
        "level",
        "how much we say: debug, info, warning, error, critical, or 10 to 50. Not given: as --verbose, --quiet or LOGLEVEL say",
        group=LOGS,
    ),
    _row(
        "per_cycle_applog_prefix",
        "path",
        "/abs/job.log: all ranks' output, each line with its rank, in /abs/job_cycle<N>.log",
        pet=True,
        group=LOGS,
    ),
    _row("cycle_info_dir", "path", "folder for one JSON file about each cycle", metavar="DIR", group=LOGS),
    _row(
        "nvrx_logfile", "path", "file that our own messages are appended to, instead of stdout and stderr", pet=True, group=LOGS
    ),
    _row(
        "enable_log_server",
        "yes",
        "have the coordinator's node gather the lines of all nodes in its own file of --ft-per-cycle-applog-prefix",
        pet=True,
        group=LOGS,
    ),
    _row(
        "log_server_port", "whole", "port at which that node takes them; 0: any free one", pet=True, group=LOGS, metavar="PORT"
    ),
    _row(
        "log_server_graceful_shutdown_timeout",
        "seconds",
        "how long after the ranks' end lines are sent; what is left goes to a file of the same name on their own node",
        pet=True,
        group=LOGS,
    ),
    *(
        _row(field, kind, help, pet=True, group=LOGS, state=ACCEPTED, said=said)
        for field, kind, help, said in (
            ("log_aggregator_count", "whole", "ft_launcher's helpers of that node", "each node sends to that node itself"),
            (
                "log_leaf_max_queue_chunks",
                "whole",
                "how much each of those holds back",
                "there is no queue: what is not sent yet is in the ranks' own files",
            ),
            ("log_server_log_prefix", "path", "ft_launcher's server's own log", "what there is to say, the agents say"),
        )
    ),
    # --- health checks ----------------------------------------------------------------------------------------------------
    _row(
        "enable_dist_storage_healthcheck",
        "yes",
        "check Lustre and NFS mounts before each round (--check-before mounts)",
        group=HEALTH,
    ),
    _row(
        "storage_healthcheck_path",
        "paths",
        "absolute paths to be read before each round (--check-before paths=…)",
        flag="storage_health_check_path",
        also=("storage_healthcheck_path",),
        keys=("storage_healthcheck_path", "storage_health_check_path"),
        group=HEALTH,
    ),
    _row(
        "node_health_check_endpoint",
        "text",
        "Unix socket of a node health service, /path or unix:///path, asked before each round (--check-before node-service=…)",
        group=HEALTH,
    ),
    _row(
        "node_health_check_interval",
        "seconds",
        "check the GPUs (and NICs) so often while ranks run (--check-during gpu, --check-every)",
        group=HEALTH,
    ),
    _row(
        "enable_nic_monitor",
        "yes",
        "watch the links of the NICs while ranks run (--check-during nic)",
        group=HEALTH,
    ),
    _row(
        "enable_nic_healthcheck",
        "yes",
        "check the NICs' links before each round (--check-before nic); only where it is said",
        group=HEALTH,
    ),
    _row(
        "segment_health_check_dir",
        "path",
        "shared folder in which a file marks a Slurm allocation as unhealthy (--check-before segment=…)",
        metavar="DIR",
        group=HEALTH,
    ),
    _row(
        "pci_topo_file",
        "path",
        "PCI topology, where a VM hides it",
        group=HEALTH,
        state=ACCEPTED,
        said="all of a node's NICs are looked at, not only the one nearest to each GPU",
    ),
    _row("link_down_path_template", "text", "file that counts a NIC's lost links, with {nic} for its name", group=HEALTH),
    _row("link_state_path_template", "text", "file with a NIC's link state, with {nic} for its name", group=HEALTH),
    # --- attribution ------------------------------------------------------------------------------------------------------
    _row("attrsvc_host", "text", "host of the attribution service", group=ATTRIBUTION),
    _row("attrsvc_port", "whole", "its port", group=ATTRIBUTION),
    _row(
        "attribution_endpoint",
        "text",
        "the service's address, http://host:port, or localhost to start one",
        group=ATTRIBUTION,
    ),
    _row(
        "attribution_stop_action",
        "word",
        "what its verdict STOP does: log says it, no-restart has no more restarts come",
        choices=("log", "no-restart"),
        group=ATTRIBUTION,
    ),
    _row("attribution_compute_timeout", "seconds", "how long to ask for one verdict; none: 60 s", group=ATTRIBUTION),
    _row("attribution_startup_timeout", "seconds", "how long a service for localhost may take to start", group=ATTRIBUTION),
    _row(
        "attribution_export_url",
        "text",
        "where each verdict is sent as JSON, by POST",
        group=ATTRIBUTION,
    ),
    *(
        _row(field, kind, help, group=ATTRIBUTION, state=ACCEPTED, said=NO_MODEL)
        for field, kind, help in (
            ("attribution_llm_api_key_file", "path", "key for the language model it asks"),
            ("attribution_llm_base_url", "text", "that model's address"),
            ("attribution_llm_model", "text", "that model's name"),
            ("attribution_log_level", "level", "how much the service says"),
        )
    ),
    _row(
        "attribution_analysis_backend",
        "word",
        "how it is asked",
        choices=("lib", "mcp"),
        group=ATTRIBUTION,
        state=ACCEPTED,
        said=NO_MODEL,
    ),
)

CFG_PATH = FtFlag(
    names=(*_spellings("cfg_path"), "--fault-tol-cfg-path", "--fault_tol_cfg_path"),
    help="YAML file with a mapping `fault_tolerance`, anywhere in it; what the command line says goes before it",
    env="PET_FT_CFG_PATH",
    metavar="FILE",
    group="configuration",
    torchrun=False,
)
IGNORE_MISSING = FtFlag(
    names=(*_spellings("ignore_missing_cfg"), "--ignore-missing-fault-tol-cfg", "--ignore_missing_fault_tol_cfg"),
    kind="yes",
    help="say nothing if that file is not there, or has no such mapping",
    metavar="true|false",
    group="configuration",
    torchrun=False,
)
ALL: tuple[FtFlag, ...] = (CFG_PATH, IGNORE_MISSING, *ROWS)

OURS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("monitor", "monitor", ("monitor",)),
    ("progress_regex", "progress_regex", ("progress_regex",)),
    ("on_straggler", "on_straggler", ("on_straggler",)),
    ("least_limit", "least_limit", ("least_limit",)),
    ("most_limit", "most_limit", ("most_limit",)),
    ("still_limit", "still_limit", ("still_limit",)),
    ("ft_segment", "", ("segment",)),
)
"""Flags of `holdfast run` that belong here too: attribute name, field, YAML keys."""

DESTS: dict[str, str] = {key: row.dest for row in ROWS for key in row.keys} | {
    key: dest for dest, _, keys in OURS for key in keys
}
"""YAML key → attribute name of its setting."""


def default_of(row: FtFlag) -> object:
    """What the field is if nobody says anything."""
    return FaultTolerance.__fields__[row.field] if row.field else None


def launcher_flags() -> tuple[Flag, ...]:
    """The options of `holdfast ft_launcher`: those of `holdfast run` and the rows, with ft_launcher's defaults."""
    return tuple(replace(flag, default=FT_LAUNCHER.get(flag.dest, flag.default)) for flag in (*FLAGS, *ALL))

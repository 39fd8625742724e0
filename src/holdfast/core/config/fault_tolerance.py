"""How is a job watched, judged and placed? `FaultTolerance`: every field that ft_launcher's configuration has, and ours.

Only the values and their defaults stand here, because every start loads them. How each is spelled on the command line and in
YAML, what it means and what we do with it is one row each in `core.config.fault_tolerance_flags`, which only those load who say
one.
"""

from __future__ import annotations

from holdfast.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Final, Literal

    Limit = float | Literal["auto"] | None
    """Seconds; None: no limit; "auto": learned from what the job does."""

AUTO: Final = "auto"

MONITORS = ("auto", "off")
ON_STRAGGLER = ("report", "exclude", "ignore")

STARTS = ("--ft", "--fault", "--restart-pol", "--restart_pol", "--ignore-", "--ignore_", "--term", "--workers-", "--workers_")
"""How words of a command line start that may be one of the table's flags."""

VARIABLES = (
    "PET_FT_CFG_PATH",
    "PET_WORKERS_STOP_TIMEOUT",
    "PET_TERM_TIMEOUT",
    "PET_FT_PER_CYCLE_APPLOG_PREFIX",
    "PET_FT_NVRX_LOGFILE",
    "PET_FT_ENABLE_LOG_SERVER",
    "PET_FT_LOG_SERVER_PORT",
    "PET_FT_LOG_AGGREGATOR_COUNT",
    "PET_FT_LOG_LEAF_MAX_QUEUE_CHUNKS",
    "PET_FT_LOG_SERVER_LOG_PREFIX",
    "PET_FT_LOG_SERVER_GRACEFUL_SHUTDOWN_TIMEOUT",
)
"""Those of the table. ft_launcher has none for its other flags."""


def named(argv: Iterable[str], environ: Mapping[str, str]) -> bool:
    """Whether `argv` or the environment may have one of the table's settings, so that it must be loaded."""
    return any(word.startswith(STARTS) for word in argv) or any(variable in environ for variable in VARIABLES)


class FaultTolerance(Value):
    """Names, units (seconds, where a time is meant) and defaults are ft_launcher's, where it has the field."""

    # Watching: `monitor` owns the limits
    monitor: str = "auto"
    progress_regex: str | None = None
    on_straggler: str = "report"
    least_limit: float = 600.0
    """No limit that is learned is shorter. torch: 600 (what a collective of NCCL may take)."""
    most_limit: float | None = 3600.0
    """A rank whose heartbeats have stopped hangs after so long, however busy it is, if its learned limit allows no more."""
    still_limit: float | None = 3600.0
    """A rank of which nothing is known hangs after so long a time in which its whole node has stood still. NVRx before 0.6:
    3600 (initial_rank_heartbeat_timeout)."""
    initial_rank_heartbeat_timeout: Limit = AUTO
    rank_heartbeat_timeout: Limit = AUTO
    rank_section_timeouts: dict[str, float | None] = {}  # noqa: RUF012
    rank_out_of_section_timeout: Limit = AUTO
    safety_factor: float = 5.0
    num_warmup_iterations: int = 5
    rank_termination_signal: int = 9
    workload_check_interval: float = 5.0
    skip_section_response: bool = True
    install_exception_hook: bool = False

    # What happens after a failure
    restart_policy: str = "any-failed"
    max_no_progress_cycles: int | None = None
    """None: nobody said; then 3 where `checkpoint_iteration_file` names one, and no such stop where not. 0: no such stop."""
    min_progress_iterations: int = 1
    progress_update_interval: float = 30.0
    checkpoint_iteration_file: str | None = None
    """Absolute."""
    no_restart_exit_code: int = 93
    restart_check_interval: float = 60.0
    check_remaining_processes: bool = False

    # Placement and memory
    gpus_per_numa: int | None = None
    numa_bind_strict: bool = True
    gpu_memory_reclaim_timeout: float = 50.0
    gpu_memory_tolerance_mb: float = 512.0
    gpu_memory_poll_interval: float = 2.0
    use_infra_group_rank: bool = True
    rdzv_impl: str = "barrier"

    # Logs
    log_level: str = "INFO"
    per_cycle_applog_prefix: str | None = None
    """Absolute, with the extension: `/abs/job.log`."""
    cycle_info_dir: str | None = None
    """Absolute."""
    nvrx_logfile: str | None = None
    enable_log_server: bool = False
    log_server_port: int = 0
    """0: any free one."""
    log_aggregator_count: int = 0
    log_leaf_max_queue_chunks: int = -1
    log_server_log_prefix: str | None = None
    log_server_graceful_shutdown_timeout: float = 60.0

    # Health checks
    node_health_check_interval: float = 5.0
    node_health_check_endpoint: str | None = None
    enable_nic_monitor: bool = False
    enable_nic_healthcheck: bool = True
    pci_topo_file: str | None = None
    link_down_path_template: str | None = None
    link_state_path_template: str | None = None
    enable_dist_storage_healthcheck: bool = False
    storage_healthcheck_path: tuple[str, ...] = ()
    """Absolute paths."""
    segment_health_check_dir: str | None = None

    # Attribution
    attribution_endpoint: str | None = None
    attribution_stop_action: str = "log"
    attribution_export_url: str | None = None
    attribution_startup_timeout: float = 20.0
    attribution_compute_timeout: float | None = None
    attribution_llm_api_key_file: str | None = None
    attribution_llm_base_url: str | None = None
    attribution_llm_model: str | None = None
    attribution_analysis_backend: str = "lib"
    attribution_log_level: str | None = None
    attrsvc_host: str | None = None
    attrsvc_port: int | None = None

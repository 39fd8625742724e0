"""How is a job watched, judged and placed? `FaultTolerance`: every field that ft_launcher's configuration has, and ours of that
kind. Names, units (seconds, where a time is meant) and defaults are ft_launcher's, where it has the field.

A field here is a flag, and a key under `fault_tolerance:` in YAML. docs/reference/ft_launcher.md is made of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Literal, TypeVar

from holdfast.core.config import grammar
from holdfast.core.config.option import (
    SECONDS,
    SOME_SECONDS,
    TEXT_OR_NONE,
    Kind,
    Section,
    choice,
    nvrx,
    one_of,
    optional,
    ours,
    text_or_none,
    whole,
)
from holdfast.core.errors import UsageError
from holdfast.core.signals import NUMBERS

AUTO: Final = "auto"
Limit = float | Literal["auto"] | None  # Seconds; None: no limit; "auto": learned from what the job does.


class OnStraggler(StrEnum):
    """What is done about a rank that is much slower than the others."""

    REPORT = "report"
    EXCLUDE = "exclude"  # Its node gives way to a spare, if there is one.
    IGNORE = "ignore"


class RestartPolicy(StrEnum):
    """What a failed rank leads to."""

    ANY_FAILED = "any-failed"  # All ranks restart.
    MIN_HEALTHY = "min-healthy"  # They restart only when too few nodes are healthy.


MONITORS = ("auto", "off")
NO_LIMIT = ("", "none", "null", "~")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
NO_FACT = (
    "Holdfast keeps each node's kernel log around a failure with the incident (`holdfast incidents`), and leaves a node out "
    "by it with --check-after kernel-log"
)
NO_MODEL = "the service that Holdfast starts uses rules, and no language model"


# --- what a text means ----------------------------------------------------------------------------------------------------


def limit(text: str, name: str) -> Limit:
    """Seconds, `none` or `auto`."""
    word = text.strip().lower()
    return AUTO if word == AUTO else limit_or_none(word, f"{name} (seconds, none or auto)")


def limit_or_none(text: str, name: str) -> float | None:
    """Seconds, or `none`; `inf` is none, too."""
    word = text.strip().lower()
    return None if word in (*NO_LIMIT, "inf") else grammar.seconds(word, name, zero=False)


def limits(text: str, name: str) -> dict[str, float | None]:
    """`step:60,checkpoint:none`; a section's name may have colons. `none`: no section has a limit."""
    found: dict[str, float | None] = {}
    if text.strip().lower() in NO_LIMIT:
        return found
    for item in filter(None, map(str.strip, text.split(","))):
        section_name, _, seconds = (part.strip() for part in item.rpartition(":"))
        if not section_name:
            raise UsageError(f"{name}: {item!r} is not NAME:SECONDS", hint="give them as step:60,checkpoint:600")
        found[section_name] = limit_or_none(seconds, f"{name} {section_name}")
    return found


def number(text: str, name: str, *, zero: bool = False) -> float:
    """A float above zero, or zero where that is allowed."""
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{name}: {text!r} is not a number") from None
    if not (value >= 0 if zero else value > 0) or value > grammar.LONGEST_S:
        raise UsageError(f"{name}: {text} is {'below' if zero else 'not above'} zero, or too large")
    return value


def signal_number(text: str, name: str) -> int:
    """`9`, `SIGKILL`, `sigkill` or `kill`; ft_launcher's own YAML may say `Signals.SIGKILL`."""
    word = text.strip().upper().removeprefix("SIGNALS.")
    if word.isdecimal() and int(word) in NUMBERS.values():
        return int(word)
    word = f"SIG{word.removeprefix('SIG')}"
    if word not in NUMBERS:
        raise UsageError(f"{name}: there is no signal {text}", hint=grammar.did_you_mean(word, NUMBERS))
    return NUMBERS[word]


def level(text: str, name: str) -> str:
    """A level's name, from its name or from a number between 10 and 50."""
    word = text.strip().upper()
    word = {"DBG": "DEBUG", "WARN": "WARNING"}.get(word, word)
    if word.isdecimal():
        return LEVELS[grammar.whole(word, name, at_least=10, at_most=50) // 10 - 1]
    if word not in LEVELS:
        raise UsageError(f"{name}: there is no level {text!r}", hint=grammar.did_you_mean(word, LEVELS))
    return word


def paths(text: str, name: str) -> tuple[str, ...]:
    """Absolute paths, separated by commas."""
    found = tuple(filter(None, map(str.strip, text.split(","))))
    for path in found:
        if not path.startswith("/"):
            raise UsageError(f"{name}: {path} is not absolute", hint="every node reads it: start it with /")
    return found


def shared_folder(text: str, name: str) -> str | None:
    """An absolute path, or nothing."""
    path = text_or_none(text, name)
    if path and not path.startswith("/"):
        raise UsageError(f"{name}: {path} is not absolute", hint="every node reads it: start it with /")
    return path


def monitor(text: str, name: str) -> str:
    """auto or off."""
    if text not in MONITORS:
        seconds = text.replace(".", "").isdigit()
        hint = "seconds are for --monitor-interval" if seconds else grammar.did_you_mean(text, MONITORS)
        raise UsageError(f"{name}: there is no {text!r}", hint=hint)
    return text


def regex(text: str, name: str) -> str | None:
    """A regular expression, as it stands."""
    try:
        re.compile(text)
    except re.error as error:
        hint = r"quote it for the shell; \ before what stands for itself, as in \("
        raise UsageError(f"{name}: {text!r} is not a regular expression: {error}", hint=hint) from None
    return text or None


LIMIT: Kind[Limit] = Kind("limit", limit, "S|none|auto")
LIMITS: Kind[dict[str, float | None]] = Kind("limits", limits, "NAME:S,…")
LIMIT_OR_NONE: Kind[float | None] = Kind("text", limit_or_none, "S|none")
DURATION: Kind[float] = Kind("seconds", grammar.seconds, "S")
NUMBER: Kind[float] = Kind("number", number, "X")
AMOUNT: Kind[float] = Kind("amount", lambda text, name: number(text, name, zero=True), "X")
COUNT = whole()
EXIT_CODE: Kind[int] = Kind("whole", lambda text, name: grammar.whole(text, name, at_least=0, at_most=255), "N")
YES: Kind[bool] = Kind("yes", grammar.truth, "true|false")
SIGNAL: Kind[int] = Kind("signal", signal_number, "SIGNAL")
LEVEL: Kind[str] = Kind("level", level, "LEVEL")
FILE: Kind[str | None] = Kind("path", text_or_none, "FILE", path=True)
FOLDER: Kind[str | None] = Kind("folder", shared_folder, "DIR")
PATHS: Kind[tuple[str, ...]] = Kind("paths", paths, "PATH,…")
MONITOR: Kind[str] = Kind("text", monitor, "WORD", choices=MONITORS)
REGEX: Kind[str | None] = Kind("text", regex, "REGEX")
T = TypeVar("T")


def nvrx_number(kind: Kind[T], default: T, help: str, **more: Any) -> T:
    """A field for which ft_launcher takes `none`, `null` or an empty text too. Where it is no limit, that is the default."""

    def read(text: str, name: str) -> T:
        return default if text.strip().lower() in NO_LIMIT else kind.read(text, name)

    return nvrx(Kind(kind.name, read, kind.metavar), default, help, **more)


# fmt: off
# A table: an option, then what it does.


class ConfigurationFile(Section, mixin=True):
    """Where is the YAML file?"""

    _cfg_path = ours("--ft-cfg-path --fault-tol-cfg-path", FILE, None,
        "YAML file with a mapping `fault_tolerance` anywhere in it; the command line takes precedence over it",
        env="PET_FT_CFG_PATH", group="configuration")
    _ignore_missing = ours("--ft-ignore-missing-cfg --ignore-missing-fault-tol-cfg", YES, None,
        "ignore it if that file is missing or has no such mapping", env="", group="configuration")


class Watching(Section, mixin=True, heading="watching the ranks"):
    """Does every rank make progress?"""

    monitor: str = ours("--monitor", MONITOR, "auto",
        "auto: detect a rank that makes no progress, and restart the job; off: detect only deaths", yaml=True)
    progress_regex: str | None = ours("--progress-regex", REGEX, None,
        "a line of a rank's output that matches counts as progress; the group `step`, if there is one, is the step "
        "number", yaml=True)
    on_straggler: OnStraggler = ours("--on-straggler", one_of(OnStraggler), "report",
        "what to do about a rank that is much slower than the others: report, exclude (its node, if a spare can replace it), "
        "or ignore", yaml=True)
    least_limit: float = ours("--least-limit", SOME_SECONDS, "600",
        "shortest limit, in seconds, that Holdfast learns from the job's own behaviour", yaml=True)
    """No limit that is learned is shorter. torch: 600 (what a collective of NCCL may take)."""
    most_limit: float | None = ours("--most-limit", LIMIT_OR_NONE, "3600",
        "a rank whose heartbeats or sections have stopped counts as hung after this many seconds, even if it is busy (or after "
        "twice its learned limit, if that is longer); none: no such limit", yaml=True)
    still_limit: float | None = ours("--still-limit", LIMIT_OR_NONE, "3600",
        "a rank that never sent a sign of life counts as hung after the CPUs and GPUs of its node were idle for this many "
        "seconds; none: no such limit", yaml=True)
    """NVRx before 0.6: 3600 (initial_rank_heartbeat_timeout)."""
    start_limit: Limit = ours("--start-limit", LIMIT, AUTO,
        "longest time from the start of a rank's process to its first heartbeat, even if it never sends one; none: no limit; "
        "auto: learned from the job's starts, unless --ft-initial-rank-heartbeat-timeout is given", yaml=True)
    initial_rank_heartbeat_timeout: Limit = nvrx(LIMIT, AUTO,
        "longest time from a rank's init_workload_monitoring to its first heartbeat; none: no limit; auto: Holdfast "
        "chooses one")
    rank_heartbeat_timeout: Limit = nvrx(LIMIT, AUTO,
        "longest time between two heartbeats of a rank; auto: learned from the job's heartbeats")
    rank_section_timeouts: dict[str, float | None] = nvrx(LIMITS, {},
        "longest time in each section, such as step:60,checkpoint:600; none as a time: no limit until one is calculated")
    rank_out_of_section_timeout: Limit = nvrx(LIMIT, AUTO, "longest time outside all sections")
    safety_factor: float = nvrx_number(NUMBER, 5.0, "a calculated limit is this many times the longest interval observed")
    num_warmup_iterations: int = nvrx(COUNT, 5,
        "steps after each start that the limit of section `warmup` applies to, if that section has one")
    rank_termination_signal: int = nvrx(SIGNAL, 9, "signal, by name or number, that ends a hung rank; SIGCONT is sent first")
    workload_check_interval: float = nvrx_number(DURATION, 5.0,
        "how often ft_launcher's monitors look", said="Holdfast acts when a limit expires; it does not poll")
    skip_section_response: bool = nvrx(YES, True,
        "whether ft_launcher's monitors skip the reply to a message",
        said="a heartbeat is a write to shared memory, not a message; a wrong call raises an error in the rank itself")
    install_exception_hook: bool = nvrx(YES, False,
        "end a rank at once when an exception reaches its top level",
        said="a rank reports an uncaught exception to the agent at once, and the agent ends a rank that does not exit")


class Policy(Section, mixin=True, heading="after a failure"):
    """What follows a failure?"""

    restart_policy: RestartPolicy = nvrx(one_of(RestartPolicy, any_case=True), RestartPolicy.ANY_FAILED,
        "any-failed: one failed rank restarts all ranks; min-healthy: all ranks restart only if too few nodes are healthy",
        old=("--restart-policy", "--restart_policy"))
    max_no_progress_cycles: int | None = nvrx(COUNT, None,
        "end the job after this many restarts in a row without progress; 0: never. Not given: 3 if a checkpoint iteration file "
        "is set, else never", also=("max_no_progress_restarts",))
    """None: nobody said; then 3 where `checkpoint_iteration_file` names one, and no such stop where not. 0: no such stop."""
    min_progress_iterations: int = nvrx(COUNT, 1, "iterations between two restarts that count as progress")
    checkpoint_iteration_file: str | None = nvrx(FILE, None,
        "file that holds the iteration of the last checkpoint; Holdfast reads the job's progress from it")
    """Absolute."""
    progress_update_interval: float = nvrx(DURATION, 30.0,
        "how often ft_launcher's ranks report their iteration", said="a rank writes its step to shared memory at once")
    no_restart_exit_code: int = nvrx(EXIT_CODE, 93,
        "exit code of every agent when Holdfast decides that a restart would not help")
    restart_check_interval: float = nvrx_number(DURATION, 60.0,
        "how often ft_launcher logs the state of layered restarts",
        said="Holdfast records each change as an event: `holdfast events`")
    _workers_stop_timeout = ours("--workers-stop-timeout", SECONDS, None,
        "seconds from SIGTERM to SIGKILL when workers stop for a restart; the same as --shutdown-timeout",
        env="PET_WORKERS_STOP_TIMEOUT", group="after a failure")
    _term_timeout = ours("--term-timeout", optional(SECONDS), None,
        "the same when a signal ends the agent itself (default: --shutdown-timeout)",
        env="PET_TERM_TIMEOUT", group="after a failure")
    check_remaining_processes: bool = nvrx(YES, False,
        "log processes that workers leave behind", said="Holdfast always ends every process that a worker leaves behind")


class Placing(Section, mixin=True, heading="placement and GPU memory"):
    """Where do ranks run, and is the memory free?"""

    gpus_per_numa: int | None = None  # `NVRX_GPUS_PER_NUMA`.
    numa_bind_strict: bool = nvrx(YES, True, "a bound rank gets memory only from its NUMA node; false: it prefers that node")
    gpu_memory_reclaim_timeout: float = nvrx_number(DURATION, 50.0,
        "longest time that a restart waits until the GPUs' memory is free again; 0: no wait")
    gpu_memory_tolerance_mb: float = nvrx_number(AMOUNT, 512.0,
        "a GPU's memory counts as free up to this many MB in use", also=("gpu_memory_reclaim_tolerance_mb",))
    gpu_memory_poll_interval: float = nvrx_number(DURATION, 2.0,
        "longest pause between two readings of the GPUs' memory; the first pauses are "
        "shorter", also=("gpu_memory_reclaim_poll_interval",))
    use_infra_group_rank: bool = nvrx(YES, True,
        "ranks follow the infrastructure's order (SLURM_PROCID and the like); false: nodes keep their ranks")
    rdzv_impl: str = nvrx(choice("barrier", "legacy", any_case=True), "barrier",
        "which of ft_launcher's two rendezvous to use", said="Holdfast has one rendezvous, which does what both promise")


class Logging(Section, mixin=True, heading="logs"):
    """What is logged where?"""

    log_level: str = nvrx(LEVEL, "INFO",
        "level of our own messages: debug, info, warning, error, critical, or 10 to 50. Not given: --verbose, --quiet or "
        "LOGLEVEL decide")
    per_cycle_applog_prefix: str | None = nvrx(FILE, None,
        "/abs/job.log writes the output of all ranks to /abs/job_cycle<N>.log; each line names its rank", pet=True)
    """Absolute, with the extension: `/abs/job.log`."""
    cycle_info_dir: str | None = nvrx(FILE, None, "folder for one JSON file per cycle", metavar="DIR")
    """Absolute."""
    _base_logfile = ours("--ft-base-logfile", FILE, None,
        "--ft-per-cycle-applog-prefix and --ft-nvrx-logfile in one, as ft_launcher once had them",
        env="PET_FT_BASE_LOGFILE", group="logs")
    nvrx_logfile: str | None = nvrx(FILE, None,
        "append our own messages to this file, instead of stdout and stderr", pet=True)
    enable_log_server: bool = nvrx(YES, False,
        "the coordinator's node collects the lines of all nodes in its file of --ft-per-cycle-applog-prefix", pet=True)
    log_server_port: int = nvrx(COUNT, 0, "port at which that node receives the lines; 0: any free "
    "port", pet=True, metavar="PORT")
    """0: any free one."""
    log_server_graceful_shutdown_timeout: float = nvrx(DURATION, 60.0,
        "how long a node still sends lines after its ranks have ended; the rest goes to a file of the same name on that node",
        pet=True)
    log_aggregator_count: int = nvrx(COUNT, 0,
        "number of ft_launcher's helpers of that node", pet=True, said="each node sends its lines to that node directly")
    log_leaf_max_queue_chunks: int = nvrx(COUNT, -1,
        "queue length of each of those helpers", pet=True,
        said="there is no queue: lines that are not sent yet are in the ranks' own files")
    log_server_log_prefix: str | None = nvrx(FILE, None,
        "log of ft_launcher's log server", pet=True, said="the agents log its messages")


class Checking(Section, mixin=True, heading="health checks"):
    """Is the node fit?"""

    enable_dist_storage_healthcheck: bool = nvrx(YES, False,
        "check Lustre and NFS mounts before each round (--check-before mounts)")
    storage_healthcheck_path: tuple[str, ...] = nvrx(PATHS, (),
        "absolute paths to read before each round (--check-before paths=…)", flag="storage_health_check_path")
    """Absolute paths."""
    node_health_check_endpoint: str | None = nvrx(TEXT_OR_NONE, None,
        "Unix socket of a node health service, /path or unix:///path, to ask before each round (--check-before node-service=…)")
    node_health_check_interval: float = nvrx_number(DURATION, 5.0,
        "seconds between two checks of the GPUs (and NICs) while ranks run (--check-during gpu, --check-every)")
    enable_nic_monitor: bool = nvrx(YES, False, "watch the links of the NICs while ranks run (--check-during nic)")
    enable_nic_healthcheck: bool = nvrx(YES, True,
        "check the NICs' links before each round (--check-before nic); only if you give this flag")
    segment_health_check_dir: str | None = nvrx(FOLDER, None,
        "shared folder where a file marks a Slurm allocation as unhealthy (--check-before segment=…)")
    """Absolute."""
    fact_url: str | None = nvrx(TEXT_OR_NONE, None, "address of NVIDIA's FACT service", said=NO_FACT)
    fact_agent_socket_path: str | None = nvrx(FILE, None, "socket of ft_launcher's helper for FACT", said=NO_FACT)
    fact_agent_rpc_timeout: float | None = nvrx(DURATION, None, "longest time that the helper takes to answer", said=NO_FACT)
    fact_policy_ready_timeout: float | None = nvrx(DURATION, None, "longest time that a restart waits for it", said=NO_FACT)
    fact_agent_store_timeout: float | None = nvrx(DURATION, None, "longest time that the helpers take to meet", said=NO_FACT)
    fact_history_es_url: str | None = nvrx(TEXT_OR_NONE, None, "where FACT keeps what it knew of nodes", said=NO_FACT)
    fact_history_es_auth_file: str | None = nvrx(FILE, None, "file with the credentials for that", said=NO_FACT)
    fact_history_lookback: str | None = nvrx(TEXT_OR_NONE, None, "how far back that is asked for", said=NO_FACT)
    fact_history_index: str | None = nvrx(TEXT_OR_NONE, None, "the index there", said=NO_FACT)
    fact_history_max_candidate_nodes: int | None = nvrx(COUNT, None, "so many nodes are asked for", said=NO_FACT)
    fact_history_query_timeout: float | None = nvrx(DURATION, None, "longest time that such a question takes", said=NO_FACT)
    fact_min_repeat_count_for_avoid: int | None = nvrx(COUNT, None, "a node is avoided from so many faults on", said=NO_FACT)
    fact_max_attribution_avoids_per_cycle: int | None = nvrx(COUNT, None, "so many nodes are avoided at once", said=NO_FACT)
    enable_fact_result_artifact: bool = nvrx(YES, False, "whether FACT's answer is written to a file", said=NO_FACT)
    health_log_prefix: str | None = nvrx(FILE, None, "where the kernel's log of each node is written to", said=NO_FACT)
    enable_health_log_dmesg: bool = nvrx(YES, False, "whether the kernel's log is written there", said=NO_FACT)
    pci_topo_file: str | None = nvrx(FILE, None,
        "PCI topology, if a VM hides it", said="Holdfast checks all NICs of a node, not only the nearest to each GPU")
    link_down_path_template: str | None = nvrx(TEXT_OR_NONE, None,
        "path of the file that counts a NIC's lost links; {nic} stands for its name")
    link_state_path_template: str | None = nvrx(TEXT_OR_NONE, None, "path of the file with a NIC's link state; {nic} stands "
    "for its name")


class Attribution(Section, mixin=True, heading="attribution"):
    """Who says why it failed?"""

    attrsvc_host: str | None = nvrx(TEXT_OR_NONE, None, "host of the attribution service")
    attrsvc_port: int | None = nvrx(COUNT, None, "port of the attribution service")
    attribution_endpoint: str | None = nvrx(TEXT_OR_NONE, None,
        "address of the service, http://host:port, or localhost to start one")
    attribution_stop_action: str = nvrx(choice("log", "no-restart", any_case=True), "log",
        "effect of its verdict STOP. log: Holdfast only logs it; no-restart: the job does not restart")
    attribution_compute_timeout: float | None = nvrx(DURATION, None, "longest time to wait for one verdict (60 s if not given)")
    attribution_startup_timeout: float = nvrx(DURATION, 20.0, "longest time that a service for localhost may take to start")
    attribution_export_url: str | None = nvrx(TEXT_OR_NONE, None, "URL that Holdfast posts each verdict to, as JSON")
    attribution_llm_api_key_file: str | None = nvrx(FILE, None, "file with the API key of the language model", said=NO_MODEL)
    attribution_llm_base_url: str | None = nvrx(TEXT_OR_NONE, None, "address of the language model", said=NO_MODEL)
    attribution_llm_model: str | None = nvrx(TEXT_OR_NONE, None, "name of the language model", said=NO_MODEL)
    attribution_log_level: str | None = nvrx(LEVEL, None, "log level of the service", said=NO_MODEL)
    attribution_analysis_backend: str = nvrx(choice("lib", "mcp", any_case=True), "lib", "how the agent calls the "
    "service", said=NO_MODEL)


class FaultTolerance(ConfigurationFile, Watching, Policy, Placing, Logging, Checking, Attribution):
    """How a job is watched, judged and placed."""


SECTION = "fault_tolerance"  # The mapping's key in YAML.


def section(document: object) -> Mapping[object, object] | None:
    """The first mapping of that name, depth first, as ft_launcher looks for it. An empty one counts where there is no other."""
    children: list[object] = []
    empty = False
    if isinstance(document, dict):
        if isinstance(found := document.get(SECTION), dict):
            return found
        empty = SECTION in document and found is None
        children = list(document.values())
    elif isinstance(document, list):
        children = document
    for child in children:
        if (deeper := section(child)) is not None:
            return deeper
    return {} if empty else None

"""How is a job watched, judged and placed? `FaultTolerance`: every field that ft_launcher's configuration has, and ours of that
kind. Names, units (seconds, where a time is meant) and defaults are ft_launcher's, where it has the field.

A field here is a flag, and a key under `fault_tolerance:` in YAML. docs/reference/ft_launcher.md is made of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal

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
NO_MODEL = "the service that is started here works by rules, and asks no language model"


# --- what a text means ----------------------------------------------------------------------------------------------------


def limit(text: str, name: str) -> Limit:
    """Seconds, `none` or `auto`."""
    word = text.strip().lower()
    return AUTO if word == AUTO else limit_or_none(word, f"{name} (seconds, none or auto)")


def limit_or_none(text: str, name: str) -> float | None:
    """Seconds, or `none`."""
    word = text.strip().lower()
    return None if word in NO_LIMIT else grammar.seconds(word, name, zero=False)


def limits(text: str, name: str) -> dict[str, float | None]:
    """`step:60,checkpoint:none`; a section's name may have colons."""
    found: dict[str, float | None] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        section_name, _, seconds = (part.strip() for part in item.rpartition(":"))
        if not section_name:
            raise UsageError(f"{name}: {item!r} is not NAME:SECONDS", hint="give them as step:60,checkpoint:600")
        found[section_name] = limit_or_none(seconds, f"{name} {section_name}")
    return found


def number(text: str, name: str) -> float:
    """A float above zero."""
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{name}: {text!r} is not a number") from None
    if not 0 < value <= grammar.LONGEST_S:
        raise UsageError(f"{name}: {text} is not above zero, or too large")
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
            raise UsageError(f"{name}: {path} is not absolute", hint="every node looks there: give it from / on")
    return found


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
        raise UsageError(f"{name}: {text!r} is not a regular expression: {error}") from None
    return text or None


LIMIT: Kind[Limit] = Kind("limit", limit, "S|none|auto")
LIMITS: Kind[dict[str, float | None]] = Kind("limits", limits, "NAME:S,…")
LIMIT_OR_NONE: Kind[float | None] = Kind("text", limit_or_none, "S|none")
DURATION: Kind[float] = Kind("seconds", grammar.seconds, "S")
NUMBER: Kind[float] = Kind("number", number, "X")
COUNT = whole()
YES: Kind[bool] = Kind("yes", grammar.truth, "true|false")
SIGNAL: Kind[int] = Kind("signal", signal_number, "SIGNAL")
LEVEL: Kind[str] = Kind("level", level, "LEVEL")
FILE: Kind[str | None] = Kind("path", text_or_none, "FILE", path=True)
PATHS: Kind[tuple[str, ...]] = Kind("paths", paths, "PATH,…")
MONITOR: Kind[str] = Kind("text", monitor, "WORD", choices=MONITORS)
REGEX: Kind[str | None] = Kind("text", regex, "REGEX")


# fmt: off
# A table: an option, then what it does.


class ConfigurationFile(Section, mixin=True):
    """Where is the YAML file?"""

    _cfg_path = ours("--ft-cfg-path --fault-tol-cfg-path", FILE, None,
        "YAML file with a mapping `fault_tolerance`, anywhere in it; what the command line says goes before it",
        env="PET_FT_CFG_PATH", group="configuration")
    _ignore_missing = ours("--ft-ignore-missing-cfg --ignore-missing-fault-tol-cfg", YES, None,
        "say nothing if that file is not there, or has no such mapping", env="", group="configuration")


class Watching(Section, mixin=True, heading="watching the ranks"):
    """Does every rank make progress?"""

    monitor: str = ours("--monitor", MONITOR, "auto",
        "auto: a rank that makes no more progress is found and the job restarted; off: only deaths are seen", yaml=True)
    progress_regex: str | None = ours("--progress-regex", REGEX, None,
        "a line of a rank's output that matches is a sign of progress; its group `step`, if it has one, is the step's "
        "number", yaml=True)
    on_straggler: OnStraggler = ours("--on-straggler", one_of(OnStraggler), "report",
        "what is done about a rank that is much slower than the others: report, exclude its node if a spare can take its "
        "place, or ignore", yaml=True)
    least_limit: float = ours("--least-limit", SOME_SECONDS, "600",
        "no limit that is learned from what the job does is shorter than this many seconds", yaml=True)
    """No limit that is learned is shorter. torch: 600 (what a collective of NCCL may take)."""
    most_limit: float | None = ours("--most-limit", LIMIT_OR_NONE, "3600",
        "a rank whose heartbeats or sections have stopped hangs after so many seconds, though it is busy, if its learned "
        "limit allows no more; none: never for that", yaml=True)
    still_limit: float | None = ours("--still-limit", LIMIT_OR_NONE, "3600",
        "a rank that gives no sign of life by itself hangs once processors and GPUs of its node have stood still for so "
        "many seconds; none: never for that", yaml=True)
    """NVRx before 0.6: 3600 (initial_rank_heartbeat_timeout)."""
    initial_rank_heartbeat_timeout: Limit = nvrx(LIMIT, AUTO,
        "longest time from the start of a rank's process to its first heartbeat; none: no limit; auto: a sensible one")
    rank_heartbeat_timeout: Limit = nvrx(LIMIT, AUTO,
        "longest time between two heartbeats of a rank; auto: learned from those that were seen")
    rank_section_timeouts: dict[str, float | None] = nvrx(LIMITS, {},
        "longest times in sections, by name, such as step:60,checkpoint:600; none as a time: no limit until one is "
        "calculated")
    rank_out_of_section_timeout: Limit = nvrx(LIMIT, AUTO, "longest time in no section")
    safety_factor: float = nvrx(NUMBER, 5.0, "a calculated limit is this many times the longest interval seen")
    num_warmup_iterations: int = nvrx(COUNT, 5,
        "steps after each start that are judged by the section `warmup`, where that has a limit")
    rank_termination_signal: int = nvrx(SIGNAL, 9, "sent, after SIGCONT, to a rank that hangs: a name or number")
    workload_check_interval: float = nvrx(DURATION, 5.0,
        "how often ft_launcher's monitors look", said="a limit is acted on when it has run out; nothing is polled")
    skip_section_response: bool = nvrx(YES, True,
        "whether ft_launcher's monitors leave messages without a reply",
        said="a heartbeat is a store to shared memory: there is no message, and misuse is an error in the rank itself")
    install_exception_hook: bool = nvrx(YES, False,
        "end a rank at once when an exception reaches its top",
        said="the agent hears of an exception as it reaches a rank's top, and ends a rank that lingers")


class Policy(Section, mixin=True, heading="after a failure"):
    """What follows a failure?"""

    restart_policy: RestartPolicy = nvrx(one_of(RestartPolicy, any_case=True), RestartPolicy.ANY_FAILED,
        "any-failed: one failed rank restarts all; min-healthy: only too few healthy nodes do",
        old=("--restart-policy", "--restart_policy"))
    max_no_progress_cycles: int | None = nvrx(COUNT, None,
        "the job ends after so many restarts in a row without progress; 0: never. Not given: 3 where a checkpoint "
        "iteration file is named, else never", also=("max_no_progress_restarts",))
    """None: nobody said; then 3 where `checkpoint_iteration_file` names one, and no such stop where not. 0: no such stop."""
    min_progress_iterations: int = nvrx(COUNT, 1, "so many iterations between two restarts are progress")
    checkpoint_iteration_file: str | None = nvrx(FILE, None,
        "file with one number, the last checkpoint's iteration, from which progress is read")
    """Absolute."""
    progress_update_interval: float = nvrx(DURATION, 30.0,
        "how often ft_launcher's ranks report their iteration", said="a rank's step is in its page as soon as it is said")
    no_restart_exit_code: int = nvrx(COUNT, 93, "exit code of every agent when we decide that a restart would not help")
    restart_check_interval: float = nvrx(DURATION, 60.0,
        "how often ft_launcher logs the state of layered restarts",
        said="what happens is an event when it happens: `holdfast events`")
    _workers_stop_timeout = ours("--workers-stop-timeout", SECONDS, None,
        "seconds from SIGTERM to SIGKILL when workers are stopped for a restart; the same as --shutdown-timeout",
        env="PET_WORKERS_STOP_TIMEOUT", group="after a failure")
    _term_timeout = ours("--term-timeout", optional(SECONDS), None,
        "the same when the agent itself was told to end by a signal; otherwise as --shutdown-timeout",
        env="PET_TERM_TIMEOUT", group="after a failure")
    check_remaining_processes: bool = nvrx(YES, False,
        "log processes that workers left behind", said="whatever a worker leaves behind is ended, always")


class Placing(Section, mixin=True, heading="placement and GPU memory"):
    """Where do ranks run, and is the memory free?"""

    gpus_per_numa: int | None = None  # `NVRX_GPUS_PER_NUMA`.
    numa_bind_strict: bool = nvrx(YES, True, "memory of a bound rank only from its NUMA node, rather than preferably")
    gpu_memory_reclaim_timeout: float = nvrx(DURATION, 50.0,
        "longest time that a restart waits for the GPUs' memory to be free again; 0: it does not wait")
    gpu_memory_tolerance_mb: float = nvrx(NUMBER, 512.0,
        "MB in use up to which a GPU's memory counts as free", also=("gpu_memory_reclaim_tolerance_mb",))
    gpu_memory_poll_interval: float = nvrx(DURATION, 2.0,
        "longest pause between two looks at it; the first pauses are shorter", also=("gpu_memory_reclaim_poll_interval",))
    use_infra_group_rank: bool = nvrx(YES, True,
        "ranks follow what the infrastructure says (SLURM_PROCID and the like); false: nodes keep the ranks they had")
    rdzv_impl: str = nvrx(choice("barrier", "legacy", any_case=True), "barrier",
        "which of ft_launcher's two rendezvous", said="there is one, and it does what both promise")


class Logging(Section, mixin=True, heading="logs"):
    """What is logged where?"""

    log_level: str = nvrx(LEVEL, "INFO",
        "how much we say: debug, info, warning, error, critical, or 10 to 50. Not given: as --verbose, --quiet or LOGLEVEL "
        "say")
    per_cycle_applog_prefix: str | None = nvrx(FILE, None,
        "/abs/job.log: all ranks' output, each line with its rank, in /abs/job_cycle<N>.log", pet=True)
    """Absolute, with the extension: `/abs/job.log`."""
    cycle_info_dir: str | None = nvrx(FILE, None, "folder for one JSON file about each cycle", metavar="DIR")
    """Absolute."""
    nvrx_logfile: str | None = nvrx(FILE, None,
        "file that our own messages are appended to, instead of stdout and stderr", pet=True)
    enable_log_server: bool = nvrx(YES, False,
        "have the coordinator's node gather the lines of all nodes in its own file of --ft-per-cycle-applog-prefix", pet=True)
    log_server_port: int = nvrx(COUNT, 0, "port at which that node takes them; 0: any free one", pet=True, metavar="PORT")
    """0: any free one."""
    log_server_graceful_shutdown_timeout: float = nvrx(DURATION, 60.0,
        "how long after the ranks' end lines are sent; what is left goes to a file of the same name on their own node",
        pet=True)
    log_aggregator_count: int = nvrx(COUNT, 0,
        "ft_launcher's helpers of that node", pet=True, said="each node sends to that node itself")
    log_leaf_max_queue_chunks: int = nvrx(COUNT, -1,
        "how much each of those holds back", pet=True,
        said="there is no queue: what is not sent yet is in the ranks' own files")
    log_server_log_prefix: str | None = nvrx(FILE, None,
        "ft_launcher's server's own log", pet=True, said="what there is to say, the agents say")


class Checking(Section, mixin=True, heading="health checks"):
    """Is the node fit?"""

    enable_dist_storage_healthcheck: bool = nvrx(YES, False,
        "check Lustre and NFS mounts before each round (--check-before mounts)")
    storage_healthcheck_path: tuple[str, ...] = nvrx(PATHS, (),
        "absolute paths to be read before each round (--check-before paths=…)", flag="storage_health_check_path")
    """Absolute paths."""
    node_health_check_endpoint: str | None = nvrx(TEXT_OR_NONE, None,
        "Unix socket of a node health service, /path or unix:///path, asked before each round (--check-before "
        "node-service=…)")
    node_health_check_interval: float = nvrx(DURATION, 5.0,
        "check the GPUs (and NICs) so often while ranks run (--check-during gpu, --check-every)")
    enable_nic_monitor: bool = nvrx(YES, False, "watch the links of the NICs while ranks run (--check-during nic)")
    enable_nic_healthcheck: bool = nvrx(YES, True,
        "check the NICs' links before each round (--check-before nic); only where it is said")
    segment_health_check_dir: str | None = nvrx(FILE, None,
        "shared folder in which a file marks a Slurm allocation as unhealthy (--check-before segment=…)", metavar="DIR")
    pci_topo_file: str | None = nvrx(FILE, None,
        "PCI topology, where a VM hides it", said="all of a node's NICs are looked at, not only the one nearest to each GPU")
    link_down_path_template: str | None = nvrx(TEXT_OR_NONE, None,
        "file that counts a NIC's lost links, with {nic} for its name")
    link_state_path_template: str | None = nvrx(TEXT_OR_NONE, None, "file with a NIC's link state, with {nic} for its name")


class Attribution(Section, mixin=True, heading="attribution"):
    """Who says why it failed?"""

    attrsvc_host: str | None = nvrx(TEXT_OR_NONE, None, "host of the attribution service")
    attrsvc_port: int | None = nvrx(COUNT, None, "its port")
    attribution_endpoint: str | None = nvrx(TEXT_OR_NONE, None,
        "the service's address, http://host:port, or localhost to start one")
    attribution_stop_action: str = nvrx(choice("log", "no-restart", any_case=True), "log",
        "what its verdict STOP does: log says it, no-restart has no more restarts come")
    attribution_compute_timeout: float | None = nvrx(DURATION, None, "how long to ask for one verdict; none: 60 s")
    attribution_startup_timeout: float = nvrx(DURATION, 20.0, "how long a service for localhost may take to start")
    attribution_export_url: str | None = nvrx(TEXT_OR_NONE, None, "where each verdict is sent as JSON, by POST")
    attribution_llm_api_key_file: str | None = nvrx(FILE, None, "key for the language model it asks", said=NO_MODEL)
    attribution_llm_base_url: str | None = nvrx(TEXT_OR_NONE, None, "that model's address", said=NO_MODEL)
    attribution_llm_model: str | None = nvrx(TEXT_OR_NONE, None, "that model's name", said=NO_MODEL)
    attribution_log_level: str | None = nvrx(LEVEL, None, "how much the service says", said=NO_MODEL)
    attribution_analysis_backend: str = nvrx(choice("lib", "mcp", any_case=True), "lib", "how it is asked", said=NO_MODEL)


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

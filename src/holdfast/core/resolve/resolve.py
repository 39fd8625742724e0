"""What do the options mean together, on this host? Settings in, `RunConfig` out, with where each value came from.

The first thing that is wrong ends it with a `UsageError` that names the flag or the variable, in torchrun's order: nodes,
restarts, workers, rendezvous, logs. How the rendezvous is chosen stands in `core.resolve.resolve_rendezvous`, what placement
keeps to in `core.resolve.resolve_placement`, and what is left to Slurm or Kubernetes in `core.resolve.resolve_scheduler`.
"""

from __future__ import annotations

from holdfast.core.config import grammar
from holdfast.core.config.config import Draft, Resolved, RunConfig
from holdfast.core.config.flags import SCHEDULERS, SUPERVISOR_PORT, by_dest
from holdfast.core.errors import UsageError
from holdfast.core.resolve.resolve_fault_tolerance import choose_fault_tolerance, prepare
from holdfast.core.resolve.resolve_placement import choose_placement
from holdfast.core.resolve.resolve_rendezvous import choose_rendezvous

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.core.config.config import HostFacts, Setting

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
GRACE_S = 30.0
"""Seconds between asking a worker to stop and SIGKILL. torchrun's default, and Kubernetes' terminationGracePeriodSeconds."""

MOST_WORKERS = 10_000
"""On one node. More is a slip of the finger, and would take minutes to fail."""

CHECKED = ("check_before", "check_after", "check_during", "check_every")
"""Settings about the node's health: most jobs have none."""

SCHEDULED = ("SLURM_JOB_ID", "JOB_COMPLETION_INDEX", "KUBERNETES_SERVICE_HOST")
"""One of these is there when a scheduler that we know has started us."""


def resolve(
    settings: Mapping[str, Setting], script: str, script_args: tuple[str, ...], environ: Mapping[str, str], host: HostFacts
) -> Resolved:
    """Make a configuration. `UsageError` for the first thing that is wrong."""
    draft = Draft(settings, environ, host)
    draft.put("training_script", script, "argument")
    draft.put("training_script_args", script_args, "arguments")
    prepare(draft)
    if any(variable in environ for variable in SCHEDULED):
        from holdfast.core.resolve.resolve_scheduler import ask_scheduler

        ask_scheduler(draft)
    _nodes_and_restarts(draft)
    _workers(draft)
    choose_rendezvous(draft)
    choose_placement(draft)
    choose_fault_tolerance(draft)
    if any(draft.given(dest) for dest in CHECKED) or "ft_cfg_path" in draft.settings:
        from holdfast.core.resolve.resolve_checks import choose_checks

        choose_checks(draft)
    if draft.text("numa_binding") or draft.fields["ft"].gpus_per_numa:
        from holdfast.core.resolve.resolve_binding import choose_binding

        choose_binding(draft)
    _entry_point(draft)
    _warm_spares(draft)
    _ending(draft)
    _logs(draft)
    _state(draft)
    _from_environment(draft)
    return Resolved(config=RunConfig(**draft.fields), origins=draft.origins, notices=tuple(draft.notices))


def _nodes_and_restarts(draft: Draft) -> None:
    low, high = grammar.node_range(draft.text("nnodes"), draft.name("nnodes"))
    draft.keep("nnodes", low, "min_nodes")
    draft.keep("nnodes", high, "max_nodes")
    for dest in ("membership", "grow"):
        _check_choice(draft, dest)
        draft.keep(dest, draft.text(dest))
    draft.keep("grow_after", grammar.seconds(draft.text("grow_after"), draft.name("grow_after")), "grow_after_s")
    draft.keep("max_restarts", grammar.whole(draft.text("max_restarts"), draft.name("max_restarts"), at_least=0))
    period = draft.text("restart_period")
    draft.keep(
        "restart_period",
        grammar.seconds(period, draft.name("restart_period"), zero=False) if period else None,
        "restart_period_s",
    )
    draft.keep("stash_limit", grammar.memory(draft.text("stash_limit"), draft.name("stash_limit")))
    draft.keep("stash_replicate", draft.on("stash_replicate"))
    draft.keep("allow_inject", draft.on("allow_inject"))
    draft.keep("exclude_after", grammar.whole(draft.text("exclude_after"), draft.name("exclude_after"), at_least=0))
    draft.keep("on_finding", draft.text("on_finding"))
    after, name = draft.text("readmit_after"), draft.name("readmit_after")
    draft.keep("readmit_after", grammar.seconds(after, name, zero=False) if after else None, "readmit_after_s")
    draft.keep("backoff", grammar.seconds(draft.text("backoff"), draft.name("backoff")), "backoff_s")


def _workers(draft: Draft) -> None:
    nproc, why = _nproc(draft)
    draft.put("nproc_per_node", nproc, why)
    if nproc > 1 and "OMP_NUM_THREADS" not in draft.environ:
        draft.put("omp_num_threads", "1", f"derived: {nproc} workers on one node")
        draft.tell(
            "WARNING",
            "Setting OMP_NUM_THREADS environment variable for each process to be 1, so that "
            f"{nproc} workers do not crowd this node's CPUs; set it yourself to tune it.",
        )
    interval = grammar.seconds(draft.text("monitor_interval"), draft.name("monitor_interval"), zero=False)
    draft.keep("monitor_interval", interval)
    for dest in ("start_method", "numa_binding", "event_log_handler", "on_split"):
        _check_choice(draft, dest)
    draft.keep("start_method", draft.text("start_method"))
    for dest in ("role", "event_log_handler"):
        draft.keep(dest, draft.text(dest))
    draft.keep("virtual_local_rank", draft.on("virtual_local_rank"))
    if draft.on("virtual_local_rank"):
        _check_visible_devices(draft, nproc)


def _nproc(draft: Draft) -> tuple[int, str]:
    """Workers on this node, and how we know."""
    text, name = draft.text("nproc_per_node"), draft.name("nproc_per_node")
    if text == "cpu":
        cpus = draft.host.cpus()
        return cpus, f"derived: {name} cpu, this process may use {cpus} CPUs"
    if text in ("gpu", "xpu"):
        count = draft.host.accelerators(text)
        if not count:
            raise UsageError(
                f"{name}: {text}: no {text.upper()} is visible on this node",
                hint="give a number, cpu, or auto; see `holdfast doctor`",
            )
        return count, f"derived: {name} {text}, {count} visible"
    if text == "auto":
        for kind in ("gpu", "xpu"):
            if count := draft.host.accelerators(kind):
                return count, f"derived: {name} auto, {count} {kind.upper()}s visible"
        return draft.host.cpus(), f"derived: {name} auto, no GPU is visible, so as many as CPUs"
    try:
        int(text)
    except ValueError:
        hint = grammar.did_you_mean(text, ("auto", "cpu", "gpu", "xpu"))
        raise UsageError(f"{name}: {text!r} is neither a number nor a kind of device", hint=hint) from None
    return grammar.whole(text, name, at_least=1, at_most=MOST_WORKERS), draft.settings["nproc_per_node"].origin


def _check_choice(draft: Draft, dest: str) -> None:
    choices, text = by_dest()[dest].choices, draft.text(dest)
    if text and text not in choices:
        raise UsageError(f"{draft.name(dest)}: there is no {text!r}", hint=grammar.did_you_mean(text, choices))


def _check_visible_devices(draft: Draft, nproc: int) -> None:
    visible = draft.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and len(visible.split(",")) < nproc:
        raise UsageError(
            f"--virtual-local-rank: CUDA_VISIBLE_DEVICES={visible} shows fewer devices than the {nproc} workers",
            hint=f"lower --nproc-per-node, or name {nproc} devices",
        )


def _entry_point(draft: Draft) -> None:
    for dest in ("module", "no_python", "run_path"):
        draft.keep(dest, draft.on(dest))
    if draft.on("module") and draft.on("no_python") and not draft.on("run_path"):
        raise UsageError(
            f"{draft.name('no_python')} and {draft.name('module')}: a module needs Python", hint="leave one of them out"
        )
    if "use_env" in draft.settings:
        draft.keep("use_env", draft.on("use_env"))
        if draft.on("no_python") and not draft.on("use_env"):
            raise UsageError("--no-python: only Python scripts are given --local-rank", hint="add --use-env")
    python = draft.environ.get("PYTHON_EXEC")
    draft.put("python", python or draft.host.python, "PYTHON_EXEC" if python else "derived: this interpreter")


def _warm_spares(draft: Draft) -> None:
    """Only Python's own start-up can wait half-way: of a script or a module, run as torchrun runs them."""
    _check_choice(draft, "warm_mode")
    draft.keep("warm_mode", draft.text("warm_mode"))
    text, name = draft.text("warm_spares"), draft.name("warm_spares")
    program = next((dest for dest in ("no_python", "run_path") if draft.on(dest)), "")
    if program and text not in ("auto", "off"):
        draft.tell("WARNING", f"{name} is ignored: what {draft.name(program)} runs has no warm spares")
    if program:
        return draft.put("warm_spares", 0, f"derived: {draft.name(program)}")
    if text == "auto":
        may_restart = draft.fields["max_restarts"] or draft.fields["max_nodes"] > 1
        if not may_restart:
            return draft.put("warm_spares", 0, "derived: the job does not restart")
        return draft.keep("warm_spares", None)
    if text != "off" and not text.isdigit():
        raise UsageError(f"{name}: {text!r} is neither a number, nor auto, nor off")
    return draft.keep("warm_spares", 0 if text == "off" else grammar.whole(text, name, at_least=0, at_most=MOST_WORKERS))


def _ending(draft: Draft) -> None:
    draft.keep("signals_to_handle", grammar.signals(draft.text("signals_to_handle"), draft.name("signals_to_handle")))
    variable = draft.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
    said = next((dest for dest in ("shutdown_timeout", "workers_stop_timeout") if draft.given(dest)), "")
    if said:
        draft.keep(said, grammar.seconds(draft.text(said), draft.name(said)), "shutdown_timeout_s")
    elif variable is not None:
        draft.put(
            "shutdown_timeout_s", grammar.seconds(variable, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
        )
    else:
        usual = draft.settings.get("workers_stop_timeout")
        draft.put("shutdown_timeout_s", float(usual.value) if usual and usual.value else GRACE_S, "default")
    if "term_timeout" in draft.settings and draft.text("term_timeout"):
        draft.keep("term_timeout", grammar.seconds(draft.text("term_timeout"), draft.name("term_timeout")), "term_timeout_s")


def _logs(draft: Draft) -> None:
    draft.keep("local_ranks_filter", grammar.local_ranks(draft.text("local_ranks_filter"), draft.name("local_ranks_filter")))
    specs = draft.text("logs_specs") or None
    if specs and specs not in (known := draft.host.entry_points("torchrun.logs_specs")) and specs != "default":
        hint = grammar.did_you_mean(specs, dict.fromkeys(("default", *known)))
        raise UsageError(f"{draft.name('logs_specs')}: no entry point torchrun.logs_specs[{specs}]", hint=hint)
    draft.keep("logs_specs", specs)
    for dest in ("redirects", "tee"):
        draft.keep(dest, grammar.streams(draft.text(dest), draft.name(dest), draft.fields["nproc_per_node"]))
    for dest in ("duplicate_stdout_filters", "duplicate_stderr_filters"):
        text = draft.settings[dest].value
        draft.keep(dest, () if text is None else grammar.comma_list(draft.text(dest)))
    draft.keep("log_dir", grammar.absolute(draft.text("log_dir"), draft.host.cwd) or None)
    if draft.fields["ft"].progress_regex and not draft.fields["ft"].per_cycle_applog_prefix:  # for that, all goes to files
        _file_what_is_searched(draft)


def _file_what_is_searched(draft: Draft) -> None:
    """--progress-regex needs files to look at: the output of ranks that has none is followed as by --tee."""
    if draft.fields["log_dir"] == "/dev/null":
        raise UsageError(
            "--progress-regex needs the ranks' output in files, and --log-dir is /dev/null", hint="leave one of them out"
        )
    redirects, tee = draft.fields["redirects"], draft.fields["tee"]
    bare = [rank for rank in range(draft.fields["nproc_per_node"]) if not redirects.get(rank, 0) | tee.get(rank, 0)]
    if bare:
        draft.put("tee", {**tee, **dict.fromkeys(bare, grammar.STREAMS["3"])}, "derived: --progress-regex looks at files")


def _state(draft: Draft) -> None:
    if given := draft.text("state_dir"):
        draft.keep("state_dir", grammar.absolute(given, draft.host.cwd))
    else:
        draft.put("state_dir", draft.host.state_home, "derived: $XDG_STATE_HOME, the home directory or /tmp")
    draft.keep("node_name", draft.text("node_name") or None)
    draft.keep("token_file", grammar.absolute(draft.text("token_file"), draft.host.cwd) or None)
    _supervisor(draft)
    witness = draft.text("witness")
    draft.keep("witness", witness if witness in SCHEDULERS else grammar.absolute(witness, draft.host.cwd) or None)
    draft.keep("on_split", draft.text("on_split"))
    draft.keep("in_place_restart", draft.on("in_place_restart"))
    for dest in ("witness", "on_split"):
        if draft.settings[dest].origin.startswith("--") and draft.fields["rdzv_backend"] != "embedded":
            draft.tell("WARNING", f"{draft.name(dest)} is ignored: only nodes of the embedded rendezvous choose a successor")
    _tls(draft)
    _log_level(draft)


def _supervisor(draft: Draft) -> None:
    draft.keep("supervisor_token_file", grammar.absolute(draft.text("supervisor_token_file"), draft.host.cwd) or None)
    ends = grammar.endpoints(draft.text("supervisor"), draft.name("supervisor"), default_port=SUPERVISOR_PORT)
    draft.put("supervisors", ends, draft.settings["supervisor"].origin)


def _tls(draft: Draft) -> None:
    """Certificate and CA go together: each side shows one and checks the other's."""
    for dest in ("tls_cert", "tls_key", "tls_ca"):
        draft.keep(dest, grammar.absolute(draft.text(dest), draft.host.cwd) or None)
    given = [dest for dest in ("tls_cert", "tls_key", "tls_ca") if draft.fields[dest]]
    for dest in ("tls_cert", "tls_ca"):
        if given and dest not in given:
            raise UsageError(
                f"{draft.name(given[0])}: TLS needs --{dest.replace('_', '-')} too",
                hint="both sides of a link show a certificate and check the other's: give --tls-cert, --tls-key and --tls-ca",
            )


def _log_level(draft: Draft) -> None:
    for dest, level in (("quiet", "ERROR"), ("verbose", "INFO")):
        if draft.on(dest):
            return draft.put("log_level", level, draft.settings[dest].origin)
    if origin := draft.origins.get("ft.log_level"):
        return draft.put("log_level", draft.fields["ft"].log_level, origin)
    if draft.environ.get("NVRX_LOG_DEBUG", "").lower() in ("1", "true", "yes", "on"):
        return draft.put("log_level", "DEBUG", "NVRX_LOG_DEBUG")
    given = draft.environ.get("LOGLEVEL", "")
    if given and given.upper() not in LOG_LEVELS:
        draft.tell("WARNING", f"LOGLEVEL={given} is no level ({grammar.did_you_mean(given, LOG_LEVELS)}); using WARNING")
    known = given.upper() in LOG_LEVELS
    return draft.put("log_level", given.upper() if known else "WARNING", "LOGLEVEL" if known else "default")


def _from_environment(draft: Draft) -> None:
    """torchrun's other variables, those that only the agent reads."""
    environ = draft.environ
    watchdog = environ.get("TORCHELASTIC_ENABLE_FILE_TIMER") == "1"
    draft.put("watchdog", watchdog, "TORCHELASTIC_ENABLE_FILE_TIMER" if watchdog else "default")
    for field, variable in (
        ("timer_file", "TORCHELASTIC_TIMER_FILE"),
        ("log_line_prefix_template", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
        ("error_file", "TORCHELASTIC_ERROR_FILE"),
    ):
        draft.put(field, environ.get(variable) or None, variable if environ.get(variable) else "default")
    if port := environ.get("TORCHELASTIC_HEALTH_CHECK_PORT"):
        draft.put(
            "health_check_port", grammar.port_number(port, "TORCHELASTIC_HEALTH_CHECK_PORT"), "TORCHELASTIC_HEALTH_CHECK_PORT"
        )
    try:  # As in torchrun, a value that makes no sense switches it off.
        limit = float(environ.get("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "0"))
    except ValueError:
        limit = 0.0
    if limit > 0:
        draft.put("uninterruptible_timeout_s", limit, "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT")

"""What do the options mean together, on this host? Settings in, `RunConfig` out, with where each value came from.

The first thing that is wrong ends it with a `UsageError` that names the flag or the variable, in torchrun's order: nodes,
restarts, workers, rendezvous, logs. How the rendezvous is chosen stands in `core.resolve.resolve_rendezvous`, what placement
keeps to in `core.resolve.resolve_placement`, and what is left to Slurm or Kubernetes in `core.resolve.resolve_scheduler`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.config import grammar
from holdfast.core.config.config import RunConfig
from holdfast.core.config.draft import Draft, HostFacts, Resolved, Setting
from holdfast.core.config.fault_tolerance import LEVELS
from holdfast.core.config.option import text_or_none
from holdfast.core.config.own_options import SCHEDULERS
from holdfast.core.config.torchrun_options import GRACE_S
from holdfast.core.errors import UsageError
from holdfast.core.resolve.resolve_binding import choose_binding
from holdfast.core.resolve.resolve_checks import choose_checks
from holdfast.core.resolve.resolve_fault_tolerance import choose_fault_tolerance, prepare
from holdfast.core.resolve.resolve_placement import choose_placement
from holdfast.core.resolve.resolve_rendezvous import choose_rendezvous

MOST_WORKERS = 10_000  # On one node. More is a slip of the finger, and would take minutes to fail.

LAUNCHERS_OWN = ("nproc_per_node", "nnodes", "max_restarts", "rdzv_backend", "rdzv_endpoint")
"""Flags that hardly any script has."""

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
        from holdfast.core.resolve.resolve_scheduler import ask_scheduler  # 1 ms, for Slurm and Kubernetes only

        ask_scheduler(draft)
    draft.settle(RunConfig.__options__)
    _nodes(draft)
    _workers(draft)
    choose_rendezvous(draft)
    choose_placement(draft)
    choose_fault_tolerance(draft)
    choose_checks(draft)
    choose_binding(draft)
    _entry_point(draft)
    _warm_spares(draft)
    _stash(draft)
    _ending(draft)
    _logs(draft)
    _state(draft)
    _from_environment(draft)
    return Resolved(config=RunConfig(**draft.fields), origins=draft.origins, notices=tuple(draft.notices))


def _nodes(draft: Draft) -> None:
    low, high = draft.values["nnodes"]
    draft.keep("nnodes", low, "min_nodes")
    draft.keep("nnodes", high, "max_nodes")


def _workers(draft: Draft) -> None:
    nproc, why = _nproc(draft)
    draft.put("nproc_per_node", nproc, why)
    if nproc > 1 and "OMP_NUM_THREADS" not in draft.environ:
        draft.put("omp_num_threads", "1", f"derived: {nproc} workers on one node")
        draft.warn(
            "Setting OMP_NUM_THREADS environment variable for each process to be 1, so that "
            f"{nproc} workers do not crowd this node's CPUs; set it yourself to tune it."
        )
    if draft.on("virtual_local_rank"):
        visible = draft.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None and len(visible.split(",")) < nproc:
            raise UsageError(
                f"--virtual-local-rank: CUDA_VISIBLE_DEVICES={visible} shows fewer devices than the {nproc} workers",
                hint=f"lower --nproc-per-node, or name {nproc} devices",
            )


def _nproc(draft: Draft) -> tuple[int, str]:
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
    return grammar.whole(text, name, at_least=1, at_most=MOST_WORKERS), draft.origin("nproc_per_node")


def _entry_point(draft: Draft) -> None:
    if draft.on("module") and draft.on("no_python") and not draft.on("run_path"):
        raise UsageError(
            f"{draft.name('no_python')} and {draft.name('module')}: a module needs Python", hint="leave one of them out"
        )
    if "use_env" in draft.settings:
        draft.keep("use_env", draft.on("use_env"))
        if draft.on("no_python") and not draft.on("use_env"):
            raise UsageError("--no-python: only Python scripts are given --local-rank", hint="add --use-env")
    # Who writes a launcher's flag behind the script gives it to the script.
    script = draft.fields["training_script"]
    for word in draft.fields["training_script_args"] if script.endswith(".py") else ():
        dest = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if word.startswith("--") and dest in LAUNCHERS_OWN and not draft.given(dest):
            draft.warn(f"{word} stands behind the script, and so is the script's own: write it before {script}")
    python = draft.environ.get("PYTHON_EXEC")
    draft.put("python", python or draft.host.python, "PYTHON_EXEC" if python else "derived: this interpreter")


def _warm_spares(draft: Draft) -> None:
    """Only Python's own start-up can wait half-way: of a script or a module, run as torchrun runs them."""
    text, name = draft.text("warm_spares"), draft.name("warm_spares")
    program = next((dest for dest in ("no_python", "run_path") if draft.on(dest)), "")
    if program and text not in ("auto", "off"):
        draft.warn(f"{name} is ignored: what {draft.name(program)} runs has no warm spares")
    if program:
        return draft.put("warm_spares", 0, f"derived: {draft.name(program)}")
    if text == "auto":
        may_restart = draft.fields["max_restarts"] or draft.fields["max_nodes"] > 1
        if not may_restart:
            return draft.put("warm_spares", 0, "derived: the job does not restart")
        return draft.keep("warm_spares", None)
    if text != "off" and not text.isdigit():
        hint = "give auto, off, or how many, such as 2"
        raise UsageError(f"{name}: {text!r} is neither a number, nor auto, nor off", hint=hint)
    return draft.keep("warm_spares", 0 if text == "off" else grammar.whole(text, name, at_least=0, at_most=MOST_WORKERS))


def _stash(draft: Draft) -> None:
    if draft.on("stash_replicate") and not draft.given("stash_replicas"):
        draft.put("stash_replicas", 1, draft.origin("stash_replicate"))


def _ending(draft: Draft) -> None:
    variable = draft.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
    said = next((dest for dest in ("shutdown_timeout", "workers_stop_timeout") if draft.given(dest)), "")
    if said:
        draft.keep(said, draft.values[said], "shutdown_timeout_s")
    elif variable is not None:
        draft.put(
            "shutdown_timeout_s", grammar.seconds(variable, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
        )
    else:
        draft.put("shutdown_timeout_s", draft.values["workers_stop_timeout"] or GRACE_S, "default")
    draft.keep("term_timeout", draft.values["term_timeout"], "term_timeout_s")


def _logs(draft: Draft) -> None:
    specs = draft.fields["logs_specs"]
    if specs and specs not in (known := draft.host.entry_points("torchrun.logs_specs")) and specs != "default":
        hint = grammar.did_you_mean(specs, dict.fromkeys(("default", *known)))
        raise UsageError(f"{draft.name('logs_specs')}: no entry point torchrun.logs_specs[{specs}]", hint=hint)
    for dest in ("redirects", "tee"):
        draft.keep(dest, grammar.streams(draft.text(dest), draft.name(dest), draft.fields["nproc_per_node"]))
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
    witness = draft.text("witness")
    draft.keep("witness", witness if witness in SCHEDULERS else grammar.absolute(witness, draft.host.cwd) or None)
    for dest in ("witness", "on_split"):
        if draft.origin(dest).startswith("--") and draft.fields["rdzv_backend"] != "embedded":
            draft.warn(f"{draft.name(dest)} is ignored: only nodes of the embedded rendezvous choose a successor")
    _tls(draft)
    _log_level(draft)


def _tls(draft: Draft) -> None:
    given = [dest for dest in ("tls_cert", "tls_key", "tls_ca") if draft.fields[dest]]
    for dest in ("tls_cert", "tls_ca"):
        if given and dest not in given:
            raise UsageError(
                f"{draft.name(given[0])}: TLS needs --{dest.replace('_', '-')} too",
                hint="both sides of a link show a certificate and check the other's: give --tls-cert, --tls-key and --tls-ca",
            )


def _log_level(draft: Draft) -> None:
    if draft.origin("quiet") == "--quiet" and draft.origin("verbose") == "--verbose":
        raise UsageError("--quiet and --verbose exclude one another", hint="leave one of them out")
    for dest, level in (("quiet", "ERROR"), ("verbose", "INFO")):
        if draft.on(dest):
            return draft.put("log_level", level, draft.origin(dest))
    if origin := draft.origins.get("ft.log_level"):
        return draft.put("log_level", draft.fields["ft"].log_level, origin)
    if draft.environ.get("NVRX_LOG_DEBUG", "").lower() in ("1", "true", "yes", "on"):
        return draft.put("log_level", "DEBUG", "NVRX_LOG_DEBUG")
    given = draft.environ.get("LOGLEVEL", "")
    if given and given.upper() not in LEVELS:
        draft.warn(f"LOGLEVEL={given} is not a level ({grammar.did_you_mean(given, LEVELS)}); using WARNING")
    known = given.upper() in LEVELS
    return draft.put("log_level", given.upper() if known else "WARNING", "LOGLEVEL" if known else "default")


def _above_zero(text: str, name: str) -> float | None:
    """Seconds. As in torchrun, a value that makes no sense switches it off."""
    try:
        return float(text) if float(text) > 0 else None
    except ValueError:
        return None


FROM_ENVIRONMENT: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "watchdog": ("TORCHELASTIC_ENABLE_FILE_TIMER", lambda text, name: text == "1"),
    "timer_file": ("TORCHELASTIC_TIMER_FILE", text_or_none),
    "log_line_prefix_template": ("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", text_or_none),
    "error_file": ("TORCHELASTIC_ERROR_FILE", text_or_none),
    "health_check_port": ("TORCHELASTIC_HEALTH_CHECK_PORT", grammar.port_number),
    "uninterruptible_timeout_s": ("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", _above_zero),
}
"""torchrun's other variables, those that only the agent reads: the field that each sets, and how it is read."""


def _from_environment(draft: Draft) -> None:
    for field, (variable, read) in FROM_ENVIRONMENT.items():
        text = draft.environ.get(variable)
        if text and (value := read(text, variable)) is not None:
            draft.put(field, value, variable)

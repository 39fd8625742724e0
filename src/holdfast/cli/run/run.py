"""`holdfast run`: the command line becomes a configuration, and the configuration one call to the agent.

Nothing is started before everything that can be wrong with the command line has been checked. The guardian comes after
that: reading the command line imports little, and a wrong flag needs no guardian.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Mapping, Sequence

from holdfast.agent.logs.nonblocking_writer import open_log, tell
from holdfast.cli.node.token import check_token_file
from holdfast.cli.run import parser
from holdfast.cli.run.folder_check import check_folders
from holdfast.cli.run.host_facts import this_host
from holdfast.cli.run.script_check import check_script
from holdfast.core.config.config import RunConfig
from holdfast.core.config.draft import Notice, Resolved, Typed, gather
from holdfast.core.config.flags import ALL_FLAGS, flags_of
from holdfast.core.config.variables import misspelt
from holdfast.core.errors import UsageError
from holdfast.core.resolve.resolve import resolve
from holdfast.core.resolve.resolve_fault_tolerance import OWN_BACKENDS
from holdfast.runtime.process.guardian import guard
from holdfast.runtime.readable import readable
from holdfast.runtime.secrets import secret_in

LEVELS = {"DEBUG": 0, "INFO": 1, "NOTE": 2, "WARNING": 2, "ERROR": 3, "CRITICAL": 4}


def run(argv: Sequence[str], *, command: str = "run") -> int:
    """Do what `holdfast run ARGV` asks. Returns the exit code; `UsageError` for what is wrong with `argv`."""
    environ = dict(os.environ)
    flags = flags_of(command)
    typed = parser.read(argv, flags, command)
    if typed.help:
        from holdfast.cli.run import help  # shutil and textwrap, which no start needs

        print(help.main_help(command) if typed.help == "main" else help.full_help(command))
        return 0
    settings = gather(typed.given, environ, flags)
    resolved = resolve(settings, typed.script, typed.script_args, environ, this_host(environ))
    notices = (*_slips(environ), *resolved.notices)
    if typed.print_config or typed.dry_run:
        return _show(resolved, typed, notices)
    _check_files_and_checks(resolved.config)
    check_script(resolved.config)
    check_folders(resolved.config)
    if resolved.config.ft.nvrx_logfile:
        _write_to(resolved.config.ft.nvrx_logfile)
    _tell(notices, resolved.config.log_level)
    return _supervise(resolved.config)


def _write_to(path: str) -> None:
    """Append what we say, and what inherits our streams, to a file from now on."""
    try:
        fd = open_log(os.path.abspath(path))
    except OSError as error:
        hint = "name a file in a folder that this user may write to"
        raise UsageError(f"--ft-nvrx-logfile: {path} cannot be written: {error.strerror}", hint=hint) from error
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _supervise(config: RunConfig) -> int:
    if "pairs" in config.check_before:
        from holdfast.cli.run.pairs import before  # subprocess and tempfile, which few starts need

        before(config)  # while this is the only process: it is a job of its own

    def agent() -> int:
        if config.logs_specs or config.rdzv_backend not in OWN_BACKENDS:
            from holdfast.elastic.from_config import run as run_agent  # torch's interfaces, which few jobs need
        else:
            from holdfast.agent.agent import run as run_agent  # here, so that the guardian stays small
        gc.freeze()  # what is loaded stays, and each look at it would take 3 ms
        gc.enable()
        try:
            code = run_agent(config)
            sys.stdout.flush()
            sys.stderr.flush()
        except BrokenPipeError:  # `main` would take it for that of a listing's reader, and for no failure
            code = 1
        os._exit(code)  # everything has been given back; taking the interpreter down would only cost milliseconds

    return guard(agent)


def _show(resolved: Resolved, typed: Typed, notices: Iterable[Notice]) -> int:
    """--print-config and --dry-run: what would be, and nothing started."""
    if typed.print_config:
        from holdfast.cli.run.show_config import as_json, as_text  # shlex, which no start needs

        print(as_json(resolved) if typed.print_config == "json" else as_text(resolved))
    if typed.dry_run:
        from holdfast.cli.run.plan import plan  # the agent's modules, which a start loads after the guardian

        print(plan(resolved.config, dict(os.environ)))
    _tell(notices, resolved.config.log_level)
    return 0


def _tell(notices: Iterable[Notice], log_level: str) -> None:
    for notice in notices:
        if LEVELS[notice.level] >= LEVELS[log_level]:
            tell(f"holdfast: {'' if notice.level == 'NOTE' else f'{notice.level}: '}{notice.text}")


def _slips(environ: Mapping[str, str]) -> list[Notice]:
    """Variables that nothing reads."""
    found = misspelt(environ, ALL_FLAGS)
    return [Notice(level="WARNING", text=f"nothing reads {name} (did you mean {meant}?)") for name, meant in found]


def _check_files_and_checks(config: RunConfig) -> None:
    """UsageError for a token that is of no use, or a check that does not exist, before anything is made for the job."""
    for flag, path in (("--tls-cert", config.tls_cert), ("--tls-key", config.tls_key), ("--tls-ca", config.tls_ca)):
        if path:
            readable(path, flag)
    if config.supervisors and config.supervisor_token_file is not None:
        secret_in(config.supervisor_token_file, "--supervisor-token-file")
    if config.token_file is not None and (unwise := check_token_file(config.token_file)):
        _tell([Notice(level="WARNING", text=unwise)], config.log_level)
    if asked := (*config.check_before, *config.check_after, *config.check_during):
        from holdfast.health.check import wanted  # 2 ms, and most jobs have no checks

        wanted(asked)

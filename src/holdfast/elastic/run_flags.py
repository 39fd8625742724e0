"""An argparse parser of torchrun's flags, from the table that Holdfast's own command is made of."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser
from collections.abc import Callable
from typing import Any

from holdfast.core.config.flags import FLAGS
from holdfast.core.config.grammar import comma_list
from holdfast.core.config.option import SWITCH, Option
from holdfast.core.config.torchrun_options import NUMA_MODES
from holdfast.elastic.argparse_util import check_env, env

_TYPES: dict[str, Callable[[str], Any]] = {
    "text": str,
    "whole": int,
    "number": float,
    "list": lambda text: list(comma_list(text)),
}
_TORCHS_OWN: dict[str, dict[str, Any]] = {
    "shutdown_timeout": {"type": int},
    "event_log_handler": {"choices": None},  # users may have registered their own
    "duplicate_stdout_filters": {"default": []},
    "duplicate_stderr_filters": {"default": []},
    "numa_binding": {"choices": list(NUMA_MODES)},
}
_WITHOUT_VARIABLE = ("logs_specs", "numa_binding")


def get_args_parser() -> ArgumentParser:
    """A parser of torchrun's flags. Their defaults are taken from the `PET_*` variables now."""
    parser = ArgumentParser(description="Run a program as the workers of a distributed job.")
    for flag in FLAGS:
        if flag.torchrun:
            _add(parser, flag)
    parser.add_argument("training_script", type=str, help="the script, module or program that every worker runs")
    parser.add_argument("training_script_args", nargs=REMAINDER, help="all that follows is the script's own")
    return parser


def _add(parser: ArgumentParser, flag: Option) -> None:
    how: dict[str, Any] = {"dest": flag.dest, "help": flag.help.replace("%", "%%")}
    if flag.reads is SWITCH:
        parser.add_argument(*flag.names, action=check_env, **how)
        return
    if flag.dest not in _WITHOUT_VARIABLE:
        how["action"] = env
    # A default is a text, as a variable's value is: argparse gives both to `type`.
    how |= {"type": _TYPES[flag.kind], "default": flag.default, "metavar": flag.metavar or None}
    if flag.choices:
        how["choices"] = list(flag.choices)
    parser.add_argument(*flag.names, **how | _TORCHS_OWN.get(flag.dest, {}))

"""What do `holdfast run --help` and `--help-all` say? The flags that most jobs need, and the table of all of them."""

from __future__ import annotations

import shutil
import textwrap

from holdfast.core.config.flags import NVRX_FLAGS, flags_of
from holdfast.core.config.option import Option

COLUMN = 34  # Where the meanings start; a longer flag gets a line of its own.
MAIN_COLUMN = 38  # The same of `--help`, which has a line for each.


MAIN = {
    "where it runs": {
        "--nproc-per-node": "workers on this node: a number, gpu, cpu or auto",
        "--nnodes": "number of nodes, or the least and the most",
        "--rdzv-endpoint": "where the nodes meet: the same on each of them",
        "--rdzv-id": "name of the job: the same on each of them",
        "--token-file": "file with the secret that the nodes share",
        "--check-before": "checks before this node takes part (holdfast check --list)",
    },
    "after a failure": {
        "--max-restarts": "how often all workers may start again",
        "--restart-period": "count restarts within so many seconds only",
        "--exclude-after": "leave out a node that failed first so often",
        "--warm-spares": "processes that have the imports done, for the next start",
        "--stash-replicas": "copies of each node's stashed state on other nodes",
    },
    "when a rank hangs": {
        "--monitor": "auto, or off: whether ranks are watched",
        "--start-limit": "longest time until a rank's first sign of life",
        "--most-limit": "longest silence of one whose heartbeats are known",
        "--progress-regex": "lines of a rank's output that are signs of life",
    },
    "what it writes": {
        "--tee": "streams to show and to keep, such as 3 for both",
        "--log-dir": "folder of the workers' logs",
        "--state-dir": "folder of what jobs record, for status, report and so on",
        "--brief": "say of a failed job only who failed, and what was decided",
    },
    "before it starts": {
        "--dry-run": "show nodes, ranks, commands and environment, and start nothing",
        "--print-config": "show each value, and where it comes from",
        "--module": "SCRIPT is a module's name",
        "--no-python": "SCRIPT is a program of its own",
    },
}
"""The flags that `--help` shows, in groups: each in a line."""

OF_FT_LAUNCHER = {
    "ft_launcher's": {
        "--ft-cfg-path": "YAML file with the section fault_tolerance",
        "--ft-rank-heartbeat-timeout": "longest time between two heartbeats of a rank",
        "--ft-initial-rank-heartbeat-timeout": "longest time until its first",
        "--ft-rank-section-timeouts": "longest time in each section",
        "--ft-restart-policy": "any-failed, or min-healthy",
    },
}


def main_help(command: str = "run") -> str:
    """What `--help` says: two screens."""
    flags = {name: flag for flag in flags_of(command) for name in flag.names}
    lines = [
        f"usage: holdfast {command} [options] SCRIPT [script's arguments]",
        "",
        "Launch SCRIPT on this node, or on this node's part of several, and keep it running:",
        "",
        f"  holdfast {command} --nproc-per-node 8 --max-restarts 3 train.py",
        f"  holdfast {command} --nnodes 2 --nproc-per-node 8 --rdzv-endpoint head --rdzv-id me train.py",
    ]
    for group, rows in (MAIN | OF_FT_LAUNCHER if command == "ft_launcher" else MAIN).items():
        lines += ["", f"{group}:"]
        lines += [f"  {_head(name, flags[name])}".ljust(MAIN_COLUMN) + says for name, says in rows.items()]
    lines += ["", f"All flags: holdfast {command} --help-all. torchrun's are taken in both of its spellings."]
    return "\n".join(lines)


def _head(name: str, flag: Option) -> str:
    """The flag with what follows, as far as there is room for that."""
    full = name if flag.is_switch else f"{name} {flag.metavar or 'VALUE'}"
    return full if len(full) < MAIN_COLUMN - 2 else name


def full_help(command: str = "run", width: int | None = None) -> str:
    """What `--help-all` says, at most `width` columns wide (default: the terminal's, between 60 and 120)."""
    if width is None:
        width = min(120, max(60, shutil.get_terminal_size().columns))
    flags = [flag for flag in flags_of(command) if command == "ft_launcher" or flag not in NVRX_FLAGS]
    lines = [f"usage: holdfast {command} [options] SCRIPT [script's arguments]", ""]
    lines += _wrapped(
        "Launch SCRIPT on this node, or on this node's part of several, and keep it running. torchrun's flags, in both "
        "spellings (--max-restarts, --max_restarts); each can also be given as the variable in brackets.",
        0,
        width,
    )
    for group in dict.fromkeys(flag.group for flag in flags):
        lines += ["", f"{group}:"]
        for flag in (flag for flag in flags if flag.group == group):
            lines += _row(flag, width)
    page = "ft_launcher" if command == "ft_launcher" else "torchrun"
    more = "" if command == "ft_launcher" else "ft_launcher's flags (--ft-…) are taken too: `holdfast ft_launcher --help`. "
    lines += ["", *_wrapped(f"{more}Reference: docs/reference/{page}.md. Try `holdfast {command} --dry-run …`.", 0, width)]
    return "\n".join(lines)


def shown(flag: Option) -> str:
    """`-r, --redirects SPEC`: the spellings worth showing, with what follows."""
    names = ", ".join(worth_showing(flag))
    return f"{names} {flag.metavar or 'VALUE'}" if not flag.is_switch else names


def worth_showing(flag: Option) -> list[str]:
    """Its spellings, without those that follow from others."""
    return [name for name in flag.names if "_" not in name and not name.startswith("--ft-param-")]


def _row(flag: Option, width: int) -> list[str]:
    text = flag.help
    if flag.choices:
        text += f"; one of {', '.join(flag.choices)}"
    if flag.default:
        text += f" (default {flag.default})"
    if flag.env:
        text += f" [{flag.env}]"
    head, body = f"  {shown(flag)}", _wrapped(text, COLUMN, width)
    if len(head) < COLUMN:
        return [head.ljust(COLUMN) + body[0].lstrip(), *body[1:]]
    return [head, *body]


def _wrapped(text: str, indent: int, width: int) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(text, width, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)

"""What is the command line and the environment of one worker?

A Python worker's command line is torchrun's, untouched: `PY -u SCRIPT args`. Holdfast gets in through the environment:
`PYTHONPATH` starts with a directory that holds nothing but a `sitecustomize` (see `client.bootstrap`). So Python itself runs
the script, and nothing about `__main__`, tracebacks or exit codes is imitated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

_CLIENT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "client")

BOOT_DIR = os.path.join(_CLIENT, "boot")  # Directory of the `sitecustomize` that starts the bootstrap.

RUN_PATH = os.path.join(_CLIENT, "run_path.py")

PAGE_FD = "HOLDFAST_PAGE_FD"  # The descriptor of the page. The bootstrap closes it and removes this.

SPARE = "HOLDFAST_SPARE"
"""In a process that waits to become a worker (`client.spare`): descriptor of its socket, pid of the agent, and HOOK_* bits."""

USER_PYTHONPATH = "HOLDFAST_USER_PYTHONPATH"  # The user's own, which is put back. Not set: none.

_MACRO = re.compile(r"\$(?:(\$)|([_a-zA-Z][_a-zA-Z0-9]*)|\{([_a-zA-Z][_a-zA-Z0-9]*)\})")


def worker_argv(
    *,
    interpreter: str,
    script: str,
    args: Sequence[str],
    module: bool = False,
    no_python: bool = False,
    run_path: bool = False,
    local_rank: int,
) -> list[str]:
    """Command line of a worker: torchrun's `PY -u SCRIPT`, `PY -u -m MODULE` or `PROGRAM`. `run_path` beats both, buffered."""
    words = [substitute(word, local_rank) for word in args]
    if run_path:
        return [interpreter, RUN_PATH, substitute(script, local_rank), *words]
    if no_python:
        return [script, *words]  # torchrun leaves `$` in a program's name alone
    return [interpreter, "-u", *(["-m"] if module else []), substitute(script, local_rank), *words]


def bootstrap_env(env: Mapping[str, str], *, page_fd: int) -> dict[str, str]:
    """`env`, and what a Python worker's bootstrap needs: its page is at `page_fd`. A plain copy where that cannot be
    reached."""
    if not can_bootstrap():
        return dict(env)
    ours = {PAGE_FD: str(page_fd), "PYTHONPATH": BOOT_DIR}
    theirs = env.get("PYTHONPATH")
    if theirs is not None:
        ours[USER_PYTHONPATH] = theirs
        if theirs:  # an empty entry would stand for the current directory
            ours["PYTHONPATH"] += os.pathsep + theirs
    return {**env, **ours}


def spare_env(env: Mapping[str, str], *, fd: int, agent: int, hook: int) -> dict[str, str]:
    """`env`, a worker's from `bootstrap_env`, made that of a spare, which has no page yet but a socket at `fd`."""
    return {name: value for name, value in env.items() if name != PAGE_FD} | {SPARE: f"{fd},{agent},{hook}"}


def can_bootstrap() -> bool:
    """False where Holdfast is installed under a path that PYTHONPATH cannot express (one with a colon)."""
    return os.pathsep not in BOOT_DIR


def substitute(word: str, local_rank: int) -> str:
    """Replace `$local_rank`, `${local_rank}` and `$$`, as `string.Template.safe_substitute` does for torchrun's arguments."""
    if "$" not in word:
        return word

    def value(found: re.Match[str]) -> str:
        if found[1]:
            return "$"
        return str(local_rank) if (found[2] or found[3]) == "local_rank" else found[0]

    return _MACRO.sub(value, word)

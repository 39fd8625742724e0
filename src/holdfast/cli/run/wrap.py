"""`holdfast wrap [FLAGS --] COMMAND …`: run a tool that calls torchrun, with `holdfast run` in torchrun's place.

The tool is started as it is, with `client/wrap/boot` first on PYTHONPATH; `client.wrap.launchers` tells what happens there.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from holdfast.cli.run import parser
from holdfast.client.wrap import launchers
from holdfast.core.config.flags import flags_of
from holdfast.core.errors import UsageError

USAGE = """usage: holdfast wrap [FLAGS --] COMMAND …

Run a tool that calls torchrun (accelerate, deepspeed, a shell script, …) with `holdfast run` in torchrun's place.

  FLAGS    flags of `holdfast run`, before those that the tool gives: --max-restarts 3, --warm-spares 1, …
  COMMAND  the tool's own command line: accelerate launch train.py

Wherever COMMAND, or a process that it starts, would be torchrun, DeepSpeed's launcher on one node, or call torchrun's Python
functions, it becomes `holdfast run FLAGS` with what torchrun was given. Nothing else about it changes."""
DIR = os.path.join(os.path.dirname(launchers.__file__), "boot")


def wrap(argv: Sequence[str]) -> int:
    """Become the tool's command. Returns only after help; UsageError for what is wrong with `argv`."""
    words = list(argv)
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    flags, command = _apart(words)
    if not command:
        raise UsageError("there is no command to run", hint="holdfast wrap accelerate launch train.py")
    known = flags_of("run")
    typed = parser.read([*flags, "--", command[0]], known, "wrap")  # told now, not when the tool is ready
    for flag in known:
        if flag.dest in typed.given:
            flag.read(typed.given[flag.dest], flag.name, os.getcwd())
    if typed.script_args:
        raise UsageError(f"{typed.script} is no flag of `holdfast run`", hint="only flags stand before --")
    program = shutil.which(command[0])
    if program is None:
        raise UsageError(f"there is no program {command[0]} in PATH", hint="is the environment that has it active?")
    try:
        os.execve(program, list(command), environment(flags, os.environ))
    except OSError as error:
        raise UsageError(f"cannot run {program}: {error.strerror}", hint="is it a program for this machine?") from error


def _apart(words: list[str]) -> tuple[list[str], list[str]]:
    if not words or not words[0].startswith("-"):
        return [], words
    if "--" not in words:
        raise UsageError("where does the command begin?", hint="give -- before it: holdfast wrap --max-restarts 3 -- COMMAND")
    end = words.index("--")
    return words[:end], words[end + 1 :]


def environment(flags: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The tool's environment. UsageError: Holdfast is installed where PYTHONPATH cannot name it."""
    if os.pathsep in DIR:
        raise UsageError(f"PYTHONPATH cannot name {DIR}, which has a colon", hint="install Holdfast under another path")
    env = launchers.unwrapped(environ)  # a wrap within a wrap: the inner one counts
    theirs = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
    asked = json.dumps({"python": sys.executable, "flags": list(flags)})
    return {**env, "PYTHONPATH": os.pathsep.join([DIR, *theirs]), launchers.VARIABLE: asked}

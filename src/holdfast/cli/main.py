"""Which command was asked for? Finds it, runs it, and turns what goes wrong into a message and an exit code.

Only the chosen command's module is imported. `run` and `launch` read their own arguments (torchrun's rules); the others are
modules of these folders with `HELP`, `arguments(parser)` and `run(options)`.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from holdfast import __version__
from holdfast.cli.arguments import CommandParser
from holdfast.core.config.flags import FLAGS
from holdfast.core.config.grammar import nearest
from holdfast.core.errors import HoldfastError, UsageError

LAUNCHING = {
    "run": "launch a script on this node, or on this node's part of several; keep it running",
    "launch": "the same with the conventions of the old torch.distributed.launch",
    "ft_launcher": "the same with the defaults and the membership of NVRx's ft_launcher",
}
WRAP = "run a tool that calls torchrun (accelerate, deepspeed, …) with Holdfast in torchrun's place"
OTHERS = ("wrap", "torchrun")  # Commands that read their arguments themselves.
TORCHRUN = "PyTorch's own torchrun, which reports its ranks to the daemon at GCP_HOST_DAEMON_PORT"
ROOMS = {
    "cli.job": "jobs status why incidents diagnose events report stop exclude readmit restart force-leader inject",
    "cli.node": "check health-service attribution doctor token completion",
    "cli.fleet": "daemon google-sensor supervisor web notify top nodes drain uncordon",
    "sim": "simulate",
}
"""Commands about jobs, this host, all hosts, and none, by the package in which each has the module of its name."""
ELSEWHERE = {
    "patch": "nothing has to be patched: `holdfast torchrun …` is PyTorch's own torchrun, and reports its ranks",
    "logs": "`holdfast report JOB` shows how a job went, and `holdfast status JOB` where its logs are",
    "ps": "`holdfast jobs` lists the jobs", "ls": "`holdfast jobs` lists the jobs", "list": "`holdfast jobs` lists the jobs",
    "kill": "`holdfast stop JOB` stops a job", "cancel": "`holdfast stop JOB` stops a job",
}  # fmt: skip
"""Words that other tools have for what is called otherwise here."""
ASKING = {command: room for room, commands in ROOMS.items() for command in commands.split()}


def main(argv: Sequence[str]) -> int:
    """Run `argv` (without the program's name). Returns the exit code."""
    command = argv[0] if argv else ""
    os.umask(os.umask(0o077) & 0o077)  # we read again what we write, also under one that takes the owner's own rights
    _mend_streams()
    try:
        code = _perform(command, argv[1:])
        sys.stdout.flush()  # here, where it is known what to do if nobody reads
        return code
    except HoldfastError as error:
        _complain(f"holdfast {command}: {error}" if command in (*LAUNCHING, "wrap", *ASKING) else f"holdfast: {error}")
        return error.exit_code
    except BrokenPipeError:  # `holdfast events | head`
        _print_nowhere()
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _complain(f"holdfast {command}: cannot write its output: {error.strerror}")
        _print_nowhere()
        return 1
    except KeyboardInterrupt:
        return 130


def _print_nowhere(fd: int = 1) -> None:
    """The interpreter's last flush has somewhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def _perform(command: str, argv: Sequence[str]) -> int:
    if command in LAUNCHING:
        gc.disable()  # until the agent is loaded: to look at what is being loaded takes a tenth of the start
        from holdfast.cli.run.run import run  # only the chosen command is loaded

        return run(argv, command=command)
    if command in ASKING:
        return _ask(command, argv)
    if command == "patch" and argv[:1] == ["torch"]:
        command, argv = "torchrun", argv[1:]  # what it stands for: nothing has to be patched
    if command == "torchrun":
        from holdfast.elastic.reporting import torchrun  # only the chosen command is loaded

        return torchrun(argv)
    if command == "wrap":
        from holdfast.cli.run.wrap import wrap  # only the chosen command is loaded

        return wrap(argv)
    return _about(command, argv)


def _complain(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # `2>&1 | head`, a full disk: the exit code has to tell it
        _print_nowhere(2)


def _mend_streams() -> None:
    """Give us standard streams where we were started without (`>&-`): the next file opened would take their numbers. And let
    no `…` fail in an ASCII terminal."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is `fd`
            setattr(sys, name, open(fd, "w" if fd else "r", closefd=False))  # noqa: SIM115
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")


def _ask(command: str, argv: Sequence[str]) -> int:
    module = command_module(command)
    parser = CommandParser(prog=f"holdfast {command}", description=module.HELP, allow_abbrev=False)
    module.arguments(parser)
    options, unknown = parser.parse_known_args(list(argv))
    if unknown:
        raise parser.unknown(unknown[0])
    code: int = module.run(options)
    return code


def command_module(command: str) -> ModuleType:
    """The module of one of `ROOMS`' commands."""
    return import_module(f"holdfast.{ASKING[command]}.{command.replace('-', '_')}")


def _about(command: str, rest: Sequence[str]) -> int:
    """No command: help, the version, or a mistake."""
    if command in ("--version", "-V", "version"):
        print(f"holdfast {__version__}")
        return 0
    if command in ("-h", "--help", "help"):
        if rest and rest[0] in (*LAUNCHING, "wrap", *ASKING):
            return main([rest[0], "--help"])
        if rest:
            raise UsageError(f"there is no command {rest[0]!r}", hint=_meant(rest[0]))
        print(_help())
        return 0
    if not command:
        print(_help(), file=sys.stderr)
        return 2
    raise UsageError(f"there is no command {command!r}", hint=_meant(command))


def _meant(word: str) -> str:
    looks_like_a_script = word.endswith((".py", ".sh")) or "/" in word
    if looks_like_a_script or any(word.split("=")[0] in flag.names for flag in FLAGS):
        return f"did you mean `holdfast run {word} …`?"
    if word in ELSEWHERE:
        return ELSEWHERE[word]
    found = nearest(word, (*LAUNCHING, "wrap", *ASKING, "torchrun", "--help", "--version"))
    return f"did you mean {found}?" if found else "`holdfast --help` lists the commands"


def commands() -> dict[str, str]:
    """Each command, and what it does."""
    asking = {name: command_module(name).HELP for name in ASKING}
    return {**LAUNCHING, "wrap": WRAP, **asking, "torchrun": TORCHRUN}


def _help() -> str:
    return "\n".join(
        [
            "usage: holdfast COMMAND …",
            "",
            "Launches distributed training and keeps it running. `holdfast run` takes torchrun's command line.",
            "",
            *(f"  {name:<14} {line.splitlines()[0]}" for name, line in commands().items()),
            "",
            "`holdfast COMMAND --help` tells more; `holdfast --version` the version.",
        ]
    )

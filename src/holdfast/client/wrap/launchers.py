"""How does a tool that calls torchrun come to call Holdfast? What happens in each Python process under `holdfast wrap`.

- A process that is torchrun (`torchrun`, `python -m torch.distributed.run` or `.launch`) or DeepSpeed's launcher of one node
  (`python -m deepspeed.launcher.launch`) becomes `holdfast run`, before it has imported anything.
- A process that calls torchrun within itself (`torch.distributed.run.run` or `.main`: accelerate, torchtune, Fabric) becomes
  `holdfast run` at that call.

All other processes go on as they are, and look in the processes that they start for the same: PYTHONPATH and `VARIABLE` stay in
their environment. Holdfast and its workers have neither.

Standard library only, nothing newer than Python 3.8, and nothing of Holdfast by name: `client/wrap/boot/sitecustomize.py` loads
this file, in interpreters that may not have Holdfast.
"""

from __future__ import annotations

import base64
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping, Sequence
    from types import ModuleType
    from typing import NoReturn

VARIABLE = "HOLDFAST_WRAP"
"""JSON: `python`, the interpreter that has Holdfast, and `flags`, those of `holdfast run` that the user gave."""

_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # Python's options that take the next word, unless they hold a value.
_TORCHRUN = {"torch.distributed.run": "run", "torch.distributed.launch": "launch"}  # Module → our command.
_DEEPSPEED = "deepspeed.launcher.launch"
_DEEPSPEED_SILENT = ("--world_info", "--no_local_rank", "--quiet", "--log_level")  # Its flags that need no word when left out.
_AS_OURS = {
    "--node_rank": "--node-rank", "--master_addr": "--master-addr", "--master_port": "--master-port",
    "--module": "--module", "--no_python": "--no-python", "--enable_each_rank_log": "--log-dir",
}  # fmt: skip


def begin(hooks: ModuleType) -> None:
    """Become Holdfast if this process is a launcher; else wait until it imports torchrun. `hooks`: `client.hooks`."""
    if VARIABLE not in os.environ:
        return
    module, arguments = asked_of_python(_command_line())
    if module in _TORCHRUN:
        become(_TORCHRUN[module], arguments)
    if module == _DEEPSPEED:
        _be_deepspeed(arguments)
    hooks.watch(lambda: None, signs=False, more={"torch.distributed.run": _take_over})


def _command_line() -> list[str]:
    with open("/proc/self/cmdline", "rb") as file:  # sys.orig_argv is newer than Python 3.8
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]


def asked_of_python(command_line: Sequence[str]) -> tuple[str, list[str]]:
    """What a Python was started for: the module's name and its arguments. torchrun's script counts as its module; another
    script, or `-c`, has no name."""
    words = list(command_line[1:])
    while words:
        word = words.pop(0)
        if word == "-m":
            return (words[0], words[1:]) if words else ("", [])
        if not word.startswith("-"):
            return ("torch.distributed.run" if os.path.basename(word) == "torchrun" else ""), words
        if word == "-c" or word == "-":
            break
        if word.startswith("-") and not word.startswith("--") and word.endswith("m") and len(word) > 2 and words:
            return words[0], words[1:]  # -um, -Im
        if word in _WITH_VALUE:
            del words[:1]
    return "", []


def become(command: str, arguments: Sequence[str], **more: str) -> NoReturn:
    """Go on as `holdfast COMMAND` with the user's flags and these arguments, in this process. `more`: for its environment."""
    asked = json.loads(os.environ[VARIABLE])
    env = {**unwrapped(os.environ), **more}
    if os.path.realpath(sys.executable) != os.path.realpath(asked["python"]) or sys.executable != asked["python"]:
        env.setdefault("PYTHON_EXEC", sys.executable)  # the tool's own interpreter runs its workers
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os.execve(asked["python"], [asked["python"], "-P", "-m", "holdfast", command, *asked["flags"], *arguments], env)


def unwrapped(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what `holdfast wrap` put there."""
    ours = os.path.join(os.path.dirname(os.path.abspath(__file__)), "boot")
    env = {name: value for name, value in environ.items() if name not in (VARIABLE, "PYTHONPATH")}
    theirs = [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder != ours]
    if theirs:
        env["PYTHONPATH"] = os.pathsep.join(theirs)
    return env


def _take_over(module: ModuleType) -> None:
    """torchrun's functions, called from within a tool, become Holdfast."""

    def run(args: Namespace) -> NoReturn:
        become("run", arguments_of(args, module.get_args_parser()))

    def main(args: Sequence[str] | None = None) -> NoReturn:
        become("run", list(sys.argv[1:] if args is None else args))

    vars(module).update(run=run, main=main)


def arguments_of(args: Namespace, parser: ArgumentParser) -> list[str]:
    """The command line that torchrun's parser would have read `args` from: flags whose value is not the default, the script,
    and its arguments."""
    found = []
    for action in parser._actions:
        value = getattr(args, action.dest, None)
        if not action.option_strings or value is None or value == action.default or str(value) == str(action.default):
            continue
        name = max(action.option_strings, key=len)
        if action.nargs == 0:
            found += [name] if value else []
        else:
            found.append(f"{name}={value}")
    rest = args.training_script_args or []
    return [*found, args.training_script, *([rest] if isinstance(rest, str) else rest)]


def _be_deepspeed(arguments: Sequence[str]) -> None:
    """Become Holdfast for what DeepSpeed's launcher was asked for. Returns, having said why, where Holdfast cannot do that."""
    given, words = {}, list(arguments)
    while words and words[0].startswith("--"):
        name, _, value = words.pop(0).partition("=")
        given[name] = value
    hosts = json.loads(base64.urlsafe_b64decode(given.get("--world_info", "")) or "{}")
    devices = list(hosts.values())
    if len({len(those) for those in devices}) != 1 or not words:
        _say("DeepSpeed's launcher starts this job, since its hosts have different numbers of devices: give each as many slots")
        return
    mine = devices[int(given.get("--node_rank", 0))]
    flags = [f"--nnodes={len(hosts)}", f"--nproc-per-node={len(mine)}"]
    for name, value in given.items():
        if value == "None" or name in _DEEPSPEED_SILENT:
            continue
        if name not in _AS_OURS:
            _say(f"DeepSpeed's {name} is left out: `holdfast run --help-all` shows what there is instead")
            continue
        flags.append(f"{_AS_OURS[name]}={value}" if value else _AS_OURS[name])
    script, *rest = words
    told = [] if "--no_local_rank" in given else ["--local_rank=${local_rank}"]
    become("run", [*flags, script, *told, *rest], CUDA_VISIBLE_DEVICES=",".join(map(str, mine)))


def _say(text: str) -> None:
    print(f"holdfast wrap: {text}", file=sys.stderr)
